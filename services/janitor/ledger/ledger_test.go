package ledger

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// rebuilt returns a ledger that began on the remaining entries of a log.
func rebuilt(m *model) *Ledger {
	l := New()
	l.Begin(m.state())
	for _, e := range m.entries {
		l.Apply(e, m.now)
	}
	l.Reach(m.last, m.now)
	l.Looked(l.Through, m.state())
	return l
}

func TestLedger_FollowsItsPartitionAndNoOther(t *testing.T) {
	base := newModel()
	for range 5 {
		base.publish("s", "a", false)
	}
	for _, test := range []struct {
		name   string
		change func(*eventlog.State)
		want   uint64
	}{
		{"the same", func(*eventlog.State) {}, 5},
		{"more", func(s *eventlog.State) { s.Last = 9 }, 5},
		{"its entries are gone", func(s *eventlog.State) { s.First, s.Last = 6, 9 }, 5},
		{"entries after its own are gone", func(s *eventlog.State) { s.First, s.Last = 7, 9 }, 5},
		{"created again", func(s *eventlog.State) { s.Created = s.Created.Add(1) }, 0},
		{"other limits", func(s *eventlog.State) { s.Limits.MaxBytes = 7 }, 5},
		{"another origin", func(s *eventlog.State) { s.Origin = "other" }, 0},
		{"rolled back", func(s *eventlog.State) { s.Last = 4 }, 0},
		{"rolled back and grown again", func(s *eventlog.State) {
			s.Last, s.Generations = 9, append(s.Generations, event.Generation{ID: "next", Start: 5})
		}, 0},
		{"another server that has it all", func(s *eventlog.State) {
			s.Generations = append(s.Generations, event.Generation{ID: "next", Start: 6})
		}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := rebuilt(base)
			l.Alarm = Alarm{1, 2, 3}
			s := base.state()
			test.change(&s)
			if got := l.Begin(s); got != test.want {
				t.Errorf("it continues after %d, want %d", got, test.want)
			}
			if l.Complete != (test.want != 0) || l.Alarm != (Alarm{1, 2, 3}) {
				t.Errorf("it is complete: %t, with %+v", l.Complete, l.Alarm)
			}
		})
	}
}

// The list of generations is bounded: the start of one that is merged changes.
func TestLedger_MergedGenerationIsTheSame(t *testing.T) {
	m := newModel()
	for range 5 {
		m.publish("s", "a", false)
	}
	s := m.state()
	for i := range event.MaxGenerations - 1 {
		s.Generations = append(s.Generations, event.Generation{ID: fmt.Sprint(i), Start: min(uint64(i)+2, 6)})
	}
	l := New()
	l.Begin(s)
	for _, e := range m.entries {
		l.Apply(e, m.now)
	}
	l.Reach(5, m.now)
	s.Generations = event.NextGenerations(s.Generations, event.Generation{ID: "next", Start: 6})
	if got := l.Begin(s); got != 5 {
		t.Errorf("it continues after %d", got)
	}
	s.Generations = event.NextGenerations(s.Generations, event.Generation{ID: "rolled back", Start: 3})
	if got := l.Begin(s); got != 0 {
		t.Errorf("after a roll-back it continues after %d", got)
	}
}

// A restarted server reads its files again, and may have lost some of them.
func TestLedger_ComparedWithTheLogAfterARestart(t *testing.T) {
	next := event.Generation{ID: "next", Start: 6}
	for _, test := range []struct {
		name    string
		pending bool // one of the five entries is announced to be removed
		events  uint64
		known   bool // it is no new generation
		last    uint64
		want    bool
	}{
		{"it has all", false, 5, false, 5, true},
		{"it has all, and more", false, 7, false, 7, true},
		{"one is gone", false, 4, false, 5, false},
		{"one is gone, and there are more", false, 6, false, 7, false},
		{"there is one that was deleted", false, 6, false, 5, false},
		{"all that is to be deleted is there", true, 6, false, 6, true},
		{"something is deleted, or lost", true, 5, false, 6, false},
		{"something is deleted, and no server was restarted", true, 5, true, 6, true},
		{"more is gone than was to be deleted", true, 4, true, 6, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newModel()
			for range 5 {
				m.publish("s", "a", false)
			}
			if test.pending {
				m.store(eventlog.Entry{Subject: event.Subject{Session: "s", Stream: "a", Kind: event.Trim}, Trim: &eventlog.Trim{Session: "s", Stream: "a", UpTo: 2, Listed: []uint64{2}}})
			}
			l := rebuilt(m)
			s := m.state()
			s.Entries, s.Last = test.events, test.last
			if !test.known {
				s.Generations = append(s.Generations, next)
			}
			if got := l.Intact(s); got != test.want {
				t.Errorf("it is intact: %t", got)
			}
		})
	}
}

