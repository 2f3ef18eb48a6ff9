package edge

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
	"rejoin/shared/session"
)

// These tests repeat, one by one, what the property test of e2e found.

const flowPath = "/v1/sessions/s/events"

func (f *fixture) remove(sequences ...uint64) {
	f.t.Helper()
	for _, sequence := range sequences {
		if err := f.b.Log.Delete(patient(f.t), 0, sequence); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) mark(kind event.Kind, stream string) uint64 {
	f.t.Helper()
	ack, err := f.b.Log.Mark(patient(f.t), kind, "s", stream)
	if err != nil {
		f.t.Fatal(err)
	}
	return ack.Sequence
}

// cursorAt returns the ID of a position on a path.
func cursorAt(t *testing.T, url, path string, sequence uint64) string {
	t.Helper()
	id, err := event.ParseID(poll(t, url+path+"?limit=1").Cursor)
	if err != nil {
		t.Fatal(err)
	}
	id.Sequence = sequence
	return id.String()
}

func says(all ...marks.StreamMark) func(marks.Request) marks.Reply {
	return func(marks.Request) marks.Reply { return marks.Reply{Marks: all} }
}

func TestAGapReachesTheLastRemovedEventEvenBehindThePageThatWasRead(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	const removed = 395 // in the window, which holds the newest few of 400
	f.ledger(says(marks.StreamMark{Session: "s", Stream: "a", Mark: marks.Mark{Removed: removed, Reason: marks.Trimmed}}))
	s, _ := f.startService(func(c *Config) { c.WindowBytes = 4 << 10 })
	url := s.url()
	f.publish("a", 5)
	after := cursorAt(t, url, streamPath, 5)
	s.has(t, f.publish("a", 395)) // or it would show what is removed then
	f.remove(seq(1, removed)...)
	c := subscribe(t, url+streamPath+"?after="+after)
	c.next("connect")
	if g := c.gap(); sequenceOf(t, g.ResumesAt) != removed || !g.Certain {
		t.Errorf("gap is %+v", g)
	}
	c.messages(5)
	f.publish("a", 1)
	c.messages(1) // and no second gap
}

func TestTheLedgerIsAskedAboutAllThatWasStoredWhenTheLogWasRead(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	last := f.publish("a", 400)
	asked := make(chan uint64, 100)
	f.ledger(func(req marks.Request) marks.Reply {
		if req.Session != "" || len(req.Places) > 0 {
			asked <- req.Through
		}
		return marks.Reply{}
	})
	url := f.edge(func(c *Config) { c.WindowBytes = 4 << 10 })
	poll(t, url+streamPath+"?limit=1")
	if through := <-asked; through != last {
		t.Errorf("asked through %d, want %d: an event behind the page may have pushed out one in it", through, last)
	}
}

func TestAFlowIsToldOfCertainAndOfPossibleLossesTogether(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.publish("a", 5)
	f.publish("b", 5)
	f.publish("c", 1)
	f.remove(seq(1, 10)...)
	f.ledger(says(
		marks.StreamMark{Session: "s", Stream: "a", Mark: marks.Mark{Removed: 5, Reason: marks.Trimmed}},
		marks.StreamMark{Session: "s", Stream: "b", Mark: marks.Mark{Maybe: 10}},
	))
	url := f.edge(func(c *Config) { c.WindowBackfill = -1 })
	after := cursorAt(t, url, flowPath, 1)
	c := subscribe(t, url+flowPath+"?after="+after)
	c.next("connect")
	if g := c.gap(); !g.Certain || *g.Stream != "a" {
		t.Errorf("the first gap is %+v", g)
	}
	if g := c.gap(); g.Certain || g.Stream != nil {
		t.Errorf("the second gap is %+v", g)
	}
	c.messages(1)
	// A page has room for one gap, which then is about all streams.
	if g := poll(t, url+flowPath+"?after="+after).Gap; g == nil || g.Stream != nil {
		t.Errorf("the page's gap is %+v", g)
	}
}

func TestClearsOfTwoStreamsAreBothToldOnAFlow(t *testing.T) {
	f := newIntact(t)
	url := f.edge(nil)
	f.publish("a", 2)
	after := ""
	eventually(t, "the events are in the window", func() bool {
		p := poll(t, url+flowPath)
		after = cursorAt(t, url, flowPath, 1)
		return len(p.Events) == 2
	})
	f.publish("b", 2)
	f.mark(event.Clear, "a")
	f.mark(event.Clear, "b")
	f.publish("c", 1)
	eventually(t, "the clears are in the window", func() bool {
		p := poll(t, url+flowPath)
		return len(p.Events) == 1 && p.Events[0].Stream == "c"
	})
	c := subscribe(t, url+flowPath+"?after="+after)
	c.next("connect")
	told := map[string]bool{}
	for range 2 {
		g := c.gap()
		if g.Reason != ReasonCleared || g.Stream == nil {
			t.Fatalf("gap is %+v", g)
		}
		told[*g.Stream] = true
	}
	if !told["a"] || !told["b"] {
		t.Errorf("told of %v", told)
	}
	c.messages(1)
}

func TestEventsBehindTheEndAreNotSentFromTheLogEither(t *testing.T) {
	f := newIntact(t)
	f.publish("a", 3)
	f.mark(event.Close, "a")
	f.publish("a", 2) // by somebody who does not ask ingest
	f.publish("b", 300)
	url := f.edge(func(c *Config) { c.WindowBytes = 4 << 10 })
	for _, e := range poll(t, url+flowPath+"?limit=20").Events {
		if e.Stream == "a" && sequenceOf(t, e.ID) > 3 {
			t.Errorf("event %s was sent", e.ID)
		}
	}
	if p := poll(t, url+streamPath+"?limit=20"); len(p.Events) != 3 {
		t.Errorf("%d events of the stream, want 3", len(p.Events))
	}
}

// The window forgets where a stream ended, and the log knows.
func TestAFinalEventBelowTheFloorEndsItsStreamToo(t *testing.T) {
	f := newIntact(t)
	f.publish("a", 2)
	if _, err := f.b.Log.Publish(t.Context(), eventlog.Event{Session: "s", Stream: "a", Data: []byte(`{"jsonrpc":"2.0","id":1,"result":{}}`), Final: true}); err != nil {
		t.Fatal(err)
	}
	f.publish("b", 300)
	url := f.edge(func(c *Config) { c.WindowBytes = 4 << 10; c.MaxAge = 20 * time.Second })
	c := subscribe(t, url+streamPath)
	c.next("connect")
	final := c.messages(3)
	c.next("close")
	if again := subscribe(t, url+streamPath+"?after="+final); again.resp.StatusCode != http.StatusNoContent {
		t.Errorf("a resume behind the final event answers %d", again.resp.StatusCode)
	}
	if p := poll(t, url+streamPath+"?after="+cursorAt(t, url, streamPath, 303)); !p.Closed {
		t.Errorf("a poll of what is over answers %+v", p)
	}
}

// Whoever connects before a session is registered gets IDs of that session once it
// is: those without an incarnation would be good for a later one of the same name.
func TestIDsOfAConnectionFromBeforeTheSessionAreBoundToItOnceItIsThere(t *testing.T) {
	f := newIntact(t)
	s, _ := f.startService(func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
	url := s.url()
	c, quiet := subscribe(t, url+flowPath), subscribe(t, url+"/v1/sessions/s/streams/b/events")
	c.next("connect")
	quiet.next("connect")
	if _, err := f.b.Sessions.Register(patient(t), "s", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the edge knows the session", func() bool { _, ok := s.sessions.Session("s"); return ok })
	f.publish("a", 1)
	old := c.messages(1)
	eventually(t, "the cursor is behind the event", func() bool { return sequenceOf(t, quiet.next("cursor").ID) == 1 })
	oldQuiet := quiet.next("cursor").ID
	rec, err := f.b.Sessions.Get(patient(t), "s", "")
	if err == nil {
		err = f.b.Sessions.Remove(patient(t), rec)
	}
	if err == nil {
		_, err = f.b.Sessions.Create(patient(t), session.New("s", "", nil, time.Now()))
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the edge knows the new session", func() bool {
		p := poll(t, url+flowPath)
		return len(p.Events) == 1 && p.Cursor != old
	})
	for path, after := range map[string]string{flowPath: old, "/v1/sessions/s/streams/b/events": oldQuiet} {
		if g := poll(t, url+path+"?after="+after).Gap; g == nil || g.Reason != ReasonUnknown {
			t.Errorf("%s: the gap of an ID of the session before is %+v", path, g)
		}
	}
}

func TestAClearOfASessionIsToldOnceAndNotForEachStreamAsWell(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.publish("a", 3)
	f.publish("b", 3)
	f.publish("c", 1)
	f.remove(1, 7) // so that the window has holes and the ledger is asked
	url := f.edge(nil)
	after := cursorAt(t, url, flowPath, 2)
	f.mark(event.Clear, "")
	f.publish("a", 1)
	f.ledger(says(
		marks.StreamMark{Session: "s", Stream: "a", Mark: marks.Mark{Removed: 3, Reason: marks.Cleared}},
		marks.StreamMark{Session: "s", Stream: "b", Mark: marks.Mark{Removed: 6, Reason: marks.Cleared}},
	))
	eventually(t, "the clear is in the window", func() bool { return len(poll(t, url+flowPath).Events) == 1 })
	c := subscribe(t, url+flowPath+"?after="+after)
	c.next("connect")
	if g := c.gap(); g.Reason != ReasonCleared || g.Stream != nil {
		t.Errorf("gap is %+v", g)
	}
	c.messages(1)
}

// A client without a cursor has missed nothing of what is gone when it comes, also
// not of a stream whose events only a later page of the log holds.
func TestAFlowFromTheStartHasNoGapBehindItsFirstPage(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.publish("a", stepEvents+100)
	gone := f.publish("b", 5)
	left := f.publish("b", 1)
	f.remove(seq(gone-4, gone)...)
	f.ledger(says(marks.StreamMark{Session: "s", Stream: "b", Mark: marks.Mark{Removed: gone, Reason: marks.Trimmed}}))
	c := subscribe(t, f.edge(func(c *Config) { c.WindowBackfill = -1 })+flowPath)
	c.next("connect")
	if last := c.messages(stepEvents + 101); sequenceOf(t, last) != left {
		t.Errorf("the last event is %s, want %d", last, left)
	}
}

// A janitor that hangs costs each of those that wait for its answer one time-out,
// and not one for each that asked before.
func TestClientsDoNotQueueForAJanitorThatHangs(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.publish("a", 10)
	f.remove(1, 2, 3, 4)
	url := f.edge(nil)
	after := cursorAt(t, url, streamPath, 2)
	sub, err := f.b.Conn.QueueSubscribeSync(marks.Subject, marks.Queue)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	var clients sync.WaitGroup
	defer clients.Wait()
	begun := time.Now()
	for range 8 {
		clients.Go(func() {
			if g := poll(t, url+streamPath+"?after="+after).Gap; g == nil || g.Certain {
				t.Errorf("the gap is %+v", g)
			}
			if took := time.Since(begun); took > 6*marks.AskTimeout {
				t.Errorf("an answer took %s", took)
			}
		})
	}
}

func TestConnectLeavesTheCursorAloneWhenAGapFollows(t *testing.T) {
	f := newIntact(t)
	url := f.edge(nil)
	f.publish("a", 2)
	c := subscribe(t, url+streamPath+"?after=rubbish")
	if e := c.next("connect"); e.HasID {
		t.Errorf("connect has the ID %s: a client that is cut now never hears of the gap", e.ID)
	}
	c.gap()
	if c.resp.StatusCode != http.StatusOK {
		t.Error(c.resp.Status)
	}
	c.messages(2)
}

// What follows the cursor is known only after it was read: so connect comes behind
// the first read, or it would say that a cursor was resumed which was not.
func TestConnectDoesNotSayResumedWhenAGapFollows(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(says(marks.StreamMark{Session: "s", Stream: "a", Mark: marks.Mark{Removed: 5, Reason: marks.Trimmed}}))
	f.publish("a", 10)
	f.remove(seq(1, 5)...)
	url := f.edge(nil)
	for after, resumed := range map[uint64]bool{2: false, 5: true} {
		c := subscribe(t, url+streamPath+"?after="+cursorAt(t, url, streamPath, after))
		e := c.next("connect")
		var data connectData
		if err := json.Unmarshal(e.Data, &data); err != nil || data.Resumed != resumed || e.HasID != resumed {
			t.Errorf("after %d: connect is %s with id %q, %v", after, e.Data, e.ID, err)
		}
		if !resumed {
			c.gap()
		}
		c.messages(5)
	}
}

func TestAClearBelowTheFloorIsAnUncertainGapWhenTheLedgerDoubts(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.publish("a", 5)
	at := f.mark(event.Clear, "")
	f.remove(seq(1, 5)...)
	f.publish("b", 300)
	f.ledger(func(marks.Request) marks.Reply { return marks.Reply{Default: marks.Mark{Maybe: at}} })
	url := f.edge(func(c *Config) { c.WindowBytes = 4 << 10 })
	c := subscribe(t, url+flowPath+"?after="+cursorAt(t, url, flowPath, 2))
	c.next("connect")
	var g gapData
	if err := json.Unmarshal(c.next("gap").Data, &g); err != nil || g.Certain || g.Reason != ReasonCleared {
		t.Errorf("gap is %+v: %v", g, err)
	}
	c.messages(300)
}

func TestAHeartbeatDoesNotMoveTheCursorOverAGapThatIsStillToBeTold(t *testing.T) {
	st := &stream{reader: &reader{tags: newTagger(event.Place{}), pending: []gap{{reason: ReasonCleared}}}}
	if b := string(st.heartbeat()); b != ":\n\n" {
		t.Errorf("the heartbeat is %q", b)
	}
	st.reader.pending = nil
	if b := string(st.heartbeat()); b == ":\n\n" {
		t.Error("the heartbeat has no cursor")
	}
}

// Two absences of the janitor with a long time between them are two, also if nobody
// asked while it was there.
func TestPatienceBeginsAnewWithEachAbsence(t *testing.T) {
	l := &ledger{patience: time.Second}
	first := l.answered(false)
	if again := l.answered(false); again != first {
		t.Errorf("one absence is two: %s and %s", first, again)
	}
	l.missing, l.failed = first.Add(-time.Hour), first.Add(-time.Hour)
	if again := l.answered(false); again.Before(first) {
		t.Errorf("the second absence began with the first one, %s before", first.Sub(again))
	}
}

// A clear can be swept, marker and all, between the read of the log and the question
// for marks: the answer alone then says that what was read must not be shown.
func TestAnEventThatWasClearedWhileItWasReadIsNotSent(t *testing.T) {
	for _, path := range []string{streamPath, flowPath} {
		t.Run(path, func(t *testing.T) {
			f := newFixture(t, eventlog.Settings{})
			f.ledger(says(marks.StreamMark{Session: "s", Stream: "a", Mark: marks.Mark{Removed: 1, Reason: marks.Cleared}}))
			f.publish("a", 1)
			f.publish("b", 1)
			url := f.edge(func(c *Config) { c.WindowBackfill = -1 })
			for _, e := range poll(t, url+path).Events {
				if e.Stream == "a" {
					t.Errorf("it was sent: %+v", e)
				}
			}
		})
	}
}

// The log can begin another generation between the look at it and the janitor's answer.
// An answer of then knows of removals that the window has yet to hear of: a cursor that
// followed it would be ahead of the generation's start, and be told that it was rolled
// back.
func TestAnAnswerOfALaterGenerationIsNotFollowed(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	var asked atomic.Int32
	f.ledger(func(marks.Request) marks.Reply {
		if asked.Add(1) > 1 {
			return marks.Reply{}
		}
		return marks.Reply{Generation: "another", Marks: []marks.StreamMark{{Session: "s", Stream: "a", Mark: marks.Mark{Removed: 1000, Reason: marks.Trimmed}}}}
	})
	f.publish("a", 3)
	url := f.edge(func(c *Config) { c.WindowBackfill = -1 })
	after := cursorAt(t, url, streamPath, 1)
	asked.Store(0)
	page := poll(t, url+streamPath+"?after="+after)
	if page.Gap != nil || len(page.Events) != 2 {
		t.Errorf("got %+v", page)
	}
}
