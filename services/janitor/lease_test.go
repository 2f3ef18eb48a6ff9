package janitor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/lease"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natsconn"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// acts waits until a janitor acts.
func (r *running) acts(t *testing.T) {
	t.Helper()
	for p := range r.partitions {
		waittest.Until(t, fmt.Sprint("it acts for partition ", p), func() bool { return r.leases.Term(p) != nil })
	}
}

// kill ends a janitor as a crash does: its connection is closed at once, and it completes
// no task.
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

// The next janitor finishes the sweep of one that dies, whichever step was the last, and its
// ledger is the log's.
func TestLease_NextFinishesTrim(t *testing.T) {
	t.Parallel()
	const keep, n = 300, 900
	announce := func(t *testing.T, r *running) { r.announce(t, 0) }
	remove := func(t *testing.T, r *running, batches int) {
		t.Helper()
		announce(t, r)
		for range batches {
			must.Value(r.deleter.batch(r.term(t), r.partitions[0]))(t)
		}
	}
	for name, do := range map[string]func(t *testing.T, r *running){
		"before anything":        func(*testing.T, *running) {},
		"before the first batch": announce,
		"in the first batch": func(t *testing.T, r *running) {
			announce(t, r)
			var todo []uint64
			restarts := 0
			r.partitions[0].With(func(l *ledger.Ledger) { todo, _ = l.Due(time.Now(), 0, 10); restarts = l.Restarts })
			state, _ := r.b.Log.State(0)
			for _, seq := range todo {
				must.NoError(t, r.deleter.delete(r.term(t), r.partitions[0], state.Created, restarts, seq))
			}
		},
		"after the first batch": func(t *testing.T, r *running) { remove(t, r, 1) },
		"after the last batch":  func(t *testing.T, r *running) { remove(t, r, 2) },
	} {
		t.Run(name, func(t *testing.T) {
			srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: keep}
			first := beginAt(t, srv.URL(), settings, idle(), deletesNothing)
			second := begin(t, srv, settings, quick())
			other := first.publish(t, "other", "a", 2) // the log begins with it, whatever is removed
			all := first.publish(t, "s", "a", n)
			do(t, first)
			first.kill()
			second.acts(t)
			waittest.NoError(t, func() error { return wantSequences(second.stored(t, "s", "a"), all[n-keep:]) })
			second.wantTrimmed(t, "s", "a", all[n-keep-1], eventlog.Trimmed)
			second.wantTrimmed(t, "other", "a", 0, "")
			must.NoError(t, wantSequences(second.stored(t, "other", "a"), other))
			second.wantCounts(t)
			if log := second.log.String(); strings.Contains(log, "starts again") || strings.Contains(log, "nothing explains") {
				t.Error("the ledger started again, or is not the log")
			}
		})
	}
}

// deletesNothing has sweeper and deleter wait: the test does their steps.
func deletesNothing(s *Service) {
	onlySweeps(s)
	s.deleter.every, s.deleter.settled = time.Hour, 0
}

func TestLease_PausedJanitorStepsDown(t *testing.T) {
	srv, settings := natstest.StartParallel(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}
	slow := newNetwork(t, srv)
	first := beginAt(t, slow.url, settings, idle(), deletesNothing)
	second := begin(t, srv, settings, quick())
	all := first.publish(t, "s", "a", 5)
	term, p := first.term(t), first.partitions[0]
	first.announce(t, 0)

	slow.mu.Lock()
	second.acts(t)
	if first.metric(t, "partitions_held") != 0 {
		t.Error("two hold the lease")
	}
	if err := first.deleter.delete(term, p, time.Time{}, 0, all[4]); !errors.Is(err, lease.ErrNotActing) {
		t.Errorf("it deletes: %v", err)
	}
	if err := first.sweeper.purge(term, p, all[4], ledger.ByAge); !errors.Is(err, lease.ErrNotActing) {
		t.Errorf("it moves the floor: %v", err)
	}
	nothing := func(context.Context) (eventlog.Ack, error) { return eventlog.Ack{}, errors.New("it stores") }
	if _, err := store(term, nothing); !errors.Is(err, lease.ErrNotActing) {
		t.Error(err)
	}
	slow.mu.Unlock()
	waittest.NoError(t, func() error { return wantSequences(second.stored(t, "s", "a"), all[3:]) })
	second.wantTrimmed(t, "s", "a", all[2], eventlog.Trimmed)
	second.wantCounts(t)
	second.acts(t) // it may lose the lease for a moment
}

// A machine that sleeps finds out by the wall clock, before its timers fire.
func TestLease_AfterSleep(t *testing.T) {
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}
	cfg := idle()
	r := beginAt(t, srv.URL(), settings, cfg, deletesNothing)
	all := r.publish(t, "s", "a", 5)
	term, p := r.leases.Term(0), r.partitions[0]
	r.announce(t, 0)
	r.wall.ahead.Store(int64(cfg.Lease))
	// The lease may notice first, and end the term.
	if more, err := r.deleter.batch(term.Ctx, p); err == nil || !more {
		t.Errorf("everything was deleted, %v", err)
	}
	must.NoError(t, wantSequences(r.stored(t, "s", "a"), all))
	r.actsAnew(t, term) // no other janitor wants it
	must.NoError(t, r.deleter.all(r.term(t), p))
	must.NoError(t, wantSequences(r.stored(t, "s", "a"), all[3:]))
	r.wantTrimmed(t, "s", "a", all[2], eventlog.Trimmed)
}

