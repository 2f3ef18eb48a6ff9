package cursor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"rejoin/services/sse-edge/window"
)

// ErrTooManySessions is returned when more open sessions match the patterns of a group than it may
// follow.
var ErrTooManySessions = errors.New("more sessions match than a connection may follow")

// Group reads several places as one: the events of each partition in the order of the log. So one
// position for each partition is the client's cursor for all places.
//
//	member: Reader ─┐
//	member: Reader ─┼─▶ lane: the position all members have reached ─┬─▶ Step
//	member: Reader ─┘                                                │
//	member: Reader ───▶ lane ────────────────────────────────────────┘
//
// A member whose session ends stays: when the name is used again, its next life is followed, if
// the client may read it. A Group is used by one goroutine at a time, except for Follows.
type Group struct {
	// Hold is called before a step keeps an event of the window that is larger than the limit of a step, which
	// counts already, like that of a [Reader]. When it returns false, Await is called: it counts so many bytes as
	// soon as there is memory for them. Its errors are temporary.
	Hold    func(bytes int) bool
	Await   func(ctx context.Context, bytes int) error
	cfg     GroupConfig
	key     *window.Chain // of no window
	members []*Member
	lanes   []*lane // by ascending partition

	patterns []*pattern
	mu       sync.Mutex // guards members against Follows

	began   string        // the ID before the first event; empty before the first step
	names   uint32        // checksum of the members
	lives   uint32        // checksum of the lives that the positions have reached
	sent    []window.Item // finished frames of a step that a client did not take
	gaps    []Gap         // not reported yet
	changes []Change      // likewise

	counting sync.Mutex // guards the fields below, and the Hold of cfg, among members that read at the same time
	counted  int        // bytes of the log that count for members
	short    shortage   // the last one
}

// shortage is a number of bytes without memory, and the member of their page: nil for the block of an event.
type shortage struct {
	of    *Member
	bytes int
}

// GroupConfig configures a [Group].
type GroupConfig struct {
	// Limit bounds a step.
	Limit window.Limits
	// Authorize reports whether the client may read a life of a session, or, with an empty one, the
	// newest life, which it returns. Errors are temporary. Nil: every session may be read.
	Authorize func(ctx context.Context, session, life string) (_ string, ok bool, _ error)
	// StillAuthorized reports, without a wait, whether the client may still read a life that it was
	// authorized for. It is set with Authorize, as is Uses, which reports that for a session with such an owner
	// and members.
	StillAuthorized func(session, life string) bool
	Uses            func(owner string, members []string) bool
	// Others reports, without a wait, whether a session is known to be none that the client may read; see
	// registryWithin. Nil: none is.
	Others func(session string) bool
	// Open returns the sessions that match, are open and may be read by the client, as far as that is
	// known without a wait; see registryWithin. It may stop at MaxMembers+1. Errors are temporary. MaxMembers bounds
	// the members that have not ended. Both are for patterns.
	Open       func(match func(session string) bool) ([]string, error)
	MaxMembers int
	// Show says which events are shown. Nil: all.
	Show func(*window.Item) bool
	// Frame returns the block of an event; id is the group's ID after it.
	Frame func(id string, of *Member, it *window.Item) []byte
	// Hold counts so many bytes of the log, which members have read and no step has taken, instead of the number
	// before. If it returns false, the number before counts. Await counts so many as soon as there is memory for
	// them; none count until then. Its errors are temporary. Nil: none count.
	Hold  func(bytes int) bool
	Await func(ctx context.Context, bytes int) error
	// MaxHold is the most bytes that a page of the log or an event counts: a client may always hold so many
	// besides the group, else a large event would never be sent. 0: no limit.
	MaxHold int
	// Closed is called when the group is closed. Nil: no call.
	Closed func()
}

// Follow is a place of a group that is to be opened.
type Follow struct {
	// Session and Stream are the place; an empty Stream stands for all of the session. With Pattern,
	// Session is the beginning of names, and an asterisk.
	Session, Stream string
	Pattern         bool
	// Added says that the place is new to the client: unless its ID covers all places, this one
	// begins as [Start] says.
	Added bool
}

