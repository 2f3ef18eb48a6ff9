package janitor

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
	"rejoin/shared/natstest"
)

// acts waits until a janitor acts, and has taken over.
func (r *running) acts(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		if r.charge.Load() == nil {
			return errors.New("it does not act")
		}
		return nil
	})
}

// kill ends a janitor as a crash does: its connection is gone at once, and nothing that
// it wanted to do is done.
func (r *running) kill() {
	r.b.Conn.Close()
	r.stop()
}

// idle is quick without sweeps: the test does their steps.
func idle() Config {
	cfg := quick()
	cfg.Interval = time.Hour
	return cfg
}

func short(cfg Config) Config {
	cfg.Lease = time.Second
	return cfg
}

func TestOneOfManyActsAndAnotherOneWhenItStops(t *testing.T) {
	srv, settings := natstest.Start(t), eventlog.Settings{MaxEventsPerSession: 3}
	all := []*running{begin(t, srv, settings, quick()), begin(t, srv, settings, quick()), begin(t, srv, settings, quick())}
	for len(all) > 0 {
		var acting *running
		eventually(t, func() error {
			held := 0
			for _, r := range all {
				if r.metric(t, "lease_held", "") == 1 {
					held, acting = held+1, r
				}
			}
			if held != 1 {
				return fmt.Errorf("%d hold the lease", held)
			}
			return nil
		})
		acting.acts(t)
		s := fmt.Sprint("s", len(all))
		events := acting.publish(t, s, "a", 5)
		eventually(t, func() error { return wantSequences(acting.stored(t, s, "a"), events[2:]) })
		for _, r := range all {
			r.wantMark(t, s, "a", marks.Mark{Removed: events[1], Reason: marks.Trimmed})
		}
		begun := time.Now()
		acting.stop()
		var rest []*running
		for _, r := range all {
			if r != acting {
				rest = append(rest, r)
			}
		}
		if all = rest; len(all) == 0 {
			break
		}
		all[0].wantMark(t, s, "a", marks.Mark{Removed: events[1], Reason: marks.Trimmed})
		t.Logf("the next one answers after %s", time.Since(begun))
	}
}

