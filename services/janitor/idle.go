package janitor

import (
	"cmp"
	"strings"
	"time"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/flagtype"
	who "rejoin/shared/presence"
	"rejoin/shared/session"
)

const (
	// askWithin is how long edges may take to answer.
	askWithin = time.Second
	// presenceEvery is how often the edges are asked at least, so that one that falls
	// silent is noticed.
	presenceEvery = time.Minute
	// edgeGone is how long the registrar waits for an edge that answers no more: longer than its
	// connections live.
	edgeGone = 15 * time.Minute
	// clockSkew is how far the clocks of an ingest, an edge and the janitor may be apart when it
	// matters whether a request followed the creation of a session.
	clockSkew = time.Minute
)

// idleTracker keeps the registrar's state of sessions that may be idle, from one round to
// the next. It is pure: no clock, no network.
//
// A session is closed when two rounds in a row have found it without events in the
// log, and no edge knew of a connection or of a request. In doubt no session is idle:
// while NATS cannot be asked, and while an edge does not answer that did within
// edgeGone. When no edge is known and none answers, no client is connected.
//
// A session that was never used may be idle for less time. In doubt it was used: when it was
// created before known, when an edge remembers a client, or did when it was asked before.
type idleTracker struct {
	alone   map[string]uint64    // the revision of each session that was alone in the last round
	present map[string]time.Time // when an edge last knew of a client
	edges   map[string]time.Time // when each edge last answered
	called  time.Time            // when edges were last asked without an error
	known   time.Time            // the edges remember all requests since then; zero: none was asked
}

// candidate is a session that may be idle.
type candidate struct {
	record session.Record
	after  time.Duration
	within time.Duration // how far back a request counts
	seen   time.Time     // when an edge last knew of a client, or zero
}

// idle reports whether a session has had no event for as long as it may have none.
func (c candidate) idle(in ledger.LoggedSession, lastEvent func(session.Record) time.Time, now time.Time) bool {
	enough := func(since time.Time) bool { return now.Sub(since) >= c.after }
	return c.record.State == session.Open && !in.Events() && c.after > 0 &&
		enough(c.record.Created) && enough(c.seen) && enough(lastEvent(c.record))
}

// idleSearch finds the sessions that one round asks the edges about.
type idleSearch struct {
	of        *idleTracker
	limit     func(asked session.Retention, used bool) time.Duration
	lastEvent func(session.Record) time.Time // when a session's last event may have been stored
	now       time.Time
	first     ledger.Firsts[candidate]
	present   map[string]time.Time
}

// search begins to find the sessions to ask the edges about, as many as one question may have: first
// those that were alone in the last round, then the others by name.
func (v *idleTracker) search(limit func(asked session.Retention, used bool) time.Duration, lastEvent func(session.Record) time.Time, now time.Time) *idleSearch {
	late := func(c candidate) int {
		if _, alone := v.alone[c.record.Session]; alone {
			return 0
		}
		return 1
	}
	return &idleSearch{
		of: v, limit: limit, lastEvent: lastEvent, now: now, present: map[string]time.Time{},
		first: ledger.Firsts[candidate]{N: who.MaxSessions, Compare: func(a, b candidate) int {
			return cmp.Or(cmp.Compare(late(a), late(b)), strings.Compare(a.record.Session, b.record.Session))
		}},
	}
}

// add looks at sessions, and at their entries in the log.
func (s *idleSearch) add(records []session.Record, inLog map[string]ledger.LoggedSession) {
	v := s.of
	for i := range records {
		r := &records[i]
		if r.State != session.Open {
			continue
		}
		in, seen := inLog[r.Session], v.present[r.Session]
		used := !in.Unused() || !seen.IsZero() || v.known.IsZero() || !r.Created.After(v.known.Add(clockSkew))
		c := candidate{record: *r, after: s.limit(r.Retention, used), seen: seen}
		if c.within = c.after; !used {
			c.within = max(c.after, s.now.Sub(r.Created)+clockSkew)
		}
		if c.idle(in, s.lastEvent, s.now) {
			s.first.Add(c)
		}
		if !seen.IsZero() {
			s.present[r.Session] = seen
		}
	}
}

// end returns the candidates, when all sessions were looked at.
func (s *idleSearch) end() []candidate {
	s.of.present = s.present
	out, _ := s.first.All()
	return out
}

// edgesDue reports whether the edges have not been asked for a while.
func (v *idleTracker) edgesDue(now time.Time) bool { return now.Sub(v.called) >= presenceEvery }

// question asks for candidates.
func question(asked []candidate) who.Question {
	var q who.Question
	for _, c := range asked {
		q.Sessions = append(q.Sessions, who.Session{Name: c.record.Session, Within: int64(c.within / time.Second)})
	}
	return q
}

// heard enters the edges' answers, or the error without them, and returns the candidates
// that are alone for the second time.
func (v *idleTracker) heard(asked []candidate, answers []who.Answer, err error, now time.Time) []candidate {
	before := v.alone
	v.alone = map[string]uint64{}
	if v.edges == nil {
		v.edges = map[string]time.Time{}
	}
	here := map[string]bool{}
	for _, a := range answers {
		v.edges[a.Edge] = now
		for _, p := range a.Present {
			name := asked[p.Session].record.Session
			here[name] = true
			if at := now.Add(-time.Duration(p.Ago) * time.Second); at.After(v.present[name]) {
				v.present[name] = at
			}
		}
	}
	if err == nil {
		if now.Sub(v.called) > 2*presenceEvery { // meanwhile an edge may have started and stopped
			v.known = now
		}
		v.called = now
	}
	if missing := v.missing(now); missing || err != nil {
		return nil
	}
	var twice []candidate
	for _, c := range asked {
		name := c.record.Session
		if here[name] {
			continue
		}
		v.alone[name] = c.record.Revision
		if before[name] == c.record.Revision {
			twice = append(twice, c)
		}
	}
	return twice
}

// missing reports whether an edge that answered a while ago has not answered now, and
// forgets those that have not answered for longer.
func (v *idleTracker) missing(now time.Time) (some bool) {
	for edge, at := range v.edges {
		switch {
		case now.Sub(at) >= edgeGone:
			delete(v.edges, edge)
			v.known = now // requests that it alone has seen are unknown
		case at.Before(now):
			some = true
		}
	}
	return some
}

// idleLimit returns how long a session may be idle, given the retention that it asks for and whether it was ever
// used; negative is without limit.
func (c Config) idleLimit(asked session.Retention, used bool) time.Duration {
	within := func(all flagtype.Duration) time.Duration {
		return session.Within(asked.IdleAfter, time.Duration(cmp.Or(all, -1)), time.Duration(c.IdleAfterOverride))
	}
	idle, unused := within(c.IdleAfter), within(c.UnusedAfter)
	if used || unused < 0 || idle >= 0 && idle < unused {
		return idle
	}
	return unused
}