// Entries that a trim covers and does not name stay in the log until the floor passes them: to delete
// them would leave a hole that nothing explains.
func TestLedger_Trim(t *testing.T) {
	m := newModel()
	for range 6 {
		m.publish("s", "a", false) // 1 to 6
	}
	m.publish("s", "b", false) // 7
	m.delete(2)
	trim := eventlog.Trim{Session: "s", Stream: "a", UpTo: 4, Reason: eventlog.Cleared, Listed: []uint64{1, 2, 4}}
	m.store(eventlog.Entry{Subject: event.Subject{Session: "s", Stream: "a", Kind: event.Trim}, Trim: &trim})
	l := rebuilt(m)
	a := l.Accounts[unopened("s")]
	if got := sequencesOfEvents(a.Streams["a"].events); !slices.Equal(got, []uint64{5, 6}) || l.Totals != (Totals{1, 2, 3, 30}) {
		t.Errorf("%v are left, %+v", got, l.Totals)
	}
	if !l.Exact() || len(l.TakeDamage()) > 0 {
		t.Error("what the trim names is not explained")
	}
	got, n := l.Due(m.now.Add(time.Minute), time.Minute, 9)
	if !slices.Equal(got, []uint64{1, 4}) || n != 2 || !slices.Equal(l.unlisted, []uint64{3}) {
		t.Errorf("%v are to be deleted, %d in all, and %v stay", got, n, l.unlisted)
	}
	if got, n := l.Due(m.now.Add(time.Minute-1), time.Minute, 9); len(got)+n > 0 {
		t.Errorf("%v are to be deleted too early", got)
	}
	if got, n := l.Due(m.now.Add(time.Minute), time.Minute, 1); len(got) != 1 || n != 2 {
		t.Errorf("%v of %d", got, n)
	}
	if n := l.Entries(); n != 7 {
		t.Errorf("the ledger knows %d entries", n)
	}
	l.Deleted([]uint64{4, 1})
	if n := l.Entries(); n != 5 || l.ToDelete() != 0 {
		t.Errorf("the ledger knows %d entries, and %d are to be deleted", n, l.ToDelete())
	}
	l.Advance(4, 0)
	if n := l.Entries(); n != 4 {
		t.Errorf("the ledger knows %d entries", n)
	}
}

// A janitor that was held up names sequences that have been assigned again since. The next trim follows all the same,
// also one that cannot be read.
func TestLedger_TrimOfAnEarlierGeneration(t *testing.T) {
	for start, removed := range map[uint64]int{2: 0, 3: 2} {
		m := newModel()
		for range 3 {
			m.publish("s", "a", false)
		}
		trim := eventlog.Trim{Session: "s", Stream: "a", UpTo: 2, Reason: eventlog.Trimmed, Listed: []uint64{1, 2}, Generation: "birth"}
		m.store(eventlog.Entry{Subject: event.Subject{Session: "s", Stream: "a", Kind: event.Trim}, Trim: &trim})
		m.control(event.Trim, place{"s", "", "a"})
		s := m.state()
		s.Generations = append(s.Generations, event.Generation{ID: "later", Start: start})
		l := New()
		l.Begin(s)
		for _, e := range m.entries {
			l.Apply(e, m.now)
		}
		if a := l.Accounts[unopened("s")]; l.ToDelete() != removed || a.Events != 3-removed || a.NewestTrim("a") != 5 {
			t.Errorf("the later one begins at %d: %d are to be deleted, %d events are left, and the newest trim is %d", start, l.ToDelete(), a.Events, a.NewestTrim("a"))
		}
	}
}

