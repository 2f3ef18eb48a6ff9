package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/link"
	"rejoin/shared/session"
)

// clearDelay is how long after a =clear marker a sweep begins: a session that is
// cleared stream by stream is swept once.
const clearDelay = 50 * time.Millisecond

// keepEmpty is how many streams of which nothing is retained a partition's ledger
// remembers, with about 200 B each.
const keepEmpty = 100_000

// sweeper is the one place that deletes from the log.
type sweeper struct {
	nc          *nats.Conn
	partitions  []*partition
	trims       *trims
	sessions    *session.Registry
	settings    func() eventlog.Settings // the log's, now
	closedGrace time.Duration
	interval    time.Duration
	metrics     *metrics
	logger      *slog.Logger
	kick        chan struct{} // a =clear marker was seen
	server      string        // whose copy of the trim marks is known to be whole
}

// cleared asks for a sweep soon.
func (w *sweeper) cleared() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run sweeps until ctx ends.
func (w *sweeper) run(ctx context.Context) {
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	var soon <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
			if soon == nil {
				soon = time.After(clearDelay)
			}
			continue
		case <-soon:
			soon = nil
		case <-ticker.C:
		}
		if w.nc.IsConnected() {
			w.sweep(ctx)
		}
	}
}

// sweep does what the policy says, partition by partition, then batch by batch in
// turns, so that a partition with much to delete does not hold up the others. What
// fails is left for the next sweep: the ledger remembers what is doomed.
func (w *sweeper) sweep(ctx context.Context) {
	begun := time.Now()
	stopped := ctx
	ctx, done := link.While(ctx, w.nc)
	defer done()
	err := w.restoreTrims(ctx)
	var busy []*partition
	for _, p := range w.partitions {
		if ctx.Err() != nil {
			break
		}
		more, planErr := w.plan(ctx, p)
		if planErr != nil {
			err = errors.Join(err, fmt.Errorf("partition %d: %w", p.number, planErr))
		} else if more {
			busy = append(busy, p)
		}
	}
	deleted := map[Reason]int{}
	for len(busy) > 0 && ctx.Err() == nil {
		busy = slices.DeleteFunc(busy, func(p *partition) bool {
			more, batchErr := w.batch(ctx, p, deleted)
			if batchErr != nil {
				err = errors.Join(err, fmt.Errorf("partition %d: %w", p.number, batchErr))
			}
			return !more || batchErr != nil
		})
	}
	w.report(stopped, time.Since(begun), deleted, err)
}

func (w *sweeper) report(ctx context.Context, took time.Duration, deleted map[Reason]int, err error) {
	w.metrics.sweep.Observe(took.Seconds())
	attrs := []any{"duration", took.Round(time.Microsecond).String()}
	for _, r := range reasons {
		if n := deleted[r]; n > 0 {
			w.metrics.trimmed.WithLabelValues(string(r)).Add(float64(n))
			attrs = append(attrs, string(r), n)
		}
	}
	switch {
	case err != nil && ctx.Err() == nil:
		w.logger.Warn("a sweep is left unfinished", append(attrs, "error", err)...)
	case len(deleted) > 0:
		w.logger.Info("swept", attrs...)
	}
}

func (w *sweeper) restoreTrims(ctx context.Context) error {
	server := w.nc.ConnectedServerId()
	if server == w.server || server == "" {
		return nil
	}
	if w.server != "" {
		if err := w.trims.restore(ctx); err != nil {
			return err
		}
	}
	w.server = server
	return nil
}

// plan asks the policy about all sessions of a partition, dooms what it says, and
// writes the durable trim marks. It reports whether there is anything to delete.
func (w *sweeper) plan(ctx context.Context, p *partition) (bool, error) {
	if err := p.look(ctx); err != nil {
		return false, err
	}
	now := p.now()
	var wanted map[string]trim
	var birth string
	var first uint64
	more, complete := false, false
	p.with(func(l *ledger) {
		if complete = l.complete; !complete {
			return
		}
		w.doom(l, now)
		l.forget(keepEmpty)
		wanted, birth, first, more = l.trims(), l.birth, l.first, len(l.doomed) > 0
	})
	if !complete {
		return false, nil
	}
	if err := w.trims.write(ctx, wanted); err != nil {
		return false, err
	}
	return more, w.trims.tidy(ctx, p.number, birth, first)
}

// doom asks the policy. The caller holds the partition's lock.
func (w *sweeper) doom(l *ledger, now time.Time) {
	if len(l.strays) > 0 {
		l.condemn(Removal{Reason: Stray, Sequences: slices.Clone(l.strays)})
	}
	lim := w.limits()
	for name, a := range l.accounts {
		rec, _ := w.sessions.Session(name)
		if !lim.concern(a, rec.State) {
			continue
		}
		for _, r := range policy(l.view(name, a, rec, now), lim, now) {
			l.condemn(r)
		}
	}
	l.sortDoomed()
}

// limits are those of now: the log's may change.
func (w *sweeper) limits() limits {
	s := w.settings()
	return limits{maxEvents: s.MaxEventsPerSession, maxBytes: s.MaxBytesPerSession, closedGrace: w.closedGrace}
}

// concern reports whether the policy may have something to say about a session:
// it says nothing about one within its limits that has no markers and is not closed.
func (lim limits) concern(a *account, state session.State) bool {
	return a.marked > 0 || state == session.Closed && a.events > 0 ||
		lim.maxEvents >= 0 && int64(a.events) > lim.maxEvents ||
		lim.maxBytes >= 0 && a.bytes > lim.maxBytes
}

// view returns what the policy sees of a session.
func (l *ledger) view(name string, a *account, rec session.Record, now time.Time) sessionView {
	v := sessionView{
		name: name, state: rec.State, ended: rec.Ended,
		exact: l.exact(), pending: a.doomed > 0,
		streams: make([]streamView, 0, len(a.streams)),
	}
	for stream, s := range a.streams {
		l.expire(a, s, now)
		if len(s.events) > 0 || s.markers != nil {
			v.streams = append(v.streams, streamView{stream, s.events, s.markers})
		}
	}
	a.markers = a.drop(a.markers, func(m marker) bool { return m.seq < l.first })
	v.markers = a.markers
	return v
}