// believing has a janitor keep all ledgers and act for all partitions, whether or not it has the
// leases.
func believing(t *testing.T) func(*Service) {
	return func(s *Service) {
		s.leases.Elsewhere = func(int) {}
		for _, k := range s.keepings {
			k.want(true)
		}
		do := func(_ int, f func(context.Context) error) (did bool, err error) { return true, f(t.Context()) }
		s.sweeper.do, s.deleter.do = do, do
	}
}

func TestLease_TwoActAtOnce(t *testing.T) {
	srv, settings := natstest.StartParallel(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 50, MaxEventsPerStream: 20}
	cfg := idle()
	first := begin(t, srv, settings, cfg, onlySweeps)
	second := begin(t, srv, settings, cfg, onlySweeps, believing(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 30 {
			done := first.sweeper.sweepNow(waittest.Timeout)
			if done.err != nil {
				t.Error(done.err)
			}
		}
	})
	wg.Go(func() {
		for range 30 {
			second.sweeper.sweep()
			if err := second.deleter.round(); err != nil {
				t.Error(err)
			}
		}
	})
	var last []uint64
	for i := range 40 {
		last = first.publish(t, fmt.Sprint("s", i%3), fmt.Sprint(i%7), 15)
	}
	wg.Wait()
	for _, r := range []*running{first, second} {
		r.followed(t, eventlog.Ack{Sequence: last[14]})
	}
	first.kill()
	second.acts(t)
	second.sweeper.do = second.leases.Do
	waittest.NoError(t, func() error { // the ledger may have started again
		if done := second.sweeper.sweepNow(waittest.Timeout); done.err != nil {
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

func TestLease_AfterServerRestart(t *testing.T) {
	srv := natstest.StartParallel(t)
	r := begin(t, srv, eventlog.Settings{}, quick())
	for range 3 {
		state, _ := r.b.Log.State(0)
		srv.Stop()
		srv.Start()
		waittest.Until(t, "it is connected", r.b.Conn.IsConnected)
		waittest.Until(t, "there is a generation", func() bool {
			now, _ := r.b.Log.State(0)
			return len(now.Generations) > len(state.Generations)
		})
		r.acts(t)
	}
	log := r.log.String()
	if strings.Contains(log, "starts again") {
		t.Error("a ledger started again")
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, "stepped down") && strings.Contains(line, natsconn.ErrChanged.Error()) {
			t.Errorf("the end of a connection is logged for a partition: %s", line)
		}
	}
}

func TestLease_AfterKill(t *testing.T) {
	srv, cfg := natstest.Start(t), quick()
	cfg.Lease = 3 * time.Minute // longer than acts waits
	r := begin(t, srv, eventlog.Settings{}, cfg)
	r.kill()
	r = begin(t, srv, eventlog.Settings{}, cfg)
	r.acts(t)
}

func TestLease_PausedWhilePartitionRecreated(t *testing.T) {
	r := beginAt(t, natstest.StartParallel(t).URL(), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}, idle(), deletesNothing)
	r.publish(t, "s", "a", 5)
	term, p := r.leases.Term(0), r.partitions[0]
	r.announce(t, 0)
	restarts := func() (restarts int) { p.With(func(l *ledger.Ledger) { restarts = l.Restarts }); return restarts }
	before := restarts()
	old := r.recreate(t)
	var all []uint64
	for range 2 { // as many as the session may have, so that the new partition has nothing to trim
		ack := must.Value(r.b.Log.Publish(t.Context(), eventlog.Event{Session: "s", Stream: "a", Data: []byte(`{"jsonrpc":"2.0","method":"n"}`)}))(t)
		all = append(all, ack.Sequence)
	}
	waittest.Until(t, "the ledger starts again", func() bool { return restarts() != before })
	now, _ := r.b.Log.State(0)
	for what, err := range map[string]error{
		"seen by the log":    r.deleter.delete(term.Ctx, p, old.Created, restarts(), all[0]),
		"seen by the ledger": r.deleter.delete(term.Ctx, p, now.Created, before, all[0]),
	} {
		if !errors.Is(err, follow.ErrChanged) {
			t.Errorf("%s: it deletes: %v", what, err)
		}
	}
	if err := r.deleter.all(term.Ctx, p); err != nil && !errors.Is(err, follow.ErrChanged) {
		t.Error(err)
	}
	must.NoError(t, wantSequences(r.stored(t, "s", "a"), all))
	r.wantTrimmed(t, "s", "a", 0, "")
	r.wantCounts(t)
}
