package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	mcprev "rejoin/shared/mcp"
	"rejoin/shared/waittest"
)

// mcpSystem is an MCP server with a bridge before it, in programs of one service each.
// Tests start the edges that they want.
type mcpSystem struct {
	nats   *natsProc
	server *mcpServer
}

func startMCP(t *testing.T, bridge ...string) *mcpSystem {
	t.Helper()
	s := &mcpSystem{nats: newNATS(t, ""), server: newMCPServer(t, nil)}
	s.nats.start()
	startService(t, "janitor", s.nats.flag())
	startService(t, "bridge", append(bridge, s.nats.flag(), "--upstream="+s.server.url, "--bridge-name=e2e")...)
	return s
}

// edge starts an edge whose clients reconnect soon; addr has port 0 for any.
func (s *mcpSystem) edge(t testing.TB, addr string, args ...string) *program {
	t.Helper()
	return startService(t, "sse-edge", append([]string{"--edge-addr=" + addr, "--retry=50ms", s.nats.flag()}, args...)...)
}

const anyPort = "127.0.0.1:0"

// host is the address of a program.
func (p *program) host() string { return strings.TrimPrefix(p.url, "http://") }

// The connections of a client are cut between events and in the middle of one; then its
// edge is killed, and it reconnects to another one. It still receives every message once,
// and the server does not notice.
func TestMCP_CallOutlivesConnectionsAndEdge(t *testing.T) {
	t.Parallel()
	s := startMCP(t)
	for name, start := range mcpClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const steps = 10
			edge, another := s.edge(t, anyPort), s.edge(t, anyPort)
			way := newCutter(t, edge.host(), another.host())
			call := start(t, way.mcp(), counting{Call: name, Steps: steps})
			step := func(n int) {
				t.Helper()
				s.server.allow(name, n)
				waittest.Until(t, fmt.Sprintf("step %d has gone to the client", n), func() bool { return way.count(fmt.Sprintf(`"progress":%d`, n)) > 0 })
				call.waitFor(n)
			}
			// Each stream of a client begins with an event that has no data: that of the
			// call, and the session's own if there is a session.
			begun, streams := 0, 2
			if strings.Contains(name, mcprev.Stateless) {
				streams = 1
			}
			trouble := func(happens func(), n int) {
				t.Helper()
				begun += streams
				waittest.Until(t, "the client listens", func() bool { return way.count("data:\n\n") >= begun })
				happens()
				step(n)
			}
			step(2)
			trouble(way.cut, 4)
			trouble(func() { way.cutAfter(20) }, 6)
			trouble(edge.kill, 8)
			s.server.allow(name, steps+1)
			call.finish(name, steps)
			s.server.ranOnce(t, name)
		})
	}
}

// A TypeScript SDK of before November 2025 reads no event without data, and does not
// reconnect for the rest of a call: it gets no farewell, and its connections outlive
// their maximum age.
func TestMCP_OldClientIsNeitherPrimedNorCut(t *testing.T) {
	t.Parallel()
	s := startMCP(t)
	edge := s.edge(t, anyPort, "--max-connection-age=1s", "--heartbeat=50ms")
	way := newRecorder(t, edge.url)
	const steps = 4
	call := typeScript(t, "sdk-1.20", way.URL+"/mcp", "count", counting{Call: "old", Steps: steps})
	s.server.allow("old", 2)
	call.waitFor(2)
	session := initialize(t, edge.url)
	for range 3 { // a client of today gets a retry each time
		a := do(t, http.MethodGet, edge.url+"/mcp", "", "Accept", "text/event-stream", "Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-11-25")
		if a.status != http.StatusOK || !strings.Contains(a.body, "id:") {
			t.Fatalf("the answer is %d %q", a.status, a.body)
		}
	}
	gets := func() (n int) {
		for _, r := range way.requests() {
			if r.method == http.MethodGet {
				n++
			}
		}
		return n
	}
	waittest.Until(t, "the client listens", func() bool { return gets() > 0 })
	s.server.allow("old", steps+1)
	call.finish("old", steps)
	if all := call.troubles(); len(all) > 0 {
		t.Errorf("the client complains: %q", all)
	}
	if n := gets(); n != 1 {
		t.Errorf("%d GET requests, want one: %+v", n, way.requests())
	}
}

