package janitor

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// machine is a janitor that follows the model of a log at its own pace.
type machine struct {
	log    *model
	ledger *ledger
	limits limits
	rules  rules
	skew   time.Duration // of its clock

	fetched []eventlog.Entry // on the way to the ledger
	sent    uint64           // the last sequence on the way, or handled
	caught  uint64           // Through is called when this is reached; never: it was
	seen    *eventlog.State  // the answer to a look, on the way
	asOf    uint64
}

const never = ^uint64(0)

// newMachine starts a janitor, which knows nothing.
func newMachine(t *rapid.T, log *model, lim limits, r rules) *machine {
	m := &machine{log: log, ledger: newLedger(), limits: lim, rules: r}
	m.skew = time.Duration(rapid.IntRange(-3, 3).Draw(t, "hours off")) * time.Hour
	m.ledger.stretches.step = step{r.maxAge / 16, 0}
	m.tail()
	return m
}

// now returns the time by the janitor's own clock.
func (m *machine) now() time.Time { return m.log.now.Add(m.skew) }

// tail starts the ledger's tail, or starts it again.
func (m *machine) tail() {
	m.fetched, m.seen = nil, nil
	m.sent, m.caught = m.ledger.begin(m.log.state()), m.log.last
	m.reached()
}

// reached calls reach when the tail has caught up.
func (m *machine) reached() {
	if _, more := m.log.next(m.sent); m.caught != never && len(m.fetched) == 0 && (!more || m.sent >= m.caught) {
		m.ledger.reach(max(m.caught, m.sent), m.now())
		m.sent, m.caught = max(m.caught, m.sent), never
	}
}

func (m *machine) fetch() bool {
	e, ok := m.log.next(m.sent)
	if ok {
		m.fetched, m.sent = append(m.fetched, e), e.Sequence
	}
	return ok
}

func (m *machine) handle() bool {
	if len(m.fetched) == 0 {
		m.reached()
		return false
	}
	m.ledger.apply(m.fetched[0], m.now())
	m.fetched = m.fetched[1:]
	m.reached()
	return true
}

// catchUp has the ledger follow the log to its end.
func (m *machine) catchUp() {
	m.ledger.advance(m.log.first, m.log.last)
	for m.fetch() || m.handle() {
	}
	m.ledger.skip(m.log.last) // what was deleted there the tail does not tell
	m.sent = m.log.last
	if m.ledger.wantsLook() {
		m.ledger.looked(m.ledger.through, m.log.state())
	}
}

// sweep announces what the policy says, up to n trims, as a janitor that dies then.
func (m *machine) sweep(n int) {
	l := m.ledger
	if !l.complete || l.through < l.stored {
		return
	}
	var all []announcement
	for _, a := range l.accounts {
		all = append(all, announcements(policy(l.view(a, l.lifeState(a)), m.limits, l.clock(m.now())))...)
	}
	slices.SortStableFunc(all, func(a, b announcement) int {
		return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Life, b.Life), cmp.Compare(a.Stream, b.Stream))
	})
	for _, t := range all[:min(n, len(all))] {
		l.stored = m.log.store(eventlog.Entry{Subject: event.Subject{Session: t.Session, Life: t.Life, Stream: t.Stream, Kind: event.Trim}, Trim: &t.Trim})
	}
}

// forget announces what is forgotten, up to n trims, as a janitor that dies then.
func (m *machine) forget(n int) {
	m.catchUp()
	if m.ledger.through < m.ledger.stored {
		return
	}
	for name, o := range m.ledger.openings {
		if life := m.log.lives[name]; life != nil {
			m.ledger.learn(name, o.seq, life.life)
		}
	}
	all := slices.Concat(m.keeper().forgettable()...)
	slices.SortStableFunc(all, func(a, b announcement) int {
		return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Life, b.Life))
	})
	for _, t := range all[:min(n, len(all))] {
		m.ledger.stored = m.log.store(eventlog.Entry{Subject: event.Subject{Session: t.Session, Life: t.Life, Kind: event.Trim}, Trim: &t.Trim})
	}
}

