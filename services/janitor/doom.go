package janitor

import (
	"cmp"
	"hash/fnv"
	"slices"

	"rejoin/shared/marks"
)

// lanes is how many groups of streams there are. The entries of one stream are all in
// one lane, and a lane deletes one after the other: so what is left of a stream is at
// any moment its newest part, on which edges rely.
const lanes = 64

// doom is an entry that the ledger has taken out and that is to be deleted, 16 bytes of
// memory like the event that it was.
type doom struct {
	seq uint64
	*verdict
}

// verdict is what the entries of a [Removal] have in common.
type verdict struct {
	reason  Reason
	lane    uint8
	event   bool // not a marker, nor a stray
	session string
	stream  string // empty for markers of the session, and for strays
	account *account
}

// condemn takes what the policy wants removed out of the book and dooms it. From
// here on the ledger answers as if it were gone.
func (l *ledger) condemn(r Removal) {
	if r.Reason == Stray {
		l.strays = slices.DeleteFunc(l.strays, func(seq uint64) bool { return contains(r.Sequences, seq) })
		l.doom(r.Sequences, &verdict{reason: r.Reason})
		return
	}
	a, ok := l.accounts[r.Session]
	if !ok {
		return
	}
	gone := func(seq uint64) bool { return contains(r.Sequences, seq) }
	switch {
	case r.Reason == Superseded && r.Stream == "":
		a.markers = a.drop(a.markers, func(m marker) bool { return gone(m.seq) })
	case r.Reason == Superseded:
		s := l.stream(a, r.Stream)
		s.markers = a.drop(s.markers, func(m marker) bool { return gone(m.seq) })
		a.recount(s)
	case r.Reason == AfterClose:
		s := l.stream(a, r.Stream)
		for len(s.events) > 0 && gone(s.events[len(s.events)-1].seq) {
			l.popNewest(a, s)
			s.ghosts++
		}
	default:
		s := l.stream(a, r.Stream)
		for len(s.events) > 0 && gone(s.events[0].seq) {
			l.pop(a, s, r.Reason.mark())
		}
	}
	l.doom(r.Sequences, &verdict{
		reason: r.Reason, lane: laneOf(r.Session, r.Stream), event: r.Reason != Superseded,
		session: r.Session, stream: r.Stream, account: a,
	})
}

func contains(sorted []uint64, seq uint64) bool {
	_, found := slices.BinarySearch(sorted, seq)
	return found
}

// popNewest takes a stream's newest event out, one that never counted.
func (l *ledger) popNewest(a *account, s *stream) {
	last := len(s.events) - 1
	e := s.events[last]
	if s.events = s.events[:last]; last == 0 {
		s.events = nil
	}
	s.final = false
	a.recount(s)
	l.count(a, s, e, -1)
}

// doom dooms entries, the last of which has the largest sequence.
func (l *ledger) doom(sequences []uint64, v *verdict) {
	for _, seq := range sequences {
		l.doomed = append(l.doomed, doom{seq, v})
	}
	if l.tally == nil {
		l.tally = map[Reason]int{}
	}
	l.tally[v.reason] += len(sequences)
	if a := v.account; a != nil {
		a.doomed += len(sequences)
		if last := sequences[len(sequences)-1]; v.event && last > a.trimmed.UpTo {
			a.trimmed = trim{UpTo: last, Reason: v.reason.mark(), Birth: l.birth}
		}
	}
}

// laneOf returns the lane of a stream's entries.
func laneOf(session, stream string) uint8 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(session + " " + stream)) // no name holds a space
	return uint8(h.Sum32() % lanes)                //nolint:gosec // less than lanes
}

// sortDoomed brings what is doomed into order of sequence.
func (l *ledger) sortDoomed() {
	slices.SortFunc(l.doomed, func(a, b doom) int { return cmp.Compare(a.seq, b.seq) })
}

// trimsOf returns, for each session of which some entries are events, how far it is
// trimmed with all that is doomed of it.
func trimsOf(entries []doom) map[string]trim {
	all := map[string]trim{}
	for _, d := range entries {
		if d.event {
			all[d.session] = d.account.trimmed
		}
	}
	return all
}

// batch returns the first doomed entries: batchSize of the urgent ones, or when there
// are none leisureSize of the others. Those that went by themselves are dropped first.
// What is urgent of a stream lies before what is not, or is not an event.
func (l *ledger) batch() (todo []doom, urgent bool) {
	gone := 0
	for gone < len(l.doomed) && l.doomed[gone].seq < l.first {
		gone++
	}
	l.deleted(l.doomed[:gone])
	if l.left() != urgentLeft {
		return slices.Clone(l.doomed[:min(leisureSize, len(l.doomed))]), false
	}
	for _, d := range l.doomed {
		if d.reason.urgent() {
			todo = append(todo, d)
		}
		if len(todo) == batchSize {
			break
		}
	}
	return todo, true
}

// left says what there is to delete.
func (l *ledger) left() left {
	left := nothingLeft
	for reason, n := range l.tally {
		switch {
		case n > 0 && reason.urgent():
			return urgentLeft
		case n > 0:
			left = leisureLeft
		}
	}
	return left
}

// deleted takes entries that are deleted off the doomed ones. They are in order
// of sequence, and so are the doomed.
func (l *ledger) deleted(done []doom) {
	var kept []doom
	i, n := 0, 0
	for ; i < len(done) && n < len(l.doomed); n++ {
		d := l.doomed[n]
		if done[i].seq != d.seq {
			kept = append(kept, d)
			continue
		}
		i++
		l.tally[d.reason]--
		if d.account != nil {
			d.account.doomed--
		}
	}
	l.doomed = l.doomed[n-len(kept):]
	copy(l.doomed, kept)
	if len(l.doomed) == 0 {
		l.doomed = nil
	}
}

// mark returns the reason that clients are told.
func (r Reason) mark() marks.Reason {
	if r == Cleared {
		return marks.Cleared
	}
	return marks.Trimmed
}
