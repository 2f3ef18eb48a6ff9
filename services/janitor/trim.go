package janitor

import (
	"cmp"
	"slices"
	"time"

	"rejoin/shared/eventlog"
)

// trimmed are the entries that a trim has named and that lie in the log until they are
// deleted.
type trimmed struct {
	life    *account
	at      time.Time // when the ledger got the trim
	reason  eventlog.Reason
	entries []entry // in order of sequence, at least one
}

func (t *trimmed) last() uint64 { return t.entries[len(t.entries)-1].seq }

// dropBefore takes out what lies before a sequence.
func (t *trimmed) dropBefore(seq uint64) {
	n, _ := slices.BinarySearchFunc(t.entries, seq, func(e entry, seq uint64) int { return cmp.Compare(e.seq, seq) })
	t.entries = t.entries[n:]
}

// trim takes out of the book what a trim removes, whoever has written it. What it names of
// that is to be deleted; what it names and the ledger has not was deleted already.
func (l *ledger) trim(a *account, t *eventlog.Trim, now time.Time) {
	if a.trims == nil {
		a.trims = map[string]uint64{}
	}
	a.trims[t.Stream], a.removed = t.Sequence, max(a.removed, t.UpTo)
	out := trimmed{life: a, at: now, reason: t.Reason}
	for _, seq := range t.Removed {
		l.holes.remove(seq)
		if c, ok := l.controls.take(seq); ok {
			l.gone(c)
			out.entries = append(out.entries, entry{seq: seq, size: c.size})
		}
	}
	take := func(s *stream) {
		l.expire(a, s)
		for len(s.events) > 0 && s.events[0].seq <= t.UpTo {
			if e := l.pop(a, s); contains(t.Removed, e.seq) {
				out.entries = append(out.entries, e)
			} else {
				l.unlisted = append(l.unlisted, e.seq)
			}
		}
	}
	if t.Stream != "" {
		s := a.stream(t.Stream)
		take(s)
		s.noteRemoved(t.UpTo)
	} else {
		for _, s := range a.streams {
			take(s)
		}
	}
	slices.SortFunc(out.entries, func(a, b entry) int { return cmp.Compare(a.seq, b.seq) })
	if len(out.entries) > 0 {
		l.pending = append(l.pending, out)
	}
}

func contains(sorted []uint64, seq uint64) bool {
	_, found := slices.BinarySearch(sorted, seq)
	return found
}

// toDelete returns how many entries are trimmed and not deleted yet.
func (l *ledger) toDelete() (n int) {
	for _, t := range l.pending {
		n += len(t.entries)
	}
	return n
}

// due returns how many entries were trimmed some time ago, and the sequences of the first of
// them, up to n.
func (l *ledger) due(now time.Time, ago time.Duration, n int) (first []uint64, all int) {
	for _, t := range l.pending {
		if now.Sub(t.at) < ago {
			break
		}
		all += len(t.entries)
		for _, e := range t.entries[:min(n-len(first), len(t.entries))] {
			first = append(first, e.seq)
		}
	}
	return first, all
}

// deleted takes entries off those to be deleted, where they are the first ones.
func (l *ledger) deleted(sequences []uint64) {
	gone, left := slices.Sorted(slices.Values(sequences)), len(sequences)
	for i := 0; left > 0 && i < len(l.pending); i++ {
		t := &l.pending[i]
		t.entries = slices.DeleteFunc(t.entries, func(e entry) bool {
			found := contains(gone, e.seq)
			if found {
				left--
				l.stretches.remove(e)
			}
			return found
		})
	}
	l.pending = slices.DeleteFunc(l.pending, func(t trimmed) bool { return len(t.entries) == 0 })
}

// dueTrims returns the last entry of each trim that is due.
func (l *ledger) dueTrims(now time.Time, ago time.Duration) (last []uint64) {
	for _, t := range l.pending {
		if now.Sub(t.at) < ago {
			break
		}
		last = append(last, t.last())
	}
	return last
}

// othersDeleted forgets what is to be deleted up to the trim with a last entry: the janitor
// that acts has done it.
func (l *ledger) othersDeleted(last uint64) {
	n := slices.IndexFunc(l.pending, func(t trimmed) bool { return t.last() == last })
	for _, t := range l.pending[:n+1] {
		for _, e := range t.entries {
			l.stretches.remove(e)
		}
	}
	l.pending = l.pending[n+1:]
}