// limits returns the limits of a member's reads.
func (g *Group) limits() window.Limits {
	n := max(len(g.members), 2) // a page of one of them and its last event are within the limit
	return window.Limits{Events: max(g.cfg.Limit.Events/n, 8), Bytes: max(g.cfg.Limit.Bytes/n, 1)}
}

// authorize asks whether the client may read a session's life, or its newest one.
func (g *Group) authorize(ctx context.Context, session, life string) (string, bool, error) {
	if g.cfg.Authorize == nil {
		return life, true, nil
	}
	return g.cfg.Authorize(ctx, session, life)
}

// Next returns the events, gaps and changes after the positions; an empty step when there are none now.
// Errors are those of the log, of Authorize and of Await.
func (g *Group) Next(ctx context.Context) (Step, error) {
	for {
		s, err := g.next(ctx)
		if !errors.Is(err, ErrNoMemory) {
			return s, err
		}
		if err := g.awaitMemory(ctx); err != nil {
			return Step{}, err
		}
	}
}

func (g *Group) next(ctx context.Context) (Step, error) {
	if len(g.sent) > 0 {
		s := Step{Items: g.sent, More: true}
		g.sent = nil
		return s, nil
	}
	var failed error
	var lanes []*lane // with entries to read, perhaps; the others had none left
	for _, l := range g.lanes {
		if !l.dirty.Swap(false) {
			continue
		}
		if err := l.read(ctx, g); err != nil {
			l.dirty.Store(true)
			failed = cmp.Or(failed, err)
		}
		l.turning = l.turning[:0]
		for _, m := range l.members {
			g.note(m)
		}
		lanes = append(lanes, l)
	}
	// Without memory the group moves on all the same, or no memory would become free.
	if failed != nil && (g.untold() || g.fresh() && !errors.Is(failed, ErrNoMemory)) {
		for _, l := range lanes {
			l.dirty.Store(true)
		}
		return Step{}, failed
	}
	s := Step{Gaps: g.gaps, Changes: g.changes}
	g.gaps, g.changes = nil, nil
	failed = cmp.Or(failed, g.take(&s, lanes))
	g.leave(lanes)
	switch {
	case !s.Empty() || failed == nil:
	case errors.Is(failed, ErrTooManySessions): // the client receives the error as the answer to its next request
		for _, p := range g.patterns {
			s.Changes = append(s.Changes, Change{window.Place{Session: p.text}, MemberFull})
		}
		s.Ended = true
		return s, nil
	default:
		return Step{}, failed
	}
	s.More = s.More || failed != nil || !g.clean()
	return s, nil //nolint:nilerr // it fails again
}

// take moves the positions over the events that the members have read, as many as a step may carry. The error is
// [ErrNoMemory] if a lack of memory makes them fewer: then the members read their events of the log again, so
// that these leave room for the event of the window.
func (g *Group) take(s *Step, lanes []*lane) (err error) {
	for _, l := range lanes { // before any event, whose ID has the positions of all lanes
		l.toFirst()
	}
	if g.began == "" {
		g.began = g.ID()
	}
	bytes := 0
	for _, l := range lanes {
		full := false
		for _, it := range l.ready() {
			if full = len(s.Items) >= g.cfg.Limit.Events || len(s.Items) > 0 && bytes+len(it.Frame) > g.cfg.Limit.Bytes; full {
				break
			}
			shown := g.cfg.Show == nil || g.cfg.Show(&it.Item)
			large := shown && g.Hold != nil && len(it.Frame) > g.cfg.Limit.Bytes
			if full = large && !it.FromLog && !g.Hold(len(it.Frame)); full {
				err, g.short = ErrNoMemory, shortage{bytes: len(it.Frame)}
				break
			}
			m := it.of
			m.items[0] = window.Item{} // or its frame is kept with those that follow
			m.items = m.items[1:]
			l.moveTo(it.Sequence)
			if !shown {
				continue
			}
			if large && it.FromLog { // the block takes over the memory of the item
				m.count()
				g.Hold(len(it.Frame))
			}
			it.Frame = g.cfg.Frame(g.ID(), m, &it.Item)
			it.Segment = window.OfLog
			bytes += len(it.Frame)
			s.Items = append(s.Items, it.Item)
		}
		if !full {
			l.passOver()
		}
		if full || l.behind() {
			l.dirty.Store(true)
			s.More = true
		}
		for _, m := range l.members {
			g.note(m) // its last event may have been taken
			m.count()
		}
	}
	if err != nil {
		g.unreadLog()
	}
	return err
}

