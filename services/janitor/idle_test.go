package janitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	who "rejoin/shared/presence"
	"rejoin/shared/scatter/scattertest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func openRecord(name string, created time.Duration) session.Record {
	return session.Record{Session: name, State: session.Open, Created: midday.Add(-created), Revision: 1}
}

func namesOf(all []candidate) (names []string) {
	for _, c := range all {
		names = append(names, c.record.Session)
	}
	return names
}

func TestIdle_Candidates(t *testing.T) {
	const day = 24 * time.Hour
	closed := openRecord("s", day)
	closed.State = session.Closed
	absent, hollow := ledger.LoggedSession{}, ledger.LoggedSession{Opening: ledger.Opening{Seq: 1, First: 1}, Lives: []ledger.LoggedLife{{Life: "x"}}}
	present := ledger.LoggedSession{Lives: []ledger.LoggedLife{{Life: "x"}, {Events: true}}}
	asks := func(idle time.Duration) session.Record {
		r := openRecord("s", 2*day)
		r.Retention.IdleAfter = idle
		return r
	}
	everSince := func(d time.Duration) Config {
		return Config{IdleAfter: flagtype.Duration(d), IdleAfterOverride: flagtype.Duration(3 * day)}
	}
	for _, test := range []struct {
		name   string
		record session.Record
		in     ledger.LoggedSession
		last   time.Duration // ago
		seen   time.Duration // ago
		cfg    Config
		want   bool
	}{
		{"for as long as it may be", openRecord("s", day), absent, day, day, everSince(day), true},
		{"with control entries in the log", openRecord("s", day), hollow, day, day, everSince(day), true},
		{"with events", openRecord("s", day), present, day, day, everSince(day), false},
		{"created lately", openRecord("s", day-1), absent, day, day, everSince(day), false},
		{"published to lately", openRecord("s", day), absent, day - 1, day, everSince(day), false},
		{"asked for lately", openRecord("s", day), absent, day, day - 1, everSince(day), false},
		{"closed", closed, absent, day, day, everSince(day), false},
		{"none ever is", openRecord("s", day), absent, day, day, everSince(-1), false},
		{"none ever is, by default of a program", openRecord("s", day), absent, day, day, Config{}, false},
		{"it asks for less", asks(time.Hour), absent, time.Hour, time.Hour, everSince(day), true},
		{"it asks for less than ever", asks(time.Hour), absent, time.Hour, time.Hour, everSince(-1), true},
		{"it asks for more", asks(2 * day), absent, day, day, everSince(day), false},
		{"it asks for more than it may", asks(-1), absent, 3 * day, 3 * day, everSince(day), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := idleTracker{present: map[string]time.Time{"s": midday.Add(-test.seen), "gone": midday}}
			last := func(session.Record) time.Time { return midday.Add(-test.last) }
			got := candidatesOf(&v, []session.Record{test.record}, map[string]ledger.LoggedSession{"s": test.in}, test.cfg.idleLimit, last, midday)
			if (len(got) == 1) != test.want {
				t.Errorf("got %+v", got)
			}
			if len(v.present) > 1 {
				t.Errorf("it remembers %v", v.present)
			}
		})
	}
}

func TestIdleLimit_SessionWasNeverUsed(t *testing.T) {
	for name, test := range map[string]struct {
		cfg          Config
		asked        time.Duration
		used, unused time.Duration
	}{
		"shorter":                      {Config{IdleAfter: flagtype.Duration(24 * time.Hour), UnusedAfter: flagtype.Duration(time.Hour)}, 0, 24 * time.Hour, time.Hour},
		"longer":                       {Config{IdleAfter: flagtype.Duration(time.Hour), UnusedAfter: flagtype.Duration(24 * time.Hour)}, 0, time.Hour, time.Hour},
		"used ones stay open":          {Config{IdleAfter: -1, UnusedAfter: flagtype.Duration(time.Hour)}, 0, -1, time.Hour},
		"off":                          {Config{IdleAfter: flagtype.Duration(time.Hour), UnusedAfter: -1}, 0, time.Hour, time.Hour},
		"off, by default of a program": {Config{IdleAfter: flagtype.Duration(time.Hour)}, 0, time.Hour, time.Hour},
		"all off":                      {Config{}, 0, -1, -1},
		"it asks for less":             {Config{IdleAfter: flagtype.Duration(24 * time.Hour), UnusedAfter: flagtype.Duration(time.Hour)}, time.Minute, time.Minute, time.Minute},
		"it asks for less than a day":  {Config{IdleAfter: flagtype.Duration(24 * time.Hour), UnusedAfter: flagtype.Duration(time.Hour)}, 2 * time.Hour, 2 * time.Hour, time.Hour},
		"it may ask for more":          {Config{IdleAfter: flagtype.Duration(24 * time.Hour), UnusedAfter: flagtype.Duration(time.Hour), IdleAfterOverride: -1}, 2 * time.Hour, 2 * time.Hour, 2 * time.Hour},
		"off, and it asks for less":    {Config{IdleAfter: flagtype.Duration(24 * time.Hour)}, 2 * time.Hour, 2 * time.Hour, 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			limit, asked := test.cfg.idleLimit, session.Retention{IdleAfter: test.asked}
			if used, unused := limit(asked, true), limit(asked, false); used != test.used || unused != test.unused {
				t.Errorf("%s, unused %s", used, unused)
			}
		})
	}
}

