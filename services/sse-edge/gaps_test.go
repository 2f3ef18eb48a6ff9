package edge

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/flagtype"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// These tests repeat, one by one, the findings of the property test of e2e.

const flowPath = "/v1/sessions/s/events"

func (f *fixture) mark(kind event.Kind, stream string) {
	f.t.Helper()
	js := natstest.JetStream(f.t, f.Backend.Conn)
	must.Value(js.Publish(waittest.Context(f.t), event.Subject{Session: "s", Life: f.Life("s"), Stream: stream, Kind: kind}.String(), nil))(f.t)
}

// cursorAt returns the ID of a position on a path.
func cursorAt(t *testing.T, url, path string, sequence uint64) string {
	t.Helper()
	id := must.Value(event.ParseID(poll(t, url+path+"?limit=1").Cursor))(t)
	id.Sequence = sequence
	return id.String()
}

func TestGap_BeyondPage(t *testing.T) {
	f := newFixture(t)
	const removed = 395 // in the window, which holds the newest few of 400
	s, _ := f.startService(func(c *Config) { c.WindowBytes = 4 << 10 })
	url := s.url()
	f.Publish("a", 5)
	after := cursorAt(t, url, streamPath, 5)
	s.has(t, f.Publish("a", 395)) // or it would show the events that are removed then
	f.Trim("a", eventlog.Trimmed, edgetest.Sequences(1, removed)...)
	c := connect(t, url+streamPath+"?after="+after)
	if g := c.gap(); edgetest.SequenceOf(t, g.ResumesAt) != removed || !g.Certain {
		t.Errorf("gap is %+v", g)
	}
	c.Messages(5)
	f.Publish("a", 1)
	c.Messages(1) // and no second gap
}

func TestGap_CertainAndPossible(t *testing.T) {
	f := newFixture(t)
	f.Publish("a", 5)
	f.Publish("b", 5)
	f.Publish("c", 1)
	f.Trim("a", eventlog.Trimmed, edgetest.Sequences(1, 5)...)
	f.Trim("", eventlog.Cleared, edgetest.Sequences(6, 10)...)
	url := f.edge(func(c *Config) { c.WindowBackfill = -1 })
	after := cursorAt(t, url, flowPath, 1)
	c := connect(t, url+flowPath+"?after="+after)
	if g := c.gap(); !g.Certain || *g.Stream != "a" {
		t.Errorf("the first gap is %+v", g)
	}
	if g := c.gap(); g.Certain || g.Stream != nil {
		t.Errorf("the second gap is %+v", g)
	}
	c.Messages(1)
	if gaps := poll(t, url+flowPath+"?after="+after).Gaps; len(gaps) != 2 || *gaps[0].Stream != "a" || gaps[1].Stream != nil || gaps[0].Requested != after {
		t.Errorf("the page's gaps are %+v", gaps)
	}
}

func TestClear_TwoStreams(t *testing.T) {
	f := newFixture(t)
	url := f.edge(nil)
	f.Publish("a", 2)
	after := ""
	waittest.Until(t, "the events are in the window", func() bool {
		p := poll(t, url+flowPath)
		after = cursorAt(t, url, flowPath, 1)
		return len(p.Events) == 2
	})
	f.Publish("b", 2)
	f.mark(event.Clear, "a")
	f.mark(event.Clear, "b")
	f.Publish("c", 1)
	waittest.Until(t, "the clears are in the window", func() bool {
		p := poll(t, url+flowPath)
		return len(p.Events) == 1 && p.Events[0].Stream == "c"
	})
	c := connect(t, url+flowPath+"?after="+after)
	told := map[string]bool{}
	for range 2 {
		g := c.gap()
		if g.Reason != cursor.ReasonCleared || g.Stream == nil {
			t.Fatalf("gap is %+v", g)
		}
		told[*g.Stream] = true
	}
	if !told["a"] || !told["b"] {
		t.Errorf("told of %v", told)
	}
	c.Messages(1)
}

// Only damage, or a publisher without a fence, puts events after an end. The log decides:
// they are sent, and the stream is open again.
func TestReader_EventBehindTheEndCancelsTheEnd(t *testing.T) {
	f := newFixture(t)
	f.Publish("a", 3)
	f.mark(event.End, "a")
	f.Publish("a", 2)
	f.Publish("b", 300)
	small := f.edge(func(c *Config) { c.WindowBytes = 4 << 10 })
	large := f.edge(nil)
	for _, url := range []string{small, large} {
		if p := poll(t, url+streamPath+"?limit=20"); len(p.Events) != 5 || p.Closed {
			t.Errorf("%d events of the stream, closed: %v, want 5 of an open one", len(p.Events), p.Closed)
		}
		n := 0
		for _, e := range poll(t, url+flowPath+"?limit=20").Events {
			if e.Stream == "a" {
				n++
			}
		}
		if n != 5 {
			t.Errorf("%d events of the stream in the flow, want 5", n)
		}
	}
}

