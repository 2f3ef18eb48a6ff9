package ledger

import (
	"slices"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// Concern reports whether the policy may remove events of a life that is not
// over: it removes none of a life within its limits and without a =clear marker.
func (lim Limits) Concern(a *Account) bool {
	return a.clears > 0 ||
		lim.MaxPerStream >= 0 && int64(a.Events) > lim.MaxPerStream ||
		lim.MaxEvents >= 0 && int64(a.Events) > lim.MaxEvents ||
		lim.MaxBytes >= 0 && a.bytes > lim.MaxBytes ||
		lim.MaxStreams >= 0 && int64(a.open) > lim.MaxStreams
}

// LifeState returns the state of a life as a whole.
func (l *Ledger) LifeState(a *Account) LifeState {
	return LifeState{a.Session, a.Life, l.openings[a.Session], a.markers}
}

// View returns the policy's view of a life.
func (l *Ledger) View(a *Account, state LifeState) LifeView {
	v := LifeView{LifeState: state, streams: make([]streamView, 0, len(a.Streams))}
	for name, s := range a.Streams {
		if l.expire(a, s); len(s.events) > 0 {
			v.streams = append(v.streams, streamView{name, s.events, s.final, s.markers.clearedAt(), a.end(s)})
		}
	}
	return v
}

// Announcement is a trim to be stored.
type Announcement struct {
	eventlog.Trim
	Cause   Cause  // empty for control entries
	Follows uint64 // the newest trim that the ledger knows of
}

// Announcements returns the trims of one life's removals, in the order in which they have to be
// stored. A life that is over has one for all its streams.
func Announcements(removals []Removal) (all []Announcement) {
	var whole []uint64
	for _, r := range removals {
		if r.Cause == Closed {
			whole = append(whole, r.Sequences...)
		} else {
			all = appendTrims(all, r)
		}
	}
	if len(whole) > 0 {
		slices.Sort(whole)
		all = appendTrims(all, Removal{Closed, removals[0].Life, "", whole})
	}
	return all
}

func appendTrims(all []Announcement, r Removal) []Announcement {
	t := eventlog.Trim{Stream: r.Stream, Reason: r.Cause.announced()}
	t.Session, t.Life = event.ParseLifeKey(r.Life)
	for t.Listed = range slices.Chunk(r.Sequences, eventlog.MaxListed) {
		t.UpTo = t.Listed[len(t.Listed)-1]
		all = append(all, Announcement{Trim: t, Cause: r.Cause})
	}
	return all
}

// Require has the ledger decide nothing before it has an entry that was stored after so many restarts: its
// sequence means nothing after another one.
func (l *Ledger) Require(restarts int, sequence uint64) {
	if l.Restarts == restarts {
		l.Required = max(l.Required, sequence)
	}
}

// NewestTrim returns the sequence of the newest trim of a stream, or of the whole life; 0 when the
// log has none.
func (a *Account) NewestTrim(stream string) uint64 { return a.trims[stream] }