// What a janitor that dies leaves of a sweep, step by step, is finished by the next, whose
// book is the log's.
func TestAStandbyFinishesWhatAKilledJanitorHasBegun(t *testing.T) {
	const keep, n = 300, 900
	sweep := func(t *testing.T, r *running, batches int) {
		t.Helper()
		p := r.partitions[0]
		if _, err := r.sweeper.plan(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		for range batches {
			if _, err := r.sweeper.batch(t.Context(), p, map[Reason]int{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name  string
		do    func(t *testing.T, r *running)
		doubt int // how many of the oldest events nobody saw go
		anew  bool
	}{
		{"before anything", func(*testing.T, *running) {}, 0, false},
		{"before the trim marks", func(_ *testing.T, r *running) {
			r.partitions[0].with(func(l *ledger) { r.sweeper.doom(l, time.Now()) })
		}, 0, false},
		{"before the first batch", func(t *testing.T, r *running) { sweep(t, r, 0) }, 0, false},
		{"in the first batch", func(t *testing.T, r *running) {
			sweep(t, r, 0)
			var todo []doom
			var marks map[string]trim
			r.partitions[0].with(func(l *ledger) { todo, _ = l.batch(); marks = trimsOf(todo) })
			if err := r.trims.write(t.Context(), marks); err != nil {
				t.Fatal(err)
			}
			for _, d := range todo[:10] {
				if err := r.b.Log.Delete(t.Context(), 0, d.seq); err != nil {
					t.Fatal(err)
				}
			}
		}, 10, true},
		{"after the first batch", func(t *testing.T, r *running) { sweep(t, r, 1) }, 0, false},
		{"after the last batch", func(t *testing.T, r *running) { sweep(t, r, 3) }, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: keep}
			first := begin(t, srv, settings, idle())
			first.onlySweeps()
			first.acts(t)
			second := begin(t, srv, settings, quick())
			other := first.publish(t, "other", "a", 2) // the log begins with it, whatever goes
			all := first.publish(t, "s", "a", n)
			p := second.partitions[0]
			eventually(t, func() error {
				var through uint64
				if p.with(func(l *ledger) { through = l.through }); through < all[n-1] {
					return errors.New("the standby is behind")
				}
				return nil
			})
			test.do(t, first)
			begun := time.Now()
			first.kill()
			second.acts(t)
			t.Logf("taken over after %s", time.Since(begun))
			eventually(t, func() error { return wantSequences(second.stored(t, "s", "a"), all[n-keep:]) })
			want := marks.Mark{Removed: all[n-keep-1], Reason: marks.Trimmed}
			if test.doubt > 0 {
				want.Maybe = all[test.doubt-1]
			}
			second.wantMark(t, "s", "a", want)
			second.wantMark(t, "other", "a", marks.Mark{})
			if err := wantSequences(second.stored(t, "other", "a"), other); err != nil {
				t.Error(err)
			}
			second.wantCounts(t)
			if anew := strings.Contains(second.log.String(), "begins anew"); anew != test.anew {
				t.Errorf("the ledger began anew: %t", anew)
			}
		})
	}
}

// wantCounts compares the ledgers with the log.
func (r *running) wantCounts(t *testing.T) {
	t.Helper()
	for _, p := range r.partitions {
		eventually(t, func() error {
			if !p.matches(t.Context()) {
				return fmt.Errorf("the ledger of partition %d is not the log", p.number)
			}
			return nil
		})
	}
}

func TestAJanitorThatIsHeldUpStepsDownBeforeAnotherOneActs(t *testing.T) {
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}
	slow := newNetwork(t, srv)
	cfg := idle()
	first := beginAt(t, slow.url, settings, cfg)
	first.onlySweeps()
	first.acts(t)
	second := begin(t, srv, settings, quick())
	all := first.publish(t, "s", "a", 5)
	term := first.charge.Load()
	if term == nil {
		t.Fatal("it does not act any more")
	}
	p := first.partitions[0]
	if rest, err := first.sweeper.plan(term.ctx, p); err != nil || rest == nothingLeft {
		t.Fatal(rest, err)
	}

	slow.mu.Lock()
	begun := time.Now()
	second.acts(t)
	t.Logf("taken over after %s, with a lease of %s", time.Since(begun), cfg.Lease)
	if first.metric(t, "lease_held", "") != 0 {
		t.Error("two hold the lease")
	}
	if err := (deleter{first.b.Log, 0, time.Time{}}).delete(term.ctx, all[4]); !errors.Is(err, errNotActing) {
		t.Errorf("it deletes: %v", err)
	}
	slow.mu.Unlock()
	eventually(t, func() error { return wantSequences(second.stored(t, "s", "a"), all[3:]) })
	second.wantMark(t, "s", "a", marks.Mark{Removed: all[2], Reason: marks.Trimmed})
	second.wantCounts(t)
	eventually(t, func() error { // it may lose the lease for a moment
		if second.metric(t, "lease_held", "") != 1 {
			return errors.New("the lease was lost")
		}
		return nil
	})
}

// A machine that sleeps finds out by the wall clock, before its timers say so.
func TestAJanitorThatSleptDeletesNothing(t *testing.T) {
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}
	cfg := idle()
	r := begin(t, srv, settings, cfg)
	r.onlySweeps()
	r.acts(t)
	all := r.publish(t, "s", "a", 5)
	term := r.charge.Load()
	if term == nil {
		t.Fatal("it does not act any more")
	}
	p := r.partitions[0]
	if rest, err := r.sweeper.plan(term.ctx, p); err != nil || rest == nothingLeft {
		t.Fatal(rest, err)
	}
	r.lease.mu.Lock()
	awake := r.lease.now
	r.lease.now = func() instant { now := awake(); return instant{now.mono, now.wall + cfg.Lease} }
	r.lease.mu.Unlock()
	deleted := map[Reason]int{}
	// The lease may notice first, and end the term.
	if _, err := r.sweeper.batch(term.ctx, p, deleted); err == nil || len(deleted) > 0 {
		t.Errorf("%v was deleted, %v", deleted, err)
	}
	if err := wantSequences(r.stored(t, "s", "a"), all); err != nil {
		t.Error(err)
	}
	eventually(t, func() error { // nobody else wants it
		if now := r.charge.Load(); now == nil || now == term {
			return errors.New("it does not act again")
		}
		return nil
	})
	r.sweepNow(t)
	if err := wantSequences(r.stored(t, "s", "a"), all[3:]); err != nil {
		t.Error(err)
	}
	r.wantMark(t, "s", "a", marks.Mark{Removed: all[2], Reason: marks.Trimmed})
}

func TestTwoThatBothActDoNoHarm(t *testing.T) {
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 50, MaxEventsPerStream: 20}
	cfg := idle()
	first := begin(t, srv, settings, cfg)
	first.onlySweeps()
	first.acts(t)
	second := begin(t, srv, settings, cfg)
	second.onlySweeps()
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 30 {
			done := first.sweeper.sweepNow(patience)
			if done.err != nil && !errors.Is(done.err, errTheirs) && !errors.Is(done.err, errMoved) { // it noticed the other one
				t.Error(done.err)
			}
		}
	})
	wg.Go(func() {
		for range 30 {
			second.sweeper.sweep(t.Context()) // as one that believes in itself
		}
	})
	var last []uint64
	for i := range 40 {
		last = first.publish(t, fmt.Sprint("s", i%3), fmt.Sprint(i%7), 15)
	}
	wg.Wait()
	for _, r := range []*running{first, second} {
		eventually(t, func() error {
			var l uint64
			if r.partitions[0].with(func(b *ledger) { l = b.through }); l < last[14] {
				return errors.New("behind")
			}
			return nil
		})
	}
	first.kill()
	second.acts(t)
	eventually(t, func() error { // the ledger may have begun anew
		if done := second.sweeper.sweepNow(patience); done.err != nil {
			return done.err
		}
		for i := range 3 {
			if n := len(second.stored(t, fmt.Sprint("s", i), "")); n != 50 {
				return fmt.Errorf("session %d has %d events", i, n)
			}
		}
		return nil
	})
	second.wantCounts(t)
}

