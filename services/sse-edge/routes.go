package edge

import (
	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/playground"
	"rejoin/services/sse-edge/rejoinjs"
	"rejoin/shared/web"
	"rejoin/shared/web/pages"
)

// Routes are what the edge serves.
func (s *Service) Routes() []web.Route {
	routes := []web.Route{
		{Method: fiber.MethodGet, Path: "/v1/sessions/:session/streams/:stream/events", Handler: s.events, NoHead: true},
		{Method: fiber.MethodGet, Path: "/v1/sessions/:session/events", Handler: s.events, NoHead: true},
		{Method: fiber.MethodGet, Path: "/rejoin.js", Handler: pages.File(rejoinjs.Source, "text/javascript; charset=utf-8")},
	}
	routes = append(routes, s.mcpRoutes()...)
	if s.cfg.Access.On() {
		routes = append(
			routes,
			web.Route{Method: fiber.MethodPost, Path: "/v1/cookie", Handler: func(c *fiber.Ctx) error {
				return s.cfg.Access.SetCookie(c, s.cfg.CookieSameSite)
			}},
			web.Route{Method: fiber.MethodDelete, Path: "/v1/cookie", Handler: func(c *fiber.Ctx) error {
				return s.cfg.Access.DeleteCookie(c, s.cfg.CookieSameSite)
			}},
		)
	}
	if s.cfg.Playground {
		routes = append(routes, playground.Routes()...)
	}
	return routes
}
