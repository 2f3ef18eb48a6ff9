// Package refusal has the answers to requests of MCP clients that are not served: an HTTP status
// with a JSON-RPC error. It maps the errors of other packages to them.
package refusal

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/web"
)

// CodeNoSession is the code of the JSON-RPC error that MCP's SDKs use for a session that does
// not exist.
const CodeNoSession = -32001

// Error is the answer to a request to /mcp that is not served.
type Error struct {
	Status     int
	Code       int // of JSON-RPC
	Message    string
	Data       any
	ID         json.RawMessage // of the request; nil is null
	RetryAfter time.Duration
	Cause      error
}

func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Message + " " + e.Cause.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Cause }

// Body returns the JSON-RPC error.
func (e *Error) Body() []byte { return rpc.ErrorMessage(e.ID, e.Code, e.Message, e.Data) }

// Invalid returns the refusal of a request that violates MCP.
func Invalid(message string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: rpc.CodeInvalid, Message: message}
}

// ErrNoSession is answered without the request's ID: go-sdk 1.8 takes a 404 for the end of
// the session only if its body is no response to a request.
//
// See docs/upstream/0028.
var ErrNoSession = &Error{Status: http.StatusNotFound, Code: CodeNoSession, Message: "There is no such session, or it has ended."}

// From returns the answer to a client for an error.
func From(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	p := web.AsProblem(err)
	e := &Error{Status: p.Status, Code: rpc.CodeInvalid, Message: strings.TrimSpace(p.Title + " " + p.Detail), RetryAfter: web.Codes[p.Code].RetryAfter}
	if p.Status >= http.StatusInternalServerError {
		e.Code = rpc.CodeInternal
	}
	return e
}

// FromMCP returns the refusal of a request that violates its revision; an error that is no [mcp.Error]
// stays as it is.
func FromMCP(err error, id json.RawMessage) error {
	if e, ok := errors.AsType[*mcp.Error](err); ok {
		return &Error{Status: e.Status, Code: e.Code, Message: e.Message, Data: e.Data, ID: id}
	}
	return err
}

// WithID returns an error with the ID of the request that it refuses, unless it has one or is a 404:
// see [ErrNoSession].
func WithID(err error, id json.RawMessage) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.ID != nil || e.Status == http.StatusNotFound {
		return err
	}
	n := *e
	n.ID = id
	return &n
}
