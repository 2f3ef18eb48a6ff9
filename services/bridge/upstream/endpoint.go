// Package upstream carries messages to an MCP server and back: over HTTP, or with a process on its standard
// input and output. It knows messages and their IDs, and nothing of sessions, calls or the log.
package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"rejoin/shared/mcp"
	"rejoin/shared/quota"
	"rejoin/shared/rpc"
)

// Header fields of the transport.
const (
	HeaderSession   = "Mcp-Session-Id"
	HeaderVersion   = mcp.HeaderVersion
	HeaderLastEvent = "Last-Event-Id"
)

// idleTimeout is how long a connection is kept for the next request: less than the 5 s
// of Node and uvicorn, so that no request meets the end of one.
const idleTimeout = 3 * time.Second

// DialTimeout bounds the making of a connection to the upstream.
const DialTimeout = 10 * time.Second

// Endpoint is an MCP server that is reached over Streamable HTTP (MCP 2025-11-25,
// transports). It is safe for concurrent use.
type Endpoint struct {
	url     string
	static  http.Header
	forward []string
	client  *http.Client
}

// pingAfter is how long a connection of HTTP/2 may be silent before the bridge pings the MCP server; without an answer
// within 15 s the connection is closed. A request that is given up closes none, so the next one would take a dead
// connection.
const pingAfter = 15 * time.Second

// NewEndpoint returns the endpoint of an MCP server. Each request has the static headers, and those
// of the client that forward names. Each connection takes one of files while it is open.
func NewEndpoint(url string, static http.Header, forward []string, files *quota.Pool) *Endpoint {
	e := &Endpoint{url: url, static: static}
	for _, name := range forward {
		e.forward = append(e.forward, textproto.CanonicalMIMEHeaderKey(name))
	}
	e.client = &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         dialer{files}.dial,
			TLSHandshakeTimeout: DialTimeout,
			ForceAttemptHTTP2:   true,
			HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter},
			DisableCompression:  true, // events would wait for a compressor's buffer
			MaxIdleConnsPerHost: 256,
			IdleConnTimeout:     idleTimeout,
		},
		// Some frameworks redirect /mcp to /mcp/. Other redirects are not followed: the request
		// may carry credentials; and a POST stays one.
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 3 || req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme || req.Method != via[0].Method {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
	return e
}

// dialer makes connections that count as files.
type dialer struct{ files *quota.Pool }

// share names the share of the files that connections to the MCP server take: they belong to no single
// client, and must leave files to connections of clients.
const share = "upstream"

func (d dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if !d.files.Take(share, 1) {
		return nil, ErrFiles
	}
	give := sync.OnceFunc(func() { d.files.Give(share, 1) })
	c, err := (&net.Dialer{Timeout: DialTimeout}).DialContext(ctx, network, addr)
	if err != nil {
		give()
		return nil, err
	}
	return &conn{c, give}, nil
}

// conn is a connection whose file is given back when it is closed.
type conn struct {
	net.Conn
	give func() // once
}

// Close may be called again.
func (c *conn) Close() error {
	defer c.give()
	return c.Conn.Close()
}

// Close closes idle connections.
func (e *Endpoint) Close() { e.client.CloseIdleConnections() }

// Chosen returns the fields of a client's header that the upstream gets.
func (e *Endpoint) Chosen(client http.Header) http.Header {
	h := http.Header{}
	for _, name := range e.forward {
		if values := client.Values(name); len(values) > 0 {
			h[name] = values
		}
	}
	return h
}

// Repeat adds the fields of a client's header that repeat values in the body of a request without a
// session: the edge has compared the first of each, except those of a tool's arguments, which
// the server knows.
func Repeat(h, client http.Header) {
	for name, values := range client {
		switch {
		case name == HeaderVersion, name == mcp.HeaderMethod, name == mcp.HeaderName:
			h[name] = values[:min(len(values), 1)]
		case strings.HasPrefix(name, mcp.ParamPrefix):
			h[name] = values
		}
	}
}