func TestLedger_ControlEntries(t *testing.T) {
	m := newModel()
	at := place{"s", "x", "a"}
	closed := func(l *Ledger) (all []bool) {
		a := l.Accounts["s x"]
		for _, stream := range []string{"a", "b"} {
			all = append(all, a.end(a.stream(stream)).seq > 0)
		}
		return all
	}
	m.control(event.Open, place{session: "s"}) // 1
	m.control(event.Birth, at)                 // 2
	m.message(at, false)                       // 3
	for i, step := range []struct {
		kind event.Kind
		at   place
		want []bool
	}{
		{event.End, at, []bool{true, false}},                    // 4
		{event.Message, at, []bool{false, false}},               // 5: damage, it cancels the end
		{event.End, at, []bool{false, false}},                   // 6: a copy of the end
		{event.Birth, at, []bool{false, false}},                 // 7: again
		{event.Seal, place{"s", "x", ""}, []bool{false, false}}, // 8
		{event.End, place{"s", "x", ""}, []bool{true, true}},    // 9
		{event.Open, place{session: "s"}, []bool{true, true}},   // 10: a copy
	} {
		if step.kind == event.Message {
			m.message(step.at, false)
		} else {
			m.control(step.kind, step.at)
		}
		l := rebuilt(m)
		if got := closed(l); !slices.Equal(got, step.want) {
			t.Errorf("step %d: after %s at %d the streams have ended: %v, want %v", i, step.kind, m.last, got, step.want)
		}
		if got := l.Entries(); got != uint64(len(m.entries)) {
			t.Errorf("after %s the ledger has %d entries, and the log %d", step.kind, got, len(m.entries))
		}
	}
	l := rebuilt(m)
	a := l.Accounts["s x"]
	if s := a.Streams["a"]; s.birth != 2 || s.controls != 4 || s.markers.end != (marker{6, 4, s.markers.end.at}) || a.controls != 6 {
		t.Errorf("%+v, %+v", s, a)
	}
	o := l.openings["s"]
	if o.Seq != 10 || o.First != 1 || o.Known {
		t.Errorf("%+v", o)
	}
	l.Learn("s", 1, "old")
	if l.Learn("s", 10, "x"); !o.Known || o.Life != "x" {
		t.Errorf("%+v", o)
	}
	for first, want := range map[uint64][3]int{7: {4, 1, 1}, 10: {1, 0, 1}, 11: {0, 0, 0}} {
		l := rebuilt(m)
		l.Advance(first, 0)
		if n := l.Entries(); [3]int{int(n), len(l.Accounts), len(l.openings)} != want { //nolint:gosec // small
			t.Errorf("with a floor of %d there are %d entries, %d lives and %d openings, want %v", first, n, len(l.Accounts), len(l.openings), want)
		}
	}
}

// A birth that was written again covers the events that the floor has passed.
func TestLedger_CopyOfABirth(t *testing.T) {
	m := newModel()
	at := place{"s", "x", "a"}
	m.store(eventlog.Entry{Subject: event.Subject{Session: "s", Life: "x", Stream: "a", Kind: event.Birth}, Copy: &eventlog.BirthCopy{Newest: 7, NewestRemoved: 5, Through: 9}})
	l := rebuilt(m)
	s := l.Accounts["s x"].Streams["a"]
	if s.newest != 7 || s.removedBelow(6) != 5 || s.removedBelow(8) != 7 {
		t.Errorf("%+v", s)
	}
	m.control(event.Birth, at) // by an ingest that does not know it
	if l := rebuilt(m); l.Accounts["s x"].Streams["a"].birth != 1 || len(l.copies) > 0 {
		t.Errorf("a birth without knowledge counts: %+v", l.Accounts["s x"].Streams["a"])
	}
	m.rewrite(Copying{Seq: 1, Birth: &eventlog.BirthCopy{Newest: 7, NewestRemoved: 7, Through: 2}})
	l = rebuilt(m)
	if s := l.Accounts["s x"].Streams["a"]; s.birth != 3 || s.NewestRemoved != 7 || !slices.Equal(l.copies, []copied{{1, m.now}}) {
		t.Errorf("%+v, %v", s, l.copies)
	}
	m.rewrite(Copying{Seq: 1, Birth: &eventlog.BirthCopy{Newest: 9, NewestRemoved: 8, Through: 9, Generation: "lost"}}) // by a janitor that was held up
	if s := rebuilt(m).Accounts["s x"].Streams["a"]; s.birth != 4 || s.newest != 7 || s.NewestRemoved != 7 {
		t.Errorf("%+v", s)
	}
}

