package ledger

import (
	"cmp"
	"slices"
	"time"

	"rejoin/shared/session"
)

// Task is the kind of a [Duty].
type Task uint8

const (
	// Repair corrects the registry by the log, and reads which life the opening names.
	Repair Task = iota
	// CloseIdle ends an idle session.
	CloseIdle
	// Finish ends a life whose end was begun and not finished, and the life of a
	// name that has a newer opening.
	Finish
	// Remove deletes the record of a closed session whose name is no longer kept.
	Remove
)

// FinishAfter is how long a life may be sealed without an end, by the ledger's own clock:
// longer than an end takes.
const FinishAfter = 5 * time.Second

// Duty is a task for one session.
type Duty struct {
	Task   Task
	Record session.Record // as the registry has it; for Finish a name and a life
}

// of returns a life, if it has entries in the log.
func (s LoggedSession) of(life string) (LoggedLife, bool) {
	for _, l := range s.Lives {
		if l.Life == life {
			return l, true
		}
	}
	return LoggedLife{}, false
}

// Events reports whether the log has events of any life.
func (s LoggedSession) Events() bool {
	return slices.ContainsFunc(s.Lives, func(l LoggedLife) bool { return l.Events })
}

// Unused reports whether the session has surely never had an entry but its opening.
func (s LoggedSession) Unused() bool {
	return len(s.Lives) == 0 && s.Opening.Whole && !s.Opening.Used
}

// Holds reports whether the log has entries of a record's life or of the empty one, or
// an opening of its name.
func (s LoggedSession) Holds(rec session.Record) bool {
	_, own := s.of(rec.Life)
	_, empty := s.of("")
	return own || empty || s.Opening.Seq > 0
}

// disagrees reports whether the log contradicts a session's record, or
// may: the content of an unread opening matters when the record's life began
// before it or has ended, or when the log has entries of another life.
func (s LoggedSession) disagrees(rec session.Record) bool {
	own, _ := s.of(rec.Life)
	switch {
	case s.Opening.Seq == 0:
		return false
	case rec.Revision == 0, rec.State == session.Closed && !own.sealed:
		return true
	case s.Opening.changes != rec.Changes: // of members or metadata, or it is another life's
		return true
	case s.Opening.Known:
		return s.Opening.Life != rec.Life
	}
	return slices.ContainsFunc(s.Lives, func(l LoggedLife) bool {
		return l.Life != "" && (l.Life != rec.Life || l.ended || l.first < s.Opening.First)
	})
}

// unfinished reports whether a life has to be ended.
func (s LoggedSession) unfinished(l LoggedLife, rec session.Record, patience time.Duration, now time.Time) bool {
	switch {
	case l.Life == "": // it has no fence
		return false
	case l.unsealed: // the floor takes the seal first, but never before the opening
		return s.Opening.Known && s.Opening.Life == l.Life
	case l.sealed && (!l.ended || rec.State == session.Open && rec.Life == l.Life):
		return now.Sub(l.since) >= patience
	default:
		return !l.sealed && s.Opening.Known && s.Opening.Life != l.Life
	}
}

// Duties returns the duties that follow from the registry and the sessions in the log.
//
//   - The registry has to agree with the log. Events of the empty life are no session: their
//     publisher has opened none.
//   - A life whose end was begun longer than patience ago is ended; so is one that
//     has a newer opening, and one whose seal is lost.
//   - A tombstone is removed when it is older than its name is kept, by the clock of the log's server, as
//     the entries of its life are, and the log has no entries of the session any more.
func Duties(records []session.Record, inLog map[string]LoggedSession, kept NameKept, patience time.Duration, now, clock time.Time) []Duty {
	var out []Duty
	registered := make(map[string]*session.Record, len(records)) // not copied: there may be many
	for i := range records {
		r := &records[i]
		registered[r.Session] = r
		if r.State == session.Closed && clock.Sub(r.Ended) >= kept(r.Retention) && !inLog[r.Session].Holds(*r) {
			out = append(out, Duty{Remove, *r})
		}
	}
	for name, s := range inLog {
		rec := session.Record{Session: name}
		if r := registered[name]; r != nil {
			rec = *r
		}
		if s.disagrees(rec) {
			out = append(out, Duty{Repair, rec})
		}
		for _, l := range s.Lives {
			if s.unfinished(l, rec, patience, now) {
				out = append(out, Duty{Finish, session.Record{Session: name, Life: l.Life}})
			}
		}
	}
	slices.SortFunc(out, func(a, b Duty) int {
		return cmp.Or(cmp.Compare(a.Record.Session, b.Record.Session), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Record.Life, b.Record.Life))
	})
	return out
}

// String returns the task's name in the metric.
func (t Task) String() string {
	switch t {
	case Repair:
		return "repaired"
	case CloseIdle:
		return "closed"
	case Finish:
		return "finished"
	case Remove:
		return "removed"
	}
	return "unknown"
}
