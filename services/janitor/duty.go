package janitor

import (
	"cmp"
	"slices"
	"time"

	"rejoin/shared/session"
)

// task is what has to be done about a record of the registry.
type task uint8

const (
	// register makes a record for a session that only exists in the log.
	register task = iota
	// closeIdle begins to close a session that nobody needs; finish does the rest.
	closeIdle
	// finish closes what stays closing because whoever began it has died.
	finish
	// remove deletes a record that has served its time.
	remove
)

// duty is one thing to be done in the registry.
type duty struct {
	task   task
	record session.Record // for register only with a name
}

// presence says what a complete ledger knows of a session.
type presence uint8

const (
	absent  presence = iota // nothing of it is in the log
	hollow                  // markers of it are in the log, and no events
	ended                   // it is in the log, with events and a =close marker
	present                 // it has events and no =close marker
)

// duties says what has to be done in the registry, given its records and the
// sessions in the log.
//
//   - A session with events and no record is registered. One with a tombstone is left.
//   - What has been closing for longer than closeAfter is finished.
//   - A session's tombstone goes when it is older than tombstoneTTL and nothing of
//     the session is in the log any more, and its streams' records go before it.
//   - A stream's record whose session has none is removed.
//
// Clocks are taken to agree within closeAfter less the time that a publish may take.
func duties(records []session.Record, inLog map[string]presence, cfg Config, now time.Time) []duty {
	sessions := make(map[string]*session.Record, len(records)) // not copied: there may be many
	for i := range records {
		if r := &records[i]; isSession(*r) {
			sessions[r.Session] = r
		}
	}
	var out []duty
	for name, p := range inLog {
		if _, ok := sessions[name]; !ok && p == present {
			out = append(out, duty{register, session.Record{Session: name}})
		}
	}
	expired := func(r *session.Record) bool {
		return r.State == session.Closed && now.Sub(r.Ended) >= cfg.TombstoneTTL && inLog[r.Session] == absent
	}
	for i := range records {
		r := &records[i]
		owner, owned := sessions[r.Session]
		overdue := r.State != session.Open && now.Sub(r.Ended) >= cfg.CloseAfter
		switch {
		case r.Stream != "" && !owned && overdue, r.Stream != "" && owned && expired(owner), r.Stream == "" && expired(r):
			out = append(out, duty{remove, *r})
		case r.State == session.Closing && overdue:
			out = append(out, duty{finish, *r})
		}
	}
	slices.SortFunc(out, func(a, b duty) int {
		streamsFirst := cmp.Compare(b.record.Stream, a.record.Stream)
		return cmp.Or(cmp.Compare(a.record.Session, b.record.Session), streamsFirst, cmp.Compare(a.task, b.task))
	})
	return out
}
