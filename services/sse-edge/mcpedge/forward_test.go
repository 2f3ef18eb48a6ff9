package mcpedge

import (
	"net/http"
	"testing"

	"rejoin/shared/rpc"
)

// Clients' tokens must not pass over NATS, and a bridge has no use for them.
func TestForwarded_NoCredentials(t *testing.T) {
	f := newFixture(t)
	b := f.bridge()
	u := join(t, f.mcpEdge(nil), "2025-11-25", "Authorization", "Bearer secret", "Cookie", "rejoin=secret", "X-Own", "mine")
	u.follow(u.post(toolCall))
	if resp := u.do(http.MethodDelete, ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("the end is answered %d", resp.StatusCode)
	}
	for _, action := range []rpc.Action{rpc.Open, rpc.Post, rpc.End} {
		for _, ask := range b.sent(action) {
			if h := ask.Header; h.Get("Authorization") != "" || h.Get("Cookie") != "" || h.Get("X-Own") != "mine" {
				t.Errorf("%s has %v", action, h)
			}
		}
	}
	if len(b.sent(rpc.Open)) == 0 || len(b.sent(rpc.Post)) == 0 || len(b.sent(rpc.End)) == 0 {
		t.Error("the bridge was not asked all of it")
	}
}
