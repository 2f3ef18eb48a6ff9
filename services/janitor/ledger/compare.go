package ledger

import "rejoin/shared/eventlog"

// Balance returns how many entries the ledger has, less its sequence, modulo 2^64: it stays the
// same when entries are stored, and falls with each one that is removed.
func (l *Ledger) Balance() uint64 { return l.Entries() - l.Through }

// Has reports whether the files of a leader have as many entries as the ledger, given its balance
// before the look. A ledger that lacks some itself cannot tell: the leader may have those and lack
// others.
func (l *Ledger) Has(s eventlog.State, balance uint64) bool {
	return l.Damaged < l.first && s.First == l.first && s.Events == balance+s.Last
}

// Lacking returns what the ledger has of some sequences, which are in order.
func (l *Ledger) Lacking(absent []uint64) (d Damage) {
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
// same ones. What is to be deleted may be deleted; but in a generation that the ledger does not
// know, of a server that may have found a damaged file, it takes no chances.
func (l *Ledger) Intact(s eventlog.State) bool {
	known := l.HeardOf(s.Generation().ID)
	if !l.Complete {
		return known
	}
	l.Advance(s.First, s.Last)
	most := l.Entries() + s.Last - max(l.Through, s.First-1)
	least := most - uint64(l.ToDelete()) //nolint:gosec // not negative
	return s.Events == most || known && s.Events < most && s.Events >= least
}
