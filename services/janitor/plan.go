package janitor

import (
	"iter"
	"slices"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// removals are what has to go of a partition now. The caller holds its lock.
func (w *sweeper) removals(l *ledger, now time.Time) iter.Seq[Removal] {
	return func(yield func(Removal) bool) {
		lim := w.limits()
		for _, a := range l.accounts {
			for _, r := range w.ofLife(l, a, lim, now) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// ofLife returns what has to go of a life now, given the limits of all sessions.
func (w *sweeper) ofLife(l *ledger, a *account, lim limits, now time.Time) []Removal {
	if a == nil {
		return nil
	}
	if rec, _ := w.sessions.Session(a.session); rec.Life == a.life {
		lim = w.overrides.limits(lim, rec.Retention)
	}
	state := l.lifeState(a)
	if now = l.clock(now); a.events == 0 || !lim.concern(a) && !state.over(now, lim.closedGrace) {
		return nil
	}
	return policy(l.view(a, state), lim, now)
}

// limitsOf returns the limits of a session.
func (w *sweeper) limitsOf(rec session.Record) limits {
	return w.overrides.limits(w.limits(), rec.Retention)
}

// limits are those of all sessions, now: the log's may change.
func (w *sweeper) limits() limits {
	s := w.log.Settings()
	return limits{
		maxPerStream: s.MaxEventsPerStream, maxEvents: s.MaxEventsPerSession, maxBytes: s.MaxBytesPerSession,
		maxStreams: s.MaxStreamsPerSession, closedGrace: w.cfg.ClosedGrace,
	}
}

// rules are the floor's, now.
func (w *sweeper) rules() rules {
	s := w.log.Settings()
	return rules{
		maxAge: s.MaxAge, maxBytes: s.Limits().MaxBytes,
		syncInterval: w.cfg.SyncInterval, interval: w.cfg.Interval, tombstoneTTL: w.cfg.TombstoneTTL,
	}
}

// concern reports whether the policy may have something to say about a life that is not
// over: it says nothing about one within its limits and without a =clear marker.
func (lim limits) concern(a *account) bool {
	return a.clears > 0 ||
		lim.maxPerStream >= 0 && int64(a.events) > lim.maxPerStream ||
		lim.maxEvents >= 0 && int64(a.events) > lim.maxEvents ||
		lim.maxBytes >= 0 && a.bytes > lim.maxBytes ||
		lim.maxStreams >= 0 && int64(a.open) > lim.maxStreams
}

// lifeState returns what the ledger knows of a life as a whole.
func (l *ledger) lifeState(a *account) lifeState {
	return lifeState{a.session, a.life, l.openings[a.session], a.markers}
}

// view returns what the policy sees of a life.
func (l *ledger) view(a *account, state lifeState) lifeView {
	v := lifeView{lifeState: state, streams: make([]streamView, 0, len(a.streams))}
	for name, s := range a.streams {
		if l.expire(a, s); len(s.events) > 0 {
			v.streams = append(v.streams, streamView{name, s.events, s.final, s.markers.clearedAt(), a.end(s)})
		}
	}
	return v
}

// announcement is a trim to be stored.
type announcement struct {
	eventlog.Trim
	why     Reason // empty for control entries
	follows uint64 // the newest trim that the ledger knows of
}

// announcements returns the trims of one life's removals, in the order in which they have to be
// stored. A life that is over has one for all its streams.
func announcements(removals []Removal) (all []announcement) {
	var whole []uint64
	for _, r := range removals {
		if r.Reason == Closed {
			whole = append(whole, r.Sequences...)
		} else {
			all = appendTrims(all, r)
		}
	}
	if len(whole) > 0 {
		slices.Sort(whole)
		all = appendTrims(all, Removal{Closed, removals[0].Life, "", whole})
	}
	return all
}

func appendTrims(all []announcement, r Removal) []announcement {
	t := eventlog.Trim{Stream: r.Stream, Reason: r.Reason.announced()}
	t.Session, t.Life = event.ParseLifeKey(r.Life)
	for t.Removed = range slices.Chunk(r.Sequences, eventlog.MaxRemoved) {
		t.UpTo = t.Removed[len(t.Removed)-1]
		all = append(all, announcement{Trim: t, why: r.Reason})
	}
	return all
}
