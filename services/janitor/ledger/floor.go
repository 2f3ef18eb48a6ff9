package ledger

import (
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// The floor is the first sequence of a partition. It moves up by age and by bytes, and removes
// all entries below it. The control entries of lives that are not forgotten must outlive it:
// they are written again at the end of the log long before it reaches them.

// Rules are the limits and intervals by which the floor moves.
type Rules struct {
	MaxAge       time.Duration // of an event; not positive: none
	MaxBytes     int64         // of the partition; not positive: none
	SyncInterval time.Duration // of the NATS servers
	Interval     time.Duration // between two sweeps
}

// NameKept returns how long the name of a closed session and its entries in the log are kept, given the
// retention that the session asks for.
type NameKept func(asked session.Retention) time.Duration

// Settled is how long after an entry was stored it is surely on disk: twice as long as the
// servers take to sync.
func (r Rules) Settled() time.Duration { return 2 * r.SyncInterval }

// Shares of a partition's limit of bytes: from full on the floor moves, until goal is left;
// from early on the oldest copyShare of all entries is copied.
const (
	FullShare  = 7.0 / 8
	goalShare  = 3.0 / 4
	earlyShare = 5.0 / 8
	copyShare  = 1.0 / 4
)

// Used returns how full a partition is, where 1 is its limit.
func (r Rules) Used(bytes uint64) float64 {
	if r.MaxBytes <= 0 {
		return 0
	}
	return float64(bytes) / float64(r.MaxBytes)
}

// Why the floor moves.
const (
	ByAge    = "age"
	ByVolume = "bytes"
)

// Target returns where the floor should be, and why.
func (l *Ledger) Target(r Rules, bytes uint64, now time.Time) (before uint64, why string) {
	why = ByAge
	if r.MaxAge > 0 {
		before = l.Stretches.youngerThan(l.Clock(now).Add(-r.MaxAge), l.Through)
	}
	if used := r.Used(bytes); used > FullShare {
		if room := l.Stretches.lighter(goalShare/used, l.Through); room > before {
			before, why = room, ByVolume
		}
	}
	return before, why
}

// Lead returns the sequence before which live control entries are to be copied: early enough for
// the copies to be on disk before the floor reaches the originals, with as much time
// again to spare. Entries that were stored a moment ago are never copied.
func (l *Ledger) Lead(r Rules, bytes uint64, now time.Time) (before uint64) {
	clock := l.Clock(now)
	if r.MaxAge > 0 {
		ahead := 2*r.Settled() + 2*r.Interval
		before = l.Stretches.youngerThan(clock.Add(-max(r.MaxAge-ahead, r.MaxAge/2)), l.Through)
	}
	if r.Used(bytes) > earlyShare {
		before = max(before, l.Stretches.lighter(1-copyShare, l.Through))
	}
	return min(before, l.Stretches.youngerThan(clock.Add(-r.Settled()), l.Through))
}

// Survivors selects the control entries that must stay.
type Survivors struct {
	*Ledger
	Now      time.Time // by the ledger's clock
	TTL      NameKept
	Registry func(session string) (session.Record, bool)
	// leaving has the newest entry of each life that is announced and not deleted yet;
	// [Survivors.Barrier], [Survivors.Overdue] and [Survivors.Forgettable] set it.
	leaving map[*Account]uint64
}

// leave sets leaving from the pending trims.
func (k *Survivors) leave() {
	k.leaving = make(map[*Account]uint64, len(k.Pending))
	for _, t := range k.Pending {
		k.leaving[t.life] = max(k.leaving[t.life], t.last())
	}
}

// live reports whether an entry is the newest of its kind and still needed:
//
//   - the opening of a name whose life is open, or has ended for less than the TTL;
//   - seal and end of such a life, and as long as its opening lies after them: without them
//     the opening would open it again;
//   - of a life that has not ended, the birth of each stream that has no end;
//   - the end of each stream, as long as that of its life: a publisher that remembers the birth
//     publishes on this fence alone. The end of the life stays until the floor has passed them.
//
// Nothing is known of a life without an opening and a seal, nor of the empty one, whose ends
// the floor removes after their events.
func (k Survivors) live(c control) bool {
	switch {
	case c.opening != nil:
		o := c.opening
		return o.Seq == c.seq && (!o.Known || !k.forgotten(k.Accounts[event.LifeKey(o.Session, o.Life)]))
	case c.life == nil || c.life.Life == "":
		return false
	}
	a := c.life
	switch c.kind {
	case event.Birth:
		_, ended := c.stream.markers.endAfter(c.stream.newest)
		return c.stream.birth == c.seq && !ended && k.lasts(a)
	case event.End:
		if s := c.stream; s != nil {
			end, ended := s.markers.endAfter(s.newest)
			return ended && end.seq == c.seq && (k.lasts(a) || a.markers.ended() && !k.forgotten(a))
		}
		return a.markers.end.seq == c.seq && (!k.forgotten(a) || k.openedAfter(a, c.seq) || a.endedAfter(c.seq))
	case event.Seal:
		return a.markers.seal.seq == c.seq && (!k.forgotten(a) || k.openedAfter(a, c.seq))
	default:
		return false
	}
}

// lasts reports whether a life has an opening or a seal, and no end. If its opening is lost, the
// state in the registry decides.
func (k Survivors) lasts(a *Account) bool {
	if a.markers.ended() || a.markers.sealed() || k.openings[a.Session] != nil {
		return !a.markers.ended()
	}
	rec, ok := k.Registry(a.Session)
	return ok && rec.Life == a.Life && rec.State == session.Open
}

// openedAfter reports whether the opening of a life lies after a sequence, or may: one that is
// announced stays until it is deleted.
func (k Survivors) openedAfter(a *Account, seq uint64) bool {
	o := k.openings[a.Session]
	return o != nil && (!o.Known || o.Life == a.Life) && o.Seq > seq || k.leaving[a] > seq
}

// forgotten reports whether it is known that a life has ended for as long as its name is kept,
// and is not open in the registry: an end that only the registry has cannot be proved.
func (k Survivors) forgotten(a *Account) bool {
	if a == nil || !a.markers.ended() {
		return false
	}
	since, ttl := a.markers.end.at, k.TTL(session.Retention{})
	// The registry has the time of the end, also when the log has copies of the end alone.
	if rec, ok := k.Registry(a.Session); ok && rec.Life == a.Life {
		if rec.State == session.Open {
			return false
		}
		ttl = k.TTL(rec.Retention)
		if !rec.Ended.IsZero() && rec.Ended.Before(since) {
			since = rec.Ended
		}
	}
	return k.Now.Sub(since) >= ttl
}

// DropSettled forgets the copies that are surely on disk: the floor does not wait for them any more.
func (l *Ledger) DropSettled(settled time.Duration, now time.Time) {
	n := 0
	for n < len(l.copies) && now.Sub(l.copies[n].at) >= settled {
		n++
	}
	l.copies = l.copies[n:]
}

// Barrier returns how far the floor may move, up to a sequence: not past a live control
// entry, nor past one whose copy was not dropped; and not before the ledger has all copies.
func (k Survivors) Barrier(upTo uint64) uint64 {
	if k.Through < k.Required {
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
	for _, c := range k.copies {
		upTo = min(upTo, c.original)
	}
	return upTo
}

// knows reports whether the ledger knows all events that a stream ever had: it began with the
// partition, or with the life, or a copy of the birth reaches up to where the ledger began.
func (k Survivors) knows(a *Account, s *stream) bool {
	o := k.openings[a.Session]
	return s.known || !s.copied && (k.begunAt <= 1 || o != nil && o.Whole && o.Known && o.Life == a.Life)
}

// Copying is a control entry to be written again.
type Copying struct {
	Subject event.Subject // without the partition
	Seq     uint64
	Birth   *eventlog.BirthCopy // of a birth
	// Opening is set for an opening: its content has to be read before, unless it is known.
	Opening *Opening
}

// Overdue returns up to n live control entries before a sequence, the oldest first.
func (k Survivors) Overdue(before uint64, n int) (all []Copying) {
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

func (k Survivors) copying(c control) Copying {
	out := Copying{Seq: c.seq, Subject: event.Subject{Kind: c.kind}}
	if c.opening != nil {
		out.Opening, out.Subject.Session = new(*c.opening), c.opening.Session
		return out
	}
	out.Subject.Session, out.Subject.Life = c.life.Session, c.life.Life
	if c.stream == nil {
		return out
	}
	out.Subject.Stream = c.stream.name
	if c.kind == event.Birth {
		k.expire(c.life, c.stream)
		out.Birth = &eventlog.BirthCopy{Newest: c.stream.newest, NewestRemoved: c.stream.removedBelow(k.first), Generation: k.Generation()}
		if k.knows(c.life, c.stream) {
			out.Birth.Through = k.Through
		}
	}
	return out
}
