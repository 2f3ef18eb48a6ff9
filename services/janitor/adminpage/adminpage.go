// Package adminpage holds the page that a janitor serves for those who run an
// installation: sessions and what they hold, who is connected, gaps, and what happened in
// one session. The page is plain HTML, CSS and JavaScript, with no build step and nothing
// fetched from elsewhere; it uses the public /v1 API, which asks for a token that grants
// admin where there is access control. The page itself holds nothing secret.
package adminpage

import (
	"embed"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/web"
	"rejoin/services/web/pages"
)

// Files holds the page as it is in this directory.
//
//go:embed index.html *.js style.css
var Files embed.FS

// Routes are the page's, at /admin.
func Routes() []web.Route {
	return []web.Route{
		route("/admin", read("index.html"), "text/html; charset=utf-8"),
		route("/admin/app.js", read("app.js"), "text/javascript; charset=utf-8"),
		route("/admin/dom.js", read("dom.js"), "text/javascript; charset=utf-8"),
		route("/admin/session.js", read("session.js"), "text/javascript; charset=utf-8"),
		route("/admin/base.css", pages.Style, "text/css; charset=utf-8"),
		route("/admin/style.css", read("style.css"), "text/css; charset=utf-8"),
	}
}

func route(path string, body []byte, contentType string) web.Route {
	return web.Route{Method: fiber.MethodGet, Path: path, Handler: pages.File(body, contentType)}
}

// read panics on a name that go:embed does not list, which can only happen at program
// start.
func read(name string) []byte {
	body, err := Files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return body
}
