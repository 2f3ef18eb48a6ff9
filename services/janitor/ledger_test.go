package janitor

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
	"rejoin/shared/session"
)

func TestALedgerFollowsItsPartitionAndNoOther(t *testing.T) {
	base := newModel(-1)
	for range 5 {
		base.publish(place{"s", "a"}, event.Message)
	}
	for _, test := range []struct {
		name   string
		change func(*eventlog.State)
		want   uint64
	}{
		{"the same", func(*eventlog.State) {}, 5},
		{"more", func(s *eventlog.State) { s.Last = 9 }, 5},
		{"created anew", func(s *eventlog.State) { s.Created = s.Created.Add(1) }, 0},
		{"another limit", func(s *eventlog.State) { s.Limits.MaxEventsPerStream = 7 }, 0},
		{"another age", func(s *eventlog.State) { s.Limits.MaxAge = time.Second }, 5},
		{"another birth", func(s *eventlog.State) { s.Birth = "other" }, 0},
		{"rolled back", func(s *eventlog.State) { s.Last = 4 }, 0},
		{"rolled back and grown again", func(s *eventlog.State) {
			s.Last, s.Generations = 9, append(s.Generations, event.Generation{ID: "next", Start: 5})
		}, 0},
		{"another server that has it all", func(s *eventlog.State) {
			s.Generations = append(s.Generations, event.Generation{ID: "next", Start: 6})
		}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLedger()
			l.begin(base.state(), nil)
			for _, e := range base.entries {
				l.apply(e, base.now)
			}
			l.reach(5, base.now)
			s := base.state()
			test.change(&s)
			if got := l.begin(s, nil); got != test.want {
				t.Errorf("it goes on after %d, want %d", got, test.want)
			}
			if l.complete != (test.want != 0) {
				t.Errorf("it is complete: %t", l.complete)
			}
		})
	}
}

// What JetStream removes by itself is counted by why, also over a change of the ledger.
func TestRemovalsOfJetStreamAreCounted(t *testing.T) {
	m := newModel(3)
	for range 5 {
		m.publish(place{"s", "a"}, event.Message)
	}
	all := m.entries
	l := newLedger()
	s := m.state()
	s.First = 1
	l.begin(s, nil)
	for n := range uint64(5) { // as they came, those that are gone by now too
		l.apply(eventlog.Entry{Subject: all[0].Subject, Valid: true, Sequence: n + 1, Time: m.now, Size: 10}, m.now)
	}
	if l.pressed != 2 || l.expired != 0 {
		t.Errorf("%d and %d are counted, want 2 by the limit of a stream", l.pressed, l.expired)
	}
	l.advance(5)
	l.prune(m.now.Add(2 * time.Hour))
	if l.pressed != 2 || l.expired != 2 {
		t.Errorf("%d and %d are counted, want 2 by the limit and 2 by age", l.pressed, l.expired)
	}
	l.drop()
	l.begin(m.state(), nil)
	if l.pressed != 2 || l.expired != 2 {
		t.Errorf("%d and %d are left of what was counted", l.pressed, l.expired)
	}
}

// Between a roll-back and the tail's next beginning, the ledger is of the old life.
func TestALedgerAnswersNobodyWhoHasSeenANewerLife(t *testing.T) {
	m := newModel(-1)
	m.publish(place{"s", "a"}, event.Message)
	l := newLedger()
	l.begin(m.state(), nil)
	l.apply(m.entries[0], m.now)
	l.reach(1, m.now)
	l.looked(1, m.state(), m.now)
	next := m.state()
	next.Generations = append(next.Generations, event.Generation{ID: "next", Start: 2})
	req := marks.Request{Birth: next.Birth, Generation: next.Generation().ID, Through: 1}
	if l.answers(req) {
		t.Error("the ledger answers before it knows what the generation began with")
	}
	l.begin(next, nil)
	if !l.answers(req) {
		t.Error("the ledger does not answer for the life that it follows")
	}
}

