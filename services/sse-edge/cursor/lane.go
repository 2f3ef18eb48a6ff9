package cursor

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"rejoin/services/sse-edge/window"
)

// lane are the members of a group that lie in one partition. Its positions never pass an event that a
// member has not read.
type lane struct {
	group    *Group
	part     *Partition
	members  []*Member
	position uint64 // all events up to here were part of a step
	// added is the position of members that were added to a group, until it is that of all.
	added       uint64
	catchingUp  bool
	turning     []*Member // some of those whose openings or ends lie after position
	found       uint64    // see pattern
	end         uint64    // of the window, before the last read
	start       uint64    // where members begin that no ID covers
	id          position  // of the client's ID
	forks       int
	origin, gen string // the parts of tag
	tag         string // of the positions

	dirty    atomic.Bool // there may be something to read
	listener atomic.Pointer[window.Listener]
}

// Wake has the lane read again.
func (l *lane) Wake() {
	l.dirty.Store(true)
	if listener := l.listener.Load(); listener != nil {
		(*listener).Wake()
	}
}

// ready is an event that a lane may send.
type ready struct {
	window.Item
	of *Member
}

// read has the members read the next events. When the partition is rolled back meanwhile, they read again:
// a position is not named in a generation that some of them have not seen.
func (l *lane) read(ctx context.Context, g *Group) error {
	for {
		before := l.part.window.Extent()
		if before.Forks != l.forks {
			l.goBack(l.part.window.RolledBackTo(l.forks), before.Forks)
		}
		l.end = before.End
		err := errors.Join(l.find(ctx), l.readMembers(ctx, g))
		if after := l.part.window.Extent(); after.Forks == before.Forks {
			l.retag(after) // a newer generation names older positions as well, not the other way round
			return err
		}
	}
}

// readMembers has the members read that may have new events, up to the group's limit of bytes. Members beyond
// the limit, or without memory, put off the events that they have read, except the member of the next event:
// so a lane holds no more than that limit and one event, however many members it has.
func (l *lane) readMembers(ctx context.Context, g *Group) error {
	var held atomic.Int64
	for _, m := range l.members {
		held.Add(int64(m.bytes()))
	}
	next := l.through(func(*Member) bool { return true })
	var due []*Member
	for _, m := range l.members {
		if !m.putOff || m.through <= next {
			due = append(due, m)
		}
	}
	bound := func(m *Member, before int) {
		m.count()
		n := int64(m.bytes() - before)
		if n > 0 && held.Add(n) > int64(g.cfg.Limit.Bytes) && len(due) > 1 {
			held.Add(-n)
			m.unread()
			m.putOff = true
		}
	}
	var slow []*Member
	for _, m := range due {
		m.putOff = false
		before := m.bytes()
		if m.quick(g, l.end) {
			bound(m, before)
		} else {
			slow = append(slow, m)
		}
	}
	err := inParallel(len(slow), func(i int) error {
		err := slow[i].next(ctx, g, l.end)
		if slow[i].putOff = errors.Is(err, ErrNoMemory); slow[i].putOff {
			return nil
		}
		bound(slow[i], 0)
		return err
	})
	first := slices.MinFunc(l.members, func(a, b *Member) int { return cmp.Compare(a.through, b.through) })
	if err != nil || !first.putOff {
		return err
	}
	if first.putOff = false; first.quick(g, l.end) {
		return nil
	}
	if err = first.next(ctx, g, l.end); errors.Is(err, ErrNoMemory) { // the events of other members may hold it
		for _, m := range l.members {
			if m.holdsLog() {
				m.unread()
				m.putOff = true
			}
		}
		err = first.next(ctx, g, l.end)
	}
	first.count()
	return err
}