// TypeScript v1 does not take an error for a response, and reconnects for one. There is
// none, and it gets the only answer after which it does not ask again.
func TestMCP_ClientResumesAFailedCall(t *testing.T) {
	t.Parallel()
	s := startMCP(t)
	edge := s.edge(t, anyPort)
	way := newRecorder(t, edge.url)
	call := typeScript(t, "@modelcontextprotocol/sdk", way.URL+"/mcp", "nothing", struct{}{})
	var back *recorded
	waittest.Until(t, "the client has come back", func() bool {
		for _, r := range way.requests() {
			if r.lastEventID != "" {
				back = &r
			}
		}
		return back != nil
	})
	if back.status != http.StatusNoContent {
		t.Errorf("it is answered %+v", back)
	}
	call.end()
	if lines := call.lines(); len(lines) == 0 || lines[len(lines)-1].Error == "" {
		t.Errorf("the client has %+v", lines)
	}
}

// initialize opens a session by hand, of revision 2025-11-25.
func initialize(t testing.TB, edge string) (session string) {
	t.Helper()
	const body = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}`
	a, _ := inTime(t, "a session is opened", func() answer {
		return do(t, http.MethodPost, edge+"/mcp", body, "Content-Type", jsonType, "Accept", jsonType+", text/event-stream")
	})
	session = a.header.Get("Mcp-Session-Id")
	if a.status != http.StatusOK || session == "" {
		t.Fatalf("initialize is answered %d %s", a.status, a.body)
	}
	return session
}

// recorder is an HTTP proxy that records requests and the status of their responses.
type recorder struct {
	*httptest.Server

	mu  sync.Mutex
	all []recorded
}

type recorded struct {
	method, lastEventID string
	status              int
}

func newRecorder(t testing.TB, target string) *recorder {
	t.Helper()
	r := &recorder{}
	r.Server = newHTTPProxy(t, target, func(resp *http.Response) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, recorded{resp.Request.Method, resp.Request.Header.Get("Last-Event-ID"), resp.StatusCode})
		return nil
	})
	return r
}

func (r *recorder) requests() []recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]recorded(nil), r.all...)
}

// No edge runs until clients have reconnected in vain. A documented proxy answers meanwhile, with each client's
// cursor, and all calls continue when an edge runs again.
func TestMCP_CallOutlivesAllEdges(t *testing.T) {
	t.Parallel()
	s := startMCP(t)
	edge := s.edge(t, anyPort)
	way := newRecorder(t, "http://"+startDocumentedProxy(t, "nginx", edge.host())) // it answers at once; HAProxy waits for a while
	const steps = 6
	calls := map[string]*mcpCall{}
	for _, name := range []string{"TypeScript v1", "TypeScript v2", "TypeScript v2, 2026-07-28", "Go", "Go, 2026-07-28"} {
		calls[name] = mcpClients[name](t, way.URL+"/mcp", counting{Call: name, Steps: steps, Gate: "all"})
	}
	s.server.allow("all", 2)
	for _, call := range calls {
		call.waitFor(2)
	}
	edge.kill()
	s.server.allow("all", 4)
	since := len(way.requests())
	waittest.Until(t, "the clients have come back in vain, most of them twice", func() bool { return len(way.requests()) >= since+2*len(calls) })
	s.edge(t, edge.host())
	s.server.allow("all", steps+1)
	for name, call := range calls {
		call.finish(name, steps)
		s.server.ranOnce(t, name)
	}
}