// WithoutRepeated returns a client's header without those fields.
func WithoutRepeated(client http.Header) http.Header {
	h, repeated := http.Header{}, http.Header{}
	maps.Copy(h, client)
	Repeat(repeated, client)
	for name := range repeated {
		delete(h, name)
	}
	return h
}

// fieldValue has visible ASCII and spaces alone (RFC 9110, section 5).
var fieldValue = regexp.MustCompile(`^[\x20-\x7e]*$`)

// IsFieldValue reports whether a header field can have a value.
func IsFieldValue(value string) bool { return fieldValue.MatchString(value) }

// Do makes a request. The answer's body must be closed. header is not changed.
func (e *Endpoint) Do(ctx context.Context, method string, header http.Header, data []byte) (*http.Response, error) {
	var content io.Reader
	if data != nil {
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, e.url, content)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	maps.Copy(req.Header, e.static)
	switch method {
	case http.MethodPost:
		// With a field of this name net/http repeats a request when its connection breaks.
		for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
			if values, ok := req.Header[name]; ok {
				delete(req.Header, name)
				req.Header[strings.ToLower(name)] = values
			}
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
	case http.MethodGet:
		req.Header.Set("Accept", "text/event-stream")
	}
	resp, err := e.client.Do(req)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if whole, ok := errors.AsType[*url.Error](err); ok {
		err = whole.Err // the URL may hold a key
	}
	return resp, err
}

const (
	// refusalBytes bounds the part that is read of an answer that is no success.
	refusalBytes = 64 << 10
	// restWithin and restBytes bound the reading of the remaining bytes after the awaited message, so that
	// the connection can be used again.
	restWithin = time.Second
	restBytes  = 64 << 10
)

// Finish reads the little that may be left of an answer, and closes it.
func Finish(resp *http.Response) {
	timer := time.AfterFunc(restWithin, func() { _ = resp.Body.Close() })
	_, _ = io.CopyN(io.Discard, resp.Body, restBytes)
	timer.Stop()
	_ = resp.Body.Close()
}

// Refusal turns an upstream's answer that is no success into the bridge's, and closes it.
func Refusal(resp *http.Response) rpc.Answer {
	a := rpc.Answer{Status: resp.StatusCode, Header: http.Header{}}
	for _, name := range rpc.AnswerHeaders {
		if values := resp.Header.Values(name); len(values) > 0 {
			a.Header[name] = values
		}
	}
	timer := time.AfterFunc(restWithin, func() { _ = resp.Body.Close() })
	data, err := io.ReadAll(io.LimitReader(resp.Body, refusalBytes))
	timer.Stop()
	_ = resp.Body.Close()
	if m, bad := rpc.ParseMessage(data); err == nil && bad == nil && m.Error != nil {
		a.Data = data
	}
	if a.Status < http.StatusBadRequest || a.Status > 599 {
		a.Status = http.StatusBadGateway
	}
	if a.Data == nil {
		a.Data = rpc.ErrorMessage(nil, rpc.CodeInternal, fmt.Sprintf("the MCP server answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode)), nil)
	}
	return a
}

// Unreachable is the answer when the upstream gave none.
func Unreachable(err error) rpc.Answer {
	switch {
	case errors.Is(err, ErrStopping):
		return Busy(ErrStopping.Error())
	case errors.Is(err, ErrPaused):
		return Busy(ErrPaused.Error())
	case errors.Is(err, ErrFiles):
		return Busy(ErrFiles.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, ErrTimeout):
		return OutcomeUnknown("the MCP server did not answer in time")
	default:
		return Failure(http.StatusBadGateway, rpc.CodeInternal, "the MCP server cannot be reached")
	}
}

// SaysNothing reports whether a status says nothing about the MCP server's view of a request: the server is
// in trouble, or does not let the bridge in.
func SaysNothing(status int) bool {
	return status >= http.StatusInternalServerError || status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusTooManyRequests
}
