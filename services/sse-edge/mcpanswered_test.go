package edge

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
)

// A client that reads slowly gets the response in parts, and no error behind it.
func TestMCP_SlowClient(t *testing.T) {
	t.Parallel()
	b, u := newMCP(t, func(c *Config) { c.WindowBytes, c.WriteTimeout = 64<<20, time.Minute })
	c := u.follow(u.post(toolCall))
	c.primed()
	var messages []string
	for range 12 { // more than sockets hold
		messages = append(messages, `{"jsonrpc":"2.0","method":"notifications/message","params":"`+strings.Repeat("x", 900<<10)+`"}`)
	}
	messages = append(messages, `{"jsonrpc":"2.0","id":"a","result":"`+strings.Repeat("x", 900<<10)+`"}`)
	b.say(u.session, b.sent(rpc.Post)[0].Stream, true, messages...)
	c.says(messages...)
	c.over()
}

// The response may lie below the window, which has nothing of the call.
func TestMCP_BelowWindow(t *testing.T) {
	t.Parallel()
	b, u := newMCP(t, nil)
	c := u.follow(u.post(toolCall))
	first := c.primed()
	b.say(u.session, b.sent(rpc.Post)[0].Stream, true, progress(1), result(`"a"`))
	last := c.says(progress(1), result(`"a"`))
	c.over()
	b.f.Publish("b", 300)
	small := u.at(b.f.mcpEdge(func(c *Config) { c.WindowBytes = 4 << 10 }))
	again := small.get(first)
	again.primed()
	again.says(progress(1), result(`"a"`))
	again.over()
	if a := small.read(small.do("GET", "", "Last-Event-ID", last, "Content-Type", "")); a.StatusCode != http.StatusNoContent {
		t.Errorf("behind the response: %d %s", a.StatusCode, a.body)
	}
}

// What may be lost, and may not, is no end of a call whose client can ask again.
func TestMCP_WaitsForCheck(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.bridge()
	one, stop := f.mcpService(nil)
	u := join(t, one.url(), "2025-11-25")
	c := u.follow(u.post(toolCall))
	first := c.primed()
	other := f.Publish("b", 3)
	b.say(u.session, b.sent(rpc.Post)[0].Stream, true, progress(1), result(`"a"`))
	c.says(progress(1), result(`"a"`))
	c.over()
	stop()
	f.Trim("b", eventlog.Trimmed, other-2)
	f.Restart()
	u.url = f.mcpEdge(func(c *Config) { c.LedgerPatience = 100 * time.Millisecond })
	c = u.get(first)
	c.primed()
	place := c.primed()
	c.over()
	old := *u
	old.version = "2025-06-18"
	c = old.get(first)
	c.fails(`"a"`)
	c.over()
	f.Check(0)
	c = u.get(place)
	c.primed()
	c.says(progress(1), result(`"a"`))
	c.over()
}