// delete deletes up to n entries that are due. When it does not hear that they are deleted, it
// does so again.
func (m *machine) delete(t *rapid.T, n int, heard bool) {
	todo, _ := m.ledger.due(m.now(), m.rules.settled(), n)
	for _, seq := range todo {
		m.log.checkDelete(t, seq, m.rules.settled())
		m.log.delete(seq)
	}
	if heard {
		m.ledger.deleted(todo)
	}
}

// askDeleted has a standby ask what the one that acts has deleted.
func (m *machine) askDeleted() {
	due := m.ledger.dueTrims(m.now(), m.rules.settled())
	for _, last := range due {
		if _, there := m.log.find(last); there {
			break
		}
		m.ledger.othersDeleted(last)
	}
}

func (m *machine) keeper() keeper {
	return keeper{ledger: m.ledger, now: m.ledger.clock(m.now()), ttl: m.rules.tombstoneTTL, index: noIndex}
}

// copy copies up to n control entries.
func (m *machine) copy(n int, used uint64) {
	m.catchUp()
	k := m.keeper()
	for _, c := range k.overdue(m.ledger.lead(m.rules, used, m.now()), n) {
		if c.opening != nil && !c.opening.known {
			if life := m.log.lives[c.subject.Session]; life != nil {
				m.ledger.learn(c.subject.Session, c.seq, life.life)
			}
			continue
		}
		m.ledger.stored = max(m.ledger.stored, m.log.rewrite(c))
	}
}

// move moves the floor.
func (m *machine) move(t *rapid.T, used uint64) {
	if !m.ledger.complete {
		return
	}
	m.ledger.advance(m.log.first, m.log.last)
	before, why := m.ledger.target(m.rules, used, m.now())
	if before = m.keeper().barrier(before, m.rules.settled(), m.now()); before <= m.log.first {
		return
	}
	entries, r := m.log.entries, m.rules
	if m.log.purge(before); why == byVolume {
		r.maxAge = -1
	}
	m.log.checkFloor(t, entries, r)
}

// check compares a ledger with the log.
func (m *machine) check(t *rapid.T) {
	l := m.ledger
	if d := l.takeDamage(); len(d) > 0 {
		t.Fatalf("nothing explains %v, and nothing was damaged", d)
	}
	if !l.complete {
		return
	}
	l.expireAll()
	events := 0
	for key, a := range l.accounts {
		open, sum := 0, 0
		for name, s := range a.streams {
			if _, ended := s.markers.endAfter(s.last); len(s.events) > 0 && !s.final && !ended {
				open++
			}
			sum += len(s.events)
			m.checkStream(t, place{a.session, a.life, name}, s)
		}
		if a.open != open || a.events != sum {
			t.Fatalf("%s has %d open streams and %d events, and the ledger counts %d and %d", key, open, sum, a.open, a.events)
		}
		events += sum
	}
	if events != l.totals.events {
		t.Fatalf("%d events are counted, and there are %d", l.totals.events, events)
	}
	if l.through == m.log.last && l.first == m.log.first && l.exact() {
		m.checkWhole(t, events)
	}
}

// checkStream checks that a stream has no event that the log at the ledger's sequence has not,
// but for those below a floor that the ledger has yet to hear of.
func (m *machine) checkStream(t *rapid.T, at place, s *stream) {
	for _, e := range s.events {
		if e.seq < m.log.first {
			continue
		}
		if !slices.Contains(m.log.history[at], e.seq) || m.log.trimmed(at, e.seq, m.ledger.through) {
			t.Fatalf("%v: the ledger at %d has %d, which is not in the log or trimmed by %+v", at, m.ledger.through, e.seq, m.log.trims)
		}
	}
}

