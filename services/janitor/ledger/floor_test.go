package ledger

import (
	"slices"
	"testing"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// stretched returns stretches of one entry of so many bytes each, a minute apart.
func stretched(sizes ...int) *stretches {
	s := &stretches{Step: Step{age: time.Minute}}
	for i, size := range sizes {
		s.add(eventlog.Entry{Sequence: uint64(i + 1), Time: noon.Add(time.Duration(i) * time.Minute), Size: size - entryOverhead}) //nolint:gosec // small
	}
	return s
}

func TestStretches(t *testing.T) {
	s := stretched(1000, 1000, 2000, 1000) // sequences 1 to 4
	for after, want := range map[time.Duration]uint64{-1: 1, 0: 2, time.Minute - 1: 2, 2 * time.Minute: 4, 3 * time.Minute: 5, time.Hour: 5} {
		if got := s.youngerThan(noon.Add(after), 4); got != want {
			t.Errorf("younger than %s is what comes from %d on, want %d", after, got, want)
		}
	}
	for share, want := range map[float64]uint64{1: 1, 0.99: 2, 0.8: 2, 0.61: 3, 0.6: 3, 0.59: 4, 0.2: 4, 0.1: 5, 0: 5} {
		if got := s.lighter(share, 4); got != want {
			t.Errorf("%g of the bytes is what comes from %d on, want %d", share, got, want)
		}
	}
	s.remove(entry{seq: 3, size: 2000 - entryOverhead})
	if got := s.lighter(0.5, 4); got != 3 { // of 3000 there are 1000 left
		t.Errorf("half of what is left is what comes from %d on", got)
	}
	s.dropBefore(3)
	if got := s.youngerThan(noon.Add(-time.Hour), 4); got != 3 {
		t.Errorf("it begins at %d", got)
	}
	if got := (&stretches{}).youngerThan(noon, 7); got != 8 {
		t.Errorf("an empty one begins at %d", got)
	}
}

// Stretches are few, whatever is stored, and an entry with an odd time makes no other older.
func TestStretches_AreBounded(t *testing.T) {
	s := &stretches{Step: Step{age: time.Millisecond, bytes: 1}}
	for i := range 3 * maxStretches {
		s.add(eventlog.Entry{Sequence: uint64(i + 1), Time: noon.Add(time.Duration(i) * time.Second)}) //nolint:gosec // small
		if len(s.list) > maxStretches {
			t.Fatalf("there are %d", len(s.list))
		}
	}
	cutoff := noon.Add(maxStretches * time.Second)
	if got := s.youngerThan(cutoff, 3*maxStretches); got > maxStretches+2 || got < maxStretches-8 {
		t.Errorf("half of them end at %d", got)
	}
	total := int64(0)
	for _, one := range s.list {
		total += one.bytes
	}
	if total != 3*maxStretches*entryOverhead {
		t.Errorf("they have %d bytes", total)
	}
	odd := stretched(1000)
	odd.Step = Step{age: time.Hour}
	for i, at := range []time.Duration{time.Minute, -time.Hour} { // the server's clock was set
		odd.add(eventlog.Entry{Sequence: uint64(i + 2), Time: noon.Add(at)}) //nolint:gosec // small
	}
	if got := odd.youngerThan(noon.Add(time.Minute-1), 3); got != 1 {
		t.Errorf("what is younger begins at %d", got)
	}
}

func TestFloor_Target(t *testing.T) {
	l := New()
	for i := range 100 {
		l.Stretches.Step = Step{bytes: 1}
		at := event.Subject{Session: "s", Stream: "a"}
		l.Apply(eventlog.Entry{Subject: at, Valid: true, Sequence: l.Through + 1, Time: noon.Add(time.Duration(i) * time.Minute), Size: 100}, noon)
	}
	l.Reach(100, noon)
	now := noon.Add(time.Minute) // 100 minutes after the first entry was stored
	for _, test := range []struct {
		name       string
		r          Rules
		bytes      uint64
		want       uint64
		why        string
		copyBefore uint64
	}{
		{"no limits", Rules{MaxAge: -1, MaxBytes: -1}, 900, 0, ByAge, 0},
		{"nothing is too old", Rules{MaxAge: 2 * time.Hour, MaxBytes: -1}, 0, 1, ByAge, 1},
		{"half is too old", Rules{MaxAge: 50 * time.Minute, MaxBytes: -1}, 0, 52, ByAge, 52},
		{"copies have to be on disk before", Rules{MaxAge: 80 * time.Minute, MaxBytes: -1, SyncInterval: 2 * time.Minute, Interval: time.Minute}, 0, 22, ByAge, 32},
		{"copies take longer than the maximum age", Rules{MaxAge: 4 * time.Minute, MaxBytes: -1, SyncInterval: 2 * time.Minute}, 0, 98, ByAge, 98},
		{"not full", Rules{MaxAge: -1, MaxBytes: 1000}, 600, 0, ByAge, 0},
		{"soon full", Rules{MaxAge: -1, MaxBytes: 1000}, 800, 0, ByAge, 26},
		{"full", Rules{MaxAge: -1, MaxBytes: 1000}, 900, 18, ByVolume, 26}, // of 900 there are 750 left
		{"more than full", Rules{MaxAge: -1, MaxBytes: 1000}, 1500, 51, ByVolume, 26},
		{"older than what has to go for bytes", Rules{MaxAge: 50 * time.Minute, MaxBytes: 1000}, 900, 52, ByAge, 52},
		{"what has to go for bytes is younger", Rules{MaxAge: 90 * time.Minute, MaxBytes: 1000}, 900, 18, ByVolume, 26},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, why := l.Target(test.r, test.bytes, now)
			if before != test.want || why != test.why {
				t.Errorf("the floor goes to %d for %s, want %d for %s", before, why, test.want, test.why)
			}
			if got := l.Lead(test.r, test.bytes, now); got != test.copyBefore {
				t.Errorf("what is before %d is copied, want %d", got, test.copyBefore)
			}
		})
	}
}

