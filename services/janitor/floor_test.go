package janitor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// stretched returns stretches of one entry of so many bytes each, a minute apart.
func stretched(sizes ...int) *stretches {
	s := &stretches{step: step{age: time.Minute}}
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

// They are few, whatever is stored, and an entry with an odd time makes nothing older.
func TestStretches_AreBounded(t *testing.T) {
	s := &stretches{step: step{age: time.Millisecond, bytes: 1}}
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
	odd.step = step{age: time.Hour}
	for i, at := range []time.Duration{time.Minute, -time.Hour} { // the server's clock was set
		odd.add(eventlog.Entry{Sequence: uint64(i + 2), Time: noon.Add(at)}) //nolint:gosec // small
	}
	if got := odd.youngerThan(noon.Add(time.Minute-1), 3); got != 1 {
		t.Errorf("what is younger begins at %d", got)
	}
}

func TestFloor_Target(t *testing.T) {
	l := newLedger()
	for i := range 100 {
		l.stretches.step = step{bytes: 1}
		at := event.Subject{Session: "s", Stream: "a"}
		l.apply(eventlog.Entry{Subject: at, Valid: true, Sequence: l.through + 1, Time: noon.Add(time.Duration(i) * time.Minute), Size: 100}, noon)
	}
	l.reach(100, noon)
	now := noon.Add(time.Minute) // 100 minutes after the first entry was stored
	for _, test := range []struct {
		name       string
		r          rules
		bytes      uint64
		want       uint64
		why        string
		copyBefore uint64
	}{
		{"no limits", rules{maxAge: -1, maxBytes: -1}, 900, 0, byAge, 0},
		{"nothing is too old", rules{maxAge: 2 * time.Hour, maxBytes: -1}, 0, 1, byAge, 1},
		{"half is too old", rules{maxAge: 50 * time.Minute, maxBytes: -1}, 0, 52, byAge, 52},
		{"copies have to be on disk before", rules{maxAge: 80 * time.Minute, maxBytes: -1, syncInterval: 2 * time.Minute, interval: time.Minute}, 0, 22, byAge, 32},
		{"copies take longer than the maximum age", rules{maxAge: 4 * time.Minute, maxBytes: -1, syncInterval: 2 * time.Minute}, 0, 98, byAge, 98},
		{"not full", rules{maxAge: -1, maxBytes: 1000}, 600, 0, byAge, 0},
		{"soon full", rules{maxAge: -1, maxBytes: 1000}, 800, 0, byAge, 26},
		{"full", rules{maxAge: -1, maxBytes: 1000}, 900, 18, byVolume, 26}, // of 900 there are 750 left
		{"more than full", rules{maxAge: -1, maxBytes: 1000}, 1500, 51, byVolume, 26},
		{"older than what has to go for bytes", rules{maxAge: 50 * time.Minute, maxBytes: 1000}, 900, 52, byAge, 52},
		{"what has to go for bytes is younger", rules{maxAge: 90 * time.Minute, maxBytes: 1000}, 900, 18, byVolume, 26},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, why := l.target(test.r, test.bytes, now)
			if before != test.want || why != test.why {
				t.Errorf("the floor goes to %d for %s, want %d for %s", before, why, test.want, test.why)
			}
			if got := l.lead(test.r, test.bytes, now); got != test.copyBefore {
				t.Errorf("what is before %d is copied, want %d", got, test.copyBefore)
			}
		})
	}
}

