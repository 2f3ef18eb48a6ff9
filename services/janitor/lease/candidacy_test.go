package lease

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const testLease = 12 * time.Second

// moment is one at which both clocks agree.
func moment(d time.Duration) Instant { return Instant{Mono: d, Wall: d + time.Hour} }

func TestCandidacy(t *testing.T) {
	const me, other = "me", "other"
	won := func() *candidacy {
		c := &candidacy{id: me, lease: testLease}
		c.learn(c.next(moment(0), 1), outcome{result: written, revision: 7}, moment(time.Second), 1)
		return c
	}
	for _, test := range []struct {
		name    string
		c       *candidacy
		out     outcome
		asked   Instant
		heard   Instant
		link    uint64
		acting  bool
		replace uint64        // the revision that the next write replaces
		wait    time.Duration // until then
	}{
		{"it is free", &candidacy{id: me, lease: testLease}, outcome{result: written, revision: 3}, moment(0), moment(0), 1, true, 3, testLease / renewShare},
		{"another one has it", &candidacy{id: me, lease: testLease}, outcome{result: taken, revision: 3, holder: other}, moment(0), moment(0), 1, false, 0, testLease / waitShare},
		{"another one had it, and is gone", &candidacy{id: me, lease: testLease}, outcome{result: taken, revision: 3, holder: other, gone: true}, moment(0), moment(0), 1, false, 3, 0},
		{"it is our own, of an earlier connection", &candidacy{id: me, lease: testLease}, outcome{result: taken, revision: 3, holder: me}, moment(0), moment(0), 1, false, 3, 0},
		{"it ran out meanwhile, or the server that says so is ahead", &candidacy{id: me, lease: testLease}, outcome{result: taken}, moment(0), moment(0), 1, false, 0, testLease / takeoverShare},
		{"no answer", &candidacy{id: me, lease: testLease}, outcome{result: unknown}, moment(0), moment(0), 1, false, 0, shortRetry},
		{"won, but the answer took too long", &candidacy{id: me, lease: testLease}, outcome{result: written, revision: 3}, moment(0), moment(8 * time.Second), 1, false, 0, 0},
		{"renewed", won(), outcome{result: written, revision: 8}, moment(4 * time.Second), moment(5 * time.Second), 1, true, 8, 3 * time.Second},
		{"taken away", won(), outcome{result: taken, revision: 9, holder: other}, moment(4 * time.Second), moment(4 * time.Second), 1, false, 0, testLease / waitShare},
		{"an answer was lost", won(), outcome{result: unknown}, moment(4 * time.Second), moment(4 * time.Second), 1, true, 7, shortRetry},
		{"an answer of another connection", won(), outcome{result: written, revision: 8}, moment(4 * time.Second), moment(5 * time.Second), 2, true, 7, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := test.c.next(test.asked, 1)
			test.c.learn(w, test.out, test.heard, test.link)
			if test.c.acting != test.acting || test.c.revision != test.replace {
				t.Errorf("acting %t, revision %d", test.c.acting, test.c.revision)
			}
			if wait := max(0, test.c.due(test.heard)); test.link == 1 && wait != test.wait {
				t.Errorf("the next write is in %s, want %s", wait, test.wait)
			}
		})
	}
	for _, test := range []struct {
		name string
		now  Instant
		link uint64
		over bool
	}{
		{"at once", moment(0), 1, false},
		{"before two thirds", moment(8*time.Second - 1), 1, false},
		{"after two thirds", moment(8 * time.Second), 1, true},
		{"after two thirds asleep, by the wall clock", Instant{Mono: time.Second, Wall: time.Hour + 8*time.Second}, 1, true},
		{"somebody set the clock back", Instant{Mono: time.Second, Wall: 0}, 1, false},
		{"somebody set the clock back, and time has passed", Instant{Mono: 8 * time.Second, Wall: 0}, 1, true},
		{"another connection", moment(0), 2, true},
	} {
		t.Run("over "+test.name, func(t *testing.T) {
			if c := won(); c.over(test.now, test.link) != test.over {
				t.Errorf("over is %t", !test.over)
			}
		})
	}
}

// leaseModel is the server's key and some janitors with bad clocks and bad networks.
type leaseModel struct {
	now      time.Duration // true time
	revision uint64
	holder   int // of the record; -1: none
	stored   time.Duration
	members  []*member
}

// member is a janitor. Its clocks run at a rate of their own; a request and its answer
// take their time, or get lost.
type member struct {
	candidacy
	number    int
	rate      float64
	mono      float64
	wall      float64
	asleep    bool // its monotonic clock stands still, and it does nothing
	slept     bool
	connected bool   // as the server has it
	link      uint64 // the server's number of the connection
	seen      uint64 // the number as the janitor knows it
	ask       *asked
}

// asked is a write on its way, and then its answer.
type asked struct {
	write
	done bool // the server has done it
	out  outcome
}

func (m *member) clock() Instant {
	return Instant{Mono: time.Duration(m.mono), Wall: time.Duration(m.wall)}
}

