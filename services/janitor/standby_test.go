package janitor

import (
	"log/slog"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rejoin/shared/event"
	"rejoin/shared/marks"
)

// pair is a janitor that acts and one that stands by, over one log: the standby tails
// at its own pace, and hears what is deleted late, or not at all.
type pair struct {
	*machine // the one that acts
	standby  *machine
	p        *partition // of the standby, for what it hears
	news     []news     // on their way
	told     uint64
	term     int
}

func newPair(t *rapid.T) *pair {
	m := &pair{machine: newMachine(t)}
	m.follow()
	return m
}

// follow starts a standby.
func (m *pair) follow() {
	m.standby = &machine{log: m.log, trims: m.trims, limits: m.limits, places: m.places}
	m.standby.begin()
	m.p = newPartition(0, nil, nil, slog.New(slog.DiscardHandler), func() {}, func() {})
	m.p.ledger = m.standby.ledger
	m.p.ledger.doubts.standby = true
}

// renew begins the standby's ledger anew when it was dropped.
func (m *pair) renew() {
	if l := m.standby.ledger; l.birth == "" {
		m.standby.rejoin()
	}
}

func (m *machine) rejoin() {
	m.fetched = nil
	m.sent = m.ledger.begin(m.log.state(), maps.Clone(m.trims))
	m.ledger.doubts.standby = true
	m.caught = m.log.last
	m.reached()
}

// delete deletes up to n of what is doomed, and tells it.
func (m *pair) delete(n int) {
	done, _ := m.ledger.batch()
	done = done[:min(n, len(done))]
	for name, mark := range trimsOf(done) {
		m.trims[name] = max(m.trims[name], mark.UpTo)
	}
	for _, d := range done {
		m.log.delete(d.seq)
	}
	m.ledger.deleted(done)
	if len(done) > 0 {
		m.told++
		m.news = append(m.news, news{Term: string(rune('a' + m.term)), Number: m.told, Birth: "birth", Gone: goneOf(done)})
	}
}

// takeOver makes the standby the one that acts, as [partition.takeOver] does. The other
// one dies, and another standby begins.
func (m *pair) takeOver() {
	s := m.standby
	if !s.ledger.complete {
		s.ledger.drop()
		m.renew()
	}
	for s.fetch() || s.handle() {
		m.p.enter()
		m.renew()
	}
	if s.ledger.through < m.log.last {
		s.ledger.skip(m.log.last, m.log.now)
		s.sent = m.log.last
	}
	m.p.enter()
	m.renew()
	state := m.log.state()
	if s.ledger.entries(state, m.log.now) != uint64(len(m.log.entries)) {
		s.ledger.drop()
		m.renew()
	} else {
		s.ledger.inherit(maps.Clone(m.trims))
	}
	m.machine, m.news, m.told = s, nil, 0
	m.term++
	m.missed = true
	m.ledger.doubts.standby = false
	m.log.pardon()
	m.follow()
}

func TestAStandbyThatTakesOverNeverMissesARemovalAndNeverInventsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newPair(t)
		at := rapid.SampledFrom(m.places)
		publish := func(t *rapid.T) {
			for range rapid.IntRange(1, 6).Draw(t, "events") {
				p := at.Draw(t, "stream")
				m.odd = m.odd || m.log.closedAt[p] != 0
				m.log.publish(p, event.Message)
			}
		}
		hear := func(*rapid.T) {
			if len(m.news) > 0 {
				m.p.hear(m.news[0])
				m.news = m.news[1:]
				m.renew()
			}
		}
		sweep := func(t *rapid.T) {
			m.catchUp()
			m.sweep(t)
			m.delete(rapid.IntRange(0, 6).Draw(t, "entries"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"publish": publish, "publish2": publish, "sweep": sweep, "sweep2": sweep, "hear": hear, "hear2": hear,
			"close": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rarely") == 0 {
					m.log.publish(at.Draw(t, "stream"), event.Close)
				}
			},
			"clear": func(t *rapid.T) { m.log.publish(at.Draw(t, "stream"), event.Clear) },
			"expire": func(t *rapid.T) {
				if m.log.last > 0 {
					m.log.expire(rapid.Uint64Range(m.log.first, min(m.log.first+4, m.log.last+1)).Draw(t, "before"))
				}
			},
			"lose": func(*rapid.T) {
				if len(m.news) > 0 {
					m.news = m.news[1:]
				}
			},
			"tail": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "entries") {
					m.standby.fetch()
				}
				for range rapid.IntRange(0, 8).Draw(t, "handled") {
					m.standby.handle()
					m.p.enter()
					m.renew()
				}
			},
			"settle": func(*rapid.T) {
				m.standby.ledger.advance(m.log.first)
				if l := m.standby.ledger; l.wantsLook() {
					l.looked(l.through, m.log.state(), m.log.now)
				}
			},
			"interrupt": func(*rapid.T) { m.standby.rejoin() },
			"take over": func(t *rapid.T) {
				if rapid.Bool().Draw(t, "it does") {
					m.takeOver()
				}
			},
			"": func(t *rapid.T) { m.check(t) },
		})
	})
}