// What of a log has to stay, and what is to be copied.
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
		life    string        // what the opening says; empty: nobody has asked
		after   time.Duration // since the last entry was stored
		index   session.Record
		want    []uint64
	}{
		{"an open session", opened, "x", 10 * ttl, session.Record{}, []uint64{1, 2}},
		{"a birth again by an ingest that does not know it", with(stored{event.Birth, a}), "x", 0, session.Record{}, []uint64{1, 2}},
		{"an opening again", with(stored{event.Open, place{session: "s"}}), "x", 0, session.Record{}, []uint64{2, 3}},
		{"an ended stream", with(stored{event.End, a}), "x", 0, session.Record{}, []uint64{1, 3}},
		{"an end again", with(stored{event.End, a}, stored{event.End, a}), "x", 0, session.Record{}, []uint64{1, 4}},
		{"an event behind an end", with(stored{event.End, a}, stored{event.Message, a}), "x", 0, session.Record{}, []uint64{1, 2}},
		{"a clear", with(stored{event.Clear, a}, stored{event.Clear, x}), "x", 0, session.Record{}, []uint64{1, 2}},
		{"sealed and not ended", with(stored{event.Seal, x}), "x", 10 * ttl, session.Record{}, []uint64{1, 2, 3}},
		{"ended", ended, "x", ttl - 1, session.Record{}, []uint64{1, 4, 5}},
		{"ended, and nobody has asked whose the opening is", ended, "", ttl - 1, session.Record{}, []uint64{1, 4, 5}},
		{"forgotten", ended, "x", ttl, session.Record{}, nil},
		{"ended, and the index has not heard of it", ended, "x", 10 * ttl, session.Record{Session: "s", Life: "x", State: session.Open}, []uint64{1, 4, 5}},
		{"forgotten, perhaps", ended, "", ttl, session.Record{}, []uint64{1}},
		{"forgotten, and the log has copies alone", slices.Concat(ended, []stored{{event.Open, place{session: "s"}}, {event.Seal, x}, {event.End, x}}), "x", 0, closed, nil},
		{"a record of another life", ended, "x", 0, session.Record{Session: "s", Life: "y", State: session.Closed, Ended: noon.Add(-ttl)}, []uint64{1, 4, 5}},
		{"forgotten, and its opening lies behind", slices.Concat(ended, []stored{{event.Open, place{session: "s"}}}), "x", ttl, session.Record{}, []uint64{4, 5}},
		{"forgotten, and its seal lies behind", slices.Concat(ended, []stored{{event.Seal, x}}), "x", ttl, session.Record{}, []uint64{5}},
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
				l.learn("s", o.seq, test.life)
			}
			index := func(string) (session.Record, bool) { return test.index, test.index.Session != "" }
			k := keeper{ledger: l, now: l.clock(m.now.Add(test.after)), ttl: ttl, index: index}
			var got []uint64
			for _, c := range k.overdue(m.last+1, 99) {
				got = append(got, c.seq)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%v are live, want %v", got, test.want)
			}
			want := m.last + 1
			if len(test.want) > 0 {
				want = test.want[0]
			}
			if got := k.barrier(m.last+1, 0, m.now.Add(test.after)); got != want {
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
	l.learn("s", 1, "l1")
	for _, c := range (keeper{ledger: l, now: m.now, ttl: 0, index: noIndex}).overdue(9, 9) {
		l.stored = m.rewrite(c) // 4, 5
	}
	k := keeper{ledger: l, now: m.now, ttl: 0, index: noIndex}
	if got := k.barrier(9, time.Minute, m.now); got != 1 {
		t.Errorf("before the ledger has the copies the floor may go to %d", got)
	}
	for i, e := range m.entries[3:] {
		l.apply(e, noon.Add(time.Duration(i)*time.Minute))
	}
	for after, want := range []uint64{1, 2, 4, 4} {
		if got := k.barrier(9, time.Minute, noon.Add(time.Duration(after)*time.Minute)); got != want {
			t.Errorf("%d minutes after the first copy the floor may go to %d, want %d", after, got, want)
		}
	}
	if got := k.overdue(9, 9); len(got) != 2 || got[0].seq != 4 || got[1].birth == nil || *got[1].birth != (eventlog.Copy{Last: 3, Through: 5}) {
		t.Errorf("%+v", got)
	}
	if got := k.overdue(9, 1); len(got) != 1 {
		t.Errorf("%+v", got)
	}
}

// A standby that lags takes over after the floor has passed an opening. Until it has received
// the opening's copy it cannot know that the births and ends of that life are needed.
func TestFloor_WaitsForCopiesOfWhatItPassed(t *testing.T) {
	m := newModel()
	m.open("s") // 1
	standby := newLedger()
	standby.begin(m.state())
	standby.reach(0, m.now)
	m.publish("s", "a", false) // 2, 3
	acting := rebuilt(m)
	acting.learn("s", 1, "l1")
	for _, c := range (keeper{ledger: acting, now: m.now, ttl: 0, index: noIndex}).overdue(2, 9) {
		m.rewrite(c) // 4
	}
	m.publish("s", "a", false) // 5
	m.purge(2)
	for _, e := range m.entries[:2] {
		standby.apply(e, m.now)
	}
	standby.looked(standby.through, m.state())
	k := keeper{ledger: standby, now: m.now, ttl: 0, index: noIndex}
	if got := k.barrier(5, 0, m.now); got != 2 {
		t.Errorf("without the opening's copy the floor may go to %d, want 2", got)
	}
	for _, e := range m.entries[2:] {
		standby.apply(e, m.now)
	}
	standby.learn("s", 4, "l1")
	if got := k.barrier(5, 0, m.now); got != 2 {
		t.Errorf("with the opening's copy the floor may go to %d, want 2, the birth", got)
	}
	if got := k.overdue(5, 9); len(got) != 2 || got[0].seq != 2 {
		t.Errorf("%+v is to be copied, want the birth and the opening", got)
	}
}

