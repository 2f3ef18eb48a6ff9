package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"rejoin/bench/measure"
	"rejoin/shared/sse"
)

// mcpClient is a client of one MCP session that reconnects when a connection breaks, to
// another edge if there is one. It does no more than it must, so that its own work does
// not affect the figures. Not safe for concurrent use.
type mcpClient struct {
	urls      []string // of MCP endpoints; the first is asked until it fails
	http      *http.Client
	session   string
	stateless bool // it speaks 2026-07-28, which has no sessions
	calls     int  // so far
}

// mcpRetry is after what time a client reconnects.
const mcpRetry = 100 * time.Millisecond

// mcpHTTP returns the HTTP client of all clients, with as many connections as they want.
func mcpHTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}}
}

// openMCP opens a session.
func openMCP(ctx context.Context, c *http.Client, urls ...string) (*mcpClient, error) {
	m := &mcpClient{urls: urls, http: c}
	resp, err := m.post(ctx, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if m.session = resp.Header.Get("Mcp-Session-Id"); m.session == "" || err != nil {
		return nil, errors.Join(errors.New("initialize made no session"), err)
	}
	if resp, err = m.post(ctx, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil {
		return nil, err
	}
	return m, resp.Body.Close()
}

const statelessRevision = "2026-07-28"

// statelessMCP returns a client of 2026-07-28.
func statelessMCP(c *http.Client, urls ...string) *mcpClient {
	return &mcpClient{urls: urls, http: c, stateless: true}
}

// call calls a tool and returns when its result is there; progress gets its steps.
func (m *mcpClient) call(ctx context.Context, tool, args string, progress func(step int)) error {
	m.calls++
	meta := `"progressToken":1`
	if m.stateless {
		meta += `,"io.modelcontextprotocol/protocolVersion":"` + statelessRevision + `","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`
	}
	resp, err := m.post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{%s}}}`, m.calls, tool, args, meta), "Mcp-Method", "tools/call", "Mcp-Name", tool)
	if err != nil {
		return err
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		data, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return err
		}
		_, err = m.message(data, progress)
		return err
	}
	for last := ""; ; {
		done, id, err := m.follow(resp.Body, progress)
		_, _ = io.Copy(io.Discard, resp.Body) // so that the connection can be reused
		_ = resp.Body.Close()
		if last = cmpID(id, last); done || err != nil {
			return err
		}
		if resp, err = m.resume(ctx, last); err != nil {
			return err
		}
	}
}

// cmpID is the newer of two ids: the first, unless there was none.
func cmpID(id, before string) string {
	if id == "" {
		return before
	}
	return id
}

// follow reads an answer until it has the result, or breaks off.
func (m *mcpClient) follow(body io.Reader, progress func(int)) (done bool, last string, err error) {
	d := sse.NewDecoder(body, 1<<20)
	for {
		e, err := d.Next()
		if err != nil {
			return false, d.LastID(), nil //nolint:nilerr // the rest is to be resumed
		}
		if len(e.Data) == 0 { // a cursor to resume at
			continue
		}
		if done, err := m.message(e.Data, progress); done || err != nil {
			return done, d.LastID(), err
		}
	}
}

// message takes a JSON-RPC message and reports whether it is the result.
func (m *mcpClient) message(data []byte, progress func(int)) (done bool, err error) {
	var msg struct {
		ID     *int
		Method string
		Params struct{ Progress int }
		Result json.RawMessage
		Error  json.RawMessage
	}
	if err := json.Unmarshal(data, &msg); err != nil {
		return false, fmt.Errorf("%w in %.200q", err, data)
	}
	switch {
	case msg.Method == "notifications/progress" && progress != nil:
		progress(msg.Params.Progress)
	case msg.ID != nil && *msg.ID == m.calls && msg.Result == nil:
		return false, fmt.Errorf("call %d failed: %s", m.calls, msg.Error)
	case msg.ID != nil && *msg.ID == m.calls:
		return true, nil
	}
	return false, nil
}

// resume asks for the rest of a stream until an edge has it.
func (m *mcpClient) resume(ctx context.Context, last string) (*http.Response, error) {
	for {
		if err := measure.Pause(ctx, mcpRetry); err != nil {
			return nil, fmt.Errorf("the rest after %q is unknown", last)
		}
		req, err := m.request(ctx, http.MethodGet, "")
		if err != nil {
			return nil, err
		}
		req.Header.Set("Last-Event-ID", last)
		resp, err := m.http.Do(req)
		switch {
		case err != nil:
			m.urls = append(m.urls[1:], m.urls[0])
			continue
		case resp.StatusCode == http.StatusOK:
			return resp, nil
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("the answer to a resume is %s %s", resp.Status, text)
	}
}

// post posts a message. The rest are header fields of a client of 2026-07-28.
func (m *mcpClient) post(ctx context.Context, body string, header ...string) (*http.Response, error) {
	req, err := m.request(ctx, http.MethodPost, body)
	if err != nil {
		return nil, err
	}
	for i := 0; m.stateless && i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := m.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusAccepted {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("the answer is %s %s", resp.Status, text)
	}
	return resp, nil
}

func (m *mcpClient) request(ctx context.Context, method, body string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, m.urls[0], bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if m.stateless {
		req.Header.Set("Mcp-Protocol-Version", statelessRevision)
	}
	if m.session != "" {
		req.Header.Set("Mcp-Session-Id", m.session)
		req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	return req, nil
}
