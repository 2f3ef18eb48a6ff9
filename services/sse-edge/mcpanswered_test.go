package edge

import (
	"strings"
	"testing"

	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
)

// A client that reads slowly gets the response in parts, and no error behind it.
func TestASlowClientIsAnsweredOnce(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	b := f.bridge()
	u := join(t, f.mcpEdge(func(c *Config) { c.WindowBytes = 64 << 20 }), "2025-11-25")
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
func TestACallBelowTheWindowIsAnsweredOnce(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	b := f.bridge()
	u := join(t, f.mcpEdge(nil), "2025-11-25")
	c := u.follow(u.post(toolCall))
	first := c.primed()
	b.say(u.session, b.sent(rpc.Post)[0].Stream, true, progress(1), result(`"a"`))
	last := c.says(progress(1), result(`"a"`))
	c.over()
	f.publish("b", 300)
	small := u.at(f.mcpEdge(func(c *Config) { c.WindowBytes = 4 << 10 }))
	again := small.get(first)
	again.primed()
	again.says(progress(1), result(`"a"`))
	again.over()
	if a := small.read(small.do("GET", "", "Last-Event-ID", last, "Content-Type", "")); a.StatusCode != 204 {
		t.Errorf("behind the response: %d %s", a.StatusCode, a.body)
	}
}
