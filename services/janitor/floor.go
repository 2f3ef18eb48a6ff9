package janitor

import (
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// The floor is the first sequence of a partition. It moves up by age and by bytes, and takes
// everything with it. What must outlive it, the control entries of lives that are not
// forgotten, is written again at the end of the log long before it gets there.

// rules say when what goes.
type rules struct {
	maxAge       time.Duration // of an event; not positive: none
	maxBytes     int64         // of the partition; not positive: none
	syncInterval time.Duration // of the NATS servers
	interval     time.Duration // between two sweeps
	tombstoneTTL time.Duration
}

// settled is how long after an entry was stored it is surely on disk: twice as long as the
// servers take to sync.
func (r rules) settled() time.Duration { return 2 * r.syncInterval }

// Shares of a partition's limit of bytes: from full on the floor moves, until goal is left;
// from early on the oldest copyShare of all entries is copied.
const (
	fullShare  = 7.0 / 8
	goalShare  = 3.0 / 4
	earlyShare = 5.0 / 8
	copyShare  = 1.0 / 4
)

// used returns how full a partition is, where 1 is its limit.
func (r rules) used(bytes uint64) float64 {
	if r.maxBytes <= 0 {
		return 0
	}
	return float64(bytes) / float64(r.maxBytes)
}

// Why the floor moves.
const (
	byAge    = "age"
	byVolume = "bytes"
)

// target returns where the floor should be, and why.
func (l *ledger) target(r rules, bytes uint64, now time.Time) (before uint64, why string) {
	why = byAge
	if r.maxAge > 0 {
		before = l.stretches.youngerThan(l.clock(now).Add(-r.maxAge), l.through)
	}
	if used := r.used(bytes); used > fullShare {
		if room := l.stretches.lighter(goalShare/used, l.through); room > before {
			before, why = room, byVolume
		}
	}
	return before, why
}

// lead returns the sequence before which live control entries are to be copied: those that
// the floor will get to in so much time that their copies are on disk before, with as much
// again to spare. What was stored a moment ago is never copied.
func (l *ledger) lead(r rules, bytes uint64, now time.Time) (before uint64) {
	clock := l.clock(now)
	if r.maxAge > 0 {
		ahead := 2*r.settled() + 2*r.interval
		before = l.stretches.youngerThan(clock.Add(-max(r.maxAge-ahead, r.maxAge/2)), l.through)
	}
	if r.used(bytes) > earlyShare {
		before = max(before, l.stretches.lighter(1-copyShare, l.through))
	}
	return min(before, l.stretches.youngerThan(clock.Add(-r.settled()), l.through))
}

// keeper says which control entries must stay.
type keeper struct {
	*ledger
	now   time.Time // by the ledger's clock
	ttl   time.Duration
	index func(session string) (session.Record, bool)
	// leaving has the newest entry of each life that is announced and not deleted yet;
	// [keeper.barrier] and [keeper.overdue] set it.
	leaving map[*account]uint64
}

// leave notes what is announced and not deleted yet.
func (k *keeper) leave() {
	k.leaving = make(map[*account]uint64, len(k.pending))
	for _, t := range k.pending {
		k.leaving[t.life] = max(k.leaving[t.life], t.last())
	}
}

// live reports whether an entry is the newest of its kind that says something that has to be
// known:
//
//   - the opening of a name whose life is open, or has ended for less than the TTL;
//   - seal and end of such a life, and as long as its opening lies behind them: without them
//     the opening would open it again;
//   - of a life that has not ended, the birth of each stream that has no end, and the end of
//     each stream that has.
//
// Nothing is known of a life without an opening and a seal, nor of the empty one, whose ends
// go behind their events.
func (k keeper) live(c control) bool {
	switch {
	case c.opening != nil:
		o := c.opening
		return o.seq == c.seq && (!o.known || !k.forgotten(k.accounts[event.LifeKey(o.session, o.life)]))
	case c.life == nil || c.life.life == "":
		return false
	}
	a := c.life
	switch c.kind {
	case event.Birth:
		_, ended := c.stream.markers.endAfter(c.stream.last)
		return c.stream.birth == c.seq && !ended && k.lasts(a)
	case event.End:
		if s := c.stream; s != nil {
			end, ended := s.markers.endAfter(s.last)
			return ended && end.seq == c.seq && k.lasts(a)
		}
		return a.markers.end.seq == c.seq && (!k.forgotten(a) || k.behind(a, c.seq) || a.markers.seal.seq > c.seq)
	case event.Seal:
		return a.markers.seal.seq == c.seq && (!k.forgotten(a) || k.behind(a, c.seq))
	default:
		return false
	}
}

// lasts reports whether a life has an opening or a seal, and no end. If its opening is lost, the
// index says whether it is open.
func (k keeper) lasts(a *account) bool {
	if a.markers.ended() || a.markers.sealed() || k.openings[a.session] != nil {
		return !a.markers.ended()
	}
	rec, ok := k.index(a.session)
	return ok && rec.Life == a.life && rec.State == session.Open
}

// behind reports whether the opening of a life lies after a sequence, or may: one that is
// announced stays until it is deleted.
func (k keeper) behind(a *account, seq uint64) bool {
	o := k.openings[a.session]
	return o != nil && (!o.known || o.life == a.life) && o.seq > seq || k.leaving[a] > seq
}

// forgotten reports whether it is known that a life has ended for as long as its name is kept,
// and the index says that it has: of what only the index has, nobody could say that it is wrong.
func (k keeper) forgotten(a *account) bool {
	if a == nil || !a.markers.ended() {
		return false
	}
	since := a.markers.end.at
	// The index remembers when that was, also when the log has copies of the end alone.
	if rec, ok := k.index(a.session); ok && rec.Life == a.life {
		if rec.State == session.Open {
			return false
		}
		if !rec.Ended.IsZero() && rec.Ended.Before(since) {
			since = rec.Ended
		}
	}
	return k.now.Sub(since) >= k.ttl
}

// barrier returns how far the floor may move, up to a sequence: not past a live control
// entry, nor past one whose copy is not surely on disk; and not before the ledger has all copies.
func (k keeper) barrier(upTo uint64, settled time.Duration, now time.Time) uint64 {
	if k.through < k.stored {
		return k.first
	}
	k.leave()
	for _, c := range k.controls.list {
		if c.seq >= upTo {
			break
		}
		if k.live(c) {
			upTo = c.seq
			break
		}
	}
	n := 0
	for n < len(k.copies) && now.Sub(k.copies[n].at) >= settled {
		n++
	}
	k.copies = k.copies[n:]
	for _, c := range k.copies {
		upTo = min(upTo, c.original)
	}
	return upTo
}

// knows reports whether the ledger knows all that a stream has ever had: it began with the
// partition, or with the life, or a copy of the birth goes on where the ledger began.
func (k keeper) knows(a *account, s *stream) bool {
	o := k.openings[a.session]
	return k.begunAt <= 1 || s.known || o != nil && o.whole && o.known && o.life == a.life
}

// copying is a control entry to be written again.
type copying struct {
	subject event.Subject // without the partition
	seq     uint64
	birth   *eventlog.Copy // of a birth
	// opening is set for an opening: what it says has to be asked before, unless it is known.
	opening *opening
}

// overdue returns up to n live control entries before a sequence, the oldest first.
func (k keeper) overdue(before uint64, n int) (all []copying) {
	k.leave()
	for _, c := range k.controls.list {
		if c.seq >= before || len(all) == n {
			break
		}
		if k.live(c) {
			all = append(all, k.copying(c))
		}
	}
	return all
}

func (k keeper) copying(c control) copying {
	out := copying{seq: c.seq, subject: event.Subject{Kind: c.kind}}
	if c.opening != nil {
		opening := *c.opening
		out.opening, out.subject.Session = &opening, c.opening.session
		return out
	}
	out.subject.Session, out.subject.Life = c.life.session, c.life.life
	if c.stream == nil {
		return out
	}
	out.subject.Stream = c.stream.name
	if c.kind == event.Birth {
		k.expire(c.life, c.stream)
		out.birth = &eventlog.Copy{Last: c.stream.last, Removed: c.stream.removedBelow(k.first)}
		if k.knows(c.life, c.stream) {
			out.birth.Through = k.through
		}
	}
	return out
}
