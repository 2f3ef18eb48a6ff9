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

// doom is an entry that the ledger has taken out and that is to be deleted.
type doom struct {
	seq     uint64
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
		for _, seq := range r.Sequences {
			l.doom(doom{seq: seq, reason: r.Reason})
		}
		return
	}
	a, ok := l.accounts[r.Session]
	if !ok {
		return
	}
	d := doom{reason: r.Reason, lane: laneOf(r.Session, r.Stream), session: r.Session, stream: r.Stream, account: a, event: r.Reason != Superseded}
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
	for _, seq := range r.Sequences {
		d.seq = seq
		l.doom(d)
	}
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

func (l *ledger) doom(d doom) {
	l.doomed = append(l.doomed, d)
	if d.account != nil {
		d.account.doomed++
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

// trims returns, for each session of which some of the entries are events, the last
// of its doomed events, and why that goes.
func (l *ledger) trims(of []doom) map[string]trim {
	all := map[string]trim{}
	for _, d := range of {
		if d.event {
			all[d.session] = trim{}
		}
	}
	for _, d := range l.doomed {
		if t, wanted := all[d.session]; wanted && d.event && d.seq > t.UpTo {
			all[d.session] = trim{UpTo: d.seq, Reason: d.reason.mark(), Birth: l.birth}
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
	for _, d := range l.doomed {
		if d.reason.urgent() && len(todo) < batchSize {
			todo = append(todo, d)
		}
	}
	if len(todo) > 0 {
		return todo, true
	}
	return slices.Clone(l.doomed[:min(leisureSize, len(l.doomed))]), false
}

// left says what there is to delete.
func (l *ledger) left() left {
	switch {
	case slices.ContainsFunc(l.doomed, func(d doom) bool { return d.reason.urgent() }):
		return urgentLeft
	case len(l.doomed) > 0:
		return leisureLeft
	default:
		return nothingLeft
	}
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
