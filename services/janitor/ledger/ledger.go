// Package ledger has the index that a janitor keeps of a partition, and the decisions that follow from it: which
// events the limits remove, how far the floor may move, which control entries are copied, and which
// sessions the registry is wrong about. It has no clock, no network and no lock.
package ledger

import (
	"slices"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// Ledger is the index of one partition. It is a pure data structure: no clock, no
// network, no lock; its partition guards it.
//
// A tail feeds it in order of sequence (Apply, Reach), and Advance sets the partition's first
// retained sequence. Its whole state follows from these, since the log itself names all removed
// entries: those below its first sequence, and those that its trims list.
// So the ledger at sequence T is the log at sequence T, in every janitor, and after
// a restart as before.
type Ledger struct {
	Created     time.Time
	origin      string
	Generations []event.Generation
	Restarts    int // how often the ledger was started again

	begunAt  uint64 // the ledger may have missed entries below it
	first    uint64 // all entries before it are removed
	Through  uint64 // the sequence up to which the log was followed
	Complete bool   // the tail has caught up once
	Newest   stamp  // of the newest entry received
	reading  reading
	// since is when the ledger was first complete, or last missed an entry: it may know nothing of events
	// that were published before.
	since time.Time

	Accounts map[string]*Account // by life, as event.LifeKey has it
	openings map[string]*Opening // by session
	controls controls
	// unlisted are entries that a trim covers and does not name. They lie in the log until the
	// floor passes them: a delete would leave a hole that nothing explains.
	unlisted []uint64
	Pending  []trimmed
	holes    holes
	look     *look
	// damage has the missing entries that nothing explains, until they are logged; Damaged is
	// the newest sequence of all damage ever found.
	damage  []Damage
	Damaged uint64
	lacking int // how many of the ledger's entries the leader lacked, by the newest list of these

	Stretches stretches
	copies    []copied
	Required  uint64          // the last entry that the ledger has to have before it decides anything: one that this janitor has stored, or a copy of an entry that the floor has passed
	Alarm     Alarm           // the sweeper sets it
	Over      map[string]bool // the lives that it rang for, as [event.LifeKey] has them
	Totals    Totals
	Passed    uint64 // how many events ever went below the floor, those from before its restarts too

	pruned   uint64    // first, when all streams were last looked at
	prunedAt time.Time // when that was
}

// stamp identifies the entry that has a sequence in some generation of the partition.
type stamp struct {
	Sequence uint64
	At       time.Time // when it was stored, by the server's clock
}

// reading is a time by the clock of the partition's server, and when the ledger got it, by the janitor's clock.
type reading struct {
	at, got time.Time
}

// Totals are sums over the retained events, which are neither below the floor nor trimmed. Sessions and
// streams are those with events.
type Totals struct {
	Sessions int   `json:"sessions"`
	Streams  int   `json:"streams"`
	Events   int   `json:"events"`
	Bytes    int64 `json:"bytes"`
}

// Add adds the totals of another ledger.
func (t *Totals) Add(more Totals) {
	t.Sessions += more.Sessions
	t.Streams += more.Streams
	t.Events += more.Events
	t.Bytes += more.Bytes
}

// New returns an empty ledger, for [Ledger.Begin].
func New() *Ledger {
	return &Ledger{Accounts: map[string]*Account{}, openings: map[string]*Opening{}, Over: map[string]bool{}, first: 1}
}

// Drop forgets everything: the ledger is not complete, and follows no partition,
// until it begins.
func (l *Ledger) Drop() {
	fresh := New()
	fresh.Restarts, fresh.Alarm, fresh.Passed = l.Restarts+1, l.Alarm, l.Passed
	fresh.Stretches.Step = l.Stretches.Step
	*l = *fresh
}

// Matches reports whether a partition is still the ledger's, with all entries that the
// ledger has: not created again, and not rolled back, neither now nor meanwhile
// (a generation that began at or before through has assigned its sequences again).
//
// A ledger continues with another server only when the log still has its newest entry: a
// generation that began late does not show a roll-back.
func (l *Ledger) Matches(s eventlog.State) bool { return l.MatchesAt(s, l.Through) }

// MatchesAt is [Ledger.Matches] for a state that was requested when the ledger was at
// through: the tail may have moved since.
func (l *Ledger) MatchesAt(s eventlog.State, through uint64) bool {
	if !l.IsOf(s) || s.Last < through {
		return false
	}
	for _, g := range s.Generations {
		if g.Start <= through && !l.HeardOf(g.ID) { // the start of a merged one changes
			return false
		}
	}
	return true
}

// IsOf reports whether a state is one of the ledger's partition.
func (l *Ledger) IsOf(s eventlog.State) bool {
	return l.Created.Equal(s.Created) && l.origin == s.Origin
}

// HeardOf reports whether the ledger follows a generation of the partition.
func (l *Ledger) HeardOf(generation string) bool {
	return event.HasGeneration(l.Generations, generation)
}

// Generation returns the ID of the newest generation; empty before the ledger has begun.
func (l *Ledger) Generation() string {
	return eventlog.State{Generations: l.Generations}.Generation().ID
}

// Begin prepares the ledger for a tail of a partition, and returns the sequence after which the tail
// continues: the ledger's own when it follows the partition, else 0, and then the ledger starts again.
func (l *Ledger) Begin(s eventlog.State) uint64 {
	if !l.Matches(s) {
		l.Drop()
		l.Created, l.origin, l.begunAt = s.Created, s.Origin, s.First
	}
	l.Generations = s.Generations
	l.Required = min(l.Required, s.Last) // entries beyond are lost: the tail does not bring them
	l.Advance(s.First, s.Last)
	return l.Through
}

// Clock returns the time by the clock of the partition's server, derived from its newest entry and the
// looks at it: a janitor whose own clock is wrong removes no event too early.
func (l *Ledger) Clock(now time.Time) time.Time {
	if l.reading.at.IsZero() {
		return now
	}
	return l.reading.at.Add(max(now.Sub(l.reading.got), 0))
}

// Hear sets the clock by a look at the server that is ahead of it: the newest entry may have been
// stored long ago. A look that is older than the newest entry is ignored.
func (l *Ledger) Hear(s eventlog.State, now time.Time) {
	if l.Newest.Sequence > 0 && l.Through >= s.Last && !now.Before(l.reading.got) && s.Time.After(l.Clock(now)) {
		l.reading = reading{s.Time, now}
	}
}

// Apply enters an entry of the log. It reports whether the entry is a =clear marker.
func (l *Ledger) Apply(e eventlog.Entry, now time.Time) (cleared bool) {
	if e.Sequence <= l.Through {
		return false // it is removed: it was in flight when the ledger passed its sequence
	}
	l.miss(e.Sequence-1, now)
	l.Through, l.Newest, l.reading = e.Sequence, stamp{e.Sequence, e.Time}, reading{e.Time, now}
	if e.Sequence < l.first {
		l.late(e)
		return false
	}
	l.Stretches.add(e)
	switch {
	case !e.Valid:
		l.controls.push(control{seq: e.Sequence, size: sizeOf(e)})
		l.explain(e.PurgedTo)
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
	l.judgeHoles()
	return cleared
}

// late enters an entry that the floor has passed while it was on its way.
func (l *Ledger) late(e eventlog.Entry) {
	if a := l.Accounts[event.LifeKey(e.Subject.Session, e.Subject.Life)]; e.Valid && a != nil && e.Subject.Kind == event.Message {
		if s := a.Streams[e.Subject.Stream]; s != nil {
			s.noteRemoved(e.Sequence)
		}
	}
	l.judgeHoles()
}

// Reach notes that the partition has no more entries up to a sequence.
func (l *Ledger) Reach(through uint64, now time.Time) {
	l.miss(through, now)
	l.Through = max(l.Through, through)
	if !l.Complete {
		l.Complete, l.since = true, now
	}
	l.judgeHoles()
}

// Advance notes the partition's first retained sequence, and the last one at that time.
// Streams are brought up to it when they are looked at, and all of them by prune. The copies
// of entries that the floor has passed lie at or before last: until the ledger has received them
// it does not know which sessions and streams they keep alive.
func (l *Ledger) Advance(first, last uint64) {
	if first <= l.first {
		return
	}
	l.first, l.Required = first, max(l.Required, last)
	for c, ok := l.controls.popBefore(first); ok; c, ok = l.controls.popBefore(first) {
		l.gone(c)
	}
	l.explain(first - 1)
	l.Stretches.dropBefore(first)
	for len(l.Pending) > 0 && l.Pending[0].last() < first {
		l.Pending = l.Pending[1:]
	}
}

// pruneEvery is how often prune looks at all streams at most.
const pruneEvery = time.Second

// Prune brings all streams up to first, so that the totals are right, and forgets those that
// have no entries in the log.
func (l *Ledger) Prune(now time.Time) {
	if l.pruned != l.first && now.Sub(l.prunedAt) >= pruneEvery {
		l.prunedAt = now
		l.expireAll()
	}
}

func (l *Ledger) expireAll() {
	if l.pruned == l.first {
		return
	}
	l.pruned = l.first
	for _, a := range l.Accounts {
		for _, s := range a.Streams {
			l.expire(a, s)
			l.tidy(a, s)
		}
		l.tidy(a, nil)
	}
	l.copies = slices.DeleteFunc(l.copies, func(c copied) bool { return c.original < l.first })
	l.unlisted = slices.DeleteFunc(l.unlisted, func(seq uint64) bool { return seq < l.first })
	for i := range l.Pending {
		l.Pending[i].dropBefore(l.first)
	}
	l.Pending = slices.DeleteFunc(l.Pending, func(t trimmed) bool { return len(t.Entries) == 0 })
}

// expire brings a stream up to first.
func (l *Ledger) expire(a *Account, s *stream) {
	for len(s.events) > 0 && s.events[0].seq < l.first {
		l.Passed++
		l.pop(a, s)
	}
}

// tidy forgets a stream, or a life when there is none, if it has no entries in the log.
func (l *Ledger) tidy(a *Account, s *stream) {
	switch {
	case s != nil && s.idle():
		delete(a.Streams, s.name)
	case s == nil && a.empty():
		if o := l.openings[a.Session]; o != nil {
			o.Used, o.newestAt = true, max(o.newestAt, a.newestAt)
		}
		delete(l.Accounts, a.key())
	}
}

// NewestEventAt returns when the newest event of a life may have been stored. When the log has no entries of the
// life any more, the opening of its name still has that time. An open session has one, unless a power cut
// has removed it.
func (l *Ledger) NewestEventAt(key string) time.Time {
	var last entry
	if a := l.Accounts[key]; a != nil {
		last.unix = a.newestAt
	}
	name, _ := event.ParseLifeKey(key)
	if o := l.openings[name]; o != nil {
		last.unix = max(last.unix, o.newestAt)
	}
	return Later(l.since, last.time())
}

// account returns the account of a life.
func (l *Ledger) account(session, life string) *Account {
	key := event.LifeKey(session, life)
	a, ok := l.Accounts[key]
	if !ok {
		a = &Account{Session: session, Life: life, Streams: map[string]*stream{}}
		l.Accounts[key] = a
	}
	return a
}

func (a *Account) stream(name string) *stream {
	s, ok := a.Streams[name]
	if !ok {
		s = &stream{name: name}
		a.Streams[name] = s
	}
	return s
}

func (l *Ledger) add(a *Account, e eventlog.Entry) {
	s := a.stream(e.Subject.Stream)
	added := entry{seq: e.Sequence, size: sizeOf(e), unix: uint32(e.Time.Unix())} //nolint:gosec // see entry
	l.count(a, s, added, 1)
	s.push(added)
	s.final, a.newestAt = e.Final, max(a.newestAt, added.unix)
	a.recount(s)
	l.watch(a, s)
}

// pop removes a stream's oldest event.
func (l *Ledger) pop(a *Account, s *stream) entry {
	e := s.events[0]
	s.popOldest()
	if len(s.events) == 0 {
		a.recount(s)
	}
	l.count(a, s, e, -1)
	return e
}

// count adds an event to the sums, or subtracts it. It expects the stream's list
// without the event.
func (l *Ledger) count(a *Account, s *stream, e entry, sign int) {
	bytes := int64(sign) * int64(e.size)
	s.bytes += bytes
	a.bytes += bytes
	l.Totals.Bytes += bytes
	if len(s.events) == 0 {
		l.Totals.Streams += sign
	}
	before := a.Events
	a.Events += sign
	l.Totals.Events += sign
	if before == 0 || a.Events == 0 {
		l.Totals.Sessions += sign
	}
}

// Entries returns how many entries lie in the log up to the ledger's sequence, those that are
// trimmed and not deleted yet among them.
func (l *Ledger) Entries() uint64 {
	l.expireAll()
	return uint64(l.Totals.Events + l.controls.len() + len(l.unlisted) + l.ToDelete()) //nolint:gosec // not negative
}