// The age of an entry is by the server's clock alone.
func TestLedger_Clock(t *testing.T) {
	l := New()
	if got := l.Clock(noon); !got.Equal(noon) {
		t.Errorf("without an entry it is %s", got)
	}
	at := event.Subject{Session: "s", Stream: "a"}
	l.Apply(eventlog.Entry{Subject: at, Valid: true, Sequence: 1, Time: noon}, noon.Add(time.Hour)) // an hour ahead
	for after, want := range map[time.Duration]time.Duration{0: 0, time.Minute: time.Minute, -time.Minute: 0} {
		if got := l.Clock(noon.Add(time.Hour + after)).Sub(noon); got != want {
			t.Errorf("%s later it is %s later", after, got)
		}
	}
}

func TestLedger_GoesPastWhatTheTailWillNeverBring(t *testing.T) {
	m := newModel()
	l := New()
	l.Begin(m.state())
	l.Reach(0, m.now)
	m.publish("s", "a", false)
	m.publish("s", "a", false)
	inFlight := m.entries
	m.publish("s", "b", false)
	m.purge(3)
	l.Apply(inFlight[0], m.now)
	l.Advance(3, 0)
	l.Apply(inFlight[1], m.now) // the floor has passed it
	if s := l.Accounts[unopened("s")].Streams["a"]; s.removedBelow(0) != 2 {
		t.Errorf("%+v", s)
	}
	l.Reach(2, m.now)
	l.Apply(inFlight[1], m.now)
	l.Apply(m.entries[0], m.now)
	if l.expireAll(); l.Totals != (Totals{1, 1, 1, 10}) || !l.Exact() {
		t.Errorf("%+v, exact %t", l.Totals, l.Exact())
	}
}

// The floor passes a tail that is behind: the ledger has not seen the entries that it removes there, neither the event
// that was stored while the stream's birth was copied nor when it was.
func TestLedger_FloorPassesTheTail(t *testing.T) {
	for name, hears := range map[string]func(l *Ledger, m *model){
		"before the tail jumps": func(l *Ledger, m *model) { l.Advance(m.first, m.last) },
		"after it": func(l *Ledger, m *model) {
			defer l.Advance(m.first, m.last)
			for _, e := range m.entries {
				l.Apply(e, m.now)
			}
		},
		"and the leader lags": func(l *Ledger, m *model) {
			leads := m.state()
			leads.First = 1
			m.entries[0].Valid, m.entries[0].PurgedTo = false, 4
			for _, e := range m.entries {
				l.Apply(e, m.now)
			}
			l.Looked(l.Through, leads)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel()
			m.open("s")
			m.publish("s", "a", false) // 1 to 3
			l := rebuilt(m)
			m.now = m.now.Add(time.Hour)
			m.publish("s", "a", false)                                                    // 4
			m.control(event.Clear, place{session: "other"})                               // 5
			m.rewrite(Copying{Seq: 2, Birth: &eventlog.BirthCopy{Newest: 3, Through: 3}}) // 6
			m.rewrite(Copying{Seq: 1})                                                    // 7
			last := m.now.Truncate(time.Second)
			m.purge(5)
			hears(l, m)
			for _, e := range m.entries {
				l.Apply(e, m.now)
			}
			l.Learn("s", 7, m.lives["s"].life)
			a := l.Accounts[event.LifeKey("s", m.lives["s"].life)]
			if (Survivors{Ledger: l}).knows(a, a.Streams["a"]) || l.NewestEventAt(a.key()).Before(last) {
				t.Errorf("it knows all of %+v, and the last event is of %s", a.Streams["a"], l.NewestEventAt(a.key()))
			}
			if d := l.TakeDamage(); len(d) > 0 || !l.Exact() {
				t.Errorf("%v is damage, exact: %t", d, l.Exact())
			}
		})
	}
}

