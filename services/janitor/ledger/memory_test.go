package ledger

import (
	"fmt"
	"runtime"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// The memory that a ledger may take, in bytes: an event lies in 16, and a list that grows has
// room for as much again.
const (
	eventBytes  = 32
	streamBytes = 200
)

// inUse returns the bytes that are in use after a collection.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // no heap is that large
}

// crowd makes ledgers, as many as there are partitions, of interleaved streams, and
// returns them with the bytes that they take.
func crowd(sessions, streams, events int) ([]*Ledger, int64) {
	const partitions = 16
	at := make([]event.Subject, streams)
	before := inUse()
	ledgers := make([]*Ledger, partitions)
	for i := range ledgers {
		ledgers[i] = New()
	}
	for n := range events {
		stream := n % streams
		if n < streams {
			name := fmt.Sprint("session-", stream%sessions)
			of := event.Subject{Partition: event.Partition(name, partitions), Session: name, Stream: fmt.Sprint(stream)}
			at[stream], _ = event.ParseSubject(of.String()) // names as a tail has them
		}
		l := ledgers[at[stream].Partition]
		l.Apply(eventlog.Entry{Subject: at[stream], Valid: true, Sequence: l.Through + 1, Time: noon, Size: 512}, noon)
	}
	return ledgers, inUse() - before
}

func TestMemory_Ledger(t *testing.T) {
	const streams = 10_000
	for _, tt := range []struct{ sessions, events int }{
		{1000, 1_000_000}, {streams, 1_000_000}, {1000, 65 * streams}, {1000, 129 * streams},
	} {
		ledgers, took := crowd(tt.sessions, streams, tt.events)
		bound := int64(eventBytes*tt.events + streamBytes*streams)
		t.Logf("%d events in %d streams of %d sessions: %.1f B an event, %.2f of the bound", tt.events, streams, tt.sessions, float64(took)/float64(tt.events), float64(took)/float64(bound))
		if took > bound {
			t.Errorf("%d events in %d streams of %d sessions take %d B, want %d at most", tt.events, streams, tt.sessions, took, bound)
		}
		runtime.KeepAlive(ledgers)
	}
}

// Announced events take no more memory than retained ones.
func TestMemory_Announcements(t *testing.T) {
	const streams, events = 10_000, 650_000
	before := inUse()
	ledgers, _ := crowd(1000, streams, events)
	none := Limits{-1, 0, -1, -1, 0}
	for _, l := range ledgers {
		n := l.Totals.Events
		for _, a := range l.Accounts {
			for _, t := range Announcements(Policy(l.View(a, l.LifeState(a)), none, noon)) {
				at := event.Subject{Session: t.Session, Stream: t.Stream, Kind: event.Trim}
				l.Apply(eventlog.Entry{Subject: at, Valid: true, Sequence: l.Through + 1, Time: noon, Trim: &t.Trim}, noon)
			}
		}
		if l.Totals.Events > 0 || l.ToDelete() != n {
			t.Fatalf("%d are to be deleted, and %d left", l.ToDelete(), l.Totals.Events)
		}
	}
	took, bound := inUse()-before, int64(eventBytes*events+2*streamBytes*streams)
	t.Logf("%.1f B an event, %.2f of the bound", float64(took)/events, float64(took)/float64(bound))
	if took > bound {
		t.Errorf("they take %d B, want %d at most", took, bound)
	}
	runtime.KeepAlive(ledgers)
}

// Expired events take no memory, whether they expired all at once or one by one.
func TestMemory_AfterRemoval(t *testing.T) {
	const streams, events, kept = 100, 2000, 30
	for name, step := range map[string]uint64{"at once": (events - kept) * streams, "one by one": streams} {
		ledgers, _ := crowd(1, streams, streams*events)
		before := inUse()
		for _, l := range ledgers {
			for first := uint64(0); l.Totals.Events > kept*streams; l.prunedAt = noon.Add(-pruneEvery) {
				first += step
				l.Advance(first+1, 0)
				l.Prune(noon)
			}
		}
		if freed, want := before-inUse(), int64(streams*(events-2*kept)*16); freed < want {
			t.Errorf("%s: %d B were freed, want %d", name, freed, want)
		}
		runtime.KeepAlive(ledgers)
	}
}

// Of a session that is forgotten, the ledger keeps no more than where its trims lie.
func TestMemory_Forgotten(t *testing.T) {
	const lives, bound = 4000, 400
	m := newModel()
	l := New()
	apply := func() {
		for _, e := range m.entries {
			l.Apply(e, m.now)
			if e.Subject.Kind == event.Open {
				l.Learn(e.Subject.Session, e.Sequence, m.lives[e.Subject.Session].life)
			}
		}
		m.entries, m.trims = nil, nil
	}
	announce := func(all []Announcement) {
		for _, t := range all {
			m.store(eventlog.Entry{Subject: event.Subject{Session: t.Session, Life: t.Life, Stream: t.Stream, Kind: event.Trim}, Trim: &t.Trim})
		}
		apply()
		for due, n := l.Due(m.now, 0, 100); n > 0; due, n = l.Due(m.now, 0, 100) {
			l.Deleted(due)
		}
	}
	before := inUse()
	for i := range lives {
		name := fmt.Sprint("session-", i)
		m.open(name)
		m.publish(name, "a", false)
		for range 3 {
			m.endSession(name)
		}
		apply()
		a := l.Accounts[event.LifeKey(name, m.lives[name].life)]
		announce(Announcements(Policy(l.View(a, l.LifeState(a)), Limits{}, m.now)))
		for range 2 { // the opening, and the rest
			announce(forgettable(l, m.now))
		}
		delete(m.lives, name)
		clear(m.history)
	}
	took := inUse() - before
	if held := len(l.Accounts) + len(l.openings) + l.ToDelete(); held > 0 {
		t.Errorf("the ledger has %d lives and %d openings, and %d to delete", len(l.Accounts), len(l.openings), l.ToDelete())
	}
	t.Logf("%d B a life, in %d entries", took/lives, l.Entries())
	if took > bound*lives {
		t.Errorf("a life that is forgotten takes %d B, want %d at most", took/lives, bound)
	}
	runtime.KeepAlive(l)
}

// Of a stream that was closed in an open session, the ledger keeps its end, once its events have expired.
func TestMemory_ClosedStreams(t *testing.T) {
	const streams, bound = 10_000, 450
	m, l := newModel(), New()
	before := inUse()
	m.open("s")
	at := func(i int) string { return fmt.Sprint("job-", i) }
	for i := range streams {
		m.publish("s", at(i), false)
		m.endStream("s", at(i))
	}
	events := m.last
	m.control(event.Open, place{session: "s"})
	for i := range streams {
		m.control(event.End, place{"s", "l1", at(i)})
	}
	for _, e := range m.entries {
		l.Apply(e, m.now)
	}
	*m = model{}
	l.Advance(events+1, events+1)
	l.Prune(noon)
	if a := l.Accounts["s l1"]; a.Events > 0 || a.controls != streams {
		t.Errorf("%d events and %d control entries are left", a.Events, a.controls)
	}
	took := (inUse() - before) / streams
	t.Logf("%d B a stream", took)
	if took > bound {
		t.Errorf("a closed stream takes %d B, want %d at most", took, bound)
	}
	runtime.KeepAlive(l)
}
