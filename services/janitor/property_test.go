package janitor

import (
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
	"rejoin/shared/session"
)

// machine is a model of the log with a janitor that follows it at its own pace.
type machine struct {
	log    *model
	ledger *ledger
	places []place
	limits limits

	trims   map[string]uint64 // durable trim marks
	fetched []eventlog.Entry  // on the way to the ledger
	sent    uint64            // the last sequence on the way, or handled
	caught  uint64            // Through is called when this is reached; never: it was
	seen    *eventlog.State   // the answer to a look, on the way
	asOf    uint64
	missed  bool // the ledger did not see everything from the birth of the log on
	odd     bool // something was published behind a =close marker
	foreign bool // a limit was changed by somebody who wrote nothing down: this janitor knows, the next would not
}

var limitPerSubject = rapid.SampledFrom([]int64{-1, 1, 2, 3, 5})

func newMachine(t *rapid.T) *machine {
	m := &machine{trims: map[string]uint64{}}
	m.log = newModel(limitPerSubject.Draw(t, "limit per subject"))
	m.limits = limits{maxEvents: rapid.SampledFrom([]int64{-1, 2, 4, 8}).Draw(t, "limit per session"), maxBytes: -1, maxStreams: rapid.SampledFrom([]int64{-1, 1, 2}).Draw(t, "open streams"), closedGrace: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "grace")}
	for _, s := range []string{"a", "b"} {
		for _, st := range []string{"x", "y", "z"} {
			m.places = append(m.places, place{s, st})
		}
	}
	m.begin()
	return m
}

// begin starts a janitor, with no more knowledge than what is stored.
func (m *machine) begin() {
	m.ledger = newLedger()
	m.tail()
}

// tail starts the ledger's tail, or starts it again.
func (m *machine) tail() {
	m.fetched, m.seen = nil, nil
	epoch := m.ledger.epoch
	m.sent = m.ledger.begin(m.log.state(), maps.Clone(m.trims))
	if m.ledger.epoch != epoch {
		m.log.pardon() // what was doomed is not any more
	}
	m.caught = m.log.last
	m.reached()
}

// reached calls reach when the tail has caught up.
func (m *machine) reached() {
	if _, more := m.log.next(m.sent); m.caught != never && len(m.fetched) == 0 && (!more || m.sent >= m.caught) {
		m.missed = m.missed || m.caught > m.sent
		m.ledger.reach(max(m.caught, m.sent), m.log.now)
		m.sent, m.caught = max(m.caught, m.sent), never
	}
}

func (m *machine) fetch() bool {
	e, ok := m.log.next(m.sent)
	if ok {
		m.missed = m.missed || e.Sequence != m.sent+1
		m.fetched, m.sent = append(m.fetched, e), e.Sequence
	}
	return ok
}

func (m *machine) handle() bool {
	if len(m.fetched) == 0 {
		m.reached()
		return false
	}
	m.ledger.apply(m.fetched[0], m.log.now)
	m.fetched = m.fetched[1:]
	m.reached()
	return true
}

// sweep lets the policy doom what it wants to.
func (m *machine) sweep(t *rapid.T) {
	if !m.ledger.complete {
		return
	}
	through := m.ledger.through
	for _, of := range sorted(&m.ledger.order, m.ledger.accounts).from("") {
		name := of.name
		a := m.ledger.accounts[name]
		for _, r := range policy(m.ledger.view(name, a, session.Record{State: session.Open}, m.log.now), m.limits, m.log.now) {
			m.ledger.condemn(r)
			for _, seq := range r.Sequences {
				m.log.condemn(seq, through)
			}
		}
	}
	m.ledger.sortDoomed()
	m.checkLimits(t)
}

// checkLimits checks that a session is within its limits after a sweep, and that the
// ledger knows which streams are finished.
func (m *machine) checkLimits(t *rapid.T) {
	for name, a := range m.ledger.accounts {
		events, unfinished := int64(0), int64(0)
		for stream, s := range a.streams {
			at := place{name, stream}
			live := int64(0)
			for _, e := range s.events {
				if e.seq <= a.closedAt(s) {
					live++
				}
			}
			events += live
			if a.closedAt(s) != never || live == 0 {
				continue
			}
			if m.ledger.limit == m.log.limit && m.ledger.through == m.log.last && s.final != m.log.final[at] {
				t.Fatalf("%v is finished: %t, and the ledger says %t", at, m.log.final[at], s.final)
			}
			if !s.final {
				unfinished++
			}
		}
		if m.limits.maxEvents >= 0 && events > m.limits.maxEvents || m.limits.maxStreams >= 0 && unfinished > m.limits.maxStreams {
			t.Fatalf("%s has %d events and %d open streams, with %+v", name, events, unfinished, m.limits)
		}
	}
}

// delete deletes one doomed entry, the oldest of some lane, and writes down before how
// far its session is trimmed.
func (m *machine) delete(lane uint8) {
	for _, d := range m.ledger.doomed {
		if d.lane == lane {
			for name, mark := range trimsOf([]doom{d}) {
				m.trims[name] = max(m.trims[name], mark.UpTo)
			}
			m.log.delete(d.seq)
			m.ledger.deleted([]doom{d})
			return
		}
	}
}