// What a ledger that begins on an existing log says of each stream, with the
// reasons for which a missing sequence can be theirs or not.
func TestOnlyStreamsThatMayHaveLostEventsAreAccused(t *testing.T) {
	const limit = 3
	m := newModel(limit)
	publish := func(session, stream string, n int) {
		for range n {
			m.publish(place{session, stream}, event.Message)
		}
	}
	publish("other", "gone", 2) // 1, 2
	publish("s", "early", 1)    // 3
	publish("s", "full", 5)     // 4 to 8, of which 4 and 5 go by the limit
	publish("s", "late", 2)     // 9, 10
	publish("trimmed", "a", 2)  // 11, 12
	publish("trimmed", "b", 1)  // 13
	publish("s", "alsofull", 3) // 14 to 16
	m.delete(11)                // by a janitor that wrote down 12, and died before 12
	trims := map[string]uint64{"trimmed": 12}

	rebuild := func() *ledger {
		l := newLedger()
		l.begin(m.state(), trims)
		for _, e := range m.entries {
			l.apply(e, m.now)
		}
		l.reach(m.last, m.now)
		if got := l.answer(marks.Request{}, m.now).Default.Maybe; got != 11 {
			t.Errorf("before it is settled every stream may have lost up to %d, want 11", got)
		}
		l.looked(l.through, m.state(), m.now)
		return l
	}
	check := func(t *testing.T, l *ledger, want map[place]uint64) {
		t.Helper()
		for at, maybe := range want {
			got := lookUp(l.answer(marks.Request{Session: at.session, Stream: at.stream}, m.now), at)
			if got != (marks.Mark{Maybe: maybe}) {
				t.Errorf("%v: %+v, want %d", at, got, maybe)
			}
		}
	}
	t.Run("nothing went by age", func(t *testing.T) {
		check(t, rebuild(), map[place]uint64{
			{"other", "gone"}:      0,
			{"s", "early"}:         0, // it has an event before every missing one
			{"s", "full"}:          5,
			{"s", "late"}:          0,  // not full: no limit took anything of it
			{"s", "alsofull"}:      11, // nobody can tell
			{"s", "unknown"}:       0,
			{"trimmed", "a"}:       11, // 12 is there, so what is missing before it counts
			{"trimmed", "b"}:       11,
			{"trimmed", "unknown"}: 11,
		})
	})
	t.Run("the first two went by age", func(t *testing.T) {
		m.expire(3)
		check(t, rebuild(), map[place]uint64{
			{"other", "gone"}: 2, {"s", "early"}: 2, {"s", "full"}: 5, {"s", "late"}: 2, {"s", "unknown"}: 2, {"nobody", "x"}: 2,
		})
	})
}

// A sweep looks at the server while the ledger is still being rebuilt. What is
// missing behind that place is attributed by a later look, and an earlier janitor's
// trim mark counts for it as well.
func TestALookInTheMiddleOfARebuildForgetsNoTrimMark(t *testing.T) {
	now := time.Unix(1000, 0)
	state := eventlog.State{Created: now, Birth: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: 1, Last: 20, Events: 3}
	l := newLedger()
	apply := func(seq uint64, stream string) {
		l.apply(eventlog.Entry{Subject: event.Subject{Session: "s", Stream: stream}, Valid: true, Sequence: seq, Time: now, Size: 10}, now)
	}
	l.begin(state, map[string]uint64{"s": 15})
	apply(1, "b")
	l.looked(l.through, state, now)
	apply(16, "a") // 2 to 15 were removed by the janitor before
	apply(20, "b")
	l.reach(20, now)
	l.looked(l.through, state, now)
	if got := l.answer(marks.Request{Session: "s", Stream: "a"}, now).Default.Maybe; got != 15 {
		t.Errorf("stream a may have lost up to %d, want 15", got)
	}
}