// A look in the middle of a rebuild is ignored when an entry is missed later, and so is one at a
// leader that has fewer entries than the tail has brought.
func TestLedger_LookThatIsTooEarly(t *testing.T) {
	m := newModel()
	for range 9 {
		m.publish("s", "a", false)
	}
	m.delete(3)
	m.delete(7)
	l := New()
	l.Begin(m.state())
	for _, e := range m.entries[:4] { // up to 5
		l.Apply(e, m.now)
	}
	l.Looked(l.Through, m.state())
	for _, e := range m.entries[4:] {
		l.Apply(e, m.now)
	}
	l.Reach(m.last, m.now)
	if got := l.TakeDamage(); len(got) > 0 || !l.WantsLook() {
		t.Errorf("%v is found, and another look is wanted: %t", got, l.WantsLook())
	}
	old := m.state()
	old.Last = 8
	if l.Looked(l.Through, old); !l.WantsLook() {
		t.Error("an old answer is believed")
	}
	l.Looked(l.Through, m.state())
	if got := l.TakeDamage(); !slices.Equal(got, []Damage{{3, 7, 2}}) || l.Damaged != 7 || !l.Exact() {
		t.Errorf("%v is found, exact %t", got, l.Exact())
	}
}

func TestHoles(t *testing.T) {
	var h holes
	h.add(3, 5)
	h.add(510, 1600)
	h.remove(4)
	h.remove(4)
	h.remove(9999)
	if want := 2 + 1091; h.n != want {
		t.Fatalf("%d holes, want %d", h.n, want)
	}
	for seq := uint64(512); seq < 1024; seq++ {
		h.remove(seq)
	}
	if d := h.takeUpTo(511); d != (Damage{3, 511, 4}) {
		t.Errorf("%+v", d)
	}
	h.takeUpTo(1029)
	if d := h.takeUpTo(1031); d != (Damage{1030, 1031, 2}) {
		t.Errorf("%+v", d)
	}
	if d := h.takeUpTo(never); d != (Damage{1032, 1600, 569}) || h.n != 0 || len(h.blocks) != 0 || h.empty != 0 {
		t.Errorf("%+v of %+v", d, h)
	}
	for seq := range uint64(200) { // blocks that are explained are not kept
		h.add(seq*holeBlockSize, seq*holeBlockSize)
	}
	for seq := range uint64(199) {
		h.remove(seq * holeBlockSize)
	}
	if h.n != 1 || len(h.blocks) > 100 {
		t.Errorf("%d blocks for one hole", len(h.blocks))
	}
}

// fill enters events of many streams in turns.
func fill(l *Ledger, streams, events int) {
	e := eventlog.Entry{Valid: true, Subject: event.Subject{Session: "s"}, Time: noon}
	names := make([]string, streams)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	for i := range streams * events {
		e.Sequence++
		e.Subject.Stream = names[i%streams]
		l.Apply(e, noon)
	}
}

// With its name and its place in the map a stream without retained events takes some 140 B.
func TestMemory_PerStream(t *testing.T) {
	if got := unsafe.Sizeof(stream{}); got > 96 {
		t.Errorf("%d B", got)
	}
}

func BenchmarkApply(b *testing.B) {
	b.ReportAllocs()
	fill(New(), 100, b.N/100+1)
}

// The floor passes the trims of a life, one for each of its streams: the cost of one does not depend on how
// many there are.
func BenchmarkAdvance_Trims(b *testing.B) {
	for _, streams := range []int{1_000, 16_000} {
		b.Run(strconv.Itoa(streams), func(b *testing.B) {
			m := newModel()
			m.open("s")
			life := m.lives["s"].life
			for i := range streams {
				name := strconv.Itoa(i)
				m.publish("s", name, false)
				m.store(eventlog.Entry{
					Subject: event.Subject{Session: "s", Life: life, Stream: name, Kind: event.Trim},
					Trim:    &eventlog.Trim{Session: "s", Life: life, Stream: name, UpTo: m.last, Reason: eventlog.Trimmed, Listed: []uint64{m.last}},
				})
			}
			for b.Loop() {
				b.StopTimer()
				l := rebuilt(m)
				b.StartTimer()
				l.Advance(m.last+1, m.last)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*streams), "ns/trim")
		})
	}
}

