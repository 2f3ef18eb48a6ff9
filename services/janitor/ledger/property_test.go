package ledger

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
	ledger *Ledger
	limits Limits
	rules  Rules
	ttl    time.Duration
	skew   time.Duration // of its clock
	takes  bool          // it has taken over, and not moved the floor since

	fetched []eventlog.Entry // on the way to the ledger
	sent    uint64           // the last sequence on the way, or handled
	caught  uint64           // Reach is called when this is reached; never: it was
	seen    *eventlog.State  // the answer to a look, on the way
	asOf    uint64
}

const never = ^uint64(0)

// newMachine starts a janitor with an empty ledger.
func newMachine(t *rapid.T, log *model, lim Limits, r Rules, ttl time.Duration) *machine {
	m := &machine{log: log, ledger: New(), limits: lim, rules: r, ttl: ttl}
	m.skew = time.Duration(rapid.IntRange(-3, 3).Draw(t, "hours off")) * time.Hour
	m.ledger.Stretches.Step = Step{r.MaxAge / 16, 0}
	m.tail()
	return m
}

// Now returns the time by the janitor's own clock.
func (m *machine) now() time.Time { return m.log.now.Add(m.skew) }

// tail starts the ledger's tail, or starts it again.
func (m *machine) tail() {
	m.fetched, m.seen = nil, nil
	m.sent, m.caught = m.ledger.Begin(m.log.state()), m.log.last
	m.reached()
}

// reached calls reach when the tail has caught up.
func (m *machine) reached() {
	if _, more := m.log.next(m.sent); m.caught != never && len(m.fetched) == 0 && (!more || m.sent >= m.caught) {
		m.ledger.Reach(max(m.caught, m.sent), m.now())
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
	m.ledger.Apply(m.fetched[0], m.now())
	m.fetched = m.fetched[1:]
	m.reached()
	return true
}

// catchUp has the ledger follow the log to its end.
func (m *machine) catchUp() {
	m.ledger.Advance(m.log.first, m.log.last)
	for m.fetch() || m.handle() {
	}
	m.ledger.Reach(m.log.last, m.now()) // the tail does not bring the entries that were deleted there
	m.sent = m.log.last
	if m.ledger.WantsLook() {
		m.ledger.Looked(m.ledger.Through, m.log.state())
	}
}

// sweep announces the removals of the policy, up to n trims, as a janitor that dies then.
func (m *machine) sweep(n int) {
	l := m.ledger
	if !l.Complete || l.Through < l.Required {
		return
	}
	var all []Announcement
	for _, a := range l.Accounts {
		all = append(all, Announcements(Policy(l.View(a, l.LifeState(a)), m.limits, l.Clock(m.now())))...)
	}
	slices.SortStableFunc(all, func(a, b Announcement) int {
		return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Life, b.Life), cmp.Compare(a.Stream, b.Stream))
	})
	for _, t := range all[:min(n, len(all))] {
		l.Required = m.log.store(eventlog.Entry{Subject: event.Subject{Session: t.Session, Life: t.Life, Stream: t.Stream, Kind: event.Trim}, Trim: &t.Trim})
	}
}

// forget announces the entries of forgotten lives, up to n trims, as a janitor that dies then.
func (m *machine) forget(n int) {
	m.catchUp()
	if m.ledger.Through < m.ledger.Required {
		return
	}
	for name, o := range m.ledger.openings {
		if life := m.log.lives[name]; life != nil {
			m.ledger.Learn(name, o.Seq, life.life)
		}
	}
	all := slices.Concat(m.survivors().Forgettable(false)...)
	slices.SortStableFunc(all, func(a, b Announcement) int {
		return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Life, b.Life))
	})
	for _, t := range all[:min(n, len(all))] {
		m.ledger.Required = m.log.store(eventlog.Entry{Subject: event.Subject{Session: t.Session, Life: t.Life, Kind: event.Trim}, Trim: &t.Trim})
	}
}

