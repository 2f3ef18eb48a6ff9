package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"rejoin/shared/waittest"
)

// echoServer is an MCP server with one session, which says something of itself, and
// answers every call with an event stream.
func echoServer(t *testing.T) (url string) {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
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
			_, _ = fmt.Fprint(w, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"test","version":"1"}}}`)
		case has("tools/call"):
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[]}}\n\n")
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusAccepted)
		}
	}).URL
}

// An MCP session over an edge and a bridge that is killed, and a NATS that is restarted.
func TestPrivileges_EdgeAndBridge(t *testing.T) {
	t.Parallel()
	srv, upstream := startPrivileged(t), echoServer(t)
	srv.service(t, "janitor")
	edge := srv.service(t, "sse-edge")
	bridge := srv.service(t, "bridge", "--bridge-name=test", "--upstream="+upstream)

	session := initialize(t, edge.url)
	with := []string{"Content-Type", jsonType, "Accept", jsonType + ", text/event-stream", "Mcp-Protocol-Version", "2025-06-18", "Mcp-Session-Id", session}
	post := func(message string) answer { return do(t, http.MethodPost, edge.url+"/mcp", message, with...) }
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
	srv.service(t, "bridge", "--bridge-name=test", "--upstream="+upstream)
	calls("by the next bridge")
	srv.Stop()
	srv.Start()
	calls("after NATS")
	end, asked := inTime(t, "the end is answered", func() answer { return do(t, http.MethodDelete, edge.url+"/mcp", "", with...) })
	if end.status != http.StatusNoContent && (asked == 1 || end.status != http.StatusNotFound) {
		t.Errorf("the end is answered %d %s", end.status, end.body)
	}
	<-listening
	wereAllowed(t, srv.programs)
}