// The window forgets the end of a stream, and the log has it.
func TestFinal_BelowWindow(t *testing.T) {
	f := newFixture(t)
	f.Publish("a", 2)
	must.Value(f.Backend.Log.Publish(t.Context(), eventlog.Event{Session: "s", Stream: "a", Data: []byte(`{"jsonrpc":"2.0","id":1,"result":{}}`), Final: true}))(t)
	f.Publish("b", 300)
	url := f.edge(func(c *Config) { c.WindowBytes = 4 << 10; c.MaxAge = 20 * time.Second })
	c := connect(t, url+streamPath)
	final := c.Messages(3)
	c.Next("close")
	if again := subscribe(t, url+streamPath+"?after="+final); again.Response.StatusCode != http.StatusNoContent {
		t.Errorf("a resume after the final event answers %d", again.Response.StatusCode)
	}
	if p := poll(t, url+streamPath+"?after="+cursorAt(t, url, streamPath, 303)); !p.Closed {
		t.Errorf("a poll of what is over answers %+v", p)
	}
}

// The window forgets the end of a session, and the log has it.
func TestReader_EndOfASessionBelowTheWindow(t *testing.T) {
	t.Parallel()
	for _, cleared := range []bool{false, true} {
		f := newFixture(t)
		f.Create("s", "")
		f.Publish("a", 2)
		must.NoError(t, f.Backend.Sessions.End(waittest.Context(t), "s", "", cleared))
		f.PublishTo("other", "a", 300)
		url := f.edge(func(c *Config) { c.WindowBytes = 4 << 10 })
		for _, path := range []string{flowPath, streamPath} {
			p := poll(t, url+path)
			if len(p.Events) > 0 {
				p = poll(t, url+path+"?after="+p.Cursor)
			}
			if !p.Closed {
				t.Errorf("%s, cleared: %t: a page answers %+v", path, cleared, p)
			}
			if again := subscribe(t, url+path+"?after="+p.Cursor); again.Response.StatusCode != http.StatusNoContent {
				t.Errorf("%s, cleared: %t: a resume after the end answers %d", path, cleared, again.Response.StatusCode)
			}
		}
	}
}

// The end of a session is kept for longer than its opening may be.
func TestReader_EndOfASessionWithoutItsOpening(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Create("s", "")
	f.Publish("a", 2)
	f.End("s")
	end := must.Value(f.Backend.Log.NewestSequence(waittest.Context(t), event.Subject{Session: "s", Life: f.Life("s"), Kind: event.End}))(t)
	f.Purge(end)
	for _, backfill := range []int{0, -1} {
		url := f.edge(func(c *Config) { c.WindowBackfill = flagtype.Bytes(backfill) })
		if p := poll(t, url+flowPath); !p.Closed || len(p.Events) > 0 {
			t.Errorf("backfill %d: %+v", backfill, p)
		}
	}
	f.Purge(end + 1) // then the log has no entry of it
	url := f.edge(nil)
	if p := poll(t, url+flowPath); p.Closed {
		t.Errorf("an unknown session: %+v", p)
	}
	var data delivery.ConnectData
	c := subscribe(t, url+flowPath)
	if err := json.Unmarshal(c.Next("connect").Data, &data); err != nil || data.Exists {
		t.Errorf("an unknown session: %+v, %v", data, err)
	}
}

// A client that connects before its session is opened receives IDs of the session's life once
// there is one: IDs without a life would be valid in the next life as well.
func TestReader_WaitingForASessionTakesItsLife(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
	url, quietPath := s.url(), "/v1/sessions/s/streams/b/events"
	c, quiet := subscribe(t, url+flowPath), subscribe(t, url+quietPath)
	c.Next("connect")
	quiet.Next("connect")
	f.Create("s", "")
	last := f.Publish("a", 1)
	old := c.Messages(1)
	waittest.Until(t, "the cursor is after the event", func() bool { return edgetest.SequenceOf(t, quiet.Next("cursor").ID) >= last })
	oldQuiet := quiet.Next("cursor").ID
	f.Reuse("s", "")
	s.has(t, f.Publish("a", 1))
	c.Next("close")
	quiet.Next("close")
	for path, after := range map[string]string{flowPath: old, quietPath: oldQuiet} {
		if g := poll(t, url+path+"?after="+after).Gaps; len(g) != 1 || g[0].Reason != cursor.ReasonUnknown {
			t.Errorf("%s: the gaps of an ID of the life before are %+v", path, g)
		}
	}
	if p := poll(t, url+flowPath); len(p.Events) != 1 || edgetest.SequenceOf(t, p.Events[0].ID) <= last {
		t.Errorf("the new life has %+v", p.Events)
	}
}

