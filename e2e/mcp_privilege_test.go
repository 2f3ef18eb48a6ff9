package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"

	"rejoin/shared/waittest"
)

// An MCP session over an edge and a bridge that is killed, and a NATS that is restarted.
func TestPrivileges_EdgeAndBridge(t *testing.T) {
	t.Parallel()
	srv, upstream := startPrivileged(t), newUpstream(t).URL
	srv.service(t, "janitor")
	edge := srv.service(t, "sse-edge")
	bridge := srv.service(t, "bridge", "--bridge-name=test", "--upstream="+upstream)

	session := initialize(t, edge.url)
	with := []string{"Content-Type", jsonType, "Accept", jsonType + ", text/event-stream", "Mcp-Protocol-Version", "2025-11-25", "Mcp-Session-Id", session}
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
		_, _ = try(http.MethodGet, edge.url+"/mcp", "", "Accept", "text/event-stream", "Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-11-25")
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
