package janitor

import (
	"slices"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
)

// ledger is the book of one partition. It is a pure data structure: no clock, no
// network, no lock; its partition guards it.
//
// It is fed in order of sequence by a tail (apply, reach) and told the partition's
// first retained sequence (advance). From these alone it knows what JetStream
// removes by itself, which nobody announces: with the event that makes one too many
// on a subject that subject's oldest goes, and everything before the first retained
// sequence went by age or by bytes. What the janitor removes is taken out (condemn)
// before it is deleted. So, while nothing is missed, the ledger at sequence T is
// the log at sequence T. What was missed is the business of [doubts].
//
// A ledger lives under one limit per subject. When that changes it is dropped
// before, and begun anew after: the log says what is left.
type ledger struct {
	limit   int64 // events of one subject that JetStream keeps; not positive: no limit
	earlier []eventlog.Earlier
	maxAge  time.Duration // not positive: no limit

	created     time.Time
	birth       string
	generations []event.Generation
	epoch       int // how often the ledger was begun anew
	// foreign is the last sequence when somebody was found to have changed the limit
	// who does not write down what it was before. It outlives the ledger.
	foreign uint64

	first    uint64 // everything before it is gone
	through  uint64 // the sequence up to which the log was followed
	complete bool   // the tail has caught up once
	newest   stamp  // of the newest entry that came
	// since is when the ledger was complete at first, or the last event of a session that
	// it does not know any more, if that is later: of what was published before it may
	// know nothing.
	since time.Time

	accounts map[string]*account
	order    *names   // of the sessions
	strays   []uint64 // entries that belong nowhere, in order of sequence
	doomed   []doom
	tally    map[Reason]int // how many are doomed
	alarm    alarm          // the sweeper sets it
	over     []string       // the sessions that it rang for
	doubts   doubts
	missed   uint64 // how many sequences were ever missing, those of earlier epochs too
	totals   totals
	// expired and pressed are how many events JetStream was ever seen to remove by itself,
	// for their age and by its other limits.
	expired, pressed uint64

	pruned   uint64    // first, when all streams were last looked at
	prunedAt time.Time // when that was
}

// stamp says which entry it is that has a sequence in some life of the partition.
type stamp struct {
	sequence uint64
	at       time.Time // when it was stored
}

// totals are sums over what is retained.
type totals struct {
	sessions, streams, events int
	bytes                     int64
}

func newLedger() *ledger {
	return &ledger{accounts: map[string]*account{}, first: 1}
}

// drop forgets everything: the ledger is not complete, and follows no partition,
// until it begins.
func (l *ledger) drop() {
	before := *l
	*l = *newLedger()
	l.epoch, l.foreign, l.alarm, l.missed = before.epoch+1, before.foreign, before.alarm, before.missed
	l.expired, l.pressed = before.expired, before.pressed
}

// notice notes whether a state is one under a limit that is not the one in the book.
func (l *ledger) notice(s eventlog.State) bool {
	if !l.holds(s) || l.limit == s.Limits.MaxEventsPerStream {
		return false
	}
	l.foreign = max(l.foreign, s.Last)
	return true
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
		if g.Start <= through && !slices.Contains(l.generations, g) {
			return false
		}
	}
	return true
}

// isOf reports whether a state is one of the partition in the book, under the limit
// in the book.
func (l *ledger) isOf(s eventlog.State) bool {
	return l.holds(s) && l.limit == s.Limits.MaxEventsPerStream
}

// holds reports whether a state is one of the partition in the book.
func (l *ledger) holds(s eventlog.State) bool {
	return l.created.Equal(s.Created) && l.birth == s.Birth
}

// begin prepares the ledger for a tail of a partition, and returns the sequence to
// go on after: its own when it follows the partition, else 0, and then it begins
// anew. trims are the durable trim marks of the partition's sessions.
func (l *ledger) begin(s eventlog.State, trims map[string]uint64) uint64 {
	if l.follows(s) {
		l.generations = s.Generations
		l.advance(s.First)
		return l.through
	}
	fresh := ledger{
		limit: s.Limits.MaxEventsPerStream, earlier: s.Earlier, maxAge: s.Limits.MaxAge, epoch: l.epoch + 1,
		created: s.Created, birth: s.Birth, generations: s.Generations,
		first: s.First, accounts: map[string]*account{}, missed: l.missed, alarm: l.alarm, expired: l.expired, pressed: l.pressed,
		doubts: doubts{past: map[string]uint64{}},
	}
	if l.notice(s); l.foreign > 0 {
		fresh.foreign = l.foreign
		fresh.earlier = append(slices.Clone(s.Earlier), eventlog.Earlier{UpTo: l.foreign})
	}
	for name, upTo := range trims {
		if upTo = min(upTo, s.Last); upTo > 0 {
			fresh.doubts.past[name] = upTo
		}
	}
	*l = fresh
	return 0
}

// apply enters an entry of the log. It reports whether the entry is a =clear marker.
func (l *ledger) apply(e eventlog.Entry, now time.Time) (cleared bool) {
	if e.Sequence <= l.through {
		l.late(e, now)
		return false
	}
	l.miss(e.Sequence - 1)
	l.through, l.newest = e.Sequence, stamp{e.Sequence, e.Time}
	switch {
	case !e.Valid:
		l.strays = append(l.strays, e.Sequence)
	case e.Subject.Kind == event.Message:
		l.add(e, now)
	default:
		l.mark(e, now)
		cleared = e.Subject.Kind == event.Clear
	}
	l.settle(now)
	return cleared
}

