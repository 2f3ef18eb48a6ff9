package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"rejoin/services/janitor/follow"

	"rejoin/services/janitor/ledger"

	"github.com/nats-io/nats.go"

	"rejoin/shared/backend"
	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
	"rejoin/shared/session"
)

// clearDelay is how long after a =clear marker a sweep begins: a session that is
// cleared stream by stream is swept once.
const clearDelay = 50 * time.Millisecond

// sweeper announces what the policy removes, and moves the floor. What it announces the
// deleter deletes.
type sweeper struct {
	nc         *nats.Conn
	log        *eventlog.Log
	partitions []*follow.Partition
	floors     []*floorKeeper // of each partition
	deleter    *deleter
	sessions   *session.Registry
	cfg        Config
	overrides  overrides
	metrics    *metrics
	logger     *slog.Logger
	kick       chan struct{} // a =clear marker was seen
	alarm      chan struct{} // a session or partition holds more than it may
	asks       chan ask
	early      map[ledger.Reason]int // announced since the last sweep, for its line in the log
	delay      time.Duration         // from an alarm to the early trimming
}

func newSweeper(cfg Config, b *backend.Backend, d *deleter, logger *slog.Logger) *sweeper {
	return &sweeper{
		nc: b.Conn, log: b.Log, deleter: d, sessions: b.Sessions, cfg: cfg, overrides: cfg.overrides(), logger: logger,
		kick: make(chan struct{}, 1), alarm: make(chan struct{}, 1), asks: make(chan ask),
		early: map[ledger.Reason]int{}, delay: min(alarmDelay, cfg.Interval/2),
	}
}

// cleared asks for a sweep soon.
func (w *sweeper) cleared() { ring(w.kick) }

// alarmed asks for what holds too much to be trimmed soon.
func (w *sweeper) alarmed() { ring(w.alarm) }

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// run sweeps until ctx ends. Between the sweeps it trims what cannot wait for the next one.
func (w *sweeper) run(ctx context.Context) {
	ticker := time.NewTicker(w.cfg.Interval)
	defer ticker.Stop()
	var soon, early <-chan time.Time
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
		case first := <-w.asks:
			asked = append(w.others(), first)
		case <-soon:
			soon = nil
		case <-ticker.C:
		}
		done := swept{err: nats.ErrDisconnected}
		if w.nc.IsConnected() {
			done = w.sweep(ctx)
		}
		for _, a := range asked {
			a <- done // has room for it
		}
		asked = nil
	}
}

// sweep does what the policy says, and moves the floor. What fails is left for the next sweep.
func (w *sweeper) sweep(ctx context.Context) swept {
	begun := time.Now()
	stopped := ctx
	ctx, done := natsconn.While(ctx, w.nc)
	defer done()
	removed := map[ledger.Reason]int{}
	err := w.each(ctx, w.partitions, func(p *follow.Partition) error { return w.announce(ctx, p, nil, removed) })
	err = errors.Join(err, w.each(ctx, w.partitions, func(p *follow.Partition) error {
		p.CaughtUp(ctx)
		return w.moveFloor(ctx, p)
	}), ctx.Err())
	took := time.Since(begun)
	w.metrics.sweep.Observe(took.Seconds())
	w.report(stopped, took, sumOf(removed, w.early), err)
	clear(w.early)
	return swept{removed: removed, left: w.toDelete(), took: took, err: err}
}

// each does something for some partitions, one after the other. One that is full gets room for
// what the janitor has to store; one that is not what it was is left to its tail.
func (w *sweeper) each(ctx context.Context, partitions []*follow.Partition, do func(*follow.Partition) error) (errs error) {
	for _, p := range partitions {
		if ctx.Err() != nil {
			return errs
		}
		err := do(p)
		if errors.Is(err, eventlog.ErrFull) {
			if err = w.makeRoom(ctx, p); err == nil {
				err = do(p)
			}
		}
		if err != nil && !errors.Is(err, follow.ErrMoved) {
			errs = errors.Join(errs, fmt.Errorf("partition %d: %w", p.Number, err))
		}
	}
	return errs
}

// toDelete returns how many entries are announced and not deleted yet, by what readers are
// told.
func (w *sweeper) toDelete() map[eventlog.Reason]int {
	all := map[eventlog.Reason]int{}
	for _, p := range w.partitions {
		p.With(func(l *ledger.Ledger) {
			for _, t := range l.Pending {
				all[t.Reason] += len(t.Entries)
			}
		})
	}
	return all
}

func sumOf(a, b map[ledger.Reason]int) map[ledger.Reason]int {
	sum := maps.Clone(a)
	for r, n := range b {
		sum[r] += n
	}
	return sum
}

// report writes a line about what was announced, if anything was.
func (w *sweeper) report(ctx context.Context, took time.Duration, removed map[ledger.Reason]int, err error) {
	attrs := []any{"duration", took.Round(time.Microsecond).String()}
	for _, r := range ledger.Reasons {
		if n := removed[r]; n > 0 {
			attrs = append(attrs, string(r), n)
		}
	}
	switch {
	case err != nil && ctx.Err() == nil:
		w.metrics.failed.Inc()
		w.logger.Warn("a sweep is left unfinished", append(attrs, "error", err)...)
	case len(removed) > 0:
		w.logger.Info("swept", attrs...)
	}
}
