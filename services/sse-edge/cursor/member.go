package cursor

import (
	"context"

	"rejoin/services/sse-edge/window"
)

// Member is one place of a [Group].
type Member struct {
	// Place is the session and the stream; an empty stream stands for all.
	Place window.Place
	// State is the state that was reported to the client.
	State MemberState

	// of is the pattern that found the member, nil for one that the client named. place is set in the
	// member that stands for a pattern's position in a partition, and nil in those of sessions.
	of, place *pattern
	isNew     bool // it is named as one that is new to the client
	over      bool // removed from the group

	lane   *lane
	reader *Reader
	life   string // that was authorized, or refused
	opened uint64 // the sequence of its opening; 0 when that certainly lies before the position
	summed uint32 // its share of the group's checksum of lives
	// refused says that the session has no life yet, or one that the client may not read: the reader
	// is there to listen.
	refused bool
	ended   bool   // the life has ended, after items
	endedAt uint64 // the sequence of its end; 0 while none is known
	// added says that the member was added to a group, and is behind it.
	added   bool
	items   []window.Item // read, and not part of a step yet
	through uint64        // up to here the place has no new events but items
	// putOff says that the events after through were read, and are too many to hold: they are read again when
	// no others come before them.
	putOff  bool
	gaps    []Gap // that were found
	counted int   // bytes of the log that count for it; see hold
}

// Tags make the event IDs of the place, in the generation of the last read.
func (m *Member) Tags() Tagger { return m.reader.Tags }

// name returns the client's name of the member.
func (m *Member) name() string {
	if m.place != nil {
		return m.place.text
	}
	return m.Place.Session
}

// state returns the member's state as of now.
func (m *Member) state() MemberState {
	switch {
	case m.refused || m.life == "" && !m.began():
		return MemberUnknown
	case m.ended && len(m.items) == 0:
		return MemberClosed
	default:
		return MemberOpen
	}
}

// began reports whether a session without an opening has events.
func (m *Member) began() bool {
	_, known := m.lane.part.Life(m.Place.Session)
	return known || len(m.items) > 0
}

// endedBy reports whether the life has ended up to a position.
func (m *Member) endedBy(position uint64) bool { return m.endedAt != 0 && m.endedAt <= position }

// lifeSum is the member's share of the checksum of lives; a session without an opening has none.
func (m *Member) lifeSum() uint32 {
	if m.life == "" {
		return 0
	}
	return checksum("life", m.Place.Session, m.Place.Stream, m.life)
}

// follow reads a life from now on. It watches a life that is refused, or that has yet to begin.
func (m *Member) follow(ctx context.Context, life string, authorized bool, from Start, limit window.Limits) error {
	at := m.Place
	at.Life, from.seeksEnd = life, authorized // the client may know an end that the window does not
	r, err := m.lane.part.open(ctx, at, from, limit)
	if err != nil {
		return err
	}
	opened := r.life.began
	if m.place == nil && r.Place.Life != "" && !r.life.found {
		if opened, err = m.lane.part.openedAt(ctx, m.Place.Session, r.Place.Life, r.Cursor); err != nil {
			r.Close()
			return err
		}
	}
	switch {
	case m.reader == nil && authorized && r.skipsLifeSinceID():
		m.gaps = append(m.gaps, r.missed(m.Place.Stream))
	case m.reader != nil: // its pending gaps are reported now
		if m.skipsLifeBefore(r.Place.Life, authorized) {
			m.reader.Pending = append(m.reader.Pending, m.reader.gap(ReasonUnknown, false, m.Place.Stream))
		}
		for _, gap := range m.reader.Pending {
			gap.ResumesAt = r.ID(r.Cursor)
			m.gaps = append(m.gaps, gap)
		}
	}
	m.release()
	r.Hold = func(bytes int) bool { return m.lane.group.hold(m, 2*bytes) } // as read, and as frames
	m.reader, m.life, m.refused, m.ended, m.through, m.opened = r, r.Place.Life, !authorized, r.Finished(), r.Cursor, opened
	r.Listen(m.lane)
	m.lane.dirty.Store(true) // it may have changed before
	return nil
}

// release closes the reader.
func (m *Member) release() {
	if m.reader != nil {
		m.reader.Unlisten(m.lane)
		m.reader.Close()
		m.reader = nil
	}
}

// newLife returns the newest life of the session's name, if it is not the member's.
func (m *Member) newLife() (life string, there bool) {
	life, known := m.lane.part.Life(m.Place.Session)
	return life, known && life != m.life && (m.ended || m.refused)
}

// skipsLifeBefore reports whether the name had a life between the member's and the next one to follow. The window
// knows the owner of the newest life alone, so one in between is not followed. A client that may read neither
// the life before nor the next one does not learn that the session exists.
func (m *Member) skipsLifeBefore(next string, authorized bool) bool {
	if m.refused && !authorized || next == m.life {
		return false
	}
	newest, _ := m.lane.part.window.Session(m.Place.Session)
	return newest.Life == next && newest.Before != "" && newest.Before != m.life
}