func TestClear_WholeSession(t *testing.T) {
	f := newFixture(t)
	f.Publish("a", 2)
	f.Publish("c", 1)
	f.Publish("a", 1)
	f.Publish("b", 3)
	f.Trim("c", eventlog.Trimmed, 3) // so that the window has a hole
	url := f.edge(nil)
	after := cursorAt(t, url, flowPath, 3)
	f.mark(event.Clear, "")
	f.Publish("a", 1)
	f.Trim("", eventlog.Cleared, 1, 2, 4, 5, 6, 7)
	waittest.Until(t, "the clear is in the window", func() bool { return len(poll(t, url+flowPath).Events) == 1 })
	c := connect(t, url+flowPath+"?after="+after)
	if g := c.gap(); g.Reason != cursor.ReasonCleared || g.Stream != nil {
		t.Errorf("gap is %+v", g)
	}
	c.Messages(1)
}

// A client without a cursor has missed no event that is removed before it connects, also
// not of a stream whose events only a later page of the log holds.
func TestGap_NoneFromStart(t *testing.T) {
	f := newFixture(t)
	f.Publish("a", subscriber.StepEvents+100)
	gone := f.Publish("b", 5)
	left := f.Publish("b", 1)
	f.Trim("b", eventlog.Trimmed, edgetest.Sequences(gone-4, gone)...)
	c := connect(t, f.edge(func(c *Config) { c.WindowBackfill = -1 })+flowPath)
	if last := c.Messages(subscriber.StepEvents + 101); edgetest.SequenceOf(t, last) != left {
		t.Errorf("the last event is %s, want %d", last, left)
	}
}

// The events after the cursor are known only after a read: so connect comes after the
// first read, or it would report a cursor as resumed that was not.
func TestConnect_NotResumedBeforeGap(t *testing.T) {
	f := newFixture(t)
	f.Publish("a", 10)
	f.Trim("a", eventlog.Trimmed, edgetest.Sequences(1, 5)...)
	url := f.edge(nil)
	for after, resumed := range map[uint64]bool{2: false, 5: true} {
		c := subscribe(t, url+streamPath+"?after="+cursorAt(t, url, streamPath, after))
		e := c.Next("connect")
		var data delivery.ConnectData
		if err := json.Unmarshal(e.Data, &data); err != nil || data.Resumed != resumed || e.HasID != resumed {
			t.Errorf("after %d: connect is %s with id %q, %v", after, e.Data, e.ID, err)
		}
		if !resumed {
			c.gap()
		}
		c.Messages(5)
	}
}

// A session that the janitor has forgotten is like one that never existed: a client that waits for its
// name receives the next session of the name, and a cursor of the first one is unknown.
func TestReader_ForgottenSession(t *testing.T) {
	f := newFixture(t)
	f.Create("s", "")
	last := f.Publish("a", 3)
	followed, _ := f.startService(nil)
	old := cursorAt(t, followed.url(), streamPath, last)
	first := f.Life("s")
	f.End("s")
	state := must.Value(f.Backend.Log.Look(waittest.Context(t), 0))(t)
	controls := append([]uint64{1, 2}, edgetest.Sequences(last+1, state.Last)...)
	f.Trim("", eventlog.Trimmed, edgetest.Sequences(last-2, last)...)
	rec := must.Value(f.Backend.Sessions.Get(waittest.Context(t), "s"))(t)
	forgotten := eventlog.Trim{Session: "s", Life: first, UpTo: last, Reason: eventlog.Trimmed, Listed: controls, Forgotten: true}
	ack := must.Value(eventlogtest.Announce(waittest.Context(t), f.Backend.Log, forgotten))(t)
	f.Remove(controls...)
	must.NoError(t, f.Backend.Sessions.Remove(waittest.Context(t), rec))
	waittest.Until(t, "the edge has followed", func() bool { return followed.subs.Parts.Of("s").Stats().End >= ack.Sequence })

	started, _ := f.startService(nil) // its window has only trims
	edges := []*Service{followed, started}
	waiting := make([]*client, len(edges))
	for i, s := range edges {
		waiting[i] = subscribe(t, s.url()+streamPath)
		waiting[i].Next("connect")
	}
	f.Create("s", "")
	waittest.Until(t, "there is another life", func() bool { return f.Life("s") != first })
	f.Publish("a", 2)
	for i, s := range edges {
		waiting[i].Messages(2)
		again := connect(t, s.url()+streamPath+"?after="+old)
		if g := again.gap(); g.Reason != cursor.ReasonUnknown {
			t.Errorf("a cursor of the forgotten session: %+v", g)
		}
		again.Messages(2)
	}
}