func TestWhatAnotherJanitorDeletesGoesOutOfTheBook(t *testing.T) {
	const limit = 5
	m := newModel(limit)
	for _, s := range []string{"a", "b", "a", "a", "b"} {
		m.publish(place{"s", s}, event.Message) // a: 1 3 4, b: 2 5
	}
	book := func() *partition {
		p := newPartition(0, nil, nil, slog.New(slog.DiscardHandler), func() {}, func() {})
		p.ledger.begin(m.state(), nil)
		for _, e := range m.entries {
			p.ledger.apply(e, m.now)
		}
		p.ledger.reach(m.last, m.now)
		return p
	}
	heard := func(number uint64, gone ...gone) news {
		return news{Janitor: "x", Term: "t", Number: number, Birth: "birth", Gone: gone}
	}
	trimmed := func(stream string, seqs ...uint64) gone { return gone{SessionEvents, "s", stream, seqs} }
	for _, test := range []struct {
		name    string
		news    []news
		dropped bool
		removed map[string]uint64
		left    int
	}{
		{"in order", []news{heard(1, trimmed("a", 1), trimmed("b", 2)), heard(2, trimmed("a", 3))}, false, map[string]uint64{"a": 3, "b": 2}, 2},
		{"the first that is heard may have any number", []news{heard(7, trimmed("a", 1))}, false, map[string]uint64{"a": 1}, 4},
		{"one is missing", []news{heard(1, trimmed("a", 1)), heard(3, trimmed("a", 3))}, true, nil, 0},
		{"one is missing before another janitor's first", []news{heard(1, trimmed("a", 1)), {Term: "u", Number: 2, Birth: "birth"}}, true, nil, 0},
		{"another janitor's first", []news{heard(1, trimmed("a", 1)), {Term: "u", Number: 1, Birth: "birth"}}, false, map[string]uint64{"a": 1}, 4},
		{"of another log", []news{{Term: "t", Number: 1, Birth: "other", Gone: []gone{trimmed("a", 1)}}}, false, map[string]uint64{}, 5},
		{"what was never there", []news{heard(1, trimmed("c", 1))}, false, map[string]uint64{"c": 1}, 5},
		{"the limits are others", []news{{Term: "t", Number: 1, Birth: "birth", Limits: true}}, true, nil, 0},
		{"not the oldest", []news{heard(1, trimmed("a", 3))}, true, nil, 0},
		{"ahead of the book", []news{heard(1, trimmed("a", 1, 6))}, false, map[string]uint64{}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := book()
			for _, n := range test.news {
				p.hear(n)
			}
			if p.sure {
				t.Error("the ledger is sure of itself")
			}
			if dropped := !p.ledger.complete; dropped != test.dropped {
				t.Fatalf("dropped: %t", dropped)
			}
			if p.ledger.totals.events != test.left {
				t.Errorf("%d events are left", p.ledger.totals.events)
			}
			for _, stream := range []string{"a", "b", "c"} {
				got := lookUp(p.ledger.answer(marks.Request{Session: "s", Stream: stream}, time.Now()), place{"s", stream})
				if !test.dropped && got.Removed != test.removed[stream] {
					t.Errorf("%s: %+v", stream, got)
				}
			}
		})
	}
}
