package janitor

import (
	"math"
	"sort"
	"time"

	"rejoin/shared/eventlog"
)

// doubts is what the ledger makes of sequences that it never saw: whose events may
// they have been? Accusing every stream would be sound, and useless: one busy
// stream would make every quiet one beside it uncertain. So:
//
// A sequence x is missing when the tail went past it without an entry. The entry
// was removed before the tail got there, in one of three ways.
//
//   - By age or bytes. JetStream then removes everything before some sequence, so x
//     lies before the first retained one. Any stream may have had an event there:
//     floor, which holds for every stream, known or not.
//   - By the limit per subject, when one event too many of stream S was stored. That
//     leaves S with exactly limit events, all of them after x. It has them still,
//     unless some were removed since: by age or bytes, and then x too lies before
//     the first retained sequence; by this ledger's janitor, and then S's removed
//     lies after x; or by an earlier janitor, see below. So x can be S's only if S
//     has limit events, the oldest after x. The limit was another one before this
//     ledger began, perhaps, and then the one that removed from S last is the one
//     that counts. A larger one than today's has left nothing that today's did not
//     take as well. A smaller one, which ended when the last sequence was u, has
//     removed nothing behind u: so x can also be S's if x ≤ u and S has as many
//     events as the smaller limit allowed, the oldest after x (takenUpTo). The
//     change to a smaller limit itself may leave any number of S's events, when S is
//     published to meanwhile: what is missing up to its end can be any stream's, as
//     with age. All this stands in the partition's metadata, or nobody would know
//     of it after a restart.
//   - By an earlier janitor, which wrote down before how far it would go in S's
//     session (the durable trim mark u): x ≤ u, and since it removes the oldest of
//     a stream first, x lies before S's oldest retained event. Events after a =close
//     marker, the one thing it removes out of order, are covered by u as well: the
//     limit per subject has counted them, so S may have lost more than its number
//     of events shows, but all of it at or before u or with limit events left.
//
// The first retained sequence and the numbers of events have to be those of a time
// after x was missed: the server is ahead of the tail. An event that the ledger
// still has may be gone there, pushed out by others that the tail has yet to bring,
// and does not speak for S before it has brought them. Therefore what is missing is
// attributed (settle) once the tail has reached the last sequence of a look at the
// server that began after x was missed. Should it have brought new jumps by then,
// S may still wait for the events that count, but then they are among the new
// jumps, which lie behind x; and until those are settled too, every stream answers
// with the largest missing sequence (unsettled).
//
// After settling, missing is empty and the ledger is exact again: what it has is
// what the server has, so no removal to come is unseen. All of this holds while the
// limit is the one in the book: when it changes, the ledger is dropped before the
// server hears of it, and begins when the server has done it.
type doubts struct {
	missing []span            // not attributed yet, in order
	look    *look             // what will attribute a part of missing
	past    map[string]uint64 // durable trim marks of earlier janitors; nil once they were used
	floor   uint64            // Maybe of every stream
	trims   uint64            // the largest maybe of an account
	// aside are the spans that were attributed while another janitor may have deleted
	// something: inherit attributes them once more, with its trim marks.
	aside   []span
	standby bool // another janitor may delete
}

// span is a run of missing sequences, both ends among them.
type span struct{ from, to uint64 }

// look is a look at the server.
type look struct {
	asOf  uint64 // the ledger's sequence when the look began
	first uint64 // the first retained sequence
	last  uint64 // the last sequence
}

// miss notes missing sequences, if from ≤ to.
func (d *doubts) miss(from, to uint64) {
	if from <= to {
		d.missing = append(d.missing, span{from, to})
	}
}

// unsettled returns the largest missing sequence that is not attributed yet, or 0.
func (d *doubts) unsettled() uint64 {
	if len(d.missing) == 0 {
		return 0
	}
	return d.missing[len(d.missing)-1].to
}

// wantsLook reports whether a look at the server is needed.
func (l *ledger) wantsLook() bool {
	return l.complete && len(l.doubts.missing) > 0 && l.doubts.look == nil
}

// exact reports whether the ledger is complete and nothing is unsettled.
func (l *ledger) exact() bool { return l.complete && len(l.doubts.missing) == 0 }

// looked enters a look at the server that began when the ledger was at asOf.
func (l *ledger) looked(asOf uint64, s eventlog.State, now time.Time) {
	if !l.isOf(s) {
		return
	}
	l.doubts.look = &look{asOf: asOf, first: s.First, last: s.Last}
	l.advance(s.First)
	l.settle(now)
}

// settle attributes what was missing when the look began, if the tail has got to
// what the look saw.
func (l *ledger) settle(now time.Time) {
	d := &l.doubts
	if d.look == nil || l.through < d.look.last {
		return
	}
	n := sort.Search(len(d.missing), func(i int) bool { return d.missing[i].to > d.look.asOf })
	settled := d.missing[:n]
	d.floor = max(d.floor, largest(settled, max(d.look.first-1, l.takenUpTo(0))))
	d.setAside(settled)
	for name, upTo := range d.past {
		a := l.account(name)
		a.maybe = max(a.maybe, largest(settled, upTo))
		d.trims = max(d.trims, a.maybe)
	}
	for name, a := range l.accounts {
		past := d.past[name]
		for _, s := range a.streams {
			l.expire(a, s, now)
			before := s.oldest() - 1
			if len(s.events) > 0 {
				s.maybe = max(s.maybe, largest(settled, min(before, l.takenUpTo(len(s.events)+int(s.ghosts)))))
			}
			s.maybe = max(s.maybe, largest(settled, min(past, before)))
		}
	}
	d.missing = append([]span(nil), d.missing[n:]...)
	d.look = nil
	// What a look in the middle of a rebuild did not cover may be an earlier
	// janitor's work too. What is missed later lies behind all trim marks.
	if l.complete && len(d.missing) == 0 {
		d.past = nil
	}
}

// takenUpTo returns the largest sequence that a limit per subject may have taken
// from a stream of which this many events are left.
func (l *ledger) takenUpTo(left int) uint64 {
	if l.limit > 0 && int64(left) >= l.limit {
		return math.MaxUint64
	}
	upTo := uint64(0)
	for _, e := range l.earlier {
		if int64(left) >= e.MaxEventsPerStream {
			upTo = max(upTo, e.UpTo)
		}
	}
	return upTo
}

// largest returns the largest sequence up to a bound that is in the spans, or 0.
func largest(spans []span, bound uint64) uint64 {
	i := sort.Search(len(spans), func(i int) bool { return spans[i].from > bound })
	if i == 0 {
		return 0
	}
	return min(spans[i-1].to, bound)
}
