// Package playground holds the one page that an edge serves at its root: pick
// a stream, publish to it, cut the connection, resume, and see that nothing
// was lost. The page is plain HTML, CSS and JavaScript, with no build step and
// nothing fetched from elsewhere; it uses the JavaScript client and the public
// /v1 API.
package playground

import (
	"embed"

	"rejoin/shared/web"
	"rejoin/shared/web/pages"
)

//go:embed index.html app.js style.css
var files embed.FS

// Routes returns the routes of the page, at the root.
func Routes() []web.Route { return pages.Routes("/", "/playground", files) }
