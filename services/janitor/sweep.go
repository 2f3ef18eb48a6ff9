package janitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/lease"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/backend"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// clearDelay is how long after a =clear marker a sweep begins: a session that is
// cleared stream by stream is swept once.
const clearDelay = 50 * time.Millisecond

// sweeper announces the removals of the policy, and moves the floor. The deleter deletes the
// announced entries.
type sweeper struct {
	nc         *nats.Conn
	log        *eventlog.Log
	partitions []*follow.Partition
	floors     []*floorState // of each partition
	deleter    *deleter
	do         func(p int, f func(term context.Context) error) (did bool, err error) // see [lease.Leases.Do]
	sessions   *session.Registry
	cfg        Config
	metrics    *metrics
	logger     *slog.Logger
	kick       chan struct{} // a =clear marker was seen
	alarm      chan struct{} // a session or partition holds more than it may
	asks       chan sweepRequest
	early      map[ledger.Cause]int // announced since the last sweep, for its line in the log
	delay      time.Duration        // from an alarm to the early trimming
	unanswered bool                 // partition 0 did not answer in this sweep; see readLimits
}

func newSweeper(cfg Config, b *backend.Backend, d *deleter, logger *slog.Logger) *sweeper {
	return &sweeper{
		nc: b.Conn, log: b.Log, deleter: d, sessions: b.Sessions, cfg: cfg, logger: logger,
		kick: make(chan struct{}, 1), alarm: make(chan struct{}, 1), asks: make(chan sweepRequest),
		early: map[ledger.Cause]int{}, delay: min(alarmDelay, cfg.Interval/2),
	}
}

// cleared asks for a sweep soon.
func (w *sweeper) cleared() { follow.Ring(w.kick) }

// alarmed asks for an early trimming of the sessions and partitions that hold too much.
func (w *sweeper) alarmed() { follow.Ring(w.alarm) }

// run sweeps until ctx ends. Between the sweeps it trims the sessions and partitions that cannot wait for the next one.
func (w *sweeper) run(ctx context.Context) {
	ticker := time.NewTicker(w.cfg.Interval)
	defer ticker.Stop()
	var soon, early <-chan time.Time
	var asked []sweepRequest
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
			if soon == nil {
				soon = time.After(clearDelay)
			}
			continue
		case <-w.alarm:
			if early == nil {
				early = time.After(w.delay)
			}
			continue
		case <-early:
			early = nil
			w.trimEarly()
			continue
		case first := <-w.asks:
			asked = append(w.others(), first)
		case <-soon:
			soon = nil
		case <-ticker.C:
		}
		done := swept{err: nats.ErrDisconnected}
		if w.nc.IsConnected() {
			done = w.sweep()
		}
		for _, a := range asked {
			a <- done // has room for it
		}
		asked = nil
	}
}

// sweep announces the removals of the policy, and moves the floor. The next sweep repeats the steps that fail.
func (w *sweeper) sweep() swept {
	begun := time.Now()
	w.unanswered = false
	removed := map[ledger.Cause]int{}
	err := w.each(func(term context.Context, p *follow.Partition) error { return w.announce(term, p, false, removed) })
	err = errors.Join(err, w.each(func(term context.Context, p *follow.Partition) error {
		p.AwaitRequired(term)
		return w.keepFloor(term, p)
	}))
	took := time.Since(begun)
	w.metrics.sweep.Observe(took.Seconds())
	add(w.early, removed)
	w.report(took, w.early, err)
	clear(w.early)
	return swept{removed: removed, took: took, err: err}
}

// each calls do for the partitions that this janitor acts for, one after the other. One that
// is full gets room for the janitor's entries; one that has changed is left to its
// tail.
func (w *sweeper) each(do func(term context.Context, p *follow.Partition) error) (errs error) {
	for _, p := range w.partitions {
		acts, err := w.do(p.Number, func(term context.Context) error {
			err := do(term, p)
			if errors.Is(err, eventlog.ErrFull) {
				if err = w.makeRoom(term, p); err == nil {
					err = do(term, p)
				}
			}
			return errors.Join(err, term.Err())
		})
		if !acts {
			p.With(func(l *ledger.Ledger) { clear(l.Over) }) // the first sweep of a term looks at all lives
		}
		if err != nil && !errors.Is(err, follow.ErrChanged) {
			errs = errors.Join(errs, fmt.Errorf("partition %d: %w", p.Number, err))
		}
	}
	return errs
}

// toDelete returns how many entries of some partitions are announced and not deleted yet, by the
// reason that readers receive.
func toDelete(partitions []*follow.Partition) map[eventlog.Reason]int {
	all := map[eventlog.Reason]int{}
	for _, p := range partitions {
		p.With(func(l *ledger.Ledger) {
			for _, t := range l.Pending {
				all[t.Reason] += len(t.Entries)
			}
		})
	}
	return all
}