// A janitor that starts on an idle log knows how old its entries are by the server's clock.
func TestLedger_ClockOfAnIdleLog(t *testing.T) {
	m := newModel()
	m.publish("s", "a", false)
	m.publish("s", "a", false)
	stored := m.entries[len(m.entries)-1].Time
	m.now = stored.Add(5 * time.Hour)
	l := rebuilt(m)
	if got := l.Clock(m.now); !got.Equal(stored) {
		t.Fatalf("before a look it is %s, want %s", got, stored)
	}
	look := func(at time.Time, last uint64) eventlog.State {
		s := m.state()
		s.Time, s.Last = at, last
		return s
	}
	later := stored.Add(2 * time.Hour)
	for name, look := range map[string]struct {
		state eventlog.State
		now   time.Time
	}{
		"one that saw more than the ledger has":   {look(later, m.last+1), m.now},
		"one that is older than the newest entry": {look(stored.Add(-time.Hour), m.last), m.now},
		"one of before the newest entry came":     {look(later, m.last), m.now.Add(-time.Second)},
	} {
		if l.Hear(look.state, look.now); !l.Clock(m.now).Equal(stored) {
			t.Errorf("%s moves the clock to %s", name, l.Clock(m.now))
		}
	}
	l.Hear(look(later, m.last), m.now)
	if got := l.Clock(m.now.Add(time.Minute)); !got.Equal(later.Add(time.Minute)) {
		t.Errorf("it is %s, want %s", got, later.Add(time.Minute))
	}
	if before, why := l.Target(Rules{MaxAge: time.Hour}, 0, m.now); before != m.last+1 || why != ByAge {
		t.Errorf("the floor is to move to %d by %s", before, why)
	}
	m.publish("s", "a", false) // the newest entry counts, also when the server's clock was set back
	l.Apply(m.entries[len(m.entries)-1], m.now)
	if got, want := l.Clock(m.now), m.entries[len(m.entries)-1].Time; !got.Equal(want) {
		t.Errorf("it is %s, want %s", got, want)
	}
}

// An entry that the ledger waits for may be lost with its server. A janitor that continued to wait
// would make no room in a full partition.
func TestLedger_WaitsForNothingThatIsLost(t *testing.T) {
	m := newModel()
	m.open("s")
	m.publish("s", "a", false) // 2, 3
	l := rebuilt(m)
	l.Require(l.Restarts, 4) // a trim
	if l.Begin(m.state()); l.Through < l.Required {
		t.Errorf("it waits for %d, and the log ends at %d", l.Required, m.last)
	}
}

// A look may see entries that the floor takes before the tail brings them, among them the trim
// that explains a hole.
func TestLedger_LookOvertakenByTheFloor(t *testing.T) {
	m := newModel()
	for range 3 {
		m.message(place{"s", "", "a"}, false) // 1 to 3
	}
	m.store(eventlog.Entry{Subject: event.Subject{Session: "s", Stream: "a", Kind: event.Trim}, Trim: &eventlog.Trim{Session: "s", Stream: "a", UpTo: 2, Listed: []uint64{2}}})
	m.delete(2)
	l := New()
	l.Begin(m.state())
	l.Apply(m.entries[0], m.now)
	l.Apply(m.entries[1], m.now) // 3, after a hole
	l.Looked(l.Through, m.state())
	m.purge(5)
	l.Reach(4, m.now)
	if d := l.TakeDamage(); len(d) > 0 {
		t.Errorf("%v is damage", d)
	}
	if !l.WantsLook() {
		t.Error("no other look is wanted")
	}
	l.Looked(l.Through, m.state())
	if d := l.TakeDamage(); len(d) > 0 || !l.Exact() {
		t.Errorf("%v is damage, exact: %t", d, l.Exact())
	}
}
