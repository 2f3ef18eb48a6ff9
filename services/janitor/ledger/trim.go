package ledger

import (
	"cmp"
	"slices"
	"time"

	"rejoin/shared/eventlog"
)

// trimmed are the entries that a trim has named and that lie in the log until they are
// deleted.
type trimmed struct {
	life    *Account
	at      time.Time // when the ledger got the trim
	Reason  eventlog.Reason
	Entries []entry // in order of sequence, at least one
}

func (t *trimmed) last() uint64 { return t.Entries[len(t.Entries)-1].seq }

// dropBefore drops the entries before a sequence.
func (t *trimmed) dropBefore(seq uint64) {
	n, _ := slices.BinarySearchFunc(t.Entries, seq, func(e entry, seq uint64) int { return cmp.Compare(e.seq, seq) })
	t.Entries = t.Entries[n:]
}

// trim takes the entries out of the ledger that a trim of any janitor removes. Those of them that it
// lists are to be deleted; listed sequences that the ledger lacks were deleted already.
func (l *Ledger) trim(a *Account, t *eventlog.Trim, now time.Time) {
	a.newestRemoved = max(a.newestRemoved, t.UpTo)
	out := trimmed{life: a, at: now, Reason: t.Reason}
	for _, seq := range t.Listed {
		l.holes.remove(seq)
		if c, ok := l.controls.take(seq); ok {
			l.gone(c)
			out.Entries = append(out.Entries, entry{seq: seq, size: c.size})
		}
	}
	take := func(s *stream) {
		l.expire(a, s)
		for len(s.events) > 0 && s.events[0].seq <= t.UpTo {
			if e := l.pop(a, s); contains(t.Listed, e.seq) {
				out.Entries = append(out.Entries, e)
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
		for _, s := range a.Streams {
			take(s)
		}
	}
	slices.SortFunc(out.Entries, func(a, b entry) int { return cmp.Compare(a.seq, b.seq) })
	if len(out.Entries) > 0 {
		l.Pending = append(l.Pending, out)
	}
	if t.Forgotten && a.bare() {
		l.forget(a)
	}
}

func contains(sorted []uint64, seq uint64) bool {
	_, found := slices.BinarySearch(sorted, seq)
	return found
}

// ToDelete returns how many entries are trimmed and not deleted yet.
func (l *Ledger) ToDelete() (n int) {
	for _, t := range l.Pending {
		n += len(t.Entries)
	}
	return n
}

// Due returns how many entries were trimmed some time ago, and the sequences of the first of
// them, up to n.
func (l *Ledger) Due(now time.Time, ago time.Duration, n int) (first []uint64, all int) {
	for _, t := range l.Pending {
		if now.Sub(t.at) < ago {
			break
		}
		all += len(t.Entries)
		for _, e := range t.Entries[:min(n-len(first), len(t.Entries))] {
			first = append(first, e.seq)
		}
	}
	return first, all
}

// Deleted drops entries from those to be deleted, of which they are the first ones.
func (l *Ledger) Deleted(sequences []uint64) {
	gone, left := slices.Sorted(slices.Values(sequences)), len(sequences)
	for i := 0; left > 0 && i < len(l.Pending); i++ {
		t := &l.Pending[i]
		t.Entries = slices.DeleteFunc(t.Entries, func(e entry) bool {
			found := contains(gone, e.seq)
			if found {
				left--
				l.Stretches.remove(e)
			}
			return found
		})
	}
	l.Pending = slices.DeleteFunc(l.Pending, func(t trimmed) bool { return len(t.Entries) == 0 })
}
