package edge

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
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

// codeNoSession is the code of the JSON-RPC error that MCP's SDKs use for a session that is not
// there.
const codeNoSession = -32001

// mcpClient is who sent a request to /mcp.
type mcpClient struct {
	version string // of the protocol; empty when the edge does not speak it, or it has no sessions
	asked   string // for which version
	resumes bool   // it can come back, although its version has no resuming
	grants  auth.Grants
}

// primed reports whether the client understands events without data, and comes back
// after a connection that ends early.
func (m mcpClient) primed() bool { return m.resumes || m.version >= revisionPrimed }

// mcpAdmit checks what all requests have in common. A version that the edge does not
// speak is left to the handler, which knows the request's ID.
func (s *Service) mcpAdmit(c *fiber.Ctx) (mcpClient, error) {
	who := mcpClient{asked: strings.Clone(c.Get(headerProtocol))}
	who.resumes = s.cfg.MCPResumeStateless && who.asked == mcp.Modern
	switch {
	case who.asked == "":
		who.version = revisionAssumed
	case slices.Contains(mcp.Legacy, who.asked):
		who.version = who.asked
	}
	// Whatever the method, and with a token too (MCP 2025-11-25, Transports, Security).
	if s.cfg.Access.CrossOrigin(c) {
		return who, web.New(web.CodeOriginNotAllowed, "")
	}
	if s.subs.TooOften(c) {
		return who, web.New(web.CodeRateLimited, "This address connects too often.")
	}
	var err error
	who.grants, err = s.cfg.Access.Authenticate(c)
	return who, err
}

// unsupported is what a client gets whose revision the edge does not speak; one that
// speaks others too falls back (MCP 2026-07-28, Versioning).
func (m mcpClient) unsupported(id json.RawMessage) error {
	if m.version != "" {
		return nil
	}
	return asRefused(mcp.Unsupported(m.asked), id)
}

// openSession returns the record of the session that a request names, if the client may
// use it and it has not ended.
func (s *Service) openSession(c *fiber.Ctx, who mcpClient) (session.Record, error) {
	name := strings.Clone(c.Get(headerSession))
	if name == "" {
		return session.Record{}, refuseInvalid("The header Mcp-Session-Id is missing: begin with initialize.")
	}
	return s.sessionOf(c, name, who.grants)
}

// sessionOf is openSession for a session's name.
func (s *Service) sessionOf(c *fiber.Ctx, name string, grants auth.Grants) (rec session.Record, err error) {
	if event.CheckSession(name) != nil {
		return rec, errNoSession
	}
	ctx, cancel := context.WithTimeout(s.base, subscriber.OpenTimeout)
	defer cancel()
	if s.cfg.Access.On() {
		if !grants.MayPublish(name) || !grants.MaySubscribe(name) {
			return rec, s.cfg.Access.Insufficient(c)
		}
		rec, err = s.sessions.Visible(ctx, name, subscriber.UsedBy(grants))
	} else {
		rec, err = s.sessions.Learn(ctx, name)
	}
	switch {
	case errors.Is(err, session.ErrNotFound), err == nil && rec.State != session.Open:
		return rec, errNoSession
	case err != nil && cursor.Transient(err):
		return rec, web.Wrap(err, web.CodeUnavailable, "The session registry cannot be reached at the moment.")
	default:
		return rec, err
	}
}

// refusal is the answer to a request to /mcp that is not served.
type refusal struct {
	status     int
	code       int // of JSON-RPC
	message    string
	data       any
	id         json.RawMessage // of the request; nil is null
	retryAfter time.Duration
	cause      error
}

func (r *refusal) Error() string {
	if r.cause != nil {
		return r.message + " " + r.cause.Error()
	}
	return r.message
}

func (r *refusal) Unwrap() error { return r.cause }

func refuseInvalid(message string) *refusal {
	return &refusal{status: http.StatusBadRequest, code: rpc.CodeInvalid, message: message}
}

// errNoSession is answered without the request's ID: go-sdk 1.8 takes a 404 for the end of
// the session only if its body is no response to a request.
//
// See docs/upstream/0028.
var errNoSession = &refusal{status: http.StatusNotFound, code: codeNoSession, message: "There is no such session, or it has ended."}