// The entries of a log that have to stay, and those that are to be copied.
func TestFloor_LiveEntries(t *testing.T) {
	const ttl = time.Hour
	type stored struct {
		kind event.Kind
		at   place
	}
	x, a := place{"s", "x", ""}, place{"s", "x", "a"}
	opened := []stored{{event.Open, place{session: "s"}}, {event.Birth, a}} // 1, 2
	with := func(more ...stored) []stored { return slices.Concat(opened, more) }
	ended := with(stored{event.End, a}, stored{event.Seal, x}, stored{event.End, x}) // 3, 4, 5
	closed := session.Record{Session: "s", Life: "x", State: session.Closed, Ended: noon.Add(-ttl)}
	for _, test := range []struct {
		name    string
		entries []stored
		life    string        // that the opening names; empty: it was not read
		after   time.Duration // since the last entry was stored
		record  session.Record
		want    []uint64
	}{
		{"an open session", opened, "x", 10 * ttl, session.Record{}, []uint64{1, 2}},
		{"a birth again by an ingest that does not know it", with(stored{event.Birth, a}), "x", 0, session.Record{}, []uint64{1, 2}},
		{"an opening again", with(stored{event.Open, place{session: "s"}}), "x", 0, session.Record{}, []uint64{2, 3}},
		{"an ended stream", with(stored{event.End, a}), "x", 0, session.Record{}, []uint64{1, 3}},
		{"an end again", with(stored{event.End, a}, stored{event.End, a}), "x", 0, session.Record{}, []uint64{1, 4}},
		{"an event after an end", with(stored{event.End, a}, stored{event.Message, a}), "x", 0, session.Record{}, []uint64{1, 2}},
		{"a clear", with(stored{event.Clear, a}, stored{event.Clear, x}), "x", 0, session.Record{}, []uint64{1, 2}},
		{"sealed and not ended", with(stored{event.Seal, x}), "x", 10 * ttl, session.Record{}, []uint64{1, 2, 3}},
		{"ended", ended, "x", ttl - 1, session.Record{}, []uint64{1, 3, 4, 5}},
		{"ended, and the opening was not read", ended, "", ttl - 1, session.Record{}, []uint64{1, 3, 4, 5}},
		{"forgotten", ended, "x", ttl, session.Record{}, nil},
		{"ended, and the registry has not heard of it", ended, "x", 10 * ttl, session.Record{Session: "s", Life: "x", State: session.Open}, []uint64{1, 3, 4, 5}},
		{"forgotten, perhaps", ended, "", ttl, session.Record{}, []uint64{1}},
		{"forgotten, and the log has copies alone", slices.Concat(ended, []stored{{event.Open, place{session: "s"}}, {event.Seal, x}, {event.End, x}}), "x", 0, closed, nil},
		{"a record of another life", ended, "x", 0, session.Record{Session: "s", Life: "y", State: session.Closed, Ended: noon.Add(-ttl)}, []uint64{1, 3, 4, 5}},
		{"forgotten, and its opening lies after it", slices.Concat(ended, []stored{{event.Open, place{session: "s"}}}), "x", ttl, session.Record{}, []uint64{4, 5}},
		{"forgotten, and its seal lies after it", slices.Concat(ended, []stored{{event.Seal, x}}), "x", ttl, session.Record{}, []uint64{5}},
		{"forgotten, and the end of its stream lies after it", slices.Concat(ended, []stored{{event.End, a}}), "x", ttl, session.Record{}, []uint64{5}},
		{"the opening is of another life", slices.Concat(ended, []stored{{event.Open, place{session: "s"}}}), "y", ttl, session.Record{}, []uint64{6}},
		{"a life that another one has replaced", with(stored{event.End, a}), "y", 0, session.Record{}, []uint64{1, 3}},
		{"no opening", opened[1:], "", 0, session.Record{}, nil},
		{"the empty life", []stored{{event.End, place{"s", "", "a"}}, {event.End, place{"s", "", ""}}}, "", 0, session.Record{}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newModel()
			m.now = noon
			for _, e := range test.entries {
				m.control(e.kind, e.at)
			}
			l := rebuilt(m)
			if o := l.openings["s"]; o != nil && test.life != "" {
				l.Learn("s", o.Seq, test.life)
			}
			registry := func(string) (session.Record, bool) { return test.record, test.record.Session != "" }
			k := Survivors{Ledger: l, Now: l.Clock(m.now.Add(test.after)), TTL: always(ttl), Registry: registry}
			var got []uint64
			for _, c := range k.Overdue(m.last+1, 99) {
				got = append(got, c.Seq)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%v are live, want %v", got, test.want)
			}
			want := m.last + 1
			if len(test.want) > 0 {
				want = test.want[0]
			}
			l.DropSettled(0, m.now.Add(test.after))
			if got := k.Barrier(m.last + 1); got != want {
				t.Errorf("the floor may go to %d, want %d", got, want)
			}
		})
	}
}