// reach notes that the partition holds nothing more up to a sequence.
func (l *ledger) reach(through uint64, now time.Time) {
	l.skip(through, now)
	if !l.complete {
		l.complete, l.since = true, now
	}
	if len(l.doubts.missing) == 0 {
		l.doubts.past = nil
	}
}

// skip notes that the partition holds nothing between the ledger's sequence and
// another one.
func (l *ledger) skip(through uint64, now time.Time) {
	if through <= l.through {
		return
	}
	l.miss(through)
	l.through = through
	l.settle(now)
}

// miss notes that the tail went past everything behind the ledger's sequence up to
// another one without an entry.
func (l *ledger) miss(through uint64) {
	l.doubts.miss(l.through+1, through)
	l.missed += through - l.through
}

// advance notes the partition's first retained sequence. Streams are brought up to
// it when they are looked at, and all of them by prune.
func (l *ledger) advance(first uint64) {
	l.first = max(l.first, first)
	l.strays = l.strays[countBefore(l.strays, l.first):]
}

func countBefore(sorted []uint64, seq uint64) int {
	n, _ := slices.BinarySearch(sorted, seq)
	return n
}

func (l *ledger) account(name string) *account {
	a, ok := l.accounts[name]
	if !ok {
		a = &account{streams: map[string]*stream{}}
		l.accounts[name] = a
		l.order.add(name)
	}
	return a
}

func (l *ledger) forgetAccount(name string) {
	l.since = l.lastEvent(name)
	delete(l.accounts, name)
	l.order = nil
}

// lastEvent returns when the last event of a session may have been stored.
func (l *ledger) lastEvent(name string) time.Time {
	if a := l.accounts[name]; a != nil {
		if last := (entry{unix: a.last}).time(); last.After(l.since) {
			return last
		}
	}
	return l.since
}

func (l *ledger) stream(a *account, name string) *stream {
	s, ok := a.streams[name]
	if !ok {
		s = &stream{maybe: a.maybe}
		a.streams[name] = s
		a.order.add(name)
	}
	return s
}

func (l *ledger) add(e eventlog.Entry, now time.Time) {
	a := l.account(e.Subject.Session)
	s := l.stream(a, e.Subject.Stream)
	l.expire(a, s, now)
	added := entry{seq: e.Sequence, size: uint32(max(e.Size, 0)), unix: uint32(e.Time.Unix())} //nolint:gosec // see entry
	l.count(a, s, added, 1)
	s.push(added)
	s.final, a.last = e.Final, max(a.last, added.unix)
	a.recount(s)
	if l.limit > 0 {
		for int64(len(s.events)) > l.limit {
			l.lose(a, s, marks.Trimmed)
		}
		if over := int64(len(s.events)) + int64(s.ghosts) - l.limit; s.ghosts > 0 && over > 0 {
			s.maybe = max(s.maybe, s.events[min(int(over), len(s.events))-1].seq)
		}
	}
	l.expire(a, s, now)
	l.watch(e.Subject.Session, a)
}

// late enters an event that was in flight when the ledger went past it, because
// the partition's first sequence had: it is gone, and now the ledger knows whose it was.
func (l *ledger) late(e eventlog.Entry, now time.Time) {
	if !e.Valid || e.Subject.Kind != event.Message || e.Sequence >= l.first {
		return
	}
	a := l.account(e.Subject.Session)
	if s := l.stream(a, e.Subject.Stream); e.Sequence > s.removed && e.Sequence <= a.closedAt(s) {
		s.removed, s.reason = e.Sequence, l.reason(e.Time, now)
	}
}

// mark enters a marker. Markers lie on subjects of their own with the same limit. A
// =clear marker counts from when the ledger has it: it is kept for a while by one clock.
func (l *ledger) mark(e eventlog.Entry, now time.Time) {
	a := l.account(e.Subject.Session)
	at := &a.markers
	if e.Subject.Stream != "" {
		s := l.stream(a, e.Subject.Stream)
		defer a.recount(s)
		at = &s.markers
	}
	if *at == nil {
		*at = &markers{}
	}
	list, since := &(*at).closes, e.Time
	if e.Subject.Kind == event.Clear {
		list, since = &(*at).clears, now
	}
	*list = append(*list, marker{e.Sequence, since})
	a.marked++
	if l.limit > 0 && int64(len(*list)) > l.limit {
		*list = (*list)[1:]
		a.marked--
	}
}

// lose takes a stream's oldest event out, which JetStream has removed by itself.
func (l *ledger) lose(a *account, s *stream, reason marks.Reason) {
	if reason == marks.Expired {
		l.expired++
	} else {
		l.pressed++
	}
	l.pop(a, s, reason)
}

// pop takes a stream's oldest event out.
func (l *ledger) pop(a *account, s *stream, reason marks.Reason) {
	e := s.events[0]
	s.popOldest()
	if len(s.events) == 0 {
		a.recount(s)
	}
	l.count(a, s, e, -1)
	if e.seq <= a.closedAt(s) && e.seq > s.removed {
		s.removed, s.reason = e.seq, reason
	}
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
