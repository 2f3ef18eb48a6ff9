package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"time"

	"rejoin/shared/rpc"
)

// Header fields of the transport.
const (
	headerSession   = "Mcp-Session-Id"
	headerVersion   = "Mcp-Protocol-Version"
	headerLastEvent = "Last-Event-Id"
)

// idleTimeout is how long a connection is kept for the next request: less than the 5 s
// of Node and uvicorn, so that no request meets the end of one.
const idleTimeout = 3 * time.Second

// dialTimeout bounds the making of a connection to the upstream.
const dialTimeout = 10 * time.Second

// endpoint is an MCP server that is reached over Streamable HTTP (MCP 2025-11-25,
// transports). It is safe for concurrent use.
type endpoint struct {
	url     string
	static  http.Header
	forward []string
	client  *http.Client
}

func newEndpoint(cfg Config) (*endpoint, error) {
	static, err := cfg.header()
	if err != nil {
		return nil, err
	}
	e := &endpoint{url: cfg.Upstream, static: static}
	for _, name := range cfg.ForwardHeader {
		e.forward = append(e.forward, textproto.CanonicalMIMEHeaderKey(name))
	}
	e.client = &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout: dialTimeout,
			ForceAttemptHTTP2:   true,
			DisableCompression:  true, // events would wait for a compressor's buffer
			MaxIdleConnsPerHost: 256,
			IdleConnTimeout:     idleTimeout,
		},
		// Some frameworks redirect /mcp to /mcp/. Elsewhere nobody is sent: the request
		// may carry credentials; and a POST stays one.
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 3 || req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme || req.Method != via[0].Method {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
	return e, nil
}

func (e *endpoint) close() { e.client.CloseIdleConnections() }

// chosen returns what of a client's header the upstream gets.
func (e *endpoint) chosen(client http.Header) http.Header {
	h := http.Header{}
	for _, name := range e.forward {
		if values := client.Values(name); len(values) > 0 {
			h[name] = values
		}
	}
	return h
}

// do makes a request. The answer's body must be closed. header is not changed.
func (e *endpoint) do(ctx context.Context, method string, header http.Header, data []byte) (*http.Response, error) {
	var content io.Reader
	if data != nil {
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, e.url, content)
	if err != nil {
		return nil, err
	}
	for _, h := range []http.Header{header, e.static} {
		for name, values := range h {
			req.Header[name] = values
		}
	}
	switch method {
	case http.MethodPost:
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
	case http.MethodGet:
		req.Header.Set("Accept", "text/event-stream")
	}
	resp, err := e.client.Do(req)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return resp, err
}

const (
	// refusalBytes bounds what is read of an answer that is no success.
	refusalBytes = 64 << 10
	// restWithin and restBytes bound what is read behind what was waited for, so that
	// the connection can be used again.
	restWithin = time.Second
	restBytes  = 64 << 10
)

// finish reads the little that may be left of an answer, and closes it.
func finish(resp *http.Response) {
	timer := time.AfterFunc(restWithin, func() { _ = resp.Body.Close() })
	_, _ = io.CopyN(io.Discard, resp.Body, restBytes)
	timer.Stop()
	_ = resp.Body.Close()
}

// refusal makes the bridge's answer of an upstream's that is no success, and closes it.
func refusal(resp *http.Response) rpc.Answer {
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

// unreachable is the answer when there was none of the upstream.
func unreachable(err error) rpc.Answer {
	switch {
	case errors.Is(err, errStopping):
		return busy(errStopping.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errTimeout):
		return failure(http.StatusGatewayTimeout, codeTimeout, "the MCP server did not answer in time")
	default:
		return failure(http.StatusBadGateway, rpc.CodeInternal, "the MCP server cannot be reached")
	}
}
