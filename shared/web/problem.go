package web

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/event"
)

// MIMEProblem is the media type of a [Problem] (RFC 9457).
const MIMEProblem = "application/problem+json"

// Problem is an error as a client receives it, in the form of RFC 9457.
// All of it is public. It is not changed after it was made, and then
// safe for concurrent use.
type Problem struct {
	Type   string `json:"type"` // urn:rejoin:problem:<code>
	Title  string `json:"title"`
	Status int    `json:"status"`
	Code   Code   `json:"code"`
	Detail string `json:"detail,omitempty"` // about this occurrence

	cause error
}

// New makes a problem of the kind that [Codes] has for code. The detail is
// shown to the client.
func New(code Code, detail string) *Problem { return Wrap(nil, code, detail) }

// Wrap is like New and keeps err as the cause, which appears in the log and is
// not sent to the client.
func Wrap(err error, code Code, detail string) *Problem {
	kind := Codes[code]
	return &Problem{
		Type:   "urn:rejoin:problem:" + string(code),
		Title:  kind.Title,
		Status: kind.Status,
		Code:   code,
		Detail: detail,
		cause:  err,
	}
}

// Error returns code, detail and cause; a cause that is the detail only once.
func (p *Problem) Error() string {
	s := string(p.Code)
	if p.Detail != "" {
		s += ": " + p.Detail
	}
	if p.cause != nil && p.cause.Error() != p.Detail {
		s = strings.TrimSuffix(s, ".") + ": " + p.cause.Error()
	}
	return s
}

// Unwrap returns the cause, or nil.
func (p *Problem) Unwrap() error { return p.cause }

// Send answers with p: status, Retry-After where its kind has one, and the
// document as the body.
func (p *Problem) Send(c *fiber.Ctx) error {
	if after := Codes[p.Code].RetryAfter; after > 0 {
		c.Set(fiber.HeaderRetryAfter, strconv.Itoa(int(after/time.Second)))
	}
	c.Set(fiber.HeaderCacheControl, "no-store")
	return c.Status(p.Status).JSON(p, MIMEProblem)
}

// AsProblem returns the problem that a client receives for err: the [*Problem] in its
// chain, or the counterpart of a [*fiber.Error], or otherwise a problem with
// the code internal that reveals nothing.
func AsProblem(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if e, ok := errors.AsType[*fiber.Error](err); ok {
		return fiberProblem(e)
	}
	return Wrap(err, CodeInternal, "")
}

// fiberCodes has the errors of Fiber's router and parser. Any other of 400 to 499, and 502, which is Fiber's status
// for a connection that broke while the request was being read, is [CodeInvalidRequest].
var fiberCodes = map[int]Code{
	http.StatusNotFound:                    CodeNotFound,
	http.StatusMethodNotAllowed:            CodeMethodNotAllowed,
	http.StatusNotAcceptable:               CodeNotAcceptable,
	http.StatusRequestTimeout:              CodeRequestTimeout,
	http.StatusRequestEntityTooLarge:       CodeBodyTooLarge,
	http.StatusUnsupportedMediaType:        CodeUnsupportedMediaType,
	http.StatusRequestHeaderFieldsTooLarge: CodeHeadersTooLarge,
	http.StatusServiceUnavailable:          CodeUnavailable,
}

// fiberProblem returns the counterpart of an error of Fiber's. Their messages quote paths and parser state, so
// no client receives them.
func fiberProblem(e *fiber.Error) *Problem {
	code, ok := fiberCodes[e.Code]
	switch {
	case code == CodeMethodNotAllowed:
		return Wrap(e, code, "The Allow header lists the methods.")
	case ok:
		return Wrap(e, code, "")
	case e.Code == http.StatusBadGateway, e.Code >= 400 && e.Code < 500:
		return Wrap(e, CodeInvalidRequest, "")
	default:
		return Wrap(e, CodeInternal, "")
	}
}

// answer sends the problem of err to the client, and logs err.
func answer(c *fiber.Ctx, cfg Config, err error) error {
	if errors.Is(err, fiber.ErrMethodNotAllowed) {
		c.Set(fiber.HeaderAllow, allow(c))
		if c.Method() == fiber.MethodOptions {
			return c.SendStatus(fiber.StatusNoContent)
		}
	}
	p := AsProblem(err)
	if p.Code == CodeNotFound && p.Detail == "" { // another service, at another port, may have it
		p = Wrap(p.cause, p.Code, "The "+cfg.Service+" has answered, which has no such path.")
	}
	cfg.Refusals.report(c, p, err)
	return p.Send(c)
}

// Place returns the session and stream that a request's path names, if it does. An invalid
// name is left out: spans must be UTF-8. A request that could not be read has no
// route, and Fiber's Params needs one.
func Place(c *fiber.Ctx) (session, stream string) {
	if len(c.Route().Params) == 0 {
		return "", ""
	}
	name := func(param string) string {
		value, err := Param(c, param)
		if err != nil || event.CheckStream(value) != nil {
			return ""
		}
		return value
	}
	return name("session"), name("stream")
}

// allow returns the methods of the resource: Fiber's router has put those
// that are registered into the response, and OPTIONS is answered for all.
func allow(c *fiber.Ctx) string {
	methods := strings.Split(c.GetRespHeader(fiber.HeaderAllow), ", ")
	methods = append(methods, fiber.MethodOptions)
	slices.Sort(methods)
	return strings.Join(slices.Compact(methods), ", ")
}
