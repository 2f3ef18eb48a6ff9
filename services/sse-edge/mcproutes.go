package edge

import (
	"github.com/gofiber/fiber/v2"

	"rejoin/shared/web"
)

// mcpRoutes are MCP's Streamable HTTP, and the transport before it.
func (s *Service) mcpRoutes() []web.Route {
	return append([]web.Route{
		{Method: fiber.MethodPost, Path: "/mcp", Handler: s.mcp(s.mcpPost)},
		{Method: fiber.MethodGet, Path: "/mcp", Handler: s.mcp(s.mcpGet), NoHead: true},
		{Method: fiber.MethodDelete, Path: "/mcp", Handler: s.mcp(s.mcpDelete)},
	}, append(s.legacyRoutes(), s.resourceRoutes()...)...)
}

// mcp returns a handler that lets a request in, has h answer it, and tells a client what
// is wrong as a JSON-RPC error.
func (s *Service) mcp(h func(*fiber.Ctx, mcpClient) error) fiber.Handler {
	return func(c *fiber.Ctx) error {
		uncached(c)
		who, err := s.mcpAdmit(c)
		if err == nil {
			err = h(c, who)
		}
		if err != nil && c.Method() == fiber.MethodGet {
			err = s.mcpLater(c, who, err)
		}
		if err != nil {
			return s.refuse(c, err)
		}
		return nil
	}
}