// Each case is a session that is an hour old at midday, and the rounds of a minute that follow.
func TestIdle_SessionWasNeverUsed(t *testing.T) {
	whole := ledger.LoggedSession{Opening: ledger.Opening{Seq: 1, First: 1, Whole: true}}
	copied, forgotten, written := whole, whole, whole
	copied.Opening.Whole, forgotten.Opening.Used = false, true
	written.Lives = []ledger.LoggedLife{{Life: "x"}}
	edge := func(name string, ago ...int64) who.Answer {
		a := who.Answer{Edge: name}
		for _, s := range ago {
			a.Present = append(a.Present, who.Present{Ago: s})
		}
		return a
	}
	idle := []who.Answer{edge("e")}
	for name, test := range map[string]struct {
		in      ledger.LoggedSession
		known   time.Duration // ago
		edges   map[string]time.Time
		rounds  [][]who.Answer
		idleFor time.Duration // how long it is idle until it is closed, whatever the edges remember
		want    bool          // it is closed after the last round
	}{
		"never":                           {in: whole, known: 2 * time.Hour, rounds: [][]who.Answer{idle, idle}, want: true},
		"asked once":                      {in: whole, known: 2 * time.Hour, rounds: [][]who.Answer{idle}},
		"no edge":                         {in: whole, known: 2 * time.Hour, rounds: [][]who.Answer{nil, nil}, want: true},
		"something was stored":            {in: written, known: 2 * time.Hour, rounds: [][]who.Answer{idle, idle}},
		"something was stored, and went":  {in: forgotten, known: 2 * time.Hour, rounds: [][]who.Answer{idle, idle}},
		"only the opening's copy is left": {in: copied, known: 2 * time.Hour, rounds: [][]who.Answer{idle, idle}},
		"the log has no opening":          {known: 2 * time.Hour, rounds: [][]who.Answer{idle, idle}},
		"the janitor is hardly older":     {in: whole, known: time.Hour + clockSkew, rounds: [][]who.Answer{idle, idle}},
		"visited":                         {in: whole, known: 2 * time.Hour, rounds: [][]who.Answer{{edge("e", 3500)}, idle, idle, idle}},
		"visited at another edge":         {in: whole, known: 2 * time.Hour, rounds: [][]who.Answer{idle, {edge("e"), edge("f", 0)}, idle, idle}},
		"visited, and idle since":         {in: whole, known: 2 * time.Hour, idleFor: time.Hour, rounds: [][]who.Answer{{edge("e", 3600)}, idle, idle}, want: true},
		"an edge has gone": {
			in: whole, known: 2 * time.Hour, edges: map[string]time.Time{"f": midday.Add(-edgeGone)},
			rounds: [][]who.Answer{idle, idle, idle},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := idleTracker{present: map[string]time.Time{}, edges: test.edges, known: midday.Add(-test.known), called: midday}
			cfg := Config{IdleAfter: flagtype.Duration(max(test.idleFor, 24*time.Hour)), UnusedAfter: flagtype.Duration(time.Hour)}
			if test.idleFor > 0 {
				cfg.IdleAfter = flagtype.Duration(test.idleFor)
			}
			records, inLog := []session.Record{openRecord("s", time.Hour)}, map[string]ledger.LoggedSession{"s": test.in}
			var alone []candidate
			for i, answers := range test.rounds {
				now := midday.Add(time.Duration(i) * time.Minute)
				asked := candidatesOf(&v, records, inLog, cfg.idleLimit, func(session.Record) time.Time { return midday.Add(-2 * time.Hour) }, now)
				if q := question(asked); i == 0 && test.want && (len(q.Sessions) != 1 || q.Sessions[0].Within < 3600) {
					t.Errorf("the edges are asked %+v", q)
				}
				if len(asked) == 0 {
					answers = idle
				}
				alone = v.heard(asked, answers, nil, now)
			}
			if (len(alone) == 1) != test.want {
				t.Errorf("alone are %+v", alone)
			}
		})
	}
	v := idleTracker{present: map[string]time.Time{}}
	if v.heard(nil, nil, errors.New("away"), midday); !v.known.IsZero() {
		t.Error("an edge that was not asked is known")
	}
	v.heard(nil, idle, nil, midday)
	if v.heard(nil, idle, nil, midday.Add(time.Minute)); !v.known.Equal(midday) {
		t.Errorf("the edges are known since %s", v.known)
	}
	later := midday.Add(4 * time.Minute)
	v.heard(nil, nil, errors.New("away"), later)
	if v.heard(nil, idle, nil, later); !v.known.Equal(later) {
		t.Errorf("after an outage they are known since %s", v.known)
	}
}

