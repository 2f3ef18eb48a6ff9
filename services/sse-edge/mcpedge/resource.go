package mcpedge

import (
	"net/http"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/event"
	"rejoin/shared/web"
)

// wellKnown is the path of the metadata that names the issuers of tokens (RFC 9728, section 3).
const wellKnown = "/.well-known/oauth-protected-resource"

// ResourceRoutes returns the routes of the metadata that names the issuers of tokens, if the edge knows its public URL.
func (s *Service) ResourceRoutes() []web.Route {
	if !s.subs.Config.Access.On() || s.cfg.PublicURL == "" {
		return nil
	}
	return []web.Route{
		{Method: fiber.MethodGet, Path: wellKnown, Handler: s.resource("")},
		{Method: fiber.MethodGet, Path: wellKnown + "/mcp", Handler: s.resource("/mcp")},
	}
}

// resource describes the resource at a path (RFC 9728, section 2).
func (s *Service) resource(path string) fiber.Handler {
	document := event.MustJSON(struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers,omitempty"`
		Methods  []string `json:"bearer_methods_supported"`
	}{s.cfg.PublicURL + path, s.cfg.AuthorizationServers, []string{"header"}})
	return func(c *fiber.Ctx) error {
		c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
		return c.Send(document)
	}
}

// challenge adds the URL of the metadata that names the issuers of tokens to WWW-Authenticate
// (RFC 9728, section 5.1).
func (s *Service) challenge(c *fiber.Ctx, status int) {
	if s.cfg.PublicURL == "" || status != http.StatusUnauthorized && status != http.StatusForbidden {
		return
	}
	if value := c.GetRespHeader(fiber.HeaderWWWAuthenticate); value != "" {
		c.Set(fiber.HeaderWWWAuthenticate, value+`, resource_metadata="`+s.cfg.PublicURL+wellKnown+`/mcp"`)
	}
}
