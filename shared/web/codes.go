package web

import (
	"net/http"
	"time"
)

// Code is the stable name of a kind of problem, for programs to act on.
type Code string

// Kind has the common part of all problems of one code.
type Kind struct {
	// Status is the HTTP status.
	Status int

	// Title describes a problem of this kind in a few words.
	Title string

	// RetryAfter is when to try again, in whole seconds. Zero: no
	// Retry-After header, since trying again would not help.
	RetryAfter time.Duration
}

// Codes has the kind of each code. It is not changed while the program runs.
var Codes = map[Code]Kind{}

// The codes of all problems that a Rejoin service returns.
var (
	CodeInvalidRequest       = kind("invalid_request", http.StatusBadRequest, "The request is not valid HTTP.", 0)
	CodeInvalidJSON          = kind("invalid_json", http.StatusBadRequest, "The body is not valid JSON.", 0)
	CodeInvalidBody          = kind("invalid_body", http.StatusBadRequest, "The body is valid JSON, but not what this resource expects.", 0)
	CodeInvalidMessage       = kind("invalid_message", http.StatusBadRequest, "The message is not a JSON-RPC 2.0 message.", 0)
	CodeInvalidName          = kind("invalid_name", http.StatusBadRequest, "The name of a session or stream is not valid.", 0)
	CodeInvalidParameter     = kind("invalid_parameter", http.StatusBadRequest, "A query parameter is not valid.", 0)
	CodeInvalidHeader        = kind("invalid_header", http.StatusBadRequest, "A header is not valid.", 0)
	CodeReservedType         = kind("reserved_type", http.StatusBadRequest, "The event type is reserved.", 0)
	CodeTokenInURL           = kind("token_in_url", http.StatusBadRequest, "A token must not be in the URL.", 0)
	CodeUnauthorized         = kind("unauthorized", http.StatusUnauthorized, "A valid token is required.", 0)
	CodeHostNotAllowed       = kind("host_not_allowed", http.StatusForbidden, "This server does not serve this host name.", 0)
	CodeOriginNotAllowed     = kind("origin_not_allowed", http.StatusForbidden, "Requests from this origin are not allowed.", 0)
	CodeInsufficientScope    = kind("insufficient_scope", http.StatusForbidden, "The token does not allow this.", 0)
	CodeNotFound             = kind("not_found", http.StatusNotFound, "Not found.", 0)
	CodeMethodNotAllowed     = kind("method_not_allowed", http.StatusMethodNotAllowed, "This resource does not support this method.", 0)
	CodeNotAcceptable        = kind("not_acceptable", http.StatusNotAcceptable, "No acceptable representation.", 0)
	CodeRequestTimeout       = kind("request_timeout", http.StatusRequestTimeout, "The request took too long to arrive.", 0)
	CodeSessionClosed        = kind("session_closed", http.StatusConflict, "The session is closed.", 0)
	CodeStreamClosed         = kind("stream_closed", http.StatusConflict, "The stream is closed.", 0)
	CodeSessionExists        = kind("session_exists", http.StatusConflict, "A session with this name already exists.", 0)
	CodeTooManyStreams       = kind("too_many_streams", http.StatusConflict, "The session has too many open streams.", 0)
	CodeGap                  = kind("gap", http.StatusGone, "Events after this cursor no longer exist.", 0)
	CodeBodyTooLarge         = kind("body_too_large", http.StatusRequestEntityTooLarge, "The body is too large.", 0)
	CodeUnsupportedMediaType = kind("unsupported_media_type", http.StatusUnsupportedMediaType, "The media type of the body is not supported.", 0)
	CodeHeadersTooLarge      = kind("headers_too_large", http.StatusRequestHeaderFieldsTooLarge, "The headers are too large.", 0)
	CodeRateLimited          = kind("rate_limited", http.StatusTooManyRequests, "Too many requests.", time.Second)
	CodeTooManySessions      = kind("too_many_sessions", http.StatusTooManyRequests, "There are too many sessions.", 30*time.Second)
	CodeInternal             = kind("internal", http.StatusInternalServerError, "Internal server error.", 0)
	CodeUnavailable          = kind("unavailable", http.StatusServiceUnavailable, "The service cannot answer at the moment.", 3*time.Second)
	CodePublishUnknown       = kind("publish_unknown", http.StatusServiceUnavailable, "Whether the event was stored is unknown.", time.Second)
	CodeStorageFull          = kind("storage_full", http.StatusServiceUnavailable, "The log has no space left.", 30*time.Second)
)

func kind(code Code, status int, title string, retryAfter time.Duration) Code {
	Codes[code] = Kind{status, title, retryAfter}
	return code
}