func TestIdle_PagesOfQuestions(t *testing.T) {
	var records []session.Record
	for i := range who.MaxSessions + 2 {
		records = append(records, openRecord(fmt.Sprintf("s%04d", i), time.Hour))
	}
	v := idleTracker{alone: map[string]uint64{records[who.MaxSessions+1].Session: 1}}
	got := namesOf(candidatesOf(&v, records, nil, Config{IdleAfter: flagtype.Duration(time.Hour)}.idleLimit, func(session.Record) time.Time { return time.Time{} }, midday))
	if len(got) != who.MaxSessions || got[0] != "s0501" || got[1] != "s0000" || !slices.IsSorted(got[1:]) {
		t.Errorf("%d of them: %v", len(got), got)
	}
}

// A tracker hears the answers of several rounds, a minute apart.
func TestIdle_Unconnected(t *testing.T) {
	edge := func(name string, here ...int) who.Answer {
		a := who.Answer{Edge: name}
		for _, i := range here {
			a.Present = append(a.Present, who.Present{Session: i, Ago: 5})
		}
		return a
	}
	type round struct {
		after   time.Duration
		answers []who.Answer
		err     error
		want    []string
	}
	one, both := []who.Answer{edge("e")}, []who.Answer{edge("e"), edge("f")}
	for name, rounds := range map[string][]round{
		"twice in a row":          {{answers: one}, {answers: one, want: []string{"a", "b"}}},
		"no edge at all":          {{}, {want: []string{"a", "b"}}},
		"one of them has company": {{answers: one}, {answers: []who.Answer{edge("e"), edge("f", 1)}, want: []string{"a"}}},
		"had company before":      {{answers: []who.Answer{edge("e", 0)}}, {answers: one, want: []string{"b"}}, {answers: one, want: []string{"a", "b"}}},
		"NATS was away":           {{answers: one}, {err: errors.New("away")}, {answers: one}, {answers: one, want: []string{"a", "b"}}},
		"an edge is missing":      {{answers: both}, {answers: one}, {answers: both}, {answers: both, want: []string{"a", "b"}}},
		"all edges are missing":   {{answers: both}, {}, {}},
		"an edge is gone":         {{answers: both}, {after: edgeGone - time.Minute, answers: one}, {answers: one}, {answers: one, want: []string{"a", "b"}}},
		"the only edge is gone":   {{answers: one}, {after: edgeGone - 1}, {after: 2 * time.Minute}, {want: []string{"a", "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			v, now := idleTracker{present: map[string]time.Time{}}, midday
			asked := []candidate{{record: openRecord("a", time.Hour)}, {record: openRecord("b", time.Hour)}}
			for i, r := range rounds {
				now = now.Add(max(r.after, time.Minute))
				if got := namesOf(v.heard(asked, r.answers, r.err, now)); !slices.Equal(got, r.want) {
					t.Errorf("round %d: %v are alone, want %v", i+1, got, r.want)
				}
				if r.err == nil && v.edgesDue(now.Add(presenceEvery-1)) || !v.edgesDue(now.Add(presenceEvery)) {
					t.Error("the next roll call is not in a minute")
				}
			}
		})
	}
	v := idleTracker{present: map[string]time.Time{}}
	asked := []candidate{{record: openRecord("a", time.Hour)}}
	v.heard(asked, []who.Answer{edge("e", 0)}, nil, midday)
	if got := v.present["a"]; !got.Equal(midday.Add(-5 * time.Second)) {
		t.Errorf("somebody was there at %s", got)
	}
	v.heard(asked, one, nil, midday)
	asked[0].record.Revision++
	if got := v.heard(asked, one, nil, midday); len(got) != 0 {
		t.Error("a record that was changed counts as the one before")
	}
}

// play answers as an edge does that knows of these sessions, until the test ends.
func (r *running) play(t *testing.T, id string, here func(session string) bool) {
	t.Helper()
	scattertest.Serve(t, func(ctx context.Context) error {
		return who.Serve(ctx, r.b.Conn, func(q who.Question) who.Answer {
			a := who.Answer{Edge: id}
			for i, s := range q.Sessions {
				if here(s.Name) {
					a.Present = append(a.Present, who.Present{Session: i})
				}
			}
			return a
		})
	})
}

// idleFor is how long sessions are idle in the tests that set the clock ahead: less than edgeGone, so
// that an edge may answer late.
const idleFor = edgeGone * 2 / 3

// aheadClock is a clock of a janitor that a test sets ahead.
type aheadClock struct{ ahead, looks atomic.Int64 }

func (c *aheadClock) now() time.Time {
	c.looks.Add(1)
	return time.Now().Add(time.Duration(c.ahead.Load()))
}

// ofLedgers has it be the clock of the ledgers.
func (c *aheadClock) ofLedgers(s *Service) {
	for _, p := range s.partitions {
		p.Now = c.now
	}
}

// awaitRound waits until the round that is under way has ended: the next one looks at the
// clock.
func (c *aheadClock) awaitRound(t *testing.T) {
	t.Helper()
	before := c.looks.Load()
	waittest.Until(t, "the next round begins", func() bool { return c.looks.Load() > before })
}

func TestIdle_UnusedSession(t *testing.T) {
	t.Parallel()
	cfg := quick()
	const unusedFor = presenceEvery / 2 // else the clock's jump would be an outage of the janitor
	cfg.IdleAfter, cfg.UnusedAfter = flagtype.Duration(24*time.Hour), flagtype.Duration(unusedFor)
	began := time.Now().Add(-2 * clockSkew)
	var clock aheadClock
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 1}, cfg, func(s *Service) {
		s.registrar.now = clock.now
		s.registrar.idleness.edges = map[string]time.Time{"e": time.Now()} // it closes nothing before this one answers
		s.registrar.idleness.known, s.registrar.idleness.called = began, time.Now()
	})
	r.play(t, "e", func(name string) bool { return name == "visited" })
	r.create(t, "visited")
	r.create(t, "written")
	r.publish(t, "written", "t", 1)
	must.Value(r.b.Sessions.Create(t.Context(), session.New("earlier", "", nil, began)))(t)
	r.create(t, "empty")
	clock.ahead.Store(int64(unusedFor))
	r.copies(t, "empty", func(rec session.Record) bool { return rec.State == session.Closed })
	clock.awaitRound(t) // all that the round found are closed by now
	for _, name := range []string{"visited", "written", "earlier"} {
		if now, _ := r.b.Sessions.Session(name); now.State != session.Open {
			t.Errorf("the session %s is %q", name, now.State)
		}
	}
}

