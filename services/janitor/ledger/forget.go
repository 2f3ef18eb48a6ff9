package ledger

import (
	"slices"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// A life that has ended for as long as its name is kept is forgotten: it does not need its control
// entries any more. The floor takes them where it moves by age. Where it does not, or later, they are
// announced and deleted as events are, in two steps: the opening, and once it is deleted the
// rest. An opening whose seal were deleted first would open the life again, whatever a power cut
// or a restart leaves of the deletes. The trims of the life stay, since they explain the holes.

// Forgettable returns the trims of the control entries of forgotten lives that can be deleted now.
// byAge says that the floor moves by age: it takes all but those that a session wants deleted earlier.
func (k Survivors) Forgettable(byAge bool) (lives [][]Announcement) {
	k.leave()
	openings, rest := map[*Opening]*Account{}, map[*Account]bool{}
	for _, a := range k.Accounts {
		if a.Life == "" || a.Events > 0 || a.bare() || k.leaving[a] > 0 || byAge && !k.asks(a) || !k.forgotten(a) {
			continue
		}
		switch o := k.openings[a.Session]; {
		case o == nil, o.Known && o.Life != a.Life:
			rest[a] = true
		case o.Known: // else the registrar reads its life first
			openings[o] = a
		}
	}
	if len(openings)+len(rest) == 0 {
		return nil
	}
	// The newest opening and the life's own end prove that it is forgotten, so they are in the last trim: there
	// may be many others.
	first, last := map[*Account][]uint64{}, map[*Account][]uint64{}
	for _, c := range k.controls.list {
		a := openings[c.opening]
		var newest bool
		switch {
		case c.opening != nil && a != nil:
			newest = c.seq == c.opening.Seq
		case c.kind == event.Trim || !rest[c.life]:
			continue
		default:
			a, newest = c.life, c.seq == c.life.markers.seal.seq || c.seq == c.life.markers.end.seq
		}
		if newest {
			last[a] = append(last[a], c.seq)
		} else {
			first[a] = append(first[a], c.seq)
		}
	}
	for a, ends := range last {
		lists := slices.Collect(slices.Chunk(first[a], eventlog.MaxListed-len(ends)))
		if len(lists) == 0 {
			lists = [][]uint64{nil}
		}
		n := len(lists) - 1
		lists[n] = slices.Concat(lists[n], ends)
		slices.Sort(lists[n])
		lives = append(lives, k.forgetting(a, lists, rest[a]))
	}
	return lives
}

// forget removes a life of which only trims are left. They are entries that belong
// nowhere from now on.
func (l *Ledger) forget(a *Account) {
	delete(l.Accounts, a.key())
	*a = Account{forgotten: true}
}

// asks reports whether a session's metadata says how long it is kept after its end.
func (k Survivors) asks(a *Account) bool {
	rec, ok := k.Registry(a.Session)
	return ok && rec.Life == a.Life && rec.Retention.KeepClosed > 0
}

// forgetting returns the trims that name some control entries of a life each; whole says that
// these are all that are left. They follow each other, and announce no events beyond those of the
// trims before them.
func (k Survivors) forgetting(a *Account, lists [][]uint64, whole bool) (all []Announcement) {
	for i, list := range lists {
		t := eventlog.Trim{Session: a.Session, Life: a.Life, UpTo: a.newestRemoved, Reason: eventlog.Trimmed, Listed: list}
		t.Forgotten = whole && i == len(lists)-1
		all = append(all, Announcement{Trim: t, Follows: a.NewestTrim("")})
	}
	return all
}