// delete deletes up to n entries that are due. When it does not hear that they are deleted, it
// does so again.
func (m *machine) delete(t *rapid.T, n int, heard bool) {
	todo, _ := m.ledger.Due(m.now(), m.rules.Settled(), n)
	for _, seq := range todo {
		m.log.checkDelete(t, seq, m.rules.Settled())
		m.log.delete(seq)
	}
	if heard {
		m.ledger.Deleted(todo)
	}
}

func (m *machine) survivors() Survivors {
	return Survivors{Ledger: m.ledger, Now: m.ledger.Clock(m.now()), TTL: always(m.ttl), Registry: noRegistry}
}

// copy copies up to n control entries.
func (m *machine) copy(n int, used uint64) {
	m.catchUp()
	k := m.survivors()
	for _, c := range k.Overdue(m.ledger.Lead(m.rules, used, m.now()), n) {
		if c.Opening != nil && !c.Opening.Known {
			if life := m.log.lives[c.Subject.Session]; life != nil {
				m.ledger.Learn(c.Subject.Session, c.Seq, life.life)
			}
			continue
		}
		m.ledger.Required = max(m.ledger.Required, m.log.rewrite(c))
	}
}

// move moves the floor.
func (m *machine) move(t *rapid.T, used uint64) {
	if !m.ledger.Complete {
		return
	}
	m.ledger.Advance(m.log.first, m.log.last)
	if m.takes {
		m.ledger.Require(m.ledger.Restarts, m.log.last)
		m.takes = false
	}
	before, why := m.ledger.Target(m.rules, used, m.now())
	m.ledger.DropSettled(m.rules.Settled(), m.now())
	if before = m.survivors().Barrier(before); before <= m.log.first {
		return
	}
	entries, r := m.log.entries, m.rules
	if m.log.purge(before); why == ByVolume {
		r.MaxAge = -1
	}
	m.log.checkFloor(t, entries, r, m.ttl)
}

