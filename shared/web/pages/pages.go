// Package pages is the common part of the web pages that services serve: a style
// sheet, a script, and the routes of their files.
package pages

import (
	"embed"
	"io/fs"
	"path"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/web"
)

// base has the files that all pages share.
//
//go:embed base.css base.js
var base embed.FS

// ContentSecurityPolicy is the Content-Security-Policy header of every file. It allows
// nothing inline and nothing from another origin; the pages show text of other
// authors, and this is the second line of defence after never building HTML from it.
const ContentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// mediaTypes are those of the files, by the ends of their names.
var mediaTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
}

// Routes serve a page: its index.html at a path, and its other files, with those that all
// pages share, below a folder. It panics when a file cannot be read.
func Routes(at, folder string, files fs.FS) (routes []web.Route) {
	for _, from := range []fs.FS{files, base} {
		names, _ := fs.Glob(from, "*") // the pattern is good
		for _, name := range names {
			body, err := fs.ReadFile(from, name)
			if err != nil {
				panic(err)
			}
			where := path.Join(folder, name)
			if name == "index.html" {
				where = at
			}
			routes = append(routes, web.Route{Method: fiber.MethodGet, Path: where, Handler: File(body, mediaTypes[path.Ext(name)])})
		}
	}
	return routes
}

// File returns a handler that serves one of a page's files. The body must not change.
func File(body []byte, contentType string) fiber.Handler {
	return func(c *fiber.Ctx) error {
		c.Set(fiber.HeaderContentType, contentType)
		c.Set(fiber.HeaderContentSecurityPolicy, ContentSecurityPolicy)
		c.Set(fiber.HeaderCacheControl, "no-cache")
		return web.SendCounted(c, body, func() {})
	}
}
