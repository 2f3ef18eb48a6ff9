// Package playground holds the one page that an edge serves at its root: pick
// a stream, publish to it, cut the connection, resume, and see that nothing
// was lost. The page is plain HTML, CSS and JavaScript, with no build step and
// nothing fetched from elsewhere; it uses the JavaScript client and the public
// /v1 API.
package playground

import (
	"embed"

	"rejoin/services/web/pages"
)

// Files holds the page as it is in this directory.
//
//go:embed index.html app.js style.css
var Files embed.FS

type asset struct {
	body        []byte
	contentType string
}

var assets = map[string]asset{
	"/":                     load("index.html", "text/html; charset=utf-8"),
	"/playground/app.js":    load("app.js", "text/javascript; charset=utf-8"),
	"/playground/base.css":  {pages.Style, "text/css; charset=utf-8"},
	"/playground/style.css": load("style.css", "text/css; charset=utf-8"),
}

// load panics on a name that go:embed does not list, which can only happen
// at program start.
func load(name, contentType string) asset {
	body, err := Files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return asset{body, contentType}
}

// Paths are what the page consists of, itself first.
func Paths() []string {
	return []string{"/", "/playground/app.js", "/playground/base.css", "/playground/style.css"}
}

// Asset returns what the URL path serves and its media type; ok is false for
// every path that is not one of the page's. The body is shared and must not
// be modified. Safe for concurrent use.
func Asset(path string) (body []byte, contentType string, ok bool) {
	a, ok := assets[path]
	return a.body, a.contentType, ok
}
