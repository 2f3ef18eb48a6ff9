package janitor

import (
	"math"
	"slices"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// place is a stream of a session.
type place struct{ session, stream string }

// removal is one event that is gone from the model.
type removal struct {
	place
	seq uint64
	// asOf is the sequence of the log at which it counts as gone.
	asOf uint64
	// byFirst says that no later entry tells of it. Everything counts as gone once
	// the ledger knows of a first retained sequence behind it.
	byFirst bool
	// condemned says that the janitor has doomed it.
	condemned bool
}

// model is a log as JetStream keeps it: one partition, a limit per subject, and
// removals from the front.
type model struct {
	limit    int64
	earlier  []eventlog.Earlier // smaller limits of before, as the partition's metadata has them
	now      time.Time
	last     uint64
	first    uint64
	entries  []eventlog.Entry // retained, in order
	closedAt map[place]uint64
	final    map[place]bool // the last event says that it is the last
	removals []removal
}

func newModel(limit int64) *model {
	return &model{limit: limit, first: 1, now: time.Unix(1_800_000_000, 0), closedAt: map[place]uint64{}, final: map[place]bool{}}
}

func (m *model) state() eventlog.State {
	return eventlog.State{
		Created: time.Unix(1, 0), Birth: "birth", Generations: []event.Generation{{ID: "birth", Start: 1}},
		First: m.first, Last: m.last,
		Limits:  eventlog.Limits{MaxEventsPerStream: m.limit, MaxAge: time.Hour, MaxBytes: -1},
		Earlier: slices.Clone(m.earlier),
	}
}

// relimit changes the limit per subject as the log's SetLimits does: with a smaller
// one the oldest events and markers of each subject go at once, and some more of
// those that are published to meanwhile; a larger one leaves the smaller among the
// earlier ones. What the change adds has an open end until closeEarlier.
func (m *model) relimit(to int64, more func() int64) {
	smaller := func(a, b int64) bool { return a > 0 && (b < 0 || a < b) }
	if smaller(m.limit, to) {
		m.earlier = append(m.earlier, eventlog.Earlier{MaxEventsPerStream: m.limit, UpTo: math.MaxUint64})
	}
	if smaller(to, m.limit) && more != nil {
		m.earlier = append(m.earlier, eventlog.Earlier{UpTo: math.MaxUint64})
	}
	m.relimited(to, more)
	m.earlier = slices.DeleteFunc(m.earlier, func(e eventlog.Earlier) bool { return e.MaxEventsPerStream > 0 && !smaller(e.MaxEventsPerStream, to) })
}

// relimited is relimit without the book-keeping.
func (m *model) relimited(to int64, more func() int64) {
	if m.limit = to; to < 0 {
		return
	}
	keep := map[event.Subject]int64{}
	for _, e := range slices.Clone(m.entries) {
		left := m.retained(func(other eventlog.Entry) bool { return other.Subject == e.Subject })
		if _, ok := keep[e.Subject]; !ok {
			keep[e.Subject] = to
			if left > to && more != nil {
				keep[e.Subject] -= more()
			}
		}
		if left > keep[e.Subject] {
			m.gone(e, m.last, false)
			m.delete(e.Sequence)
		}
	}
}

func (m *model) closeEarlier() {
	for i := range m.earlier {
		m.earlier[i].UpTo = min(m.earlier[i].UpTo, m.last)
	}
}

// publishFinal stores an event that says that it is its stream's last.
func (m *model) publishFinal(at place) {
	m.publish(at, event.Message)
	m.entries[len(m.entries)-1].Final, m.final[at] = true, true
}

// publish stores an event or a marker.
func (m *model) publish(at place, kind event.Kind) {
	m.last++
	m.now = m.now.Add(time.Millisecond)
	e := eventlog.Entry{
		Subject: event.Subject{Session: at.session, Stream: at.stream, Kind: kind}, Valid: true,
		Sequence: m.last, Time: m.now, Size: 10,
	}
	m.entries = append(m.entries, e)
	switch kind {
	case event.Close:
		if m.closedAt[at] == 0 {
			m.closedAt[at] = m.last
		}
	case event.Clear:
		m.tell(m.last, func(r removal) bool { return r.session == at.session && (r.stream == at.stream || at.stream == "") })
		for _, old := range m.entries {
			if m.counts(old) && (old.Subject.Stream == at.stream || at.stream == "") && old.Subject.Session == at.session {
				m.gone(old, m.last, false)
			}
		}
	case event.Message:
		m.final[at] = false
	}
	same := func(old eventlog.Entry) bool { return old.Subject == e.Subject }
	if m.limit > 0 && m.retained(same) > m.limit {
		oldest := slices.IndexFunc(m.entries, same)
		m.gone(m.entries[oldest], m.last, false)
		m.delete(m.entries[oldest].Sequence)
	}
}

func (m *model) retained(f func(eventlog.Entry) bool) (n int64) {
	for _, e := range m.entries {
		if f(e) {
			n++
		}
	}
	return n
}

// expire removes what lies before a sequence.
func (m *model) expire(before uint64) {
	for len(m.entries) > 0 && m.entries[0].Sequence < before {
		m.gone(m.entries[0], 0, true)
		m.entries = m.entries[1:]
	}
	m.setFirst()
}

// delete removes one entry, as the janitor does.
func (m *model) delete(seq uint64) {
	m.entries = slices.DeleteFunc(m.entries, func(e eventlog.Entry) bool { return e.Sequence == seq })
	m.setFirst()
}

func (m *model) setFirst() {
	m.first = m.last + 1
	if len(m.entries) > 0 {
		m.first = m.entries[0].Sequence
	}
}

// counts reports whether an entry is an event that edges show.
func (m *model) counts(e eventlog.Entry) bool {
	closed := m.closedAt[place{e.Subject.Session, e.Subject.Stream}]
	return e.Subject.Kind == event.Message && (closed == 0 || e.Sequence < closed)
}

func (m *model) gone(e eventlog.Entry, asOf uint64, byFirst bool) {
	if m.counts(e) {
		m.removals = append(m.removals, removal{place: place{e.Subject.Session, e.Subject.Stream}, seq: e.Sequence, asOf: asOf, byFirst: byFirst})
	}
}

// condemn notes that the janitor has doomed an entry.
func (m *model) condemn(seq, asOf uint64) {
	if e, ok := m.next(seq - 1); ok && e.Sequence == seq && m.counts(e) {
		m.gone(e, asOf, false)
		m.removals[len(m.removals)-1].condemned = true
	}
	m.tell(asOf, func(r removal) bool { return r.seq == seq })
}

// tell notes that a ledger at asOf takes removed events for gone, however they went.
func (m *model) tell(asOf uint64, which func(removal) bool) {
	for i, r := range m.removals {
		if which(r) && (r.byFirst || r.asOf > asOf) {
			m.removals[i].asOf, m.removals[i].byFirst = asOf, false
		}
	}
}

// pardon forgets what was doomed by a janitor that died before it was deleted.
func (m *model) pardon() {
	m.removals = slices.DeleteFunc(m.removals, func(r removal) bool {
		e, ok := m.next(r.seq - 1)
		return r.condemned && ok && e.Sequence == r.seq
	})
}

// next returns the oldest retained entry after a sequence.
func (m *model) next(after uint64) (eventlog.Entry, bool) {
	i := slices.IndexFunc(m.entries, func(e eventlog.Entry) bool { return e.Sequence > after })
	if i < 0 {
		return eventlog.Entry{}, false
	}
	return m.entries[i], true
}

// truth returns the last event of a stream that is gone to the knowledge of a
// ledger that is at through and knows of first.
func (m *model) truth(at place, through, first uint64) (last uint64) {
	for _, r := range m.removals {
		if r.place == at && (r.seq < first || !r.byFirst && r.asOf <= through) && r.seq <= through {
			last = max(last, r.seq)
		}
	}
	return last
}

// wasRemoved reports whether an event is gone, or is ignored by edges anyway.
func (m *model) wasRemoved(at place, seq uint64) bool {
	if closed := m.closedAt[at]; closed != 0 && seq > closed {
		return true
	}
	return slices.ContainsFunc(m.removals, func(r removal) bool { return r.place == at && r.seq == seq })
}

const never = uint64(math.MaxUint64)