// believes reports whether a janitor holds the lease, by its own clock, over a
// connection that the server has: only then does anything it does have an effect.
func (m *member) believes() bool {
	return m.acting && !m.over(m.clock(), m.seen) && m.connected && m.seen == m.link && !m.asleep
}

func (l *leaseModel) pass(d time.Duration) {
	l.now += d
	for _, m := range l.members {
		if !m.asleep {
			m.mono += float64(d) * m.rate
		}
		m.wall += float64(d) * m.rate
	}
	if l.holder >= 0 && l.now-l.stored >= testLease {
		l.holder = -1
	}
}

// serve does the write of a janitor.
func (l *leaseModel) serve(m *member) {
	a := m.ask
	if a == nil || a.done || a.link != m.link || !m.connected {
		return
	}
	a.done = true
	has := uint64(0)
	if l.holder >= 0 {
		has = l.revision
	}
	if a.revision == has {
		l.revision++
		l.holder, l.stored = m.number, l.now
		a.out = outcome{result: written, revision: l.revision}
		return
	}
	a.out = outcome{result: taken}
	if l.holder >= 0 {
		h := l.members[l.holder]
		a.out.revision, a.out.holder = l.revision, h.id
		a.out.gone = h != m && !h.connected
	}
}

// step lets a janitor do the next step that is due.
func (m *member) step() {
	if m.asleep || m.ask != nil || m.due(m.clock()) > 0 {
		return
	}
	m.ask = &asked{write: m.next(m.clock(), m.seen)}
}

// hear gives a janitor its answer.
func (m *member) hear(lost bool) {
	if m.asleep || m.ask == nil || !m.ask.done && !lost {
		return
	}
	out := m.ask.out
	if lost {
		out = outcome{result: unknown}
	}
	m.learn(m.ask.write, out, m.clock(), m.seen)
	m.ask = nil
}

func (l *leaseModel) check(t *rapid.T) {
	holders := 0
	for _, m := range l.members {
		if m.believes() {
			holders++
		}
	}
	if holders > 1 {
		t.Fatalf("%d janitors hold the lease", holders)
	}
}

func TestLease_OneHolder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &leaseModel{holder: -1}
		for i := range rapid.IntRange(1, 4).Draw(t, "janitors") {
			rate := rapid.Float64Range(0.8, 1.25).Draw(t, "rate")
			l.members = append(l.members, &member{candidacy: candidacy{id: fmt.Sprint(i), lease: testLease}, number: i, rate: rate, wall: 1e18, connected: true, link: 1, seen: 1})
		}
		who := func(t *rapid.T) *member { return l.members[rapid.IntRange(0, len(l.members)-1).Draw(t, "who")] }
		pass := func(t *rapid.T) {
			l.pass(time.Duration(rapid.Int64Range(0, int64(testLease)/3).Draw(t, "time")))
		}
		actions := map[string]func(*rapid.T){
			"pass":   pass,
			"step":   func(t *rapid.T) { who(t).step() },
			"serve":  func(t *rapid.T) { l.serve(who(t)) },
			"answer": func(t *rapid.T) { who(t).hear(false) },
			"whole": func(t *rapid.T) {
				m := who(t)
				m.step()
				l.serve(m)
				m.hear(false)
			},
			"lose":  func(t *rapid.T) { who(t).hear(true) },
			"sleep": func(t *rapid.T) { m := who(t); m.asleep, m.slept = true, true },
			"wake":  func(t *rapid.T) { who(t).asleep = false },
			"set the clock": func(t *rapid.T) {
				if m := who(t); !m.slept { // else both clocks may be wrong, and it cannot know
					m.wall += float64(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, "by"))
				}
			},
			"cut": func(t *rapid.T) { who(t).connected = false },
			"connect": func(t *rapid.T) {
				if m := who(t); !m.connected && !m.asleep {
					m.connected, m.link = true, m.link+1
					m.seen, m.ask = m.link, nil
				}
			},
			"restart the server": func(*rapid.T) {
				l.holder, l.revision = -1, 0
				for _, m := range l.members {
					m.connected = false
				}
			},
		}
		often := slices.Concat(slices.Sorted(maps.Keys(actions)), slices.Repeat([]string{"pass", "pass", "whole", "step", "serve", "answer"}, 4))
		for range rapid.IntRange(1, 60).Draw(t, "actions") {
			actions[rapid.SampledFrom(often).Draw(t, "action")](t)
			l.check(t)
		}
		// All is well from now on: some janitor holds the lease within three times its length.
		for _, m := range l.members {
			m.asleep = false
			if !m.connected {
				m.connected, m.link = true, m.link+1
				m.seen = m.link
				if m.acting {
					m.stepDown()
				}
			}
			m.ask = nil
			m.tried = m.clock()
		}
		for end := l.now + 3*testLease; l.now < end; l.pass(testLease / 100) {
			for _, m := range l.members {
				m.step()
				l.serve(m)
				m.hear(false)
				l.check(t)
			}
		}
		holders := 0
		for _, m := range l.members {
			if m.believes() {
				holders++
			}
		}
		if holders != 1 {
			t.Fatalf("%d hold the lease after three times its length", holders)
		}
	})
}