// unreadLog has the members read their events of the log again.
func (g *Group) unreadLog() {
	for _, m := range g.members {
		if m.holdsLog() {
			m.unread()
		}
	}
}

// awaitMemory waits for the memory that the last step lacked. Meanwhile the group holds no events.
func (g *Group) awaitMemory(ctx context.Context) error {
	g.unreadLog()
	short := g.short
	switch {
	case short.of == nil && g.Await != nil:
		return g.Await(ctx, short.bytes)
	case short.of == nil || g.cfg.Await == nil:
		return ErrNoMemory
	}
	if g.Hold != nil {
		g.Hold(0) // the bytes of an earlier wait
	}
	for _, m := range g.members {
		m.counted = 0
	}
	g.counted = 0
	if err := g.cfg.Await(ctx, short.bytes); err != nil {
		return err
	}
	short.of.counted, g.counted = short.bytes, short.bytes
	return nil
}

// hold counts so many bytes of the log for a member instead of those before, and reports whether there is memory
// for them. A step's events, as read and as frames, count with the group: so it moves on without memory.
func (g *Group) hold(m *Member, bytes int) bool {
	bytes = min(bytes, cmp.Or(g.cfg.MaxHold, bytes))
	if g.cfg.Hold == nil || bytes == m.counted {
		return true
	}
	g.counting.Lock()
	defer g.counting.Unlock()
	all := g.counted - m.counted + bytes
	ok := g.cfg.Hold(all) || all <= 2*g.cfg.Limit.Bytes
	if !ok {
		g.short = shortage{m, bytes}
		bytes, all = 0, g.counted-m.counted
		g.cfg.Hold(all)
	}
	m.counted, g.counted = bytes, all
	return ok
}

// note records a member's gaps, its new state, and its share of the checksum.
func (g *Group) note(m *Member) {
	for _, gap := range m.gaps {
		gap.Session = m.name()
		g.gaps = append(g.gaps, gap)
	}
	m.gaps = nil
	if state := m.state(); state != m.State {
		if m.of == nil || state == MemberOpen || m.State == MemberOpen { // else the client does not know the member
			g.changes = append(g.changes, Change{m.Place, state})
		}
		m.State = state
	}
	if m.endedAt = 0; m.ended {
		m.endedAt = m.reader.endAt()
	}
	if at := m.lane.positionOf(m); g.sum(m) && (m.opened > at || m.endedAt > at) {
		m.lane.turning = append(m.lane.turning, m)
	}
}

// sum updates the checksum of lives to a member's life at its position, and reports whether the member may be
// part of the checksum.
func (g *Group) sum(m *Member) bool {
	now := uint32(0)
	readable := m.State != MemberUnknown && !m.refused
	if readable && m.opened <= m.lane.positionOf(m) && !m.endedBy(m.lane.positionOf(m)) {
		now = m.lifeSum()
	}
	g.lives += now - m.summed
	m.summed = now
	return readable
}

// Quick is Next for the usual case, in which there is nothing to read; otherwise it returns false and
// changes nothing.
func (g *Group) Quick(memory []window.Item) (Step, []window.Item, bool) {
	return Step{}, memory, g.clean() && !slices.ContainsFunc(g.lanes, func(l *lane) bool { return l.dirty.Load() })
}

