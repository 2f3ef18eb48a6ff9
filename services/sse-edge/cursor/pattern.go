package cursor

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// pattern stands for the sessions whose names begin with prefix. A group with patterns has a lane for
// each partition, and there a member for each pattern besides those of the sessions: its reader has a
// name that no session has. So a lane without a session has a position, and a roll-back, damage, expiry or
// any other loss that concerns all of the partition is a gap of the pattern.
//
// A lane's positions do not pass found: each session that matches and began up to there is a member,
// has ended, or may not be read by the client. So a session that begins later is followed from its
// opening on, and a position covers all sessions that match.
type pattern struct {
	text, prefix string
	streams      []string
	isNew        bool // to the client
}

// addPattern adds a place of a pattern, which may be a stream of it.
func (g *Group) addPattern(f Follow) {
	for _, p := range g.patterns {
		if p.text == f.Session {
			p.streams = append(p.streams, f.Stream)
			return
		}
	}
	g.patterns = append(g.patterns, &pattern{f.Session, strings.TrimSuffix(f.Session, "*"), []string{f.Stream}, f.Added})
}

// placeLife is the life of the place of a pattern.
const placeLife = "0"

// at returns the place of the pattern's own members. Names of sessions have no spaces.
func (p *pattern) at() window.Place { return window.Place{Session: " " + p.text, Life: placeLife} }

// patternOf returns the first pattern that a session matches; nil for none.
func (g *Group) patternOf(session string) *pattern {
	for _, p := range g.patterns {
		if strings.HasPrefix(session, p.prefix) {
			return p
		}
	}
	return nil
}

func (g *Group) matches(session string) bool { return g.patternOf(session) != nil }

// Opened has the lane read again: a session has begun, or has other members.
func (l *lane) Opened(session string) {
	if l.group.matches(session) {
		l.Wake()
	}
}

// has reports whether a session is followed.
func (l *lane) has(session string) bool {
	return slices.ContainsFunc(l.members, func(m *Member) bool { return m.Place.Session == session })
}

// changedSince returns the sessions that match, are not followed and have an opening or an end after a
// sequence, and up to where. Sessions of others that were stored before a time are left out; see changedBelow.
func (l *lane) changedSince(ctx context.Context, after uint64, before time.Time) (_ []window.SessionView, through uint64, _ error) {
	all, start, through := l.part.window.ChangedSince(after, l.group.matches)
	all = slices.DeleteFunc(all, func(m window.SessionView) bool { // changedBelow judges those that began since
		return m.Life == "" && l.group.cfg.Others != nil && l.group.cfg.Others(m.Session)
	})
	if after+1 < start {
		below, err := l.changedBelow(ctx, after, start-1, before, all)
		if err != nil {
			return nil, 0, err
		}
		all = append(below, all...)
	}
	return slices.DeleteFunc(all, func(m window.SessionView) bool {
		copied := 0 < m.End && m.End <= after // it ended before, and there is a copy of its end
		return l.has(m.Session) || copied || l.group.cfg.Uses != nil && m.Owner != "" && !l.group.cfg.Uses(m.Owner, m.Members)
	}), through, nil
}

// changedBelow returns the sessions that match, have an opening or an end in a part of the log that lies below
// the window, and have not changed again in the window. Their owners are not known, but the registry's copy has
// the owners of sessions that were stored before a time: a client may name any position, and others' sessions
// would take memory that nothing counts.
func (l *lane) changedBelow(ctx context.Context, after, upTo uint64, before time.Time, again []window.SessionView) (all []window.SessionView, _ error) {
	const skipped = -1
	at := map[string]int{} // the index in all
	for _, m := range again {
		at[m.Session] = skipped
	}
	opened := map[string]uint64{}
	give, err := takeOne(ctx, l.part.of.scans)
	if err != nil {
		return nil, err
	}
	err = l.part.log.Lives(ctx, l.part.number, after, upTo, func(e eventlog.Entry) {
		name := e.Subject.Session
		i, known := at[name]
		if i == skipped || !l.group.matches(name) || e.Time.Before(before) && l.group.cfg.Others != nil && l.group.cfg.Others(name) {
			return
		}
		if !known {
			i = len(all)
			at[name], all = i, append(all, window.SessionView{Session: name})
		}
		switch first := cmp.Or(e.Began, e.Sequence); {
		case e.Subject.Kind == event.Open:
			opened[name] = first
		case first > opened[name]:
			all[i].End = first
		}
	})
	give()
	for i := range all {
		if end := l.part.window.NewestEnd(all[i].Session); end > opened[all[i].Session] {
			all[i].End = end // in the window, which does not know the opening
		}
	}
	return all, err
}

// readable returns the sessions of changedSince that the client may read: the owners of those below the window
// are not known, and others' would take the room of the client's.
func (l *lane) readable(ctx context.Context, all []window.SessionView) ([]window.SessionView, error) {
	refused := make([]bool, len(all))
	err := inParallel(len(all), func(i int) error {
		if all[i].Owner != "" {
			return nil
		}
		_, ok, err := l.authorize(ctx, all[i].Session, "")
		refused[i] = !ok
		return err
	})
	i := -1
	return slices.DeleteFunc(all, func(window.SessionView) bool { i++; return refused[i] }), err
}