func TestTheLedgerGoesPastWhatTheTailWillNeverBring(t *testing.T) {
	m := newModel(-1)
	l := newLedger()
	l.begin(m.state(), nil)
	l.reach(0, m.now)
	m.publish(place{"s", "a"}, event.Message)
	m.publish(place{"s", "a"}, event.Message)
	inFlight := m.entries[0]
	m.expire(3)
	l.advance(3)
	l.skip(2, m.now)
	l.looked(2, m.state(), m.now)
	ask := func(stream string) marks.Mark {
		return lookUp(l.answer(marks.Request{Session: "s", Stream: stream}, m.now), place{"s", stream})
	}
	if got := ask("b"); got != (marks.Mark{Maybe: 2}) {
		t.Errorf("any stream: %+v", got)
	}
	l.apply(inFlight, m.now)
	if got := ask("a"); got != (marks.Mark{Removed: 1, Reason: marks.Trimmed, Maybe: 2}) {
		t.Errorf("the stream of a late entry: %+v", got)
	}
	if l.totals != (totals{}) {
		t.Errorf("a late entry is taken for retained: %+v", l.totals)
	}
}

// fill enters events of many streams in turns.
func fill(l *ledger, streams, events int) {
	e := eventlog.Entry{Valid: true, Subject: event.Subject{Session: "s"}, Time: noon}
	names := make([]string, streams)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	for i := range streams * events {
		e.Sequence++
		e.Subject.Stream = names[i%streams]
		l.apply(e, noon)
	}
}

func TestAnEventTakesLittleMemory(t *testing.T) {
	const streams, events, limit = 100, 1000, 32
	l := newLedger()
	fill(l, streams, events)
	kept := 0
	for _, s := range l.accounts["s"].streams {
		kept += cap(s.events) * int(unsafe.Sizeof(entry{}))
	}
	if kept > limit*streams*events {
		t.Errorf("%d B an event are kept, want at most %d", kept/(streams*events), limit)
	}
}

// With its name and its place in the map a stream of which nothing is retained takes some 130 B.
func TestAStreamTakesLittleMemory(t *testing.T) {
	if got := unsafe.Sizeof(stream{}); got > 88 {
		t.Errorf("%d B", got)
	}
}

// An edge asks for the marks of a whole partition and gives up after AskTimeout: with
// 100,000 streams that were sorted for every page it always did. So the pages take
// together what they hold, whether the streams are in one session or in as many, and
// also while others are begun.
func TestPagesOfMarksDoNotSortAllStreamsEachTime(t *testing.T) {
	const streams = 50_000
	for _, oneSession := range []bool{true, false} {
		l, now := newLedger(), time.Unix(1e9, 0)
		publish := func() {
			at := event.Subject{Session: "s", Stream: fmt.Sprint("stream-", (l.through*7919)%(2*streams))}
			if !oneSession {
				at.Session = at.Stream
			}
			l.apply(eventlog.Entry{Subject: at, Valid: true, Sequence: l.through + 1, Time: now}, now)
		}
		for range streams {
			publish()
		}
		l.reach(streams, now)
		l.advance(streams + 1)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n, last := 0, ""
		for from, more := "", true; more; more = from != "" {
			reply := l.answer(marks.Request{From: from}, now)
			for _, m := range reply.Marks {
				if at := event.Token(m.Session) + "." + event.Token(m.Stream); at <= last {
					t.Fatalf("%s came after %s", at, last)
				} else {
					last = at
				}
			}
			n, from = n+len(reply.Marks), reply.Next
			publish()
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; n != streams || took > streams*1000 {
			t.Errorf("%d marks, want %d, took %d bytes of memory, want %d at most", n, streams, took, streams*1000)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	b.ReportAllocs()
	fill(newLedger(), 100, b.N/100+1)
}

// The clock of the server, or one that somebody has set, does not shorten the time in
// which the edges get to see a =clear marker.
func TestAClearMarkerIsKeptAsLongAsTheJanitorHasKnownOfIt(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		l := newLedger()
		l.apply(eventlog.Entry{Subject: event.Subject{Session: "s", Kind: event.Clear}, Valid: true, Sequence: 1, Time: noon.Add(skew)}, noon)
		for after, want := range map[time.Duration]int{0: 0, clearKept - 1: 0, clearKept: 1} {
			now := noon.Add(after)
			if got := policy(l.view("s", l.accounts["s"], session.Record{}, now), limits{}, now); len(got) != want {
				t.Errorf("%s after a marker with a clock that is %s off: %v", after, skew, got)
			}
		}
	}
}
