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
	overrides   overrides
	interval    time.Duration
	metrics     *metrics
	logger      *slog.Logger
	kick        chan struct{} // a =clear marker was seen
	server      string        // whose copy of the trim marks is known to be whole
	leisure     leisure
}

// cleared asks for a sweep soon.
func (w *sweeper) cleared() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run sweeps until ctx ends. Between the sweeps it removes what is not urgent.
func (w *sweeper) run(ctx context.Context) {
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	w.leisure = leisure{} // what an earlier term has left a sweep finds
	var soon, rest <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
			if soon == nil {
				soon = time.After(clearDelay)
			}
			continue
		case <-rest:
			rest = w.goOn(ctx)
			continue
		case <-soon:
			soon = nil
		case <-ticker.C:
		}
		if w.nc.IsConnected() {
			w.sweep(ctx)
			rest = w.leisure.next(0)
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
	for len(busy) > 0 && ctx.Err() == nil {
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
	w.leisure.begin(leisurely, time.Now())
	w.metrics.sweep.Observe(time.Since(begun).Seconds())
	w.report(stopped, "swept", time.Since(begun), deleted, err)
}

// goOn removes some of what is not urgent, and returns when to go on with that.
func (w *sweeper) goOn(ctx context.Context) <-chan time.Time {
	stopped := ctx
	ctx, done := link.While(ctx, w.nc)
	defer done()
	begun := time.Now()
	rest, err := w.batch(ctx, w.leisure.turn(), w.leisure.deleted)
	pause := w.leisure.done(rest == leisureLeft, time.Since(begun), time.Now(), w.doomed())
	if err != nil || w.leisure.over() {
		w.report(stopped, "removed at leisure", time.Since(w.leisure.begun), w.leisure.deleted, err)
		w.leisure.deleted = nil
	}
	return w.leisure.next(pause)
}

// doomed returns how many entries there are to delete.
func (w *sweeper) doomed() (n int) {
	for _, p := range w.partitions {
		p.with(func(l *ledger) { n += len(l.doomed) })
	}
	return n
}

func (w *sweeper) report(ctx context.Context, what string, took time.Duration, deleted map[Reason]int, err error) {
	attrs := []any{"duration", took.Round(time.Microsecond).String()}
	for _, r := range reasons {
		if n := deleted[r]; n > 0 {
			attrs = append(attrs, string(r), n)
		}
	}
	switch {
	case err != nil && ctx.Err() == nil:
		w.logger.Warn("a sweep is left unfinished", append(attrs, "error", err)...)
	case len(deleted) > 0:
		w.logger.Info(what, attrs...)
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

// plan asks the policy about all sessions of a partition, and dooms what it says. It
// returns what there is to delete.
func (w *sweeper) plan(ctx context.Context, p *partition) (left, error) {
	if err := p.look(ctx); err != nil {
		return nothingLeft, err
	}
	now := p.now()
	var birth string
	var first uint64
	rest, complete := nothingLeft, false
	p.with(func(l *ledger) {
		if complete = l.complete; !complete {
			return
		}
		w.doom(l, now)
		l.forget(keepEmpty)
		birth, first, rest = l.birth, l.first, l.left()
	})
	if !complete {
		return nothingLeft, nil
	}
	return rest, w.trims.tidy(ctx, p.number, birth, first)
}

// doom asks the policy. The caller holds the partition's lock.
func (w *sweeper) doom(l *ledger, now time.Time) {
	if len(l.strays) > 0 {
		l.condemn(Removal{Reason: Stray, Sequences: slices.Clone(l.strays)})
	}
	common := w.limits()
	for name, a := range l.accounts {
		rec, _ := w.sessions.Session(name)
		lim := w.overrides.limits(common, rec.Retention)
		if !lim.concern(a, rec.State) {
			continue
		}
		for _, r := range policy(l.view(name, a, rec, now), lim, now) {
			l.condemn(r)
		}
	}
	l.sortDoomed()
}

// limits are those of all sessions, now: the log's may change.
func (w *sweeper) limits() limits {
	s := w.settings()
	return limits{maxEvents: s.MaxEventsPerSession, maxBytes: s.MaxBytesPerSession, maxStreams: s.MaxStreamsPerSession, closedGrace: w.closedGrace}
}

// concern reports whether the policy may have something to say about a session:
// it says nothing about one within its limits that has no markers and is not closed.
func (lim limits) concern(a *account, state session.State) bool {
	return a.marked > 0 || state == session.Closed && a.events > 0 ||
		lim.maxEvents >= 0 && int64(a.events) > lim.maxEvents ||
		lim.maxBytes >= 0 && a.bytes > lim.maxBytes || a.hasMoreOpen(lim.maxStreams)
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
			v.streams = append(v.streams, streamView{stream, s.events, s.final, s.markers})
		}
	}
	a.markers = a.drop(a.markers, func(m marker) bool { return m.seq < l.first })
	v.markers = a.markers
	return v
}