// mayRead reports whether the client may read the life. The newest opening decides, in the order of the log;
// known is false when the window does not have it.
func (m *Member) mayRead(g *Group) (may, known bool) {
	newest, seen := m.lane.part.window.Session(m.Place.Session)
	if g.cfg.Uses == nil || !seen || newest.Owner == "" || newest.Life != m.life {
		return false, false
	}
	return g.cfg.Uses(newest.Owner, newest.Members), true
}

// out reports whether the client may not read the life any more.
func (m *Member) out(g *Group) bool {
	if m.refused || g.cfg.StillAuthorized == nil {
		return false
	}
	if may, known := m.mayRead(g); known {
		return !may
	}
	return !g.cfg.StillAuthorized(m.Place.Session, m.life)
}

// letIn reports whether the client, which was refused, may read the life now.
func (m *Member) letIn(g *Group) bool {
	if !m.refused {
		return false
	}
	may, _ := m.mayRead(g)
	return may
}

// quick reads without a wait, and reports whether that was enough; end is the window's end before the read.
func (m *Member) quick(g *Group, end uint64) bool {
	if m.out(g) {
		m.refused, m.items = true, nil
	}
	if len(m.items) > 0 { // these are to be taken first
		return true
	}
	if _, there := m.newLife(); there || m.letIn(g) {
		return false
	}
	if m.refused {
		m.through = max(m.through, end)
		m.gaps, m.reader.Pending = append(m.gaps, m.reader.Pending...), nil
		return true
	}
	s, _, ok := m.reader.Quick(nil)
	if ok {
		m.found(s)
	}
	return ok
}

// next reads from the log, or begins with the newest life of the name: another one, or the one that was
// refused. Until it is known whether the client may read that life, through lies before it, and the lane
// does not move.
func (m *Member) next(ctx context.Context, g *Group, end uint64) error {
	life, there := m.newLife()
	if !there && !m.refused {
		s, err := m.reader.Next(ctx)
		if err != nil {
			return err
		}
		m.found(s)
		return nil
	}
	if m.of != nil || !there { // the client may have lost the right to read by now
		life = ""
	}
	life, ok, err := m.lane.authorize(ctx, m.Place.Session, life)
	if err != nil {
		return err
	}
	if err := m.follow(ctx, life, ok, Start{At: m.lane.positionOf(m), Continues: true}, g.limits()); err != nil {
		return err
	}
	if m.refused {
		m.through = max(m.through, end)
	}
	return nil
}

// found takes the step of a read.
func (m *Member) found(s Step) {
	r := m.reader
	m.items, m.ended, m.through = s.Items, s.Ended, r.Cursor
	r.Release() // the next read makes a slice of its own
	for _, gap := range s.Gaps {
		gap.ResumesAt = r.ID(r.ResumesAt(s))
		m.gaps = append(m.gaps, gap)
	}
	newest, known := m.lane.part.window.Session(m.Place.Session)
	if r.Place.Life != m.life { // the member had none yet
		m.life, m.opened = r.Place.Life, newest.Began
	}
	another := known && newest.Life != m.life && r.HasEnd() // which a reader below the window does not see
	_, there := m.newLife()
	switch {
	case there || another && newest.Began == 0:
		// The entries after these are the new life's; the next read is of its beginning.
		m.through = m.lane.positionOf(m)
		if n := len(m.items); n > 0 {
			m.through = m.items[n-1].Sequence
		}
		m.lane.dirty.Store(true)
	case another:
		m.through = min(m.through, newest.Began-1, r.endAt()) // there may be a life in between
	}
}

// bytes is the size of the events that are read and not part of a step yet.
func (m *Member) bytes() (n int) {
	for i := range m.items {
		n += len(m.items[i].Frame)
	}
	return n
}

// holdsLog reports whether the member holds events that are in no window.
func (m *Member) holdsLog() bool { return len(m.items) > 0 && m.items[0].FromLog }

// unread has the reader read the events again that were not part of a step.
func (m *Member) unread() {
	if len(m.items) > 0 {
		m.through = m.items[0].Sequence - 1
		m.reader.MoveTo(m.through)
		m.items, m.ended = nil, false
		m.count()
	}
}

// count counts the member's events that are in no window.
func (m *Member) count() {
	n := 0
	if m.holdsLog() {
		n = m.bytes()
	}
	m.lane.group.hold(m, n)
}

// goBack has the reader read the events again that were not part of a step: the partition was rolled back. The
// reader finds out itself how far, unless it was opened since.
func (m *Member) goBack(common uint64, forks int) {
	m.unread()
	m.putOff = false
	if m.through = min(m.through, common); m.reader.Forks == forks && m.reader.Cursor > common {
		m.reader.MoveTo(common)
	}
}