// opened opens a session with so many streams of one event each.
func (r *running) opened(t *testing.T, name string, streams int) (last []uint64) {
	t.Helper()
	r.create(t, name)
	for i := range streams {
		last = append(last, r.publish(t, name, fmt.Sprint(i), 1)...)
	}
	return last
}

func TestWhatIsTooOldGoesAndLivesStay(t *testing.T) {
	t.Parallel()
	cfg := quick()
	cfg.TombstoneTTL, cfg.ClosedGrace = time.Second, 0
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxAge: time.Second}
	r := begin(t, srv, settings, cfg)
	events := r.opened(t, "open", 3)
	r.end(t, "open", "2")
	r.opened(t, "closed", 2)
	r.end(t, "closed", "")
	r.publish(t, "unopened", "a", 1)
	life := r.life("open")
	eventually(t, func() error {
		state, err := r.b.Log.Look(t.Context(), 0)
		if _, there := r.b.Sessions.Session("closed"); err == nil && (there || state.First <= events[2]) {
			err = fmt.Errorf("the log begins at %d, and the record of the closed session is there: %t", state.First, there)
		}
		return err
	})
	// The floor goes on with each copy, so what is missing is asked between two looks at it.
	waittest.NoError(t, func() error {
		before, err := r.b.Log.Look(t.Context(), 0)
		if err != nil {
			return err
		}
		missing, _, err := r.b.Log.Missing(t.Context(), r.b.Log.Look, "open", life, "0", 0, 0)
		if err != nil {
			return err
		}
		after, err := r.b.Log.Look(t.Context(), 0)
		if err != nil {
			return err
		}
		if len(missing) != 1 || missing[0].Reason != eventlog.Expired || missing[0].UpTo+1 < before.First || missing[0].UpTo+1 > after.First {
			return fmt.Errorf("the log says that %+v is missing of open/0, while it began at %d to %d", missing, before.First, after.First)
		}
		return nil
	})
	for range 3 { // and again and again
		first, _ := r.b.Log.State(0)
		eventually(t, func() error {
			if now, err := r.b.Log.Look(t.Context(), 0); err != nil || now.First <= first.Last {
				return fmt.Errorf("the floor is at %d, %w", now.First, err)
			}
			return nil
		})
		if o, err := r.b.Log.Opening(t.Context(), "open"); err != nil || o.Life != life {
			t.Errorf("%+v, %v", o, err)
		}
	}
	if _, err := r.b.Log.Opening(t.Context(), "closed"); !errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("the opening of a forgotten life: %v", err)
	}
	if _, err := r.b.Log.Publish(t.Context(), eventlog.Event{Session: "open", Life: life, Stream: "2", Data: []byte(`{}`)}); !errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("an event behind the end of its stream: %v", err)
	}
	for name, least := range map[string]float64{"floor_moves_total/age": 3, "floor_moves_total/bytes": 0, "copies_total/": 12, "floor_removed_events_total/": 4} {
		name, label, _ := strings.Cut(name, "/")
		if got := r.metric(t, name, label); got < least {
			t.Errorf("%s is %v, want at least %v", name, got, least)
		}
	}
	// A life whose opening is a copy ends with all its streams.
	r.end(t, "open", "")
	for i := range 3 {
		at := event.Subject{Session: "open", Life: life, Stream: fmt.Sprint(i), Kind: event.End}
		if _, err := r.b.Log.Last(t.Context(), at); err != nil {
			t.Errorf("stream %d has no end: %v", i, err)
		}
	}
	r.stop()
	r = begin(t, srv, settings, cfg)
	r.exact(t)
	r.wantCounts(t)
	if strings.Contains(r.log.String(), "nothing explains") {
		t.Error("something is not explained")
	}
}

func TestAFullPartitionLosesItsOldestPart(t *testing.T) {
	t.Parallel()
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1, MaxBytes: 128 << 10, MaxAge: -1}, quick())
	r.acts(t)
	r.opened(t, "quiet", 2)
	r.create(t, "busy")
	published := 0
	for first := uint64(1); first < 1000; {
		published++
		passes(t, eventlog.ErrFull, func() error { // there is less time than in a larger partition
			_, err := r.b.Log.Publish(t.Context(), eventlog.Event{Session: "busy", Life: r.life("busy"), Stream: "a", Data: []byte(`{"jsonrpc":"2.0","method":"n"}`)})
			return err
		})
		state, err := r.b.Log.Look(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		first = state.First
	}
	if life := r.life("quiet"); life == "" {
		t.Error("the quiet session is gone")
	} else if o, err := r.b.Log.Opening(t.Context(), "quiet"); err != nil || o.Life != life {
		t.Errorf("%+v, %v", o, err)
	}
	left := len(r.stored(t, "busy", "a"))
	if left == 0 || left == published {
		t.Errorf("%d of %d events are left", left, published)
	}
	if n := r.metric(t, "floor_moves_total", byVolume); n == 0 {
		t.Error("no move is counted")
	}
	r.wantCounts(t)
}

