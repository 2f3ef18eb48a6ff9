package mcpedge

import (
	"net/http"
	"strings"
	"testing"

	"rejoin/shared/waittest"
)

// A call that cannot have reached a bridge is refused at once, and waits for nothing.
func TestProtocol_Refused(t *testing.T) {
	t.Parallel()
	b, s, u := newMCPEdge(t, nil, nil)
	head, tail := `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"x":"`, `"}}`
	large := head + strings.Repeat("x", b.f.Backend.Log.Settings().MaxMessageBytes-len(head)-len(tail)) + tail
	u.read(u.post(large, "X-Padding", strings.Repeat("x", 6<<10))).Got(t, http.StatusRequestEntityTooLarge)
	b.f.Server.Stop()
	waittest.Until(t, "NATS is away", func() bool { return !s.nc.IsConnected() })
	if a := u.read(u.post(toolCall)); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("without NATS: %d %s", a.StatusCode, a.Text)
	}
	b.f.Server.Start()
}