func TestASingleJanitorActsAgainRightAfterTheServer(t *testing.T) {
	srv := natstest.Start(t)
	r := begin(t, srv, eventlog.Settings{}, quick())
	r.acts(t)
	for range 3 {
		state, _ := r.b.Log.State(0)
		srv.Stop()
		srv.Start()
		eventually(t, func() error {
			if !r.b.Conn.IsConnected() {
				return errors.New("not connected")
			}
			return nil
		})
		begun := time.Now()
		eventually(t, func() error {
			if now, _ := r.b.Log.State(0); len(now.Generations) == len(state.Generations) {
				return errors.New("no generation")
			}
			return nil
		})
		t.Logf("a generation after %s", time.Since(begun))
		r.acts(t)
	}
	if log := r.log.String(); strings.Contains(log, "begins anew") {
		t.Error("a ledger began anew")
	}
}

func TestAKilledJanitorsNextActsAtOnce(t *testing.T) {
	srv, cfg := natstest.Start(t), quick()
	cfg.Lease = 3 * time.Minute // longer than acts waits
	r := begin(t, srv, eventlog.Settings{}, cfg)
	r.acts(t)
	r.kill()
	begun := time.Now()
	r = begin(t, srv, eventlog.Settings{}, cfg)
	r.acts(t)
	t.Logf("it acts after %s", time.Since(begun))
}

func TestAPausedJanitorDeletesNothingFromAPartitionThatWasMadeAnew(t *testing.T) {
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}
	r := begin(t, srv, settings, idle())
	r.onlySweeps()
	r.acts(t)
	r.publish(t, "s", "a", 5)
	term, p := r.charge.Load(), r.partitions[0]
	if rest, err := r.sweeper.plan(term.ctx, p); err != nil || rest == nothingLeft {
		t.Fatal(rest, err)
	}
	js, err := srv.Connect().JetStream()
	if err != nil {
		t.Fatal(err)
	}
	old, _ := r.b.Log.State(0)
	if err := js.DeleteStream("MCP_0"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if now, err := r.b.Log.Look(t.Context(), 0); err != nil || now.Birth == old.Birth {
			return fmt.Errorf("the partition is not back: %w", err)
		}
		return nil
	})
	var all []uint64
	for range 5 {
		ack, err := r.b.Log.Publish(t.Context(), eventlog.Event{Session: "s", Stream: "a", Data: []byte(`{"jsonrpc":"2.0","method":"n"}`)})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ack.Sequence)
	}
	deleted := map[Reason]int{}
	if _, err := r.sweeper.batch(term.ctx, p, deleted); len(deleted) > 0 {
		t.Errorf("%v was deleted, %v", deleted, err)
	}
	if err := wantSequences(r.stored(t, "s", "a"), all); err != nil {
		t.Error(err)
	}
}

func TestOfTwoJanitorsThatWriteATrimMarkTheFurtherOneStays(t *testing.T) {
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1}
	first := begin(t, srv, settings, idle())
	first.onlySweeps()
	first.acts(t)
	second := begin(t, srv, settings, idle())
	second.onlySweeps()
	birth := first.partitions[0].ledger.birth
	mark := func(upTo uint64) map[string]trim {
		return map[string]trim{"s": {UpTo: upTo, Reason: marks.Trimmed, Birth: birth}}
	}
	for _, test := range []struct {
		by   *running
		upTo uint64
		err  error
		want uint64
	}{
		{first, 5, nil, 5},
		{second, 3, errTheirs, 5},
		{second, 9, nil, 9},
		{first, 7, errTheirs, 9},
	} {
		if err := test.by.trims.write(t.Context(), mark(test.upTo)); !errors.Is(err, test.err) {
			t.Errorf("%d: %v", test.upTo, err)
		}
		if got := trimMarks(t, srv)["s"].UpTo; got != test.want {
			t.Errorf("the mark is %d, want %d", got, test.want)
		}
	}
	if !strings.Contains(first.log.String(), "another janitor has acted meanwhile") {
		t.Error("the acting janitor does not notice")
	}
	for _, r := range []*running{first, second, first} { // who knows of it, who does not, and who has done it
		if err := r.trims.tidy(t.Context(), 0, birth, 100); err != nil {
			t.Error(err)
		}
		if left := r.trims.of(0, birth); len(left) > 0 || len(trimMarks(t, srv)) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}
