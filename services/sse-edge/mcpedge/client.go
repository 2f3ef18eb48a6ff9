package mcpedge

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// The headers of MCP's Streamable HTTP.
const (
	headerSession  = "Mcp-Session-Id"
	headerProtocol = mcp.HeaderVersion
	headerLastID   = "Last-Event-ID"
)

// The revisions of MCP that change what the edge does.
const (
	revisionAssumed = "2025-03-26" // of a request that names none; the only one with batches
	revisionPrimed  = "2025-11-25" // the first whose clients understand an empty event
)

// caller is the client that sent a request to /mcp.
type caller struct {
	version string // of the protocol; empty when the edge does not speak it, or it has no sessions
	asked   string // the version that it asked for
	resumes bool   // it can resume, although its version has no resuming
	grants  auth.Grants
}

// primed reports whether the client understands events without data, and reconnects
// after a connection that ends early.
func (m caller) primed() bool { return m.resumes || m.version >= revisionPrimed }

// check makes the checks that all requests have in common. A version that the edge does not
// speak is left to the handler, which knows the request's ID.
func (s *Service) check(c *fiber.Ctx) (caller, error) {
	who := caller{asked: strings.Clone(c.Get(headerProtocol))}
	who.resumes = s.cfg.ResumeStateless && who.asked == mcp.Stateless
	switch {
	case who.asked == "":
		who.version = revisionAssumed
	case slices.Contains(mcp.WithSessions, who.asked):
		who.version = who.asked
	}
	// Whatever the method, and with a token too (MCP 2025-11-25, Transports, Security).
	if s.subs.Config.Access.CrossOrigin(c) {
		return who, web.New(web.CodeOriginNotAllowed, "")
	}
	if s.subs.TooOften(c) {
		return who, web.New(web.CodeRateLimited, "This address connects too often.")
	}
	var err error
	who.grants, err = s.subs.Config.Access.Authenticate(c)
	return who, err
}

// unsupported returns the error for a client whose revision the edge does not speak; a
// client that speaks others too falls back (MCP 2026-07-28, Versioning).
func (m caller) unsupported(id json.RawMessage) error {
	if m.version != "" {
		return nil
	}
	return refusal.FromMCP(mcp.Unsupported(m.asked), id)
}

// sessionNamed returns the session that a request names, for the log.
func sessionNamed(c *fiber.Ctx) string {
	name := c.Get(headerSession)
	if name == "" {
		name = c.Query("session")
	}
	if event.CheckSession(name) != nil {
		return ""
	}
	return strings.Clone(name)
}

// sessionInHeader returns the record of the session that a request names, if the client may
// use it and it has not ended.
func (s *Service) sessionInHeader(c *fiber.Ctx, who caller) (session.Record, error) {
	name := strings.Clone(c.Get(headerSession))
	if name == "" {
		return session.Record{}, refusal.Invalid("The header Mcp-Session-Id is missing: begin with initialize.")
	}
	return s.sessionOf(c, name, who.grants)
}

// sessionOf is sessionInHeader for a session's name.
func (s *Service) sessionOf(c *fiber.Ctx, name string, grants auth.Grants) (rec session.Record, err error) {
	if event.CheckSession(name) != nil {
		return rec, refusal.ErrNoSession
	}
	ctx, cancel := context.WithTimeout(s.subs.Base, subscriber.OpenTimeout)
	defer cancel()
	if s.subs.Config.Access.On() {
		if !grants.MayPublish(name) || !grants.MaySubscribe(name) {
			return rec, s.subs.Config.Access.Insufficient(c)
		}
		rec, err = s.sessions.Visible(ctx, name, subscriber.UsedBy(grants))
	} else {
		rec, err = s.sessions.CopyOrGet(ctx, name)
	}
	switch {
	case errors.Is(err, session.ErrNotFound), err == nil && rec.State != session.Open:
		return rec, refusal.ErrNoSession
	case err != nil && cursor.Transient(err):
		return rec, web.Wrap(err, web.CodeUnavailable, "The session registry cannot be reached at the moment.")
	default:
		return rec, err
	}
}
