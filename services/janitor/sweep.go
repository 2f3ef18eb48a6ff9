package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/backend"
	"rejoin/shared/eventlog"
	"rejoin/shared/link"
	"rejoin/shared/session"
)

// clearDelay is how long after a =clear marker a sweep begins: a session that is
// cleared stream by stream is swept once.
const clearDelay = 50 * time.Millisecond

// sweeper is the one place that deletes from the log.
type sweeper struct {
	nc          *nats.Conn
	partitions  []*partition
	trims       *trims
	sessions    *session.Registry
	settings    func() eventlog.Settings // the log's, now
	closedGrace time.Duration
	overrides   overrides
	interval    time.Duration
	metrics     *metrics
	logger      *slog.Logger
	kick        chan struct{} // a =clear marker was seen
	alarm       chan struct{} // a session holds more than its limits
	asks        chan ask
	early       map[Reason]int // deleted since the last sweep, for its line in the log
	delay       time.Duration  // from an alarm to the early trimming
	leisure     leisure
}

func newSweeper(cfg Config, b *backend.Backend, trims *trims, logger *slog.Logger) *sweeper {
	return &sweeper{
		nc: b.Conn, trims: trims, sessions: b.Sessions, settings: b.Log.Settings, closedGrace: cfg.ClosedGrace,
		overrides: cfg.overrides(),
		interval:  cfg.Interval, logger: logger,
		kick: make(chan struct{}, 1), alarm: make(chan struct{}, 1), asks: make(chan ask),
		early: map[Reason]int{}, delay: min(alarmDelay, cfg.Interval/2),
	}
}

// cleared asks for a sweep soon.
func (w *sweeper) cleared() { ring(w.kick) }

// alarmed asks for the sessions that hold too much to be trimmed soon.
func (w *sweeper) alarmed() { ring(w.alarm) }

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// run sweeps until ctx ends. Between the sweeps it trims what cannot wait for the
// next one, and removes what is not urgent.
func (w *sweeper) run(ctx context.Context) {
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	w.leisure = leisure{} // what an earlier term has left a sweep finds
	var soon, early, rest <-chan time.Time
	var asked []ask
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
			w.trimEarly(ctx)
			continue
		case <-rest:
			rest = w.goOn(ctx)
			continue
		case first := <-w.asks:
			asked = append(w.others(), first)
		case <-soon:
			soon = nil
		case <-ticker.C:
		}
		done := swept{err: nats.ErrDisconnected}
		if w.nc.IsConnected() {
			done = w.sweep(ctx)
			rest = w.leisure.next(0)
		}
		for _, a := range asked {
			a <- done // has room for it
		}
		asked = nil
	}
}

// sweep does what the policy says, partition by partition, then batch by batch in
// turns, so that a partition with much to delete does not hold up the others. What
// fails is left for the next sweep: the ledger remembers what is doomed.
func (w *sweeper) sweep(ctx context.Context) swept {
	begun := time.Now()
	stopped := ctx
	ctx, done := link.While(ctx, w.nc)
	defer done()
	err := w.current(ctx)
	if err != nil {
		w.report(stopped, false, time.Since(begun), w.early, err)
		return swept{left: w.doomed(), took: time.Since(begun), err: err}
	}
	var busy, leisurely []*partition
	for _, p := range w.partitions {
		if ctx.Err() != nil {
			break
		}
		rest, planErr := w.plan(ctx, p)
		switch {
		case planErr != nil:
			err = errors.Join(err, fmt.Errorf("partition %d: %w", p.number, planErr))
		case rest == urgentLeft:
			busy = append(busy, p)
		case rest == leisureLeft:
			leisurely = append(leisurely, p)
		}
	}
	deleted := map[Reason]int{}
	late, removeErr := w.remove(ctx, busy, deleted)
	err = errors.Join(err, removeErr, ctx.Err())
	w.leisure.begin(append(leisurely, late...), time.Now())
	took := time.Since(begun)
	w.metrics.sweep.Observe(took.Seconds())
	w.report(stopped, false, took, sumOf(deleted, w.early), err)
	clear(w.early)
	return swept{removed: deleted, left: w.doomed(), took: took, err: err}
}

