package mcpedge

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/inspect"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// A client that reads slowly receives the response in parts, and no error after it.
func TestMCP_SlowClient(t *testing.T) {
	t.Parallel()
	b, u := newMCP(t, func(c *config) { c.WindowBytes, c.WriteTimeout = 64<<20, time.Minute })
	c := u.follow(u.post(toolCall))
	c.primed()
	var messages []string
	for range 12 { // more than sockets hold
		messages = append(messages, `{"jsonrpc":"2.0","method":"notifications/message","params":"`+strings.Repeat("x", 900<<10)+`"}`)
	}
	messages = append(messages, `{"jsonrpc":"2.0","id":"a","result":"`+strings.Repeat("x", 900<<10)+`"}`)
	b.say(u.session, b.sent(rpc.Post)[0].Stream, true, messages...)
	c.ends(messages...)
}

// The response may lie below the window, which has nothing of the call.
func TestMCP_BelowWindow(t *testing.T) {
	t.Parallel()
	b, u := newMCP(t, nil)
	c := u.follow(u.post(toolCall))
	first := c.primed()
	b.say(u.session, b.sent(rpc.Post)[0].Stream, true, progress(1), result(`"a"`))
	last := c.ends(progress(1), result(`"a"`))
	b.f.Publish("b", 300)
	small := u.at(b.f.mcpEdge(func(c *config) { c.WindowBytes = 4 << 10 }))
	small.resumes(first, progress(1), result(`"a"`))
	small.read(small.do("GET", "", "Last-Event-ID", last, "Content-Type", "")).Got(t, http.StatusNoContent)
}

// A gap that is not certain does not end a call whose client can resume later.
func TestMCP_WaitsForCheck(t *testing.T) {
	t.Parallel()
	f, b := bridged(t)
	one, stop := f.mcpService(nil)
	u := join(t, one.url(), "2025-11-25")
	c := u.follow(u.post(toolCall))
	first := c.primed()
	other := f.Publish("b", 3)
	b.say(u.session, b.sent(rpc.Post)[0].Stream, true, progress(1), result(`"a"`))
	c.ends(progress(1), result(`"a"`))
	stop()
	f.Trim("b", eventlog.Trimmed, other-2)
	f.Restart()
	u.url = f.mcpEdge(func(c *config) { c.LedgerPatience = 100 * time.Millisecond })
	c = u.get(first)
	c.primed()
	place := c.primed()
	if c.Decoder.Retry() == 0 {
		t.Error("the client is not asked to come again")
	}
	c.WantEnd()
	old := *u
	old.version = "2025-06-18"
	c = old.get(first)
	c.fails(`"a"`)
	f.Check(0)
	u.resumes(place, progress(1), result(`"a"`))
}

// Answered calls are not in the history: an installation may make thousands in a second.
func TestMCP_AnsweredCallsAreNoNews(t *testing.T) {
	t.Parallel()
	b, s, u := newMCPEdge(t, nil, nil)
	c := u.follow(u.post(toolCall))
	c.primed()
	ask := b.sent(rpc.Post)[0]
	open := func() (of []inspect.Connection) {
		of, _ = s.subs.Connections.Of(t.Context(), u.session, 10)
		return of
	}
	waittest.Until(t, "the call is there", func() bool {
		got := open()
		return len(got) == 1 && got[0].Protocol == inspect.MCPCall && got[0].Stream == ask.Stream
	})
	b.say(u.session, ask.Stream, true, progress(1), result(`"a"`))
	c.ends(progress(1), result(`"a"`))
	waittest.Until(t, "it has gone", func() bool { return len(open()) == 0 })
	standalone := u.get("")
	standalone.primed()
	waittest.Until(t, "a GET is noted", func() bool {
		all, _, _ := s.subs.Connections.History.OfSession(u.session, 10)
		return len(all) == 1 && all[0].What == inspect.Connected && all[0].Stream == rpc.Standalone && all[0].Came == inspect.FromNow
	})
}

// Of a batch that ends early, each request without a response receives an error, and no other one.
func TestMCP_BatchEndsEarly(t *testing.T) {
	for name, end := range map[string]func(*bridge, *mcpUser){
		"no bridge": func(b *bridge, _ *mcpUser) { b.leave() },
		"session ended": func(b *bridge, u *mcpUser) {
			if err := b.f.Backend.Sessions.End(waittest.Context(t), u.session, "", false); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, _, u := newMCPEdge(t, func(s *edge) { s.checkEvery, s.unheardFor = 10*time.Millisecond, 500*time.Millisecond }, nil)
			u.version = "" // 2025-03-26
			c := u.follow(u.post(`[{"jsonrpc":"2.0","id":"ü","method":"x"},{"jsonrpc":"2.0","id":2,"method":"x"}]`))
			b.say(u.session, b.sent(rpc.Post)[0].Stream, false, result(`"ü"`))
			c.says(result(`"ü"`))
			end(b, u)
			c.fails("2")
		})
	}
}

// A connection that continues a batch does not know which responses the client has.
func TestMCP_BatchIsResumed(t *testing.T) {
	b, u := newMCP(t, nil)
	u.version = "" // 2025-03-26
	c := u.follow(u.post(`[{"jsonrpc":"2.0","id":"a","method":"x"},{"jsonrpc":"2.0","id":2,"method":"x"}]`))
	stream := b.sent(rpc.Post)[0].Stream
	b.say(u.session, stream, false, result(`"a"`))
	received := c.says(result(`"a"`))
	c.Close()
	b.say(u.session, stream, true, result("2"))
	again := u.get(received)
	again.ends(result("2"))
}

// The window of an edge may be behind the ID of the response that another edge has sent. The stream then ends after the
// client has connected, which has its response and receives no error. One that lacks the response receives one.
func TestMCP_EndIsSeenAfterConnecting(t *testing.T) {
	t.Parallel()
	b, s, u := newMCPEdge(t, nil, nil)
	closing := func(last string) []byte {
		id := must.Value(event.ParseID(last))(t)
		at := window.Place{Session: u.session, Life: b.f.Life(u.session), Stream: id.Stream}
		r := must.Value(s.subs.Parts.Open(waittest.Context(t), at, cursor.Start{After: last}, window.Limits{Events: 10, Bytes: 1 << 20}))(t)
		defer r.Close()
		step, err := r.Next(waittest.Context(t))
		if err != nil || !step.Ended || len(step.Items) > 0 {
			t.Fatalf("the stream has not ended after %s: %+v, %v", last, step, err)
		}
		form := newForm(caller{version: u.version}, id.Stream)
		form.Connection, form.service, form.open, form.partly = delivery.NewConnection(s.subs.Connections, r, delivery.Request{}), s.Service, form.call, true
		return form.Closing(step)
	}
	c := u.follow(u.post(toolCall))
	c.primed()
	b.say(u.session, b.sent(rpc.Post)[0].Stream, true, progress(1), result(`"a"`))
	last := c.ends(progress(1), result(`"a"`))
	if block := closing(last); block != nil {
		t.Errorf("after its response the client receives %s", block)
	}
	c = u.follow(u.post(toolCall))
	c.primed()
	stream := b.sent(rpc.Post)[1].Stream
	b.say(u.session, stream, false, progress(1))
	last = c.says(progress(1))
	must.NoError(t, b.f.Backend.Log.EndStream(waittest.Context(t), u.session, b.f.Life(u.session), stream))
	c.fails(`"a"`)
	if block := closing(last); !strings.Contains(string(block), noResponse) {
		t.Errorf("without a response the client receives %q", block)
	}
}
