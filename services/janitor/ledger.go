package janitor

import (
	"slices"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// ledger is the book of one partition. It is a pure data structure: no clock, no
// network, no lock; its partition guards it.
//
// It is fed in order of sequence by a tail (apply, reach) and told the partition's first
// retained sequence (advance). All that it knows follows from these, since the log says
// itself what is removed from it: everything below its first sequence, and what the trims
// in it name. So the ledger at sequence T is the log at sequence T, whoever acts, and after
// a restart as before.
type ledger struct {
	created     time.Time
	birth       string
	generations []event.Generation
	epoch       int // how often the ledger was begun anew

	begunAt  uint64 // first when the ledger began anew: what lay below it never saw
	first    uint64 // everything before it is gone
	through  uint64 // the sequence up to which the log was followed
	complete bool   // the tail has caught up once
	newest   stamp  // of the newest entry that came
	reading  reading
	// since is when the ledger was complete at first, or the last event of a life that
	// it does not know any more, if that is later: of what was published before it may
	// know nothing.
	since time.Time

	accounts map[string]*account // by life, as event.LifeKey has it
	openings map[string]*opening // by session
	controls controls
	// unlisted are entries that a trim covers and does not name. They lie in the log until the
	// floor passes them: a delete would leave a hole that nothing explains.
	unlisted []uint64
	pending  []trimmed
	holes    holes
	look     *look
	// damage is what was found missing that nothing explains, until it is logged; damaged is
	// the newest sequence of all that ever was.
	damage  []damage
	damaged uint64

	stretches stretches
	copies    []copied
	stored    uint64   // the last entry that the ledger has to have before it decides anything: one that this janitor has stored, or a copy of what the floor has passed
	alarm     alarm    // the sweeper sets it
	over      []string // the lives that it rang for
	totals    totals
	missed    uint64 // how many sequences were ever missing, those of earlier epochs too
	passed    uint64 // how many events ever went with the head, likewise

	pruned   uint64    // first, when all streams were last looked at
	prunedAt time.Time // when that was
}

// stamp says which entry it is that has a sequence in some life of the partition.
type stamp struct {
	sequence uint64
	at       time.Time // when it was stored, by the server's clock
}

// reading is what the clock of the partition's server showed at a time of the ledger's own.
type reading struct {
	at, got time.Time
}

// totals are sums over what is retained: what is neither below the floor nor trimmed.
type totals struct {
	sessions, streams, events int
	bytes                     int64
}

func newLedger() *ledger {
	return &ledger{accounts: map[string]*account{}, openings: map[string]*opening{}, first: 1}
}

// drop forgets everything: the ledger is not complete, and follows no partition,
// until it begins.
func (l *ledger) drop() {
	fresh := newLedger()
	fresh.epoch, fresh.alarm, fresh.missed, fresh.passed = l.epoch+1, l.alarm, l.missed, l.passed
	fresh.stretches.step = l.stretches.step
	*l = *fresh
}

// follows reports whether a partition is still the one in the book, with all that
// is in the book: not created anew, and not rolled back, neither now nor meanwhile
// (a generation that began at or before through has given sequences away again).
func (l *ledger) follows(s eventlog.State) bool { return l.followed(s, l.through) }

// followed is follows for a state that was asked for when the ledger was at
// through: the tail may have moved on since.
func (l *ledger) followed(s eventlog.State, through uint64) bool {
	if !l.isOf(s) || s.Last < through {
		return false
	}
	for _, g := range s.Generations {
		if g.Start <= through && !l.heardOf(g.ID) { // the start of a merged one changes
			return false
		}
	}
	return true
}

// isOf reports whether a state is one of the partition in the book.
func (l *ledger) isOf(s eventlog.State) bool {
	return l.created.Equal(s.Created) && l.birth == s.Birth
}

// heardOf reports whether the ledger follows a generation of the partition.
func (l *ledger) heardOf(generation string) bool {
	return slices.ContainsFunc(l.generations, func(g event.Generation) bool { return g.ID == generation })
}

// begin prepares the ledger for a tail of a partition, and returns the sequence to
// go on after: its own when it follows the partition, else 0, and then it begins anew.
func (l *ledger) begin(s eventlog.State) uint64 {
	if !l.follows(s) {
		l.drop()
		l.created, l.birth, l.begunAt = s.Created, s.Birth, s.First
	}
	l.generations = s.Generations
	l.advance(s.First, s.Last)
	return l.through
}

// clock returns the time by the clock of the partition's server, as its newest entry and the
// looks at it tell: a janitor whose own clock is wrong removes nothing before its time.
func (l *ledger) clock(now time.Time) time.Time {
	if l.reading.at.IsZero() {
		return now
	}
	return l.reading.at.Add(max(now.Sub(l.reading.got), 0))
}

// hear enters the server's clock when it is ahead of what the newest entry tells: nothing may
// have been stored for long. A look that is older than the newest entry says nothing.
func (l *ledger) hear(s eventlog.State, now time.Time) {
	if l.newest.sequence > 0 && l.through >= s.Last && !now.Before(l.reading.got) && s.Time.After(l.clock(now)) {
		l.reading = reading{s.Time, now}
	}
}

// apply enters an entry of the log. It reports whether the entry is a =clear marker.
func (l *ledger) apply(e eventlog.Entry, now time.Time) (cleared bool) {
	if e.Sequence <= l.through {
		return false // it was in flight when the ledger went past it, since it is gone
	}
	l.miss(e.Sequence - 1)
	l.through, l.newest, l.reading = e.Sequence, stamp{e.Sequence, e.Time}, reading{e.Time, now}
	if e.Sequence < l.first {
		l.late(e)
		return false
	}
	l.stretches.add(e)
	switch {
	case !e.Valid:
		l.controls.push(control{seq: e.Sequence, size: sizeOf(e)})
	case e.Subject.Kind == event.Open:
		l.open(e, now)
	default:
		a := l.account(e.Subject.Session, e.Subject.Life)
		if a.first == 0 {
			a.first = e.Sequence
		}
		if e.Subject.Kind == event.Message {
			l.add(a, e)
		} else {
			l.mark(a, e, now)
		}
		cleared = e.Subject.Kind == event.Clear
	}
	l.settle()
	return cleared
}

// late enters an entry that the floor has passed while it was on its way.
func (l *ledger) late(e eventlog.Entry) {
	if a := l.accounts[event.LifeKey(e.Subject.Session, e.Subject.Life)]; e.Valid && a != nil && e.Subject.Kind == event.Message {
		if s := a.streams[e.Subject.Stream]; s != nil {
			s.noteRemoved(e.Sequence)
		}
	}
	l.settle()
}

// reach notes that the partition holds nothing more up to a sequence.
func (l *ledger) reach(through uint64, now time.Time) {
	l.skip(through)
	if !l.complete {
		l.complete, l.since = true, now
	}
	l.settle()
}

// skip notes that the partition holds nothing between the ledger's sequence and
// another one.
func (l *ledger) skip(through uint64) {
	if through <= l.through {
		return
	}
	l.miss(through)
	l.through = through
	l.settle()
}

// advance notes the partition's first retained sequence, and the last one at that time.
// Streams are brought up to it when they are looked at, and all of them by prune. The copies
// of what the floor has passed lie at or before last: until the ledger has received them it
// does not know what they keep alive.
func (l *ledger) advance(first, last uint64) {
	if first <= l.first {
		return
	}
	l.first, l.stored = first, max(l.stored, last)
	for c, ok := l.controls.popBefore(first); ok; c, ok = l.controls.popBefore(first) {
		l.gone(c)
	}
	l.holes.dropBefore(first)
	l.stretches.dropBefore(first)
	for len(l.pending) > 0 && l.pending[0].last() < first {
		l.pending = l.pending[1:]
	}
}

// pruneEvery is how often prune looks at all streams at most.
const pruneEvery = time.Second

// prune brings all streams up to first, so that the totals are right, and forgets those of
// which nothing is in the log.
func (l *ledger) prune(now time.Time) {
	if l.pruned != l.first && now.Sub(l.prunedAt) >= pruneEvery {
		l.prunedAt = now
		l.expireAll()
	}
}

func (l *ledger) expireAll() {
	if l.pruned == l.first {
		return
	}
	l.pruned = l.first
	for _, a := range l.accounts {
		for _, s := range a.streams {
			l.expire(a, s)
			l.tidy(a, s)
		}
		l.tidy(a, nil)
	}
	l.copies = slices.DeleteFunc(l.copies, func(c copied) bool { return c.original < l.first })
	l.unlisted = slices.DeleteFunc(l.unlisted, func(seq uint64) bool { return seq < l.first })
	for i := range l.pending {
		l.pending[i].dropBefore(l.first)
	}
	l.pending = slices.DeleteFunc(l.pending, func(t trimmed) bool { return len(t.entries) == 0 })
}

// expire brings a stream up to first.
func (l *ledger) expire(a *account, s *stream) {
	for len(s.events) > 0 && s.events[0].seq < l.first {
		l.passed++
		l.pop(a, s)
	}
}

// tidy forgets a stream, or a life when there is none, if nothing of it is in the log.
func (l *ledger) tidy(a *account, s *stream) {
	switch {
	case s != nil && s.idle():
		delete(a.streams, s.name)
	case s == nil && a.empty():
		l.since = l.lastEvent(a.key())
		if o := l.openings[a.session]; o != nil {
			o.used = true
		}
		delete(l.accounts, a.key())
	}
}

// lastEvent returns when the last event of a life may have been stored.
func (l *ledger) lastEvent(key string) time.Time {
	if a := l.accounts[key]; a != nil {
		if last := (entry{unix: a.last}).time(); last.After(l.since) {
			return last
		}
	}
	return l.since
}

// account returns the account of a life.
func (l *ledger) account(session, life string) *account {
	key := event.LifeKey(session, life)
	a, ok := l.accounts[key]
	if !ok {
		a = &account{session: session, life: life, streams: map[string]*stream{}}
		l.accounts[key] = a
	}
	return a
}

func (a *account) stream(name string) *stream {
	s, ok := a.streams[name]
	if !ok {
		s = &stream{name: name}
		a.streams[name] = s
	}
	return s
}

func (l *ledger) add(a *account, e eventlog.Entry) {
	s := a.stream(e.Subject.Stream)
	added := entry{seq: e.Sequence, size: sizeOf(e), unix: uint32(e.Time.Unix())} //nolint:gosec // see entry
	l.count(a, s, added, 1)
	s.push(added)
	s.final, a.last = e.Final, max(a.last, added.unix)
	a.recount(s)
	l.watch(a, s)
}

// pop takes a stream's oldest event out.
func (l *ledger) pop(a *account, s *stream) entry {
	e := s.events[0]
	s.popOldest()
	if len(s.events) == 0 {
		a.recount(s)
	}
	l.count(a, s, e, -1)
	return e
}

// count adds an event to the sums, or takes it off. It expects the stream's list
// as it is without the event.
func (l *ledger) count(a *account, s *stream, e entry, sign int) {
	bytes := int64(sign) * int64(e.size)
	s.bytes += bytes
	a.bytes += bytes
	l.totals.bytes += bytes
	if len(s.events) == 0 {
		l.totals.streams += sign
	}
	before := a.events
	a.events += sign
	l.totals.events += sign
	if before == 0 || a.events == 0 {
		l.totals.sessions += sign
	}
}

// entries returns how many entries lie in the log up to the ledger's sequence, those that are
// trimmed and not deleted yet among them.
func (l *ledger) entries() uint64 {
	l.expireAll()
	return uint64(l.totals.events + l.controls.len() + len(l.unlisted) + l.toDelete()) //nolint:gosec // not negative
}