// A copy that a power cut may take does not replace its original.
func TestFloor_OriginalsStayUntilTheirCopiesAreOnDisk(t *testing.T) {
	m := newModel()
	m.open("s")                // 1
	m.publish("s", "a", false) // 2, 3
	l := rebuilt(m)
	l.Learn("s", 1, "l1")
	for _, c := range (Survivors{Ledger: l, Now: m.now, TTL: always(0), Registry: noRegistry}).Overdue(9, 9) {
		l.Required = m.rewrite(c) // 4, 5
	}
	k := Survivors{Ledger: l, Now: m.now, TTL: always(0), Registry: noRegistry}
	if got := k.Barrier(9); got != 1 {
		t.Errorf("before the ledger has the copies the floor may go to %d", got)
	}
	for i, e := range m.entries[3:] {
		l.Apply(e, noon.Add(time.Duration(i)*time.Minute))
	}
	for after, want := range []uint64{1, 2, 4, 4} {
		l.DropSettled(time.Minute, noon.Add(time.Duration(after)*time.Minute))
		if got := k.Barrier(9); got != want {
			t.Errorf("%d minutes after the first copy the floor may go to %d, want %d", after, got, want)
		}
	}
	if got := k.Overdue(9, 9); len(got) != 2 || got[0].Seq != 4 || got[1].Birth == nil || *got[1].Birth != (eventlog.BirthCopy{Newest: 3, Through: 5, Generation: "birth"}) {
		t.Errorf("%+v", got)
	}
	if got := k.Overdue(9, 1); len(got) != 1 {
		t.Errorf("%+v", got)
	}
}

