package mcpedge

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/web"
)

// New returns a service that opens its streams with subs.
func New(cfg Config, subs *subscriber.Service, b *backend.Backend, env daemon.Env) (*Service, error) {
	records, err := newAttachRecords(b.Conn, b.Log.Settings().Replicas, env.Log)
	if err != nil {
		return nil, err
	}
	return &Service{
		cfg: cfg, subs: subs, nc: b.Conn, log: b.Log, sessions: b.Sessions, logger: env.Log, metrics: newMetrics(env.Metrics), traces: env.Traces,
		attached: newAttachments(subs.Base, records), checks: make(chan struct{}, maxChecks),
		checkEvery: checkEvery, unheardFor: unheardFor, requestTimeout: requestTimeout, takenTimeout: takenTimeout, bridgeWait: bridgeWait,
	}, nil
}

// Open opens the records of the newest connections before the first client connects, if NATS is
// available.
func (s *Service) Open(ctx context.Context) { s.attached.open(ctx) }

// Run ensures that of several connections of a client the newest one receives the messages, until
// ctx ends and all work in progress is done. No request or stream may outlast ctx.
func (s *Service) Run(ctx context.Context) {
	s.attached.run(ctx)
	s.attached.work.Wait()
}

// Routes returns the routes of MCP's Streamable HTTP, and of the transport before it.
func (s *Service) Routes() []web.Route {
	return []web.Route{
		{Method: fiber.MethodPost, Path: "/mcp", Handler: s.handler(s.post)},
		{Method: fiber.MethodGet, Path: "/mcp", Handler: s.handler(s.get), NoHead: true},
		{Method: fiber.MethodDelete, Path: "/mcp", Handler: s.handler(s.delete)},
		{Method: fiber.MethodGet, Path: "/sse", Handler: s.handler(s.legacyGet), NoHead: true},
		{Method: fiber.MethodPost, Path: "/messages", Handler: s.handler(s.legacyPost)},
	}
}

// handler returns a handler that checks a request, has h answer it, and sends errors to the
// client as JSON-RPC errors.
func (s *Service) handler(h func(*fiber.Ctx, caller) error) fiber.Handler {
	return func(c *fiber.Ctx) error {
		subscriber.Uncached(c)
		who, err := s.check(c)
		if err == nil {
			err = h(c, who)
		}
		if err != nil && c.Method() == fiber.MethodGet {
			err = s.later(c, who, err)
		}
		if err != nil {
			return s.refuse(c, err)
		}
		return nil
	}
}

// refuse answers with a JSON-RPC error.
func (s *Service) refuse(c *fiber.Ctx, err error) error {
	r := refusal.From(err)
	const message = "an MCP client is refused"
	switch {
	case r.Status < http.StatusInternalServerError:
		s.logger.DebugContext(c.UserContext(), message, "method", strings.Clone(c.Method()), "session", sessionNamed(c), "error", err)
	case r.Status == http.StatusInternalServerError:
		s.warn(c, web.CodeInternal, message, err)
	default:
		s.warn(c, web.CodeUnavailable, message, err)
	}
	if r.RetryAfter > 0 {
		c.Set(fiber.HeaderRetryAfter, strconv.Itoa(int(r.RetryAfter/time.Second)))
	}
	s.challenge(c, r.Status)
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	c.Status(r.Status)
	return c.Send(r.Body())
}

// warn logs or counts a failed request. Clients do not decide how much is logged.
func (s *Service) warn(c *fiber.Ctx, code web.Code, message string, err error) {
	s.subs.Refusals.Warn(c.UserContext(), code, s.subs.ClientAddress(c), message, err, "method", strings.Clone(c.Method()), "session", sessionNamed(c))
}
