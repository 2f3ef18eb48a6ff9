package ledger

import "rejoin/shared/eventlog"

// Balance returns how many entries the ledger has, less its sequence, modulo 2^64: it stays the
// same when entries are stored, and falls with each one that is removed.
func (l *Ledger) Balance() uint64 { return l.Entries() - l.Through }

// Has returns the newest sequence that the files of a leader may lack, and whether it is known: when they have as many
// entries as the ledger, given its balance before the look, it is the newest one that the ledger lacks. A ledger that
// lacks some itself cannot tell which: the leader may have those and lack others.
func (l *Ledger) Has(s eventlog.State, balance uint64) (damaged uint64, known bool) {
	if l.Damaged >= l.first {
		l.lacking = int(max(int64(balance+s.Last-s.Entries), 0)) //nolint:gosec // as in Misses
		return s.Last, true
	}
	return l.Damaged, s.First == l.first && s.Entries == balance+s.Last
}

// InFlight is how many entries a janitor deletes at a time: the ledger learns of these together.
const InFlight = 16

// Tally is the count of a ledger's entries that [Ledger.Misses] compares a look with.
type Tally struct {
	first, balance uint64
	deleted        int // at most, that the ledger does not know of yet
}

// Tally returns the tally for a look that is about to begin.
func (l *Ledger) Tally() Tally { return Tally{l.first, l.Balance(), min(l.ToDelete(), InFlight)} }

// Misses reports whether a look shows fewer entries than the ledger had before it: another program has removed some
// since the last call of [Ledger.Lacking].
func (l *Ledger) Misses(s eventlog.State, before Tally) bool {
	if !l.Exact() || s.First != before.first {
		return false
	}
	missing := int64(before.balance + s.Last - s.Entries) //nolint:gosec // far fewer, and negative at times
	l.lacking = min(l.lacking, int(max(missing, 0)))      // the floor has passed the others
	return missing > int64(before.deleted+l.lacking)
}

// Lacking returns the ledger's entries among the sequences that a leader has no entry of, which are in order.
func (l *Ledger) Lacking(absent []uint64) (d Damage) {
	defer func() { l.lacking = d.N }()
	if len(absent) == 0 {
		return d
	}
	l.expireAll()
	note := func(seq uint64) {
		if contains(absent, seq) {
			d.include(seq)
		}
	}
	for _, a := range l.Accounts {
		for _, s := range a.Streams {
			for _, e := range s.events {
				note(e.seq)
			}
		}
	}
	for _, c := range l.controls.list {
		if !c.taken { // else a trim names it
			note(c.seq)
		}
	}
	for _, seq := range l.unlisted {
		note(seq)
	}
	return d
}

// Intact reports whether a partition has as many entries as the ledger expects, and so the
// same ones. Entries that are to be deleted may be missing, but not in a generation that the ledger does
// not know: its server may have found a damaged file.
func (l *Ledger) Intact(s eventlog.State) bool {
	known := l.HeardOf(s.Generation().ID)
	if !l.Complete {
		return known
	}
	l.Advance(s.First, s.Last)
	most := l.Entries() + s.Last - max(l.Through, s.First-1)
	least := most - uint64(l.ToDelete()) //nolint:gosec // not negative
	return s.Entries == most || known && s.Entries < most && s.Entries >= least
}
