// Package adminpage holds the page that a janitor serves for operators: sessions and their
// contents, connections, gaps, and the timeline of one session. The page is plain HTML, CSS
// and JavaScript, with no build step, and fetches nothing from other hosts; it uses the public
// /v1 API, which asks for a token that grants admin where there is access control. The page
// itself holds nothing secret.
package adminpage

import (
	"embed"

	"rejoin/shared/web"
	"rejoin/shared/web/pages"
)

//go:embed index.html *.js style.css
var files embed.FS

// Routes are the page's, at /admin.
func Routes() []web.Route { return pages.Routes("/admin", "/admin", files) }
