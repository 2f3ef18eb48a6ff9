package edge

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"rejoin/shared/mcp"
	"rejoin/shared/web/webtest"
)

// Cursors and event IDs of MCP Events are those of /v1.
func TestMCP_EventsHaveIDsOfV1(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(func(c *Config) { c.MCP.Events = true })
	s.has(t, f.Publish("a", 3))
	v1 := poll(t, s.url()+streamPath)
	a := webtest.Ask(t, http.MethodPost, s.url()+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"events/poll",`+
		`"params":{"name":"rejoin.stream","arguments":{"session":"s","stream":"a"},"cursor":"`+v1.Events[1].ID+`",`+
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		"Content-Type", "application/json", "Accept", "application/json, text/event-stream", "Mcp-Method", "events/poll", "Mcp-Protocol-Version", mcp.Stateless)
	var m struct {
		Result struct {
			Events []struct {
				EventID   string
				Timestamp time.Time
			}
			Cursor string
		}
	}
	if err := json.Unmarshal([]byte(a.Text), &m); err != nil || len(m.Result.Events) != 1 {
		t.Fatalf("%d %s", a.Status, a.Text)
	}
	if got, want := m.Result.Events[0], v1.Events[2]; got.EventID != want.ID || !got.Timestamp.Equal(want.Time) || m.Result.Cursor != v1.Cursor {
		t.Errorf("%s, and at /v1 %+v", a.Text, v1)
	}
}
