package janitor

import (
	"slices"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// A life that has ended for as long as its name is kept is forgotten: nobody needs its control
// entries any more. The floor takes them where it moves by age. Where it does not, they are
// announced and deleted as events are, in two steps: the opening, and once it is deleted the
// rest. An opening whose seal were deleted first would open the life again, whatever a power cut
// or a restart leaves of the deletes. The trims of the life stay, since they explain the holes.

// forgettable returns the trims that take what can be taken now of the lives that are forgotten.
func (k keeper) forgettable() (lives [][]announcement) {
	leaving := map[*account]bool{}
	for _, t := range k.pending {
		leaving[t.life] = true
	}
	openings, rest := map[*opening]*account{}, map[*account]bool{}
	for _, a := range k.accounts {
		if a.life == "" || a.events > 0 || a.bare() || leaving[a] || !k.forgotten(a) {
			continue
		}
		switch o := k.openings[a.session]; {
		case o == nil, o.known && o.life != a.life:
			rest[a] = true
		case o.known: // else the registrar asks whose it is
			openings[o] = a
		}
	}
	if len(openings)+len(rest) == 0 {
		return nil
	}
	// The life's own end says that it is forgotten, so it comes last.
	ofStreams, ofLife := map[*account][]uint64{}, map[*account][]uint64{}
	for _, c := range k.controls.list {
		switch a := openings[c.opening]; {
		case c.opening != nil && a != nil:
			ofLife[a] = append(ofLife[a], c.seq)
		case c.kind == event.Trim || !rest[c.life]:
		case c.stream != nil:
			ofStreams[c.life] = append(ofStreams[c.life], c.seq)
		default:
			ofLife[c.life] = append(ofLife[c.life], c.seq)
		}
	}
	for a, last := range ofLife {
		lives = append(lives, k.forgetting(a, append(slices.Collect(slices.Chunk(ofStreams[a], eventlog.MaxRemoved)), last), rest[a]))
	}
	return lives
}

// forgetting returns the trims that name some control entries of a life each; whole says that
// these are all that are left. They follow each other, and say of the life's events what the trims
// before them do.
func (k keeper) forgetting(a *account, lists [][]uint64, whole bool) (all []announcement) {
	follows := k.newestTrim(a, "")
	for i, list := range lists {
		t := eventlog.Trim{Session: a.session, Life: a.life, UpTo: a.removed, Reason: eventlog.Trimmed, Removed: list}
		t.Forgotten = whole && i == len(lists)-1
		all = append(all, announcement{Trim: t, follows: follows})
	}
	return all
}
