package client

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// maxProblemBytes bounds the bytes that are read of a refusal.
const maxProblemBytes = 64 << 10

// refusal reads an answer with another status than the expected one.
func refusal(resp *http.Response) *Error {
	e := &Error{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header.Get("Retry-After"))}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxProblemBytes)) // it may break off, or have no end
	var document struct {
		Code   string `json:"code"`
		Title  string `json:"title"`
		Detail string `json:"detail"`
	}
	if json.Unmarshal(body, &document) != nil {
		document.Code, document.Detail = "", http.StatusText(resp.StatusCode)
	}
	e.Code, e.Detail = document.Code, cmp.Or(document.Detail, document.Title)
	if r := resp.Request; r != nil && r.Response != nil { // 301 makes a GET of a POST, and another origin gets no token
		e.Detail += fmt.Sprintf(" (the request was redirected to %s %s: set URL to that server)", r.Method, r.URL.Redacted())
	}
	return e
}

// retryAfter reads the header of this name (RFC 9110, 10.2.3): seconds or a date.
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second //nolint:gosec // at most 31 bits
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// passing reports whether a status is worth another try. One below 400 that was not expected is a proxy's.
func passing(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	default:
		return status < 400 || status >= 500
	}
}