// authorize reports whether the client may read a life of a session, or, with an empty one, the newest life,
// which it returns. For the newest life that the window knows, the opening decides: the registry may be behind
// the window, or have a later one.
func (l *lane) authorize(ctx context.Context, session, life string) (_ string, ok bool, _ error) {
	if uses := l.group.cfg.Uses; uses != nil {
		if m, known := l.part.window.Session(session); known && m.Owner != "" {
			return m.Life, uses(m.Owner, m.Members), nil
		}
	}
	return l.group.authorize(ctx, session, life)
}

// mayFind reports, without a wait, whether a session may have begun since.
func (l *lane) mayFind() bool {
	all, start, _ := l.part.window.ChangedSince(l.found, l.group.matches)
	return l.found+1 < start || slices.ContainsFunc(all, func(m window.SessionView) bool { return !l.has(m.Session) })
}

// find follows the sessions that began since, up to the end of the window.
func (l *lane) find(ctx context.Context) error {
	g := l.group
	if l.found >= l.end {
		return nil
	}
	all, _, err := l.changedSince(ctx, l.found, time.Time{})
	if err != nil {
		return err
	}
	for _, found := range all {
		if err := g.include(ctx, l, found); err != nil {
			return err
		}
	}
	l.found = l.end
	return nil
}

// include follows a session that began. One that has ended since, and for which there is no room, is
// left out with a gap of its pattern.
func (g *Group) include(ctx context.Context, l *lane, found window.SessionView) error {
	p := g.patternOf(found.Session)
	life, ok, err := l.authorize(ctx, found.Session, "")
	if err != nil || !ok {
		return err
	}
	open, passed := g.count()
	hasRoom := passed+len(p.streams) <= g.cfg.MaxMembers
	if found.End > 0 && !hasRoom {
		g.leaveOut(l, p)
		return nil
	}
	var members []*Member
	for _, stream := range p.streams {
		m := &Member{Place: window.Place{Session: found.Session, Stream: stream}, lane: l, of: p, added: l.catchingUp && p.isNew}
		if err = m.follow(ctx, life, true, Start{At: l.positionOf(m), Continues: true}, g.limits()); err != nil {
			break
		}
		if max(found.BeforeBegan, found.Others) > l.found { // another life began and ended since
			m.gaps = append(m.gaps, m.reader.missed(stream))
		}
		members = append(members, m)
	}
	ended := !slices.ContainsFunc(members, func(m *Member) bool { return !m.hasEnd() })
	switch {
	case err != nil:
	case ended && !hasRoom:
		g.leaveOut(l, p)
		ok = false
	case !ended && open+len(members) > g.cfg.MaxMembers:
		err = ErrTooManySessions
	}
	for _, m := range members {
		if err != nil || !ok {
			m.release()
		} else {
			g.enter(m)
		}
	}
	return err
}

// leaveOut reports a gap of a pattern, of which a session is left out: one in a step, however many are.
func (g *Group) leaveOut(l *lane, p *pattern) {
	if slices.ContainsFunc(g.gaps, func(there Gap) bool { return there.Session == p.text && there.Reason == ReasonUnknown }) {
		return
	}
	for _, m := range l.members {
		if m.place == p {
			gap := m.reader.missed("")
			gap.Session = p.text
			g.gaps = append(g.gaps, gap)
		}
	}
}

// enter adds a member that was opened.
func (g *Group) enter(m *Member) {
	m.lane.members = append(m.lane.members, m)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = append(g.members, m)
}

// leave removes the members of patterns that have ended, or may not be read any more, once the client
// has received that state. If the name is used again, find follows it again.
func (g *Group) leave(lanes []*lane) {
	over := func(m *Member) bool {
		if m.of == nil || m.State == MemberOpen || m.summed != 0 || len(m.items) > 0 || len(m.gaps) > 0 || len(m.reader.Pending) > 0 {
			return false
		}
		_, again := m.newLife()
		return !again
	}
	some := false
	for _, l := range lanes {
		l.members = slices.DeleteFunc(l.members, func(m *Member) bool {
			m.over = over(m)
			some = some || m.over
			return m.over
		})
	}
	if !some {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = slices.DeleteFunc(g.members, func(m *Member) bool {
		if m.over {
			m.release()
		}
		return m.over
	})
}

// count returns how many sessions are followed that have not ended, and how many that have and match a
// pattern. There is room for MaxMembers of both.
func (g *Group) count() (open, ended int) {
	for _, m := range g.members {
		switch {
		case m.place != nil:
		case !m.hasEnd():
			open++
		case m.of != nil:
			ended++
		}
	}
	return open, ended
}

// hasEnd reports whether the member has an end, which it may not have reached.
func (m *Member) hasEnd() bool { return m.ended || m.reader != nil && m.reader.HasEnd() }
