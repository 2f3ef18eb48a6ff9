package web

import (
	"strings"

	"github.com/gofiber/fiber/v2"
)

// The methods and headers that pages of other origins may send and read, besides those that
// the Fetch standard always allows.
const (
	corsMethods = "GET, POST, PUT, DELETE"
	corsAllowed = "Authorization, Content-Type, Last-Event-ID, Idempotency-Key, Event-Type, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name"
	corsExposed = "Mcp-Session-Id, WWW-Authenticate, Retry-After"
	corsMaxAge  = "7200" // seconds; Chromium remembers an answer for no longer
)

// cors returns a middleware that lets pages of the listed origins read the answers, with
// credentials, and answers their preflights, which have no token (Fetch standard, section
// 3.3). Answers to pages of other origins have no CORS headers, so that their browsers keep the
// answers from them. Without a list it does nothing.
func (a *Access) cors() fiber.Handler {
	if a == nil || len(a.origins) == 0 {
		return func(c *fiber.Ctx) error { return c.Next() }
	}
	return func(c *fiber.Ctx) error {
		c.Vary(fiber.HeaderOrigin)
		if !a.listed(c) {
			return c.Next()
		}
		c.Set(fiber.HeaderAccessControlAllowOrigin, c.Get(fiber.HeaderOrigin))
		c.Set(fiber.HeaderAccessControlAllowCredentials, "true")
		c.Set(fiber.HeaderCrossOriginResourcePolicy, "cross-origin") // also without CORS
		if c.Method() == fiber.MethodOptions && c.Get(fiber.HeaderAccessControlRequestMethod) != "" {
			c.Set(fiber.HeaderAccessControlAllowMethods, corsMethods)
			c.Set(fiber.HeaderAccessControlAllowHeaders, allowedHeaders(c.Get(fiber.HeaderAccessControlRequestHeaders)))
			c.Set(fiber.HeaderAccessControlMaxAge, corsMaxAge)
			return c.SendStatus(fiber.StatusNoContent)
		}
		c.Set(fiber.HeaderAccessControlExposeHeaders, corsExposed)
		return c.Next()
	}
}

// allowedHeaders returns the headers that pages may send, of those that one asks for in a preflight also the
// arguments of tools (MCP 2026-07-28, Transports, x-mcp-header): with credentials there is no wildcard.
func allowedHeaders(asked string) string {
	const param = "mcp-param-"
	allowed := corsAllowed
	for name := range strings.SplitSeq(asked, ",") {
		if name = strings.TrimSpace(name); strings.HasPrefix(strings.ToLower(name), param) {
			allowed += ", " + name
		}
	}
	return allowed
}