// A janitor whose ledger lags acts after the floor has passed an opening. Until it has received
// the opening's copy it cannot know that the births and ends of that life are needed.
func TestFloor_WaitsForCopiesOfWhatItPassed(t *testing.T) {
	m := newModel()
	m.open("s") // 1
	lagging := New()
	lagging.Begin(m.state())
	lagging.Reach(0, m.now)
	m.publish("s", "a", false) // 2, 3
	acting := rebuilt(m)
	acting.Learn("s", 1, "l1")
	for _, c := range (Survivors{Ledger: acting, Now: m.now, TTL: always(0), Registry: noRegistry}).Overdue(2, 9) {
		m.rewrite(c) // 4
	}
	m.publish("s", "a", false) // 5
	m.purge(2)
	for _, e := range m.entries[:2] {
		lagging.Apply(e, m.now)
	}
	lagging.Looked(lagging.Through, m.state())
	k := Survivors{Ledger: lagging, Now: m.now, TTL: always(0), Registry: noRegistry}
	lagging.DropSettled(0, m.now)
	if got := k.Barrier(5); got != 2 {
		t.Errorf("without the opening's copy the floor may go to %d, want 2", got)
	}
	for _, e := range m.entries[2:] {
		lagging.Apply(e, m.now)
	}
	lagging.Learn("s", 4, "l1")
	lagging.DropSettled(0, m.now)
	if got := k.Barrier(5); got != 2 {
		t.Errorf("with the opening's copy the floor may go to %d, want 2, the birth", got)
	}
	if got := k.Overdue(5, 9); len(got) != 2 || got[0].Seq != 2 {
		t.Errorf("%+v is to be copied, want the birth and the opening", got)
	}
}

// The floor passes an event, stored just before the copy of its stream's birth, when a ledger has yet to receive that copy.
// Whether it has forgotten the event by then, or receives it late, it does not claim to know all of the stream.
func TestSurvivors_FloorBeforeTheCopy(t *testing.T) {
	for name, late := range map[string]bool{"forgotten": false, "late": true} {
		m := newModel()
		m.open("s")                // 1
		m.publish("s", "a", false) // 2, 3
		ledgers := []*Ledger{rebuilt(m), rebuilt(m)}
		keep := func(i int) Survivors {
			ledgers[i].Learn("s", ledgers[i].Opening("s").Seq, "l1")
			return Survivors{Ledger: ledgers[i], Now: m.now, TTL: always(0), Registry: noRegistry}
		}
		copies := keep(0).Overdue(4, 9)
		m.publish("s", "a", false) // 4
		for _, c := range copies {
			m.rewrite(c) // 5, 6
		}
		lagging, rest := ledgers[1], m.entries[3:]
		if !late {
			lagging.Apply(rest[0], m.now)
			rest = rest[1:]
		}
		m.purge(5)
		lagging.Advance(m.first, m.last)
		lagging.expireAll()
		for _, e := range rest {
			lagging.Apply(e, m.now)
		}
		got := keep(1).Overdue(7, 9)
		if len(got) != 2 || got[1].Birth == nil || got[1].Birth.Through > 0 {
			t.Errorf("%s: %+v is to be copied, and the event at 4 has gone", name, got)
		}
	}
}

