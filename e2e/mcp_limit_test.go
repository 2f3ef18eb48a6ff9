package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	mcprev "rejoin/shared/mcp"
	"rejoin/shared/waittest"
)

// limitProxy is an HTTP proxy that cuts every event stream some time after its first byte,
// regardless of its events.
type limitProxy struct {
	*httptest.Server

	streams atomic.Int64 // that have ended, cut or not
}

func newLimitProxy(t testing.TB, target string, limit time.Duration) *limitProxy {
	t.Helper()
	p := &limitProxy{}
	p.Server = newHTTPProxy(t, target, func(resp *http.Response) error {
		if resp.Header.Get("Content-Type") == "text/event-stream" {
			resp.Body = &limitedBody{ReadCloser: resp.Body, proxy: p, limit: limit}
		}
		return nil
	})
	return p
}

// limitedBody is a body that ends some time after its first byte.
type limitedBody struct {
	io.ReadCloser
	proxy *limitProxy
	limit time.Duration
	timer *time.Timer
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 && b.timer == nil {
		b.timer = time.AfterFunc(b.limit, func() { _ = b.ReadCloser.Close() }) // the proxy reads an error then
	}
	return n, err
}

func (b *limitedBody) Close() error {
	if b.timer != nil {
		b.timer.Stop()
	}
	b.proxy.streams.Add(1)
	return b.ReadCloser.Close()
}

// A proxy cuts every event stream after a second, and the tool needs longer. With --proxy-request-limit
// the streams end before that, and without it they are cut: clients receive the result in either case.
func TestMCP_ProxyCutsEveryResponse(t *testing.T) {
	t.Parallel()
	s := startMCP(t, "--task-after=10ms", "--call-timeout=1s")
	for _, flags := range [][]string{nil, {"--proxy-request-limit=1s"}} {
		edge := s.edge(t, anyPort, flags...)
		for _, client := range []string{"TypeScript v2, 2026-07-28", "Go, 2026-07-28"} {
			name := fmt.Sprint(client, flags)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				way := newLimitProxy(t, edge.url, time.Second)
				call := mcpClients[client](t, way.URL+"/mcp", counting{Call: name, Steps: 2})
				s.server.allow(name, 1)
				call.waitFor(1)
				waittest.Until(t, "the client has lost three connections", func() bool { return way.streams.Load() >= 3 })
				s.server.allow(name, 3)
				call.finish(name, 2)
				s.server.ranOnce(t, name)
			})
		}
	}
	t.Run("a client with tasks", func(t *testing.T) {
		t.Parallel()
		way := newLimitProxy(t, s.edge(t, anyPort, "--proxy-request-limit=10s").url, 10*time.Second) // each of its requests is short
		const name = "task"
		task := askStateless(t, way.URL, mcprev.MethodCallTool, "count", `"name":"count","arguments":{"call":"task","steps":1}`).Result
		if task.TaskID == "" {
			t.Fatalf("the call is answered %+v", task)
		}
		s.server.allow(name, 2)
		waittest.Until(t, "the task is completed", func() bool {
			task = askStateless(t, way.URL, mcprev.MethodGetTask, task.TaskID, fmt.Sprintf(`"taskId":%q`, task.TaskID)).Result
			return task.Status != string(mcprev.TaskWorking)
		})
		if task.Status != string(mcprev.TaskCompleted) || !bytes.Contains(task.Result, []byte("task has counted to 1")) {
			t.Errorf("the task is %+v", task)
		}
		s.server.ranOnce(t, name)
	})
}

// statelessAnswer is the response to a client without sessions.
type statelessAnswer struct {
	Result struct {
		TaskID string `json:"taskId"`
		Status string
		Result json.RawMessage
	}
}

// askStateless makes a request as a client with tasks.
func askStateless(t testing.TB, edge, method, name, params string) (a statelessAnswer) {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`, method, params)
	got := do(t, http.MethodPost, edge+"/mcp", body, "Content-Type", "application/json", "Accept", "application/json, text/event-stream",
		"Mcp-Protocol-Version", mcprev.Stateless, "Mcp-Method", method, "Mcp-Name", name)
	text := got.body
	if _, data, ok := strings.Cut(text, "data: {"); ok {
		text, _, _ = strings.Cut("{"+data, "\n")
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatalf("%s is answered %d %s", method, got.status, got.body)
	}
	return a
}

// Clients that do not resume: an edge that stops hands their calls over, and they receive the rest
// from another one.
func TestMCP_HandedOver(t *testing.T) {
	t.Parallel()
	s := startMCP(t)
	for _, client := range []string{"TypeScript v2, 2026-07-28", "Go, 2026-07-28"} {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			edge, another := s.edge(t, anyPort, "--no-mcp-resume-stateless"), s.edge(t, anyPort, "--no-mcp-resume-stateless")
			way := newCutter(t, edge.host(), another.host())
			call := mcpClients[client](t, way.mcp(), counting{Call: client, Steps: 3})
			s.server.allow(client, 1)
			call.waitFor(1)
			way.leadTo(another.host()) // an edge that stops answers new calls with 503
			edge.end(syscall.SIGTERM)
			s.server.allow(client, 3)
			call.waitFor(3)
			s.server.allow(client, 4)
			call.silent = true // the TypeScript SDK reports the hand-over as a step
			call.finish(client, 3)
			s.server.ranOnce(t, client)
			if n := way.count(`"requestState"`); n != 1 {
				t.Errorf("the call was handed over %d times", n)
			}
		})
	}
}