// checkWhole checks a ledger that has got to the end of the log.
func (m *machine) checkWhole(t *rapid.T, events int) {
	l := m.ledger
	want, listed := 0, 0
	for _, e := range m.log.entries {
		at := place{e.Subject.Session, e.Subject.Life, e.Subject.Stream}
		switch {
		case e.Subject.Kind != event.Message:
			if m.log.named(e.Sequence) {
				listed++
			}
		case m.log.trimmed(at, e.Sequence, m.log.last):
			listed++
		default:
			want++
		}
	}
	if events != want {
		t.Fatalf("the ledger has %d events, and the log %d", events, want)
	}
	// The other one may have deleted some of those, which it does not hear.
	if n := l.toDelete(); n < listed {
		t.Fatalf("%d entries are to be deleted, and the ledger knows %d", listed, n)
	} else if got := int(l.entries()) - n + listed; got != len(m.log.entries) { //nolint:gosec // small
		t.Fatalf("the ledger knows %d entries, and there are %d", got, len(m.log.entries))
	}
	for at, all := range m.log.history {
		life := m.log.lives[at.session]
		if at.life == "" || life == nil || life.life != at.life || life.sealed || life.born[at.stream] {
			continue
		}
		removed := uint64(0)
		for _, seq := range all {
			if seq < m.log.first || m.log.trimmed(at, seq, m.log.last) {
				removed = seq
			}
		}
		s := l.accounts[event.LifeKey(at.session, at.life)].streams[at.stream]
		// A ledger that begins later does not know which events the floor has passed before.
		got := s.removedBelow(l.first)
		if s.last != all[len(all)-1] || got > removed || got < removed && (removed > m.log.first || s.last < m.log.first) {
			t.Fatalf("%v: %d was removed, of %d, and the ledger says %d of %d", at, removed, all[len(all)-1], got, s.last)
		}
	}
}

// After any history of publishes, trims and floors, with janitors that start, stop, take over
// and die between any two steps, every ledger is the log, nothing in it is unexplained, and the
// log has what it has to have.
func TestLedger_IsTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := newModel()
		lim := limits{
			maxPerStream: rapid.SampledFrom([]int64{-1, 1, 3}).Draw(t, "limit per stream"),
			maxEvents:    rapid.SampledFrom([]int64{-1, 2, 4, 8}).Draw(t, "limit per session"), maxBytes: -1,
			maxStreams:  rapid.SampledFrom([]int64{-1, 1, 2}).Draw(t, "open streams"),
			closedGrace: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "grace"),
		}
		r := rules{
			maxAge: rapid.SampledFrom([]time.Duration{-1, time.Hour, time.Minute}).Draw(t, "maximum age"), maxBytes: 1000,
			syncInterval: rapid.SampledFrom([]time.Duration{0, time.Second, 2 * time.Minute}).Draw(t, "sync interval"),
			interval:     5 * time.Second, tombstoneTTL: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "TTL"),
		}
		lim.closedGrace = min(lim.closedGrace, r.tombstoneTTL)
		m := []*machine{newMachine(t, log, lim, r), newMachine(t, log, lim, r)} // the first one acts
		name, stream := rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"x", "y", "z"})
		which := rapid.IntRange(0, 1)
		used := rapid.SampledFrom([]uint64{0, 700, 900, 1000})
		publish := func(t *rapid.T) {
			for range rapid.IntRange(1, 6).Draw(t, "events") {
				log.publish(name.Draw(t, "session"), stream.Draw(t, "stream"), rapid.IntRange(0, 9).Draw(t, "final") == 0)
			}
		}
		tail := func(t *rapid.T) {
			one := m[which.Draw(t, "janitor")]
			for range rapid.IntRange(1, 8).Draw(t, "entries") {
				one.fetch()
			}
			for range rapid.IntRange(0, 8).Draw(t, "handled") {
				one.handle()
			}
		}
		sweep := func(t *rapid.T) {
			m[0].catchUp()
			m[0].sweep(rapid.IntRange(0, 9).Draw(t, "trims"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"publish": publish, "publish2": publish, "tail": tail, "tail2": tail, "sweep": sweep,
			"open":    func(t *rapid.T) { log.open(name.Draw(t, "session")) },
			"again":   func(t *rapid.T) { log.bearAgain(name.Draw(t, "session"), stream.Draw(t, "stream")) },
			"end":     func(t *rapid.T) { log.endStream(name.Draw(t, "session"), stream.Draw(t, "stream")) },
			"close":   func(t *rapid.T) { log.endSession(name.Draw(t, "session")) },
			"clear":   func(t *rapid.T) { log.clear(name.Draw(t, "session"), stream.Draw(t, "stream")) },
			"clear 2": func(t *rapid.T) { log.clear(name.Draw(t, "session"), "") },
			"wait": func(t *rapid.T) {
				log.now = log.now.Add(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 10 * time.Minute, time.Hour}).Draw(t, "for"))
			},
			"delete": func(t *rapid.T) {
				m[0].delete(t, rapid.IntRange(1, 9).Draw(t, "entries"), rapid.IntRange(0, 3).Draw(t, "heard") > 0)
				log.checkLives(t, r)
			},
			"forget": func(t *rapid.T) { m[0].forget(rapid.IntRange(1, 4).Draw(t, "trims")) },
			"ask":    func(*rapid.T) { m[1].askDeleted() },
			"copy":   func(t *rapid.T) { m[0].copy(rapid.IntRange(1, 9).Draw(t, "entries"), used.Draw(t, "used")) },
			"floor":  func(t *rapid.T) { m[0].move(t, used.Draw(t, "used")) },
			"look": func(t *rapid.T) {
				one := m[which.Draw(t, "janitor")]
				state := log.state()
				one.seen, one.asOf = &state, one.ledger.through
			},
			"seen": func(t *rapid.T) {
				if one := m[which.Draw(t, "janitor")]; one.seen != nil {
					one.ledger.looked(one.asOf, *one.seen)
					one.seen = nil
				}
			},
			"interrupt": func(t *rapid.T) { m[which.Draw(t, "janitor")].tail() },
			"restart":   func(t *rapid.T) { m[which.Draw(t, "janitor")] = newMachine(t, log, lim, r) },
			"take over": func(*rapid.T) { m[0], m[1] = m[1], m[0] },
			"": func(t *rapid.T) {
				for _, one := range m {
					one.check(t)
				}
			},
		})
		for i, one := range append(m, newMachine(t, log, lim, r)) {
			one.catchUp()
			one.catchUp()
			one.check(t)
			if !one.ledger.exact() {
				t.Fatal(fmt.Sprint("ledger ", i, " is not exact"))
			}
		}
	})
}