// remove deletes what is urgent of partitions, and counts it. What holds too much
// meanwhile is trimmed as well, but not beyond an interval or a =clear marker: then
// there is a sweep to be done. It returns the partitions that have something left
// that is not urgent.
func (w *sweeper) remove(ctx context.Context, busy []*partition, deleted map[Reason]int) (leisurely []*partition, err error) {
	begun, looked := time.Now(), time.Time{}
	for ctx.Err() == nil {
		if now := time.Now(); now.Sub(begun) < w.interval && len(w.kick) == 0 && (len(busy) == 0 || now.Sub(looked) >= alarmEvery) {
			busy, looked = w.planEarly(busy), now
		}
		if len(busy) == 0 {
			return leisurely, err
		}
		busy = slices.DeleteFunc(busy, func(p *partition) bool {
			rest, batchErr := w.batch(ctx, p, deleted)
			if batchErr != nil {
				err = errors.Join(err, fmt.Errorf("partition %d: %w", p.number, batchErr))
			}
			if rest == leisureLeft {
				leisurely = append(leisurely, p)
			}
			return rest != urgentLeft
		})
	}
	return leisurely, err
}

// goOn removes some of what is not urgent, and returns when to go on with that.
func (w *sweeper) goOn(ctx context.Context) <-chan time.Time {
	stopped := ctx
	ctx, done := link.While(ctx, w.nc)
	defer done()
	begun := time.Now()
	rest, err := w.batch(ctx, w.leisure.turn(), w.leisure.deleted)
	pause := w.leisure.done(rest == leisureLeft, time.Since(begun), time.Now(), total(w.doomed()))
	if err != nil || w.leisure.over() {
		w.report(stopped, true, time.Since(w.leisure.begun), w.leisure.deleted, err)
		w.leisure.deleted = nil
	}
	return w.leisure.next(pause)
}

// doomed returns how many entries there are to delete, by reason.
func (w *sweeper) doomed() map[Reason]int {
	all := map[Reason]int{}
	for _, p := range w.partitions {
		p.with(func(l *ledger) {
			for reason, n := range l.tally {
				if n > 0 {
					all[reason] += n
				}
			}
		})
	}
	return all
}

func total(of map[Reason]int) (n int) {
	for _, some := range of {
		n += some
	}
	return n
}

func sumOf(a, b map[Reason]int) map[Reason]int {
	sum := maps.Clone(a)
	for r, n := range b {
		sum[r] += n
	}
	return sum
}

// report writes a line about what was deleted, if anything was.
func (w *sweeper) report(ctx context.Context, atLeisure bool, took time.Duration, deleted map[Reason]int, err error) {
	attrs := []any{"duration", took.Round(time.Microsecond).String()}
	for _, r := range reasons {
		if n := deleted[r]; n > 0 {
			attrs = append(attrs, string(r), n)
		}
	}
	switch {
	case err != nil && ctx.Err() == nil:
		w.metrics.failed.Inc()
		w.logger.Warn("a sweep is left unfinished", append(attrs, "error", err)...)
	case len(deleted) > 0 && atLeisure:
		w.logger.Info("removed at leisure", attrs...)
	case len(deleted) > 0:
		w.logger.Info("swept", attrs...)
	}
}

// currentWithin is how long a sweep waits for the copy of the registry.
const currentWithin = time.Second

// current makes sure that the copy of the registry is one of this connection's life. An
// older one may say of a session that it was closed, and be of an earlier one of its name.
func (w *sweeper) current(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, currentWithin)
	defer cancel()
	return w.sessions.Current(ctx)
}