// report writes a line about the announced removals, if there are any. The end of a term is no
// failure: the janitor that acts next continues.
func (w *sweeper) report(took time.Duration, removed map[ledger.Cause]int, err error) {
	attrs := []any{"duration", took.Round(time.Microsecond).String()}
	for _, r := range ledger.Causes {
		if n := removed[r]; n > 0 {
			attrs = append(attrs, string(r), n)
		}
	}
	switch {
	case err != nil && !errors.Is(err, lease.ErrNotActing):
		w.metrics.failed.Inc()
		w.logger.Warn("a sweep is left unfinished", append(attrs, "error", err)...)
	case len(removed) > 0:
		w.logger.Info("swept", attrs...)
	}
}

// How long after an alarm the early trimming begins: as long as the last one
// took, but not shorter or longer than these, nor than half of an interval. A session
// that is written to without a pause is trimmed in many small steps; many sessions
// that are over their limits are trimmed together.
const (
	alarmDelay    = 50 * time.Millisecond
	alarmDelayMax = 250 * time.Millisecond
)

// setAlarms sets the alarms of all partitions. Since the limits may change, announce sets them again.
func (w *sweeper) setAlarms() {
	for _, p := range w.partitions {
		p.With(func(l *ledger.Ledger) { l.Alarm = w.limits().Alarm() })
	}
}

// trimEarly trims the sessions that exceed their limits, and moves the floor of partitions that are nearly full.
// It tries a failed trimming again soon.
func (w *sweeper) trimEarly() {
	if !w.nc.IsConnected() {
		w.alarmed()
		return
	}
	begun := time.Now()
	w.unanswered = false
	err := w.each(func(ctx context.Context, p *follow.Partition) error {
		rings := false
		p.With(func(l *ledger.Ledger) { rings = l.Alarmed() && l.Through >= l.Required })
		var err error
		if rings {
			if err = w.announce(ctx, p, true, w.early); err != nil {
				w.alarmed()
			}
			p.AwaitRequired(ctx)
		}
		if state, _ := p.Log.State(p.Number); w.rules(p).Used(state.Bytes) > ledger.FullShare {
			err = errors.Join(err, w.keepFloor(ctx, p))
		}
		return err
	})
	took := time.Since(begun)
	w.metrics.sweep.Observe(took.Seconds())
	w.delay = min(max(took, alarmDelay), alarmDelayMax, w.cfg.Interval/2)
	if err != nil {
		w.delay = min(alarmDelayMax, w.cfg.Interval/2)
		w.report(took, w.early, err)
		clear(w.early)
	}
}

// askPatience is how long a request for a sweep waits until one begins: the one
// before may have much to delete.
const askPatience = 10 * time.Second

// errNoSweep is returned when no sweep begins within askPatience: another one runs,
// or this janitor does not sweep, or stops.
var errNoSweep = errors.New("no sweep begins")

// sweepRequest asks the sweeper for a sweep, and receives the result.
type sweepRequest chan swept

// swept is the result of a sweep.
type swept struct {
	removed map[ledger.Cause]int // announced by the sweep
	took    time.Duration
	err     error // the sweep is left unfinished
}

// others returns the other requests that wait: one sweep answers all requests from before
// it began.
func (w *sweeper) others() (all []sweepRequest) {
	for {
		select {
		case a := <-w.asks:
			all = append(all, a)
		default:
			return all
		}
	}
}

// sweepOnce has the sweeper sweep, and returns the result. A sweep that has not begun when ctx
// ends does not begin.
func (w *sweeper) sweepOnce(ctx context.Context) swept {
	a := make(sweepRequest, 1)
	select {
	case w.asks <- a:
		return <-a
	case <-ctx.Done():
		return swept{err: errNoSweep}
	}
}

// dryRun asks the policy what a sweep would remove of some partitions, and removes nothing. It
// returns the numbers of entries, and the n largest removals.
func (w *sweeper) dryRun(partitions []*follow.Partition, n int) (total map[ledger.Cause]int, removals []ledger.RemovalInfo, more bool) {
	total = map[ledger.Cause]int{}
	f := ledger.Firsts[ledger.RemovalInfo]{N: n, Compare: compareRemovals}
	for _, p := range partitions {
		now, lim := p.Now(), w.limits()
		p.With(func(l *ledger.Ledger) {
			for _, a := range l.Accounts {
				for _, r := range w.removalsOf(l, a, lim, now) {
					total[r.Cause] += len(r.Sequences)
					f.Add(ledger.RemovalOf(r))
				}
			}
		})
	}
	removals, more = f.All()
	for i := range removals {
		if r := &removals[i]; r.Stream != "" {
			w.partitions[w.log.Partition(r.Session)].With(func(l *ledger.Ledger) { r.UpTo = l.ID(r.Session, r.Life, r.Stream, r.Last) })
		}
	}
	return total, removals, more
}

// compareRemovals puts the largest first.
func compareRemovals(a, b ledger.RemovalInfo) int {
	return cmp.Or(cmp.Compare(b.Entries, a.Entries), cmp.Compare(a.Session, b.Session), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Cause, b.Cause))
}
