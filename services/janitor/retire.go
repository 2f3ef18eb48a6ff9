package janitor

import (
	"math"
	"slices"
	"time"

	"rejoin/shared/marks"
)

// pruneEvery is how often prune looks at all streams at most.
const pruneEvery = time.Second

// prune brings all streams up to first, so that the totals are right, and forgets what
// is too much: a standby has no sweep that does.
func (l *ledger) prune(now time.Time) {
	if l.pruned == l.first || now.Sub(l.prunedAt) < pruneEvery {
		return
	}
	l.pruned, l.prunedAt = l.first, now
	for name, a := range l.accounts {
		for _, s := range a.streams {
			l.expire(a, s, now)
		}
		a.markers = a.drop(a.markers, func(m marker) bool { return m.seq < l.first })
		if a.empty() && len(a.streams) == 0 && a.maybe == 0 {
			l.forgetAccount(name)
		}
	}
	l.forget(keepEmpty)
}

// expire brings a stream up to first.
func (l *ledger) expire(a *account, s *stream, now time.Time) {
	for len(s.events) > 0 && s.events[0].seq < l.first {
		l.lose(a, s, l.reason(s.events[0].time(), now))
	}
	if s.markers != nil {
		s.markers = a.drop(s.markers, func(m marker) bool { return m.seq < l.first })
		a.recount(s)
	}
}

// ageSlack is how much the clocks of janitor and server may differ.
const ageSlack = time.Second

// reason says why an event before the first retained sequence is gone.
func (l *ledger) reason(stored, now time.Time) marks.Reason {
	if l.maxAge > 0 && now.Sub(stored) >= l.maxAge-ageSlack {
		return marks.Expired
	}
	return marks.Trimmed
}

// drop takes markers out and returns what is left.
func (a *account) drop(m *markers, gone func(marker) bool) *markers {
	if m == nil {
		return nil
	}
	before := len(m.closes) + len(m.clears)
	m.closes = slices.DeleteFunc(m.closes, gone)
	m.clears = slices.DeleteFunc(m.clears, gone)
	after := len(m.closes) + len(m.clears)
	a.marked -= before - after
	if after == 0 {
		return nil
	}
	return m
}

// forget drops streams of which nothing is retained until at most keep are left,
// those whose last removal is oldest first. It raises the doubt about streams that
// the ledger does not know accordingly, so that no answer becomes wrong.
func (l *ledger) forget(keep int) {
	var removed []uint64
	for _, a := range l.accounts {
		for _, s := range a.streams {
			if len(s.events) == 0 && s.markers == nil {
				removed = append(removed, max(s.removed, s.maybe))
			}
		}
	}
	if len(removed) <= keep {
		return
	}
	slices.Sort(removed)
	limit := uint64(math.MaxUint64)
	if keep > 0 {
		limit = removed[len(removed)-keep]
	}
	for name, a := range l.accounts {
		for stream, s := range a.streams {
			if last := max(s.removed, s.maybe); len(s.events) == 0 && s.markers == nil && last < limit {
				l.doubts.floor = max(l.doubts.floor, last)
				delete(a.streams, stream)
				a.order = nil
			}
		}
		if a.empty() && len(a.streams) == 0 && a.maybe <= l.doubts.floor {
			l.forgetAccount(name)
		}
	}
}