func TestIdle_ClosedThenRemoved(t *testing.T) {
	srv := natstest.StartParallel(t)
	cfg := quick()
	cfg.IdleAfter, cfg.ClosedGrace, cfg.TombstoneTTL = flagtype.Duration(idleFor), 300*time.Millisecond, 600*time.Millisecond
	var clock aheadClock
	r := beginAt(t, srv.URL(), eventlog.Settings{Partitions: 1, MaxAge: time.Hour}, cfg, func(s *Service) {
		s.registrar.now = clock.now
		s.registrar.idleness.edges = map[string]time.Time{"e": time.Now()} // it closes nothing before this one answers
	})
	r.play(t, "e", func(name string) bool { return name == "visited" })
	for _, name := range []string{"alone", "visited", "busy"} {
		r.create(t, name)
	}
	r.publish(t, "busy", "t", 1)
	patient := session.New("patient", "", json.RawMessage(`{"retention":{"idleAfter":-1}}`), time.Now())
	must.Value(r.b.Sessions.Create(t.Context(), patient))(t)
	clock.ahead.Store(int64(idleFor))
	r.counts(t, 2, "registry_records_total", "closed")
	clock.awaitRound(t)
	clock.ahead.Store(0) // nothing becomes idle any more
	// The floor passes their entries.
	r.set(t, func(s *eventlog.Settings) { s.MaxAge = time.Second })
	r.counts(t, 2, "registry_records_total", "removed")
	for name, want := range map[string]session.State{"alone": "", "patient": "", "visited": session.Open, "busy": session.Open} {
		r.copies(t, name, func(rec session.Record) bool { return rec.State == want })
	}
}

