package mcpedge

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/web"
)

// codeNoSession is the code of the JSON-RPC error that MCP's SDKs use for a session that is not
// there.
const codeNoSession = -32001

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

// asRefused returns the refusal of a request that is not as its revision wants it.
func asRefused(err error, id json.RawMessage) error {
	if e, ok := errors.AsType[*mcp.Error](err); ok {
		return &refusal{status: e.Status, code: e.Code, message: e.Message, data: e.Data, id: id}
	}
	return err
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
