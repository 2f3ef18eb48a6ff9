// Package pages is what the pages that services serve to people have in common: a style
// sheet, and how their files are served.
package pages

import (
	_ "embed"

	"github.com/gofiber/fiber/v2"
)

// Style is the style sheet that comes before a page's own.
//
//go:embed base.css
var Style []byte

// ContentSecurityPolicy is the Content-Security-Policy header of every file. It allows
// nothing inline and nothing from another origin; the pages show what was written by
// others, and this is the second line of defence behind never building HTML from it.
const ContentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// File returns a handler that serves one of a page's files. The body must not change.
func File(body []byte, contentType string) fiber.Handler {
	return func(c *fiber.Ctx) error {
		c.Set(fiber.HeaderContentType, contentType)
		c.Set(fiber.HeaderContentSecurityPolicy, ContentSecurityPolicy)
		c.Set(fiber.HeaderXContentTypeOptions, "nosniff")
		c.Set(fiber.HeaderCacheControl, "no-cache")
		return c.Send(body)
	}
}