// A session that was found idle, and asks for more time before it is closed, stays open; so does
// one that was published to, and one of which the copy of the registry or the ledger is behind the log.
func TestIdle_ChangedMeanwhile(t *testing.T) {
	cfg := idle()
	cfg.IdleAfter = flagtype.Duration(time.Hour)
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 1}, cfg, func(s *Service) {
		s.registrar.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	})
	r.create(t, "s")
	waitFor := func(changes uint64) session.Record {
		return r.copies(t, "s", func(now session.Record) bool { return now.Changes == changes && now.Revision > 0 })
	}
	rec := waitFor(0)
	closeIdle := func(rec session.Record) error {
		return r.registrar.fulfil(r.term(t), ledger.Duty{Task: ledger.CloseIdle, Record: rec})
	}
	must.Value(r.b.Sessions.SetMetadata(t.Context(), "s", rec.Life, json.RawMessage(`{"retention":{"idleAfter":"24h"}}`)))(t)
	now := waitFor(1)
	state := must.Value(r.b.Log.Look(t.Context(), 0))(t)
	r.followed(t, eventlog.Ack{Sequence: state.Last})
	if err := closeIdle(rec); !errors.Is(err, session.ErrConflict) {
		t.Errorf("the record of before: %v", err)
	}
	o := must.Value(r.b.Log.Opening(t.Context(), "s"))(t)
	o.Changes++
	o = must.Value(r.b.Log.ChangeOpening(t.Context(), o))(t)
	r.followed(t, eventlog.Ack{Sequence: o.Sequence})
	if err := closeIdle(now); !errors.Is(err, session.ErrConflict) {
		t.Errorf("a record that is behind the log: %v", err)
	}
	written, lagging := r.create(t, "written"), r.create(t, "lagging")
	r.publish(t, "written", "t", 1)
	if err := closeIdle(written); !errors.Is(err, session.ErrConflict) {
		t.Errorf("it was published to: %v", err)
	}
	opened := must.Value(r.b.Log.Opening(t.Context(), "lagging"))(t)
	var had uint64
	r.partitions[0].With(func(l *ledger.Ledger) { had, l.Through = l.Through, opened.Sequence-1 })
	if err := closeIdle(lagging); !errors.Is(err, session.ErrConflict) {
		t.Errorf("the ledger is behind: %v", err)
	}
	r.partitions[0].With(func(l *ledger.Ledger) { l.Through = had })
	if err := closeIdle(lagging); err != nil {
		t.Errorf("it is still idle: %v", err)
	}
	for name, want := range map[string]session.State{"s": session.Open, "written": session.Open, "lagging": session.Closed} {
		if now, err := r.b.Sessions.Get(t.Context(), name); err != nil || now.State != want {
			t.Errorf("the session %s is %+v, %v", name, now, err)
		}
	}
}

// candidatesOf returns the candidates of one search through all sessions.
func candidatesOf(v *idleTracker, records []session.Record, inLog map[string]ledger.LoggedSession, limit func(session.Retention, bool) time.Duration, lastEvent func(session.Record) time.Time, now time.Time) []candidate {
	s := v.search(limit, lastEvent, now)
	s.add(records, inLog)
	return s.end()
}