// A ledger that began in the middle of a partition claims to know only those events of a stream that it, or a
// copy of the birth, has seen without a break.
func TestSurvivors_Knows(t *testing.T) {
	for name, test := range map[string]struct {
		first uint64
		birth eventlog.Entry
		open  bool // the opening as it was stored first
		want  bool
	}{
		"from the partition's start":      {first: 1, want: true},
		"a birth that may be another one": {first: 8},
		"a copy that ends before":         {first: 8, birth: eventlog.Entry{Copy: &eventlog.BirthCopy{Newest: 3, Through: 6}}},
		"a copy that claims nothing":      {first: 8, birth: eventlog.Entry{Copy: &eventlog.BirthCopy{Newest: 3}}},
		"a copy that reaches the ledger":  {first: 8, birth: eventlog.Entry{Copy: &eventlog.BirthCopy{Newest: 3, Through: 7}}, want: true},
		"the life's opening":              {first: 8, open: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := New()
			l.Begin(eventlog.State{Origin: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: test.first, Last: 20})
			l.Apply(eventlog.Entry{Subject: event.Subject{Session: "s", Kind: event.Open}, Valid: true, Sequence: 10, Time: noon, Again: !test.open}, noon)
			l.Learn("s", 10, "l")
			birth := test.birth
			birth.Subject = event.Subject{Session: "s", Life: "l", Stream: "t", Kind: event.Birth}
			birth.Valid, birth.Sequence, birth.Time = true, 11, noon
			l.Apply(birth, noon)
			a := l.account("s", "l")
			k := Survivors{Ledger: l, Now: noon, TTL: always(time.Hour), Registry: func(string) (session.Record, bool) { return session.Record{}, false }}
			if got := k.knows(a, a.stream("t")); got != test.want {
				t.Errorf("it is known: %t", got)
			}
			if got := k.copying(control{seq: 11, kind: event.Birth, life: a, stream: a.stream("t")}).Birth.Through; (got > 0) != test.want {
				t.Errorf("the copy says that it holds up to %d", got)
			}
		})
	}
}

// forgettable returns the trims of lives whose names are not kept.
func forgettable(l *Ledger, now time.Time) []Announcement {
	return slices.Concat(Survivors{Ledger: l, Now: now, TTL: always(0), Registry: noRegistry}.Forgettable(false)...)
}

// The opening of a life is deleted first, and all other entries once it is deleted: at no time does the log have
// an opening without its seal and end.
func TestForget_OpeningGoesFirst(t *testing.T) {
	m := newModel()
	m.open("s") // 1
	m.publish("s", "a", false)
	m.publish("s", "b", false) // up to 5
	m.endStream("s", "b")      // 6
	m.clear("s", "a")          // 7
	m.endSession("s")
	m.endSession("s") // 8 the seal, 9 the end of a, 10 the end
	m.open("another")
	l := rebuilt(m)
	announced := func(want ...uint64) {
		t.Helper()
		all := forgettable(l, m.now)
		var got []uint64
		for i, one := range all {
			if one.Forgotten != (len(want) > 1 && i == len(all)-1) {
				t.Errorf("trim %d of %d: %+v", i+1, len(all), one)
			}
			got = append(got, one.Listed...)
			one.Sequence = l.Through + 1
			of := event.Subject{Session: one.Session, Life: one.Life, Kind: event.Trim}
			l.Apply(eventlog.Entry{Subject: of, Valid: true, Sequence: l.Through + 1, Time: m.now, Trim: &one.Trim}, m.now)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v are announced, want %v", got, want)
		}
	}
	announced() // there are events
	events := Announcements(Policy(l.View(l.Accounts["s l1"], l.LifeState(l.Accounts["s l1"])), Limits{}, m.now))
	for _, one := range events {
		one.Sequence = l.Through + 1
		of := event.Subject{Session: "s", Life: "l1", Stream: one.Stream, Kind: event.Trim}
		l.Apply(eventlog.Entry{Subject: of, Valid: true, Sequence: l.Through + 1, Time: m.now, Trim: &one.Trim}, m.now)
	}
	announced() // they are still to be deleted
	l.Deleted([]uint64{3, 5})
	announced() // the opening was not read
	l.Learn("s", 1, "l1")
	announced(1)
	announced() // it is still to be deleted
	if got := l.Accounts["s l1"]; got.bare() || !got.markers.ended() {
		t.Error("the ledger has forgotten the end of a life whose opening is not deleted yet")
	}
	l.Deleted([]uint64{1})
	if k := (Survivors{Ledger: l, Now: m.now, TTL: always(time.Hour), Registry: noRegistry}); len(k.Forgettable(false)) > 0 {
		t.Error("the life is forgotten before its time")
	}
	announced(2, 4, 6, 7, 8, 9, 10)
	announced()
	if a := l.Accounts["s l1"]; a != nil {
		t.Errorf("the ledger knows of a forgotten life %+v", a)
	}
	if d := l.Lacking([]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}); d.N != 0 { // once they are deleted
		t.Errorf("what a trim names is damage: %+v", d)
	}
	if n := l.Entries(); n != 11 { // the opening of the other one, three trims and the seven that are to be deleted
		t.Errorf("the ledger has %d entries", n)
	}
	l.Advance(l.Through+1, l.Through)
	if n := l.Entries(); n != 0 {
		t.Errorf("below the floor it has %d", n)
	}
}