func (m *machine) check(t *rapid.T) {
	l := m.ledger
	for name, a := range l.accounts {
		n := 0
		for _, s := range a.streams {
			if len(s.events) > 0 && !s.final && s.markers.closedAt() == open {
				n++
			}
		}
		if a.open != n {
			t.Fatalf("%s has %d open streams, and the ledger counts %d", name, n, a.open)
		}
	}
	if !l.complete || l.limit != m.log.limit {
		return // an edge has seen the limit, and gets no answer
	}
	whole := l.answer(marks.Request{}, m.log.now)
	for _, at := range m.places {
		truth := m.log.truth(at, l.through, l.first)
		place := l.answer(marks.Request{Places: []marks.Place{{Session: at.session, Stream: at.stream}}}, m.log.now).Places[0]
		for _, got := range []marks.Mark{
			lookUp(whole, at), lookUp(l.answer(marks.Request{Session: at.session}, m.log.now), at),
			lookUp(l.answer(marks.Request{Session: at.session, Stream: at.stream}, m.log.now), at), place.Mark,
		} {
			if max(got.Removed, got.Maybe) < truth {
				t.Fatalf("%v: %d was removed and the mark is %+v (through %d, first %d)", at, truth, got, l.through, l.first)
			}
			if got.Removed != 0 && !m.log.wasRemoved(at, got.Removed) {
				t.Fatalf("%v: %d was not removed and the mark is %+v", at, got.Removed, got)
			}
			// With what is checked above, no doubt means that Removed is exact.
			if !m.missed && !m.odd && got.Maybe != 0 {
				t.Fatalf("%v: nothing was missed, and the mark is %+v", at, got)
			}
		}
		if place.First != 0 && place.First <= place.Removed {
			t.Fatalf("%v: the oldest that is retained was removed: %+v", at, place)
		}
	}
}

func lookUp(r marks.Reply, at place) marks.Mark {
	for _, m := range r.Marks {
		if m.Session == at.session && m.Stream == at.stream {
			return m.Mark
		}
	}
	return r.Default
}

// catchUp brings the ledger to the end of the log and settles what was missed.
func (m *machine) catchUp() {
	for m.fetch() || m.handle() {
		continue
	}
	if m.ledger.through < m.log.last {
		m.missed = true
		m.ledger.skip(m.log.last, m.log.now)
		m.sent = m.log.last
	}
	m.ledger.looked(m.ledger.through, m.log.state(), m.log.now)
}

func TestMarksNeverMissARemovalAndNeverInventOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		at := rapid.SampledFrom(m.places)
		publish := func(t *rapid.T) {
			for range rapid.IntRange(1, 6).Draw(t, "events") {
				p := at.Draw(t, "stream")
				m.odd = m.odd || m.log.closedAt[p] != 0
				if rapid.IntRange(0, 3).Draw(t, "final") == 0 {
					m.log.publishFinal(p)
				} else {
					m.log.publish(p, event.Message)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"publish":  publish,
			"publish2": publish,
			"close": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rarely") == 0 {
					m.log.publish(at.Draw(t, "stream"), event.Close)
				}
			},
			"clear": func(t *rapid.T) {
				p := at.Draw(t, "stream")
				if rapid.Bool().Draw(t, "whole session") {
					p.stream = ""
				}
				m.log.publish(p, event.Clear)
			},
			"expire": func(t *rapid.T) {
				if m.log.last > 0 {
					m.log.expire(rapid.Uint64Range(m.log.first, min(m.log.first+4, m.log.last+1)).Draw(t, "before"))
				}
			},
			"fetch": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "entries") {
					m.fetch()
				}
			},
			"handle": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "entries") {
					m.handle()
				}
			},
			"look": func(*rapid.T) {
				s := m.log.state()
				m.seen, m.asOf = &s, m.ledger.through
			},
			"seen": func(*rapid.T) {
				if m.seen != nil && m.ledger.wantsLook() {
					m.ledger.looked(m.asOf, *m.seen, m.log.now)
				}
				m.seen = nil
			},
			"first":   func(*rapid.T) { m.ledger.advance(m.log.first) },
			"prune":   func(*rapid.T) { m.ledger.prunedAt = time.Time{}; m.ledger.prune(m.log.now) },
			"sweep":   m.sweep,
			"delete":  func(t *rapid.T) { m.delete(rapid.Uint8Range(0, lanes-1).Draw(t, "lane")) },
			"catchUp": func(*rapid.T) { m.catchUp() },
			"forget": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rarely") == 0 {
					m.ledger.forget(1)
					m.missed = true
				}
			},
			"relimit": func(t *rapid.T) {
				if rapid.IntRange(0, 2).Draw(t, "rarely") != 0 {
					return
				}
				m.ledger.notice(m.log.state())
				m.ledger.drop()
				publish(t)
				if to := limitPerSubject.Draw(t, "limit per subject"); rapid.Bool().Draw(t, "published meanwhile") {
					m.log.relimit(to, func() int64 { return rapid.Int64Range(0, to).Draw(t, "too many") })
					publish(t)
				} else {
					m.log.relimit(to, nil)
				}
				if rapid.IntRange(0, 3).Draw(t, "cut off") != 0 {
					m.log.closeEarlier()
				}
				m.missed = true
				m.tail()
			},
			"behind the janitor's back": func(t *rapid.T) {
				to := limitPerSubject.Draw(t, "limit per subject")
				if m.ledger.limit == m.log.limit && to > 0 && (to < m.log.limit || m.log.limit < 0) && rapid.IntRange(0, 2).Draw(t, "rarely") == 0 {
					m.missed, m.foreign = true, true
					m.log.relimited(to, func() int64 { return rapid.Int64Range(0, to).Draw(t, "too many") })
				}
			},
			"notice": func(*rapid.T) {
				if m.ledger.limit != m.log.limit {
					if rapid.Bool().Draw(t, "by the tail") {
						m.ledger.notice(m.log.state())
						m.ledger.drop()
					}
					m.tail()
				}
			},
			"interrupt": func(*rapid.T) { m.tail() },
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 2).Draw(t, "rarely") == 0 && !m.foreign {
					m.missed = m.missed || m.log.first > 1 || len(m.log.entries) != int(m.log.last)
					m.begin()
				}
			},
			"": m.check,
		})
	})
}
