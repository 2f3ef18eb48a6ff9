package inbox_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"rejoin/shared/inbox"
)

func TestIs(t *testing.T) {
	for reply, want := range map[string]bool{
		nats.NewInbox():                     true,
		inbox.Prefix("sse-edge") + ".x":     true,
		inbox.Prefix("rejoin log") + ".x.y": true,
		"_R_.da52iT.c57qGD":                 true,
		"":                                  false,
		"mcp.0.s.life.=clear":               false,
		"$KV.MCP_LEASE.janitor":             false,
		"$JS.API.STREAM.PURGE.MCP_0":        false,
		"$JS.ACK.MCP_0.c.1.1.1.1.0":         false, // a consumer's delivery
		"_INBOX":                            false,
		"x._INBOX.y":                        false,
	} {
		if got := inbox.Is(reply); got != want {
			t.Errorf("%q: %t", reply, got)
		}
	}
}
