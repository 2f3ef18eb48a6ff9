package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"rejoin/shared/waittest"
)

// echoServer is an MCP server with one session, which says something of itself, and
// answers every call with an event stream.
func echoServer(t *testing.T) (url string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is missing is no method that it knows
		has := func(method string) bool { return strings.Contains(string(body), `"`+method+`"`) }
		switch {
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case has("initialize"):
			w.Header().Set("Mcp-Session-Id", "upstream")
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"test","version":"1"}}}`)
		case has("tools/call"):
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[]}}\n\n")
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.URL
}

// An MCP session over an edge and a bridge that is killed, and a NATS that is restarted.
func TestPrivileges_EdgeAndBridge(t *testing.T) {
	t.Parallel()
	srv, upstream := startPrivileged(t), echoServer(t)
	var programs []*program
	run := func(user, says string, args ...string) *program {
		args = append(args, "--nats-url="+srv.URL(), "--nats-nkey="+srv.seed(user))
		p := startProgram(t, "rejoin/services/"+user+"/cmd/"+user, says, args...)
		programs = append(programs, p)
		return p
	}
	run("janitor", "janitor listens", "--janitor-addr=127.0.0.1:0")
	edge := run("sse-edge", "edge open", "--edge-addr=127.0.0.1:0", "--drain=0s")
	bridge := run("bridge", "bridge is open", "--bridge-name=test", "--upstream="+upstream)

	with := []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2025-06-18"}
	post := func(message string) answer { return do(t, http.MethodPost, edge.url+"/mcp", message, with...) }
	var opened answer
	waittest.Until(t, "a session is open", func() bool {
		opened = post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
		return opened.status == http.StatusOK
	})
	session := opened.header.Get("Mcp-Session-Id")
	with = append(with, "Mcp-Session-Id", session)
	post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`).got(t, http.StatusAccepted)
	calls := func(when string) {
		t.Helper()
		waittest.Until(t, "a call is answered "+when, func() bool {
			a := post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"test"}}`)
			return a.status == http.StatusOK && strings.Contains(a.body, `"content"`)
		})
	}
	calls("at first")
	waittest.Until(t, "what the MCP server says of itself is there", func() bool {
		return strings.Contains(do(t, http.MethodGet, edge.url+streamPath(session, "standalone"), "", "Accept", "application/json").body, "list_changed")
	})
	listening := make(chan struct{})
	go func() { // a connection that has to be recorded
		defer close(listening)
		_, _ = try(http.MethodGet, edge.url+"/mcp", "", "Accept", "text/event-stream", "Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-06-18")
	}()

	bridge.end(syscall.SIGKILL)
	run("bridge", "bridge is open", "--bridge-name=test", "--upstream="+upstream)
	calls("by the next bridge")
	srv.Stop()
	srv.Start()
	calls("after NATS")
	end, asked := inTime(t, "the end is answered", func() answer { return do(t, http.MethodDelete, edge.url+"/mcp", "", with...) })
	if end.status != http.StatusNoContent && (asked == 1 || end.status != http.StatusNotFound) {
		t.Errorf("the end is answered %d %s", end.status, end.body)
	}
	<-listening
	for _, p := range programs {
		p.end(syscall.SIGTERM)
		for line := range strings.Lines(p.log.String()) {
			if strings.Contains(strings.ToLower(line), "permissions violation") {
				t.Errorf("%s: %s", p.cmd.Path, line)
			}
		}
	}
}