// clean reports whether no frame, gap or change of a read is pending.
func (g *Group) clean() bool { return len(g.sent) == 0 && len(g.gaps) == 0 && len(g.changes) == 0 }

// untold reports whether a reader has gaps, which it reports with the next read, and which an ID would hide.
func (g *Group) untold() bool {
	return slices.ContainsFunc(g.members, func(m *Member) bool { return len(m.reader.Pending) > 0 })
}

// fresh reports whether some members of a client without an ID were not read yet: a resume from their position
// would report events that were removed before the client came.
func (g *Group) fresh() bool {
	return slices.ContainsFunc(g.members, func(m *Member) bool { return m.reader.Fresh && !m.refused })
}

// GoBack keeps the unsent items of a step; see cut of delivery's outbox. The client may take its time: items
// that members have read of the window would keep whole segments of it, and are read again.
func (g *Group) GoBack(s Step, told int) {
	if told < len(s.Items) {
		g.sent = slices.Clone(s.Items[told:])
	}
	for _, m := range g.members {
		if !m.holdsLog() {
			m.unread()
		}
	}
}

// Kept is how many bytes the group keeps of a step's unsent items; those of a step within the limit count
// already.
func (g *Group) Kept() (n int) {
	for i := range g.sent {
		n += len(g.sent[i].Frame)
	}
	if n <= g.cfg.Limit.Bytes {
		return 0
	}
	return n
}

// MaxHold is [GroupConfig.MaxHold].
func (g *Group) MaxHold() int { return g.cfg.MaxHold }

// ID returns the positions as an event ID.
func (g *Group) ID() string {
	b := appendGroupSums(make([]byte, 0, 512), g.names, g.lives)
	for _, l := range g.lanes {
		at := GroupPosition{Tag: l.tag, Sequence: l.position, Added: l.position}
		if l.catchingUp {
			at.Added = l.added
		}
		b = appendGroupPosition(b, l.part.number, at)
	}
	return string(b)
}

// CursorID returns the positions as an event ID, moved to the end of the windows where there is nothing
// in between; empty while a frame, gap or change is pending, or fresh members have yet to be read.
func (g *Group) CursorID() string {
	if !g.clean() || g.untold() || g.fresh() {
		return ""
	}
	for _, l := range g.lanes {
		l.touch(g)
	}
	return g.ID()
}

// Began returns the ID before the first event, or before the first read; empty while fresh members have yet to
// be read.
func (g *Group) Began() string {
	switch {
	case g.fresh():
		return ""
	case g.began == "":
		return g.ID()
	default:
		return g.began
	}
}

// Members returns the places, those that were named first and in that order.
func (g *Group) Members() []*Member {
	return slices.DeleteFunc(slices.Clone(g.members), func(m *Member) bool { return m.place != nil })
}

// Follows reports whether a session is one of the group's.
func (g *Group) Follows(session string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.members, func(m *Member) bool { return m.Place.Session == session })
}

// At returns the position of a session's partition.
func (g *Group) At(session string) uint64 {
	for _, m := range g.members {
		if m.Place.Session == session {
			return m.lane.position
		}
	}
	return 0
}

// Key returns a key of this group alone.
func (g *Group) Key() *window.Chain { return g.key }

// Listen has changes wake a listener, until Close.
func (g *Group) Listen(l window.Listener) {
	for _, lane := range g.lanes {
		lane.listener.Store(&l)
	}
}

// Unlisten does nothing: a read may be under way.
func (g *Group) Unlisten(window.Listener) {}

// Release does nothing: a group keeps no memory of a step.
func (g *Group) Release() {}

// Close releases the windows.
func (g *Group) Close() {
	for _, m := range g.members {
		m.release()
	}
	for _, l := range g.lanes {
		l.part.window.Unwatch(l)
		l.part.release()
	}
	if g.cfg.Closed != nil {
		g.cfg.Closed()
	}
}