// asRefusal returns the answer to a client for an error.
func asRefusal(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	p := web.AsProblem(err)
	r := &refusal{status: p.Status, code: rpc.CodeInvalid, message: strings.TrimSpace(p.Title + " " + p.Detail), retryAfter: web.Codes[p.Code].RetryAfter}
	if p.Status >= http.StatusInternalServerError {
		r.code = rpc.CodeInternal
	}
	return r
}

// refuse answers with a JSON-RPC error.
func (s *Service) refuse(c *fiber.Ctx, err error) error {
	r := asRefusal(err)
	level := slog.LevelDebug
	if r.status >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	s.logger.Log(c.UserContext(), level, "an MCP client is refused", "method", strings.Clone(c.Method()), "session", sessionNamed(c), "error", err)
	if r.retryAfter > 0 {
		c.Set(fiber.HeaderRetryAfter, strconv.Itoa(int(r.retryAfter/time.Second)))
	}
	s.challenge(c, r.status)
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	c.Status(r.status)
	return c.Send(rpc.ErrorMessage(r.id, r.code, r.message, r.data))
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

// wellKnown is where a client finds out who gives tokens (RFC 9728, section 3).
const wellKnown = "/.well-known/oauth-protected-resource"

// resourceRoutes tell clients where to get a token, if the edge knows.
func (s *Service) resourceRoutes() []web.Route {
	if !s.cfg.Access.On() || s.cfg.PublicURL == "" {
		return nil
	}
	return []web.Route{
		{Method: fiber.MethodGet, Path: wellKnown, Handler: s.resource("")},
		{Method: fiber.MethodGet, Path: wellKnown + "/mcp", Handler: s.resource("/mcp")},
	}
}

// resource describes the resource at a path (RFC 9728, section 2).
func (s *Service) resource(path string) fiber.Handler {
	document := delivery.Marshal(struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers,omitempty"`
		Methods  []string `json:"bearer_methods_supported"`
	}{s.cfg.PublicURL + path, s.cfg.AuthorizationServers, []string{"header"}})
	return func(c *fiber.Ctx) error {
		c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
		return c.Send(document)
	}
}

// challenge adds to WWW-Authenticate where the client finds out who gives tokens (RFC
// 9728, section 5.1).
func (s *Service) challenge(c *fiber.Ctx, status int) {
	if s.cfg.PublicURL == "" || status != http.StatusUnauthorized && status != http.StatusForbidden {
		return
	}
	if value := c.GetRespHeader(fiber.HeaderWWWAuthenticate); value != "" {
		c.Set(fiber.HeaderWWWAuthenticate, value+`, resource_metadata="`+s.cfg.PublicURL+wellKnown+`/mcp"`)
	}
}

func isWeb(u *url.URL) bool { return (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" }

// mcpForm is what makes an event stream one of MCP: other blocks than those of /v1 stand
// around the same frames.
type mcpForm struct {
	*delivery.Stream
	service *Service
	// primed says that the client understands events without data, and comes back: it
	// gets one first, and may be sent away.
	primed bool
	// call are the IDs of the requests that the stream answers; on others there are none.
	call []json.RawMessage
	// legacy says that the stream is of the transport of 2024-11-05: all streams of a
	// session in one.
	legacy bool
	// modern says that it is of a revision without sessions: its events have IDs only where the
	// client may come back, and the call is cancelled when it goes.
	modern bool
	// discovers says that the response is that to server/discover.
	discovers bool
	// answered says that the last message that the client got is a response, or that
	// another connection has gone on from here.
	answered bool
	// state is what the call is handed over with; nil for one that is not.
	state *mcp.HandOver
	// renamed is the client's newest request, of which it has the ID and the progress token; nil for a
	// call that was not handed over. kind is no other stream's.
	renamed *mcp.Request
	kind    string
	// handedOver says that the client is to make its request again.
	handedOver bool
	// claim is that of a GET.
	claim claim
	// checkAt is when the bridge is asked about the call next; zero for what is no call.
	// unheard is since when none has listened.
	checkAt, unheard time.Time
	lost             bool // it was given up
}

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
		subscriber.Uncached(c)
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