// goBack moves the positions back to common, the newest sequence that a rolled-back partition has in common with
// its earlier state.
func (l *lane) goBack(common uint64, forks int) {
	for _, m := range l.members {
		m.goBack(common, forks)
		if at := l.positionOf(m); m.reader.Cursor > at {
			m.reader.MoveTo(at) // the reader is ahead of the client
		}
	}
	l.forks = forks
	l.position, l.added = min(l.position, common), min(l.added, common)
	if len(l.group.patterns) > 0 {
		l.found = min(l.found, common)
	}
	l.catchingUp = l.catchingUp && l.added < l.position
}

// retag names positions in the newest generation.
func (l *lane) retag(x window.Extent) {
	if l.origin != x.Origin || l.gen != x.Generation {
		l.origin, l.gen, l.tag = x.Origin, x.Generation, partitionTag(x.Origin, x.Generation)
	}
}

// through returns the sequence up to which the members that of selects have read all their events.
func (l *lane) through(of func(*Member) bool) uint64 {
	to := uint64(math.MaxUint64)
	for _, m := range l.members {
		if of(m) {
			to = min(to, m.through)
		}
	}
	return to
}

// horizon is how far the positions may move. An edge that is behind the client's previous one finds sessions
// from before the position.
func (l *lane) horizon() uint64 {
	if l.catchingUp { // for the members that catch up alone
		return max(l.added, min(l.position, l.found, l.through(func(m *Member) bool { return m.added })))
	}
	return max(l.position, min(l.found, l.through(func(*Member) bool { return true })))
}

// ready returns the events that may be sent now, in the order of the log.
func (l *lane) ready() []ready {
	to := l.horizon()
	var all []ready
	for _, m := range l.members {
		for _, it := range m.items { // of members that do not catch up, all lie after to
			if it.Sequence > to {
				break
			}
			all = append(all, ready{it, m})
		}
	}
	slices.SortFunc(all, func(a, b ready) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return all
}

// moveTo moves added while members catch up, else position.
func (l *lane) moveTo(sequence uint64) {
	if l.catchingUp {
		l.added = sequence
	} else {
		l.position = sequence
	}
	for _, m := range l.turning {
		l.group.sum(m)
	}
}

// toFirst moves the position to just before the first event that was read.
func (l *lane) toFirst() {
	to := l.horizon()
	for _, m := range l.members {
		if len(m.items) > 0 {
			to = min(to, m.items[0].Sequence-1)
		}
	}
	l.moveTo(to)
}

// positionOf returns the position that applies to a member.
func (l *lane) positionOf(m *Member) uint64 {
	if l.catchingUp && m.added {
		return l.added
	}
	return l.position
}

// passOver moves the position over all ready events, which were taken.
func (l *lane) passOver() {
	l.moveTo(l.horizon())
	if l.catchingUp && l.added >= l.position {
		l.catchingUp = false
	}
}

// behind reports whether there are more events to read, or to take.
func (l *lane) behind() bool {
	return l.catchingUp || l.found < l.end || slices.ContainsFunc(l.members, func(m *Member) bool { return len(m.items) > 0 || m.through < l.end })
}

// touch moves the readers and the position to the end of the window, if nothing lies before it.
func (l *lane) touch(g *Group) {
	if l.dirty.Load() || l.behind() {
		return
	}
	x := l.part.window.Extent()
	if patterns := len(l.group.patterns) > 0; patterns && l.mayFind() {
		l.Wake()
		return
	} else if patterns {
		l.found = x.End
	}
	for _, m := range l.members {
		if x.Forks != l.forks || !m.quick(g, x.End) || len(m.items) > 0 || m.state() != m.State {
			l.Wake()
			return
		}
	}
	l.retag(x)
	l.passOver()
}

// maxInParallel is how many members read the log at a time: those of a partition share its reads.
const maxInParallel = 32

// inParallel calls f for 0 to n-1, several at a time, and returns one of the errors.
func inParallel(n int, f func(i int) error) error {
	var work errgroup.Group
	work.SetLimit(maxInParallel)
	for i := range n {
		work.Go(func() error { return f(i) })
	}
	return work.Wait()
}
