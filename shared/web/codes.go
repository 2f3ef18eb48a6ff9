package web

import (
	"net/http"
	"time"
)

// Code is the stable name of a kind of problem, for programs to act on.
type Code string

// The codes of all problems that a Rejoin service returns.
const (
	CodeInvalidRequest       Code = "invalid_request"
	CodeInvalidJSON          Code = "invalid_json"
	CodeInvalidBody          Code = "invalid_body"
	CodeInvalidMessage       Code = "invalid_message"
	CodeInvalidName          Code = "invalid_name"
	CodeInvalidParameter     Code = "invalid_parameter"
	CodeInvalidHeader        Code = "invalid_header"
	CodeReservedType         Code = "reserved_type"
	CodeTokenInURL           Code = "token_in_url"
	CodeUnauthorized         Code = "unauthorized"
	CodeHostNotAllowed       Code = "host_not_allowed"
	CodeOriginNotAllowed     Code = "origin_not_allowed"
	CodeInsufficientScope    Code = "insufficient_scope"
	CodeNotFound             Code = "not_found"
	CodeMethodNotAllowed     Code = "method_not_allowed"
	CodeNotAcceptable        Code = "not_acceptable"
	CodeRequestTimeout       Code = "request_timeout"
	CodeSessionClosed        Code = "session_closed"
	CodeStreamClosed         Code = "stream_closed"
	CodeSessionExists        Code = "session_exists"
	CodeTooManyStreams       Code = "too_many_streams"
	CodeGap                  Code = "gap"
	CodeBodyTooLarge         Code = "body_too_large"
	CodeUnsupportedMediaType Code = "unsupported_media_type"
	CodeHeadersTooLarge      Code = "headers_too_large"
	CodeRateLimited          Code = "rate_limited"
	CodeTooManySessions      Code = "too_many_sessions"
	CodeInternal             Code = "internal"
	CodeUnavailable          Code = "unavailable"
	CodePublishUnknown       Code = "publish_unknown"
	CodeStorageFull          Code = "storage_full"
)

// Kind is what all problems of one code have in common.
type Kind struct {
	// Status is the HTTP status.
	Status int

	// Title says in a few words what a problem of this kind is.
	Title string

	// RetryAfter is when to try again, in whole seconds. Zero: no
	// Retry-After header, since trying again would not help.
	RetryAfter time.Duration
}

// Codes is the one place where a code gets its status and title. It is not
// changed while the program runs.
var Codes = map[Code]Kind{
	CodeInvalidRequest:       {Status: http.StatusBadRequest, Title: "The request is not valid HTTP."},
	CodeInvalidJSON:          {Status: http.StatusBadRequest, Title: "The body is not valid JSON."},
	CodeInvalidBody:          {Status: http.StatusBadRequest, Title: "The body is valid JSON, but not what this resource expects."},
	CodeInvalidMessage:       {Status: http.StatusBadRequest, Title: "The message is not a JSON-RPC 2.0 message."},
	CodeInvalidName:          {Status: http.StatusBadRequest, Title: "The name of a session or stream is not valid."},
	CodeInvalidParameter:     {Status: http.StatusBadRequest, Title: "A query parameter is not valid."},
	CodeInvalidHeader:        {Status: http.StatusBadRequest, Title: "A header is not valid."},
	CodeReservedType:         {Status: http.StatusBadRequest, Title: "The event type is reserved."},
	CodeTokenInURL:           {Status: http.StatusBadRequest, Title: "A token must not be in the URL."},
	CodeUnauthorized:         {Status: http.StatusUnauthorized, Title: "A valid token is required."},
	CodeHostNotAllowed:       {Status: http.StatusForbidden, Title: "This server does not serve this host name."},
	CodeOriginNotAllowed:     {Status: http.StatusForbidden, Title: "Requests from this origin are not allowed."},
	CodeInsufficientScope:    {Status: http.StatusForbidden, Title: "The token does not allow this."},
	CodeNotFound:             {Status: http.StatusNotFound, Title: "Not found."},
	CodeMethodNotAllowed:     {Status: http.StatusMethodNotAllowed, Title: "This resource does not support this method."},
	CodeNotAcceptable:        {Status: http.StatusNotAcceptable, Title: "No acceptable representation."},
	CodeRequestTimeout:       {Status: http.StatusRequestTimeout, Title: "The request took too long to arrive."},
	CodeSessionClosed:        {Status: http.StatusConflict, Title: "The session is closed."},
	CodeStreamClosed:         {Status: http.StatusConflict, Title: "The stream is closed."},
	CodeSessionExists:        {Status: http.StatusConflict, Title: "A session with this name already exists."},
	CodeTooManyStreams:       {Status: http.StatusConflict, Title: "The session has too many open streams."},
	CodeGap:                  {Status: http.StatusGone, Title: "Events after this cursor no longer exist."},
	CodeBodyTooLarge:         {Status: http.StatusRequestEntityTooLarge, Title: "The body is too large."},
	CodeUnsupportedMediaType: {Status: http.StatusUnsupportedMediaType, Title: "The media type of the body is not supported."},
	CodeHeadersTooLarge:      {Status: http.StatusRequestHeaderFieldsTooLarge, Title: "The headers are too large."},
	CodeRateLimited:          {Status: http.StatusTooManyRequests, Title: "Too many requests.", RetryAfter: time.Second},
	CodeTooManySessions:      {Status: http.StatusTooManyRequests, Title: "There are too many sessions.", RetryAfter: 30 * time.Second},
	CodeInternal:             {Status: http.StatusInternalServerError, Title: "Internal server error."},
	CodeUnavailable:          {Status: http.StatusServiceUnavailable, Title: "The service cannot answer at the moment.", RetryAfter: 3 * time.Second},
	CodePublishUnknown:       {Status: http.StatusServiceUnavailable, Title: "Whether the event was stored is unknown.", RetryAfter: time.Second},
	CodeStorageFull:          {Status: http.StatusServiceUnavailable, Title: "The log has no space left.", RetryAfter: 30 * time.Second},
}
