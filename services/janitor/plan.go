package janitor

import (
	"context"
	"iter"
	"slices"
	"time"

	"rejoin/shared/session"
)

// keepEmpty is how many streams of which nothing is retained a partition's ledger
// remembers, with about 200 B each.
const keepEmpty = 100_000

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
		state, _ := p.log.State(p.number)
		if complete = l.complete && p.compared(state); !complete {
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
	l.alarm, l.over = w.limits().alarm(), nil
	for _, a := range l.accounts {
		a.over = false
	}
	for r := range w.removals(l, now) {
		l.condemn(r)
	}
	l.sortDoomed()
}

// removals are what has to go of a partition now. The caller holds its lock, and may
// condemn what it gets.
func (w *sweeper) removals(l *ledger, now time.Time) iter.Seq[Removal] {
	return func(yield func(Removal) bool) {
		if len(l.strays) > 0 && !yield(Removal{Reason: Stray, Sequences: slices.Clone(l.strays)}) {
			return
		}
		lim := w.limits()
		for name := range l.accounts {
			for _, r := range w.ofSession(l, name, lim, now) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// ofSession returns what has to go of a session now, given the limits of all sessions.
func (w *sweeper) ofSession(l *ledger, name string, lim limits, now time.Time) []Removal {
	a := l.accounts[name]
	if a == nil {
		return nil
	}
	rec, _ := w.sessions.Session(name)
	if lim = w.overrides.limits(lim, rec.Retention); !lim.concern(a, rec.State) {
		return nil
	}
	return policy(l.view(name, a, rec, now), lim, now)
}

// limitsOf returns the limits of a session.
func (w *sweeper) limitsOf(rec session.Record) limits {
	return w.overrides.limits(w.limits(), rec.Retention)
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
		lim.maxBytes >= 0 && a.bytes > lim.maxBytes ||
		lim.maxStreams >= 0 && int64(a.open) > lim.maxStreams
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