// check compares a ledger with the log.
func (m *machine) check(t *rapid.T) {
	l := m.ledger
	if d := l.TakeDamage(); len(d) > 0 {
		t.Fatalf("nothing explains %v, and nothing was damaged", d)
	}
	if !l.Complete {
		return
	}
	l.expireAll()
	events := 0
	for key, a := range l.Accounts {
		open, sum := 0, 0
		for name, s := range a.Streams {
			if _, ended := s.markers.endAfter(s.newest); len(s.events) > 0 && !s.final && !ended {
				open++
			}
			sum += len(s.events)
			m.checkStream(t, place{a.Session, a.Life, name}, s)
		}
		if a.open != open || a.Events != sum {
			t.Fatalf("%s has %d open streams and %d events, and the ledger counts %d and %d", key, open, sum, a.open, a.Events)
		}
		events += sum
	}
	if events != l.Totals.Events {
		t.Fatalf("%d events are counted, and there are %d", l.Totals.Events, events)
	}
	if l.Through == m.log.last && l.first == m.log.first && l.Exact() {
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
		if !slices.Contains(m.log.history[at], e.seq) || m.log.trimmed(at, e.seq, m.ledger.Through) {
			t.Fatalf("%v: the ledger at %d has %d, which is not in the log or trimmed by %+v", at, m.ledger.Through, e.seq, m.log.trims)
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
	if n := l.ToDelete(); n < listed {
		t.Fatalf("%d entries are to be deleted, and the ledger knows %d", listed, n)
	} else if got := int(l.Entries()) - n + listed; got != len(m.log.entries) { //nolint:gosec // small
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
		s := l.Accounts[event.LifeKey(at.session, at.life)].Streams[at.stream]
		// A ledger that begins later does not know which events the floor has passed before.
		got := s.removedBelow(l.first)
		if s.newest != all[len(all)-1] || got > removed || got < removed && (removed > m.log.first || s.newest < m.log.first) {
			t.Fatalf("%v: %d was removed, of %d, and the ledger says %d of %d", at, removed, all[len(all)-1], got, s.newest)
		}
	}
}

// After any history of publishes, trims and floors, with janitors that start, stop, take over
// and die between any two steps, every ledger is the log, every hole in it is explained, and the
// log has all entries that must stay.
func TestLedger_IsTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := newModel()
		lim := Limits{
			MaxPerStream: rapid.SampledFrom([]int64{-1, 1, 3}).Draw(t, "limit per stream"),
			MaxEvents:    rapid.SampledFrom([]int64{-1, 2, 4, 8}).Draw(t, "limit per session"), MaxBytes: -1,
			MaxStreams:  rapid.SampledFrom([]int64{-1, 1, 2}).Draw(t, "open streams"),
			ClosedGrace: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "grace"),
		}
		r := Rules{
			MaxAge: rapid.SampledFrom([]time.Duration{-1, time.Hour, time.Minute}).Draw(t, "maximum age"), MaxBytes: 1000,
			SyncInterval: rapid.SampledFrom([]time.Duration{0, time.Second, 2 * time.Minute}).Draw(t, "sync interval"),
			Interval:     5 * time.Second,
		}
		ttl := rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "TTL")
		lim.ClosedGrace = min(lim.ClosedGrace, ttl)
		m := []*machine{newMachine(t, log, lim, r, ttl), newMachine(t, log, lim, r, ttl)} // the first one acts
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
				log.checkLives(t, ttl)
			},
			"forget": func(t *rapid.T) { m[0].forget(rapid.IntRange(1, 4).Draw(t, "trims")) },
			"copy":   func(t *rapid.T) { m[0].copy(rapid.IntRange(1, 9).Draw(t, "entries"), used.Draw(t, "used")) },
			"floor":  func(t *rapid.T) { m[0].move(t, used.Draw(t, "used")) },
			"look": func(t *rapid.T) {
				one := m[which.Draw(t, "janitor")]
				state := log.state()
				one.seen, one.asOf = &state, one.ledger.Through
			},
			"seen": func(t *rapid.T) {
				if one := m[which.Draw(t, "janitor")]; one.seen != nil {
					one.ledger.Looked(one.asOf, *one.seen)
					one.seen = nil
				}
			},
			"interrupt": func(t *rapid.T) { m[which.Draw(t, "janitor")].tail() },
			"restart":   func(t *rapid.T) { m[which.Draw(t, "janitor")] = newMachine(t, log, lim, r, ttl) },
			"take over": func(*rapid.T) { m[0], m[1] = m[1], m[0]; m[0].takes = true },
			"": func(t *rapid.T) {
				for _, one := range m {
					one.check(t)
				}
			},
		})
		for i, one := range append(m, newMachine(t, log, lim, r, ttl)) {
			one.catchUp()
			one.catchUp()
			one.check(t)
			if !one.ledger.Exact() {
				t.Fatal(fmt.Sprint("ledger ", i, " is not exact"))
			}
		}
	})
}

// A hole that no trim names is found, whichever it is, and whenever the ledger begins.
func TestLedger_Damage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := newModel()
		lim := Limits{MaxPerStream: 2, MaxEvents: -1, MaxBytes: -1, MaxStreams: -1}
		r := Rules{MaxAge: -1, MaxBytes: -1}
		m := newMachine(t, log, lim, r, 0)
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
		fresh := newMachine(t, log, lim, r, 0)
		fresh.catchUp()
		if d := fresh.ledger.TakeDamage(); len(d) != 1 || d[0] != (Damage{lost, lost, 1}) || fresh.ledger.Damaged != lost {
			t.Fatalf("%d is lost, and %v is found", lost, d)
		}
		fresh.catchUp()
		if d := fresh.ledger.TakeDamage(); len(d) > 0 || !fresh.ledger.Exact() {
			t.Fatalf("%v is found again", d)
		}
	})
}
