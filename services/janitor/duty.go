package janitor

import (
	"cmp"
	"slices"
	"time"

	"rejoin/shared/session"
)

// task is what has to be done about a session.
type task uint8

const (
	// repair has the index say what the log does, and asks whose the opening is.
	repair task = iota
	// closeIdle ends a session that nobody needs.
	closeIdle
	// finish ends a life whose end somebody began and did not finish, and the life of a
	// name that has a newer opening.
	finish
	// remove deletes a record that has served its time.
	remove
)

// finishAfter is how long a life may be sealed without an end, by the ledger's own clock:
// longer than an end takes.
const finishAfter = 5 * time.Second

// duty is one thing to be done.
type duty struct {
	task   task
	record session.Record // as the index has it; for finish a name and a life
}

// loggedSession is what a complete ledger knows of a session's name.
type loggedSession struct {
	opening opening // the newest; sequence 0 when the log has none
	lives   []loggedLife
}

// loggedLife is a life of which something is in the log.
type loggedLife struct {
	life          string
	first         uint64 // its oldest entry
	events        bool
	sealed, ended bool
	unsealed      bool      // it has an end and no seal
	since         time.Time // when the ledger got the seal
}

// of returns what is in the log of a life.
func (s loggedSession) of(life string) (loggedLife, bool) {
	for _, l := range s.lives {
		if l.life == life {
			return l, true
		}
	}
	return loggedLife{}, false
}

// events reports whether the log has events of any life.
func (s loggedSession) events() bool {
	return slices.ContainsFunc(s.lives, func(l loggedLife) bool { return l.events })
}

// unused reports whether nothing was ever stored in the session but its opening, for certain.
func (s loggedSession) unused() bool {
	return len(s.lives) == 0 && s.opening.whole && !s.opening.used
}

// holds reports whether the log has something of a record's life or of the empty one, or
// an opening of its name.
func (s loggedSession) holds(rec session.Record) bool {
	_, own := s.of(rec.Life)
	_, empty := s.of("")
	return own || empty || s.opening.seq > 0
}

// disagrees reports whether the log says something else of a session than its record, or
// may: what an opening says that nobody has read matters when the record's life began
// before it or has ended, or when something of another life is in the log.
func (s loggedSession) disagrees(rec session.Record) bool {
	own, _ := s.of(rec.Life)
	switch {
	case s.opening.seq == 0:
		return false
	case rec.Revision == 0, rec.State == session.Closed && !own.sealed:
		return true
	case s.opening.changes != rec.Changes: // of the members, or it is another life's
		return true
	case s.opening.known:
		return s.opening.life != rec.Life
	}
	return slices.ContainsFunc(s.lives, func(l loggedLife) bool {
		return l.life != "" && (l.life != rec.Life || l.ended || l.first < s.opening.first)
	})
}

// unfinished reports whether a life has to be ended.
func (s loggedSession) unfinished(l loggedLife, rec session.Record, patience time.Duration, now time.Time) bool {
	switch {
	case l.life == "": // it has no fence
		return false
	case l.unsealed: // the floor takes the seal first, but never before the opening
		return s.opening.known && s.opening.life == l.life
	case l.sealed && (!l.ended || rec.State == session.Open && rec.Life == l.life):
		return now.Sub(l.since) >= patience
	default:
		return !l.sealed && s.opening.known && s.opening.life != l.life
	}
}

// duties says what has to be done, given the index and the sessions in the log.
//
//   - The index says what the log does. Events of the empty life are no session: who
//     stores them has opened none.
//   - A life that somebody began to end longer than patience ago is ended; so is one that
//     has a newer opening, and one whose seal is lost.
//   - A tombstone goes when it is older than tombstoneTTL by the clock of the log's server, as
//     the entries of its life do, and nothing of the session is in the log any more.
func duties(records []session.Record, inLog map[string]loggedSession, tombstoneTTL, patience time.Duration, now, clock time.Time) []duty {
	var out []duty
	indexed := make(map[string]*session.Record, len(records)) // not copied: there may be many
	for i := range records {
		r := &records[i]
		indexed[r.Session] = r
		if r.State == session.Closed && clock.Sub(r.Ended) >= tombstoneTTL && !inLog[r.Session].holds(*r) {
			out = append(out, duty{remove, *r})
		}
	}
	for name, s := range inLog {
		rec := session.Record{Session: name}
		if r := indexed[name]; r != nil {
			rec = *r
		}
		if s.disagrees(rec) {
			out = append(out, duty{repair, rec})
		}
		for _, l := range s.lives {
			if s.unfinished(l, rec, patience, now) {
				out = append(out, duty{finish, session.Record{Session: name, Life: l.life}})
			}
		}
	}
	slices.SortFunc(out, func(a, b duty) int {
		return cmp.Or(cmp.Compare(a.record.Session, b.record.Session), cmp.Compare(a.task, b.task), cmp.Compare(a.record.Life, b.record.Life))
	})
	return out
}
