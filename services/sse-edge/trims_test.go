package edge

import (
	"strings"
	"testing"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// receives checks a page: its gaps, by their reasons, "?" after one that is not certain, and its first event.
func receives(t *testing.T, url, path string, after uint64, gaps string, first uint64) {
	t.Helper()
	p := poll(t, url+path+"?after="+cursorAt(t, url, path, after))
	var sequences []uint64
	for _, e := range p.Events {
		sequences = append(sequences, edgetest.SequenceOf(t, e.ID))
	}
	var words []string
	for _, g := range p.Gaps {
		word := string(g.Reason)
		if !g.Certain {
			word += "?"
		}
		words = append(words, word)
	}
	if got := strings.Join(words, " "); got != gaps || len(sequences) == 0 || sequences[0] != first {
		t.Errorf("%s after %d: the gaps are %q and the events are %v, want %q and %d first", path, after, words, sequences, gaps, first)
	}
}

const otherPath = "/v1/sessions/s/streams/b/events"

// The oldest event of the log is of another stream, so the floor is below all cursors.
func TestReader_TrimInsideTheWindow(t *testing.T) {
	f := newFixture(t)
	f.Publish("b", 1)
	f.Publish("a", 10) // 2 to 11
	f.Publish("b", 1)
	before, _ := f.startService(nil)
	before.has(t, 12)
	f.Trim("a", eventlog.Trimmed, edgetest.Sequences(2, 6)...)
	after := f.edge(nil)
	receives(t, after, streamPath, 3, "trimmed", 7)
	receives(t, after, streamPath, 6, "", 7)
	receives(t, after, flowPath, 3, "trimmed", 7)
	receives(t, after, otherPath, 3, "", 12)
	for _, path := range []string{streamPath, flowPath} { // the tail received all events before: none is missing
		receives(t, before.url(), path, 3, "", 4)
	}
}

func TestReader_TrimOfTheLifeInsideTheWindow(t *testing.T) {
	f := newFixture(t)
	f.Publish("b", 1)
	f.Publish("a", 5) // 2 to 6
	f.Publish("b", 5)
	f.Trim("", eventlog.Cleared, edgetest.Sequences(2, 6)...)
	url := f.edge(nil)
	for _, path := range []string{otherPath, flowPath} {
		receives(t, url, path, 3, "cleared?", 7)
		receives(t, url, path, 6, "", 7)
	}
}

// The announcement is the removal: the announced events are not sent, though the log still has them.
func TestReader_AnnouncedTrimBelowTheWindow(t *testing.T) {
	f := newFixture(t)
	f.Publish("a", 10)
	f.Publish("b", 5)
	f.Announce("a", eventlog.Cleared, edgetest.Sequences(1, 6)...)
	url := f.edge(func(c *Config) { c.WindowBackfill = -1 })
	receives(t, url, streamPath, 3, "cleared", 7)
	receives(t, url, flowPath, 3, "cleared", 7)
	receives(t, url, otherPath, 3, "", 11)
	for _, path := range []string{streamPath, flowPath} { // without a cursor no event was missed
		if p := poll(t, url+path); len(p.Gaps) > 0 || len(p.Events) == 0 || edgetest.SequenceOf(t, p.Events[0].ID) != 7 {
			t.Errorf("%s: %+v", path, p)
		}
	}
	// The window still has the events that a later trim removes.
	held := f.edge(nil)
	receives(t, held, streamPath, 3, "", 4)
}

// A stream that is quiet for so long that everything around it has expired is complete when
// the copy of its birth proves it.
func TestReader_QuietStreamBelowTheFloor(t *testing.T) {
	f := newFixture(t)
	f.Publish("a", 5)
	f.Publish("b", 15)
	f.Rewrite("a", eventlog.BirthCopy{Newest: 5, Through: 20})
	f.Purge(15)
	f.Publish("a", 1)
	for _, backfill := range []int{0, -1} {
		url := f.edge(func(c *Config) { c.WindowBackfill = flagtype.Bytes(backfill) })
		receives(t, url, streamPath, 5, "", 22)
		receives(t, url, streamPath, 4, "expired", 22)
		receives(t, url, otherPath, 10, "expired?", 15)
		receives(t, url, flowPath, 10, "expired?", 15)
	}
}

// Entries that are missing without an announcement are damage, of whichever stream.
func TestReader_Damage(t *testing.T) {
	f := newFixture(t)
	f.Publish("b", 1)
	f.Publish("a", 5) // 2 to 6
	f.Publish("b", 1)
	f.Remove(4)
	f.Check(4)
	for _, backfill := range []int{0, -1} {
		url := f.edge(func(c *Config) { c.WindowBackfill = flagtype.Bytes(backfill) })
		receives(t, url, streamPath, 2, "damaged?", 3)
		receives(t, url, otherPath, 2, "damaged?", 7)
		receives(t, url, streamPath, 4, "", 5)
	}
}

func TestReader_DamageBehindATrim(t *testing.T) {
	f := newFixture(t)
	f.Publish("b", 1)
	f.Publish("a", 5) // 2 to 6
	f.Trim("a", eventlog.Trimmed, 3)
	f.Remove(5)
	f.Check(5)
	for _, backfill := range []int{0, -1} {
		url := f.edge(func(c *Config) { c.WindowBackfill = flagtype.Bytes(backfill) })
		for _, path := range []string{streamPath, flowPath} {
			c := connect(t, url+path+"?after="+cursorAt(t, url, path, 2))
			if g := c.gap(); g.Reason != cursor.ReasonTrimmed || !g.Certain {
				t.Errorf("%s: the first gap is %+v", path, g)
			}
			if g := c.gap(); g.Reason != cursor.ReasonDamaged || g.Certain {
				t.Errorf("%s: the second gap is %+v", path, g)
			}
			c.Messages(2)
			receives(t, url, path, 2, "trimmed damaged?", 4)
		}
	}
}

// A cursor whose following events the tail did not receive is complete only when the janitor has read
// the partition since its server started: the edge waits for that, for as long as the patience
// allows.
func TestReader_UncheckedGeneration(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Publish("b", 1)
	f.Publish("a", 10) // 2 to 11
	f.Trim("b", eventlog.Trimmed, 1)
	f.Restart()
	for _, backfill := range []int{0, -1} {
		impatient := f.edge(func(c *Config) { c.WindowBackfill, c.LedgerPatience = flagtype.Bytes(backfill), 50*time.Millisecond })
		id := cursorAt(t, impatient, streamPath, 4)
		c := connect(t, impatient+streamPath+"?after="+id)
		if backfill == 0 {
			c.Messages(7) // the tail received all of them
			continue
		}
		if g := c.gap(); g.Reason != cursor.ReasonDamaged || g.Certain || g.Requested != id {
			t.Errorf("gap is %+v", g)
		}
		c.Messages(7)
		f.Publish("a", 1)
		c.Messages(1) // and no second gap
	}
}

// A janitor writes control entries again before the floor passes them: no stream or session begins or ends then.
func TestReader_CopiesChangeNothing(t *testing.T) {
	f := newFixture(t)
	f.Create("s", "")
	s, _ := f.startService(func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
	f.Publish("a", 1)
	last := f.Publish("b", 1)
	must.NoError(t, f.Backend.Sessions.End(waittest.Context(t), "s", "b", false))
	c, flow := subscribe(t, s.url()+streamPath), subscribe(t, s.url()+flowPath)
	c.Next("connect")
	flow.Next("connect")
	c.Messages(1)
	flow.Messages(2)
	opening := must.Value(f.Backend.Log.Opening(waittest.Context(t), "s"))(t)
	for _, of := range []event.Subject{{Kind: event.Open}, {Kind: event.End, Stream: "b"}} {
		of.Session = "s"
		if of.Kind == event.End {
			of.Life = f.Life("s")
		}
		ack := must.Value(f.Backend.Log.Rewrite(waittest.Context(t), of, opening.Sequence, nil))(t)
		last = ack.Sequence
	}
	waittest.Until(t, "the cursor is after the copies", func() bool { return edgetest.SequenceOf(t, c.Next("cursor").ID) >= last })
	f.Publish("a", 1)
	c.Messages(1)
	flow.Messages(1)
	if p := poll(t, s.url()+otherPath+"?after="+cursorAt(t, s.url(), otherPath, last)); !p.Closed || len(p.Events) > 0 {
		t.Errorf("the stream that has ended: %+v", p)
	}
}