// A hole that no trim names is found, whichever it is, and whenever the ledger begins.
func TestLedger_Damage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := newModel()
		lim := limits{maxPerStream: 2, maxEvents: -1, maxBytes: -1, maxStreams: -1}
		r := rules{maxAge: -1, maxBytes: -1}
		m := newMachine(t, log, lim, r)
		for range rapid.IntRange(3, 30).Draw(t, "events") {
			log.publish("s", rapid.SampledFrom([]string{"x", "y"}).Draw(t, "stream"), false)
			if rapid.IntRange(0, 4).Draw(t, "sweep") == 0 {
				m.catchUp()
				m.sweep(9)
				m.catchUp()
				m.delete(t, 9, true)
			}
		}
		some := rapid.SampledFrom(log.entries).Draw(t, "lost")
		lost := some.Sequence
		if lost == log.last || lost == log.first || some.Trim != nil || log.trimmed(place{"s", "", some.Subject.Stream}, lost, log.last) {
			return // the server gives the sequence away again, it counts as expired, more is not explained, or it is
		}
		log.delete(lost)
		fresh := newMachine(t, log, lim, r)
		fresh.catchUp()
		if d := fresh.ledger.takeDamage(); len(d) != 1 || d[0] != (damage{lost, lost, 1}) || fresh.ledger.damaged != lost {
			t.Fatalf("%d is lost, and %v is found", lost, d)
		}
		fresh.catchUp()
		if d := fresh.ledger.takeDamage(); len(d) > 0 || !fresh.ledger.exact() {
			t.Fatalf("%v is found again", d)
		}
	})
}