// What has to be copied before anything may go is refused, as everything is.
func TestAFullPartitionGetsRoomForCopiesAndGivesItBack(t *testing.T) {
	cfg := idle()
	cfg.SyncInterval = time.Hour
	var off atomic.Int64
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 1, MaxBytes: 64 << 10, MaxAge: -1}, cfg, func(s *Service) {
		for _, p := range s.partitions {
			p.now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
			p.alarmed = func() {}
		}
	})
	r.acts(t)
	r.opened(t, "quiet", 2)
	var err error
	for err == nil {
		_, err = r.b.Log.Publish(t.Context(), eventlog.Event{Session: "busy", Stream: "a", Data: []byte(`{"jsonrpc":"2.0","method":"n"}`)})
	}
	if !errors.Is(err, eventlog.ErrFull) {
		t.Fatal(err)
	}
	limit := func() int64 {
		state, err := r.b.Log.Look(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return state.Limits.MaxBytes
	}
	r.followed(t, eventlog.Ack{Sequence: func() uint64 { s, _ := r.b.Log.Look(t.Context(), 0); return s.Last }()})
	r.sweepNow(t)
	if first, _ := r.b.Log.State(0); first.First != 1 {
		t.Errorf("the floor has moved to %d, and everything was stored a moment ago", first.First)
	}
	off.Store(int64(3 * time.Hour)) // what was stored is on disk
	r.sweepNow(t)
	if got := limit(); got <= 64<<10 {
		t.Errorf("there is no more room than %d", got)
	}
	if n := r.metric(t, "copies_total", ""); n != 3 {
		t.Errorf("%v entries were copied", n)
	}
	off.Add(int64(3 * time.Hour)) // and so are the copies
	r.sweepNow(t)
	state, err := r.b.Log.Look(t.Context(), 0)
	if err != nil || state.First < 9 || state.Bytes > 56<<10 {
		t.Errorf("%d bytes are left from %d on, %v", state.Bytes, state.First, err)
	}
	r.sweepNow(t)
	off.Add(int64(roomKept))
	r.sweepNow(t)
	if got := limit(); got != 64<<10 {
		t.Errorf("the limit is %d", got)
	}
	if o, err := r.b.Log.Opening(t.Context(), "quiet"); err != nil || o.Life != r.life("quiet") {
		t.Errorf("%+v, %v", o, err)
	}
	r.wantCounts(t)
}

// A ledger that began in the middle of a partition claims of a stream what it, or a copy of the
// birth, has seen without a break.
func TestKeeper_Knows(t *testing.T) {
	for name, test := range map[string]struct {
		first uint64
		birth eventlog.Entry
		open  bool // the opening as it was stored first
		want  bool
	}{
		"from the partition's start":      {first: 1, want: true},
		"a birth that may be another one": {first: 8},
		"a copy that ends before":         {first: 8, birth: eventlog.Entry{Copy: &eventlog.Copy{Last: 3, Through: 6}}},
		"a copy that claims nothing":      {first: 8, birth: eventlog.Entry{Copy: &eventlog.Copy{Last: 3}}},
		"a copy that goes on":             {first: 8, birth: eventlog.Entry{Copy: &eventlog.Copy{Last: 3, Through: 7}}, want: true},
		"the life's opening":              {first: 8, open: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			l.begin(eventlog.State{Birth: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: test.first, Last: 20})
			l.apply(eventlog.Entry{Subject: event.Subject{Session: "s", Kind: event.Open}, Valid: true, Sequence: 10, Time: noon, Again: !test.open}, noon)
			l.learn("s", 10, "l")
			birth := test.birth
			birth.Subject = event.Subject{Session: "s", Life: "l", Stream: "t", Kind: event.Birth}
			birth.Valid, birth.Sequence, birth.Time = true, 11, noon
			l.apply(birth, noon)
			a := l.account("s", "l")
			k := keeper{ledger: l, now: noon, ttl: time.Hour, index: func(string) (session.Record, bool) { return session.Record{}, false }}
			if got := k.knows(a, a.stream("t")); got != test.want {
				t.Errorf("it is known: %t", got)
			}
			if got := k.copying(control{seq: 11, kind: event.Birth, life: a, stream: a.stream("t")}).birth.Through; (got > 0) != test.want {
				t.Errorf("the copy says that it holds up to %d", got)
			}
		})
	}
}