// A life may have more control entries than one trim lists. Its own end is in the last one.
func TestForget_MoreThanOneTrimLists(t *testing.T) {
	m := newModel()
	m.open("s")
	life := m.lives["s"].life
	for range eventlog.MaxListed + 1 {
		m.control(event.Clear, place{"s", life, ""})
	}
	for range 2 {
		m.endSession("s")
	}
	l := rebuilt(m)
	l.openings["s"].Life, l.openings["s"].Known = "another", true
	var listed []int
	for _, one := range forgettable(l, m.now) {
		listed = append(listed, len(one.Listed))
		if last := len(listed) == 2; one.Forgotten != last || contains(one.Listed, m.last) != last || !slices.IsSorted(one.Listed) {
			t.Errorf("trim %d: forgotten %v, with the end %v", len(listed), one.Forgotten, contains(one.Listed, m.last))
		}
	}
	if want := []int{eventlog.MaxListed - 2, 5}; !slices.Equal(listed, want) {
		t.Errorf("the trims list %v entries, want %v", listed, want)
	}
}

// Each change of its members is an opening of a session, and several processes may begin its end.
func TestForget_ManyOpeningsAndEnds(t *testing.T) {
	m := newModel()
	m.open("s")
	life := m.lives["s"].life
	var all, ends []uint64
	for _, c := range []struct {
		kind event.Kind
		at   place
		seqs *[]uint64
	}{{event.Open, place{session: "s"}, &all}, {event.Seal, place{"s", life, ""}, &ends}, {event.End, place{"s", life, ""}, &ends}} {
		for range eventlog.MaxListed {
			m.control(c.kind, c.at)
			*c.seqs = append(*c.seqs, m.last)
		}
	}
	l := rebuilt(m)
	check := func(want []uint64, whole bool, newest ...uint64) {
		t.Helper()
		var got []uint64
		trims := forgettable(l, m.now)
		for i, one := range trims {
			last := i == len(trims)-1
			if len(one.Listed) > eventlog.MaxListed || !slices.IsSorted(one.Listed) || one.Forgotten != (whole && last) {
				t.Errorf("trim %d of %d, forgotten %t, lists %d entries", i+1, len(trims), one.Forgotten, len(one.Listed))
			}
			for _, seq := range newest {
				if contains(one.Listed, seq) != last {
					t.Errorf("trim %d of %d lists %d: %t", i+1, len(trims), seq, !last)
				}
			}
			got = append(got, one.Listed...)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%d entries are listed, want %d", len(got), len(want))
		}
	}
	opening := l.openings["s"].Seq
	l.openings["s"].Life, l.openings["s"].Known = life, true
	check(append([]uint64{1}, all...), false, opening)
	l.openings["s"].Life = "another"
	check(ends, true, ends[eventlog.MaxListed-1], m.last)
}
