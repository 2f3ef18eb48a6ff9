package cursor

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// OpenGroup returns a group of places, to be closed by the caller. With from.After, each
// continues at the position of its partition, if the ID has one. Errors are those of
// [Partitions.Open] and of Authorize, and ErrTooManySessions.
func (ps *Partitions) OpenGroup(ctx context.Context, places []Follow, from Start, cfg GroupConfig) (*Group, error) {
	g := &Group{cfg: cfg, key: &window.Chain{}}
	lanes := map[int]*lane{}
	enter := func(number int, m *Member) {
		l := lanes[number]
		if l == nil {
			l = &lane{group: g, part: ps.acquire(number), found: math.MaxUint64}
			lanes[number], g.lanes = l, append(g.lanes, l)
		}
		m.lane = l
		g.enter(m)
	}
	for _, p := range places {
		g.names += checksum("place", p.Session, p.Stream)
		if p.Pattern {
			g.addPattern(p)
		} else {
			enter(ps.log.Partition(p.Session), &Member{Place: window.Place{Session: p.Session, Stream: p.Stream}, isNew: p.Added})
		}
	}
	for _, p := range g.patterns {
		for number := range ps.log.Settings().Partitions {
			enter(number, &Member{Place: p.at(), place: p, isNew: p.isNew})
		}
	}
	slices.SortFunc(g.lanes, func(a, b *lane) int { return cmp.Compare(a.part.number, b.part.number) })
	if err := openAll(ctx, g, from); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// groupOpener opens the readers of a group.
type groupOpener struct {
	group   *Group
	from    Start
	id      GroupID
	resumes bool // id was read
	members []*Member
	covered []bool             // which of members id covers
	at      []uint64           // up to where
	leftOut map[*pattern]*lane // the patterns of which sessions were left out, each with the lane of the first
}

// openAll opens the readers of a group's members, and finds the members of its patterns. Several wait for
// the log at a time.
func openAll(ctx context.Context, g *Group, from Start) error {
	o := groupOpener{group: g, from: from, leftOut: map[*pattern]*lane{}}
	if from.After != "" {
		id, err := ParseGroupID(from.After)
		o.id, o.resumes = id, err == nil
	}
	for _, l := range g.lanes {
		if err := l.part.untilReady(ctx); err != nil {
			return err
		}
		if len(g.patterns) > 0 {
			l.part.window.Watch(l)
		}
		x := l.part.window.Extent()
		if !x.CaughtUp {
			return errNotReady // it was rolled back a moment ago
		}
		l.end, l.forks = x.End, x.Forks
		l.retag(x)
	}
	if !from.Since.IsZero() {
		if err := inParallel(len(g.lanes), func(i int) (err error) {
			g.lanes[i].start, err = g.lanes[i].part.startAt(ctx, from.Since)
			return err
		}); err != nil {
			return err
		}
	}
	if len(g.patterns) > 0 {
		if err := o.findSessions(ctx); err != nil {
			return err
		}
	}
	o.members = slices.Clone(g.members)
	n := len(o.members)
	o.covered, o.at = make([]bool, n), make([]uint64, n)
	o.cover()
	if err := inParallel(len(g.lanes), func(i int) (err error) {
		l := g.lanes[i]
		if at, there := o.id.At[l.part.number]; there {
			l.id, err = l.part.locate(ctx, at)
		}
		return err
	}); err != nil {
		return err
	}
	if err := inParallel(n, func(i int) error { return o.open(ctx, i) }); err != nil {
		return err
	}
	if len(g.patterns) > 0 {
		if err := o.authorizeFound(); err != nil {
			return err
		}
	}
	for _, l := range g.lanes {
		l.added = l.through(func(m *Member) bool { return m.added })
		l.position = l.through(func(m *Member) bool { return !m.added })
		l.catchingUp = l.added < l.position
		if !slices.ContainsFunc(l.members, func(m *Member) bool { return !m.added }) {
			l.position, l.catchingUp = l.added, false
		}
	}
	o.tellOfLives()
	for _, m := range g.members {
		m.State = m.state()
		g.note(m)
	}
	return nil
}

// registryWithin is how long the registry's copy may take to know of a session: its record is stored after
// the opening, and after a crash between the two the janitor stores it. Sessions that began or ended since are
// taken from the log.
const registryWithin = 2 * time.Minute

// findSessions makes members of the sessions that match the group's patterns and are open now, or, as
// far as there is room, were at the client's position or began since. The window is read after the
// registry, and by then has each change that the registry may know: a session that has ended since is
// found by its end.
func (o *groupOpener) findSessions(ctx context.Context) error {
	g := o.group
	enter := func(l *lane, session string) {
		p := g.patternOf(session)
		for _, stream := range p.streams {
			g.enter(&Member{Place: window.Place{Session: session, Stream: stream}, lane: l, of: p, isNew: p.isNew})
		}
	}
	if g.cfg.Open != nil {
		open, err := g.cfg.Open(g.matches)
		if err != nil {
			return err
		}
		named := map[string]bool{}
		for _, m := range g.members {
			named[m.Place.Session] = true
		}
		for _, session := range open {
			if !named[session] {
				enter(g.lanes[g.lanes[0].part.log.Partition(session)], session)
			}
			if len(g.members)-len(g.patterns)*len(g.lanes) > g.cfg.MaxMembers { // beyond it they take memory that nothing counts
				return ErrTooManySessions
			}
		}
	}
	changed := make([][]window.SessionView, len(g.lanes))
	if err := inParallel(len(g.lanes), func(i int) (err error) {
		l := g.lanes[i]
		at, resumes := o.id.At[i]
		state, err := l.part.catchUp(ctx)
		if err == nil && at.Tag == l.tag {
			state, err = lookUntil(ctx, state, at.Sequence, l.part.catchUp)
		}
		if err != nil {
			return err
		}
		before := state.Time.Add(-registryWithin)
		since, err := l.part.startAt(ctx, before)
		after := at.Added
		switch {
		case err != nil:
			return err
		case !resumes:
			after = since
		case at.Tag != l.tag: // the sequences may be those of other entries
			after = 0
		}
		changed[i], l.end, err = l.changedSince(ctx, min(after, since), before)
		l.found = l.end
		changed[i] = slices.DeleteFunc(changed[i], func(m window.SessionView) bool { // an end that the client knows, or does not need
			return m.End > 0 && (!resumes || m.End <= after)
		})
		if err == nil && g.cfg.Authorize != nil {
			changed[i], err = l.readable(ctx, changed[i])
		}
		return err
	}); err != nil {
		return err
	}
	room, open := g.cfg.MaxMembers, len(g.members)-len(g.patterns)*len(g.lanes)
	for i, l := range g.lanes {
		for _, m := range changed[i] {
			p := g.patternOf(m.Session)
			if m.End > 0 {
				room -= len(p.streams)
			} else if open += len(p.streams); open > g.cfg.MaxMembers {
				return ErrTooManySessions
			}
			switch _, known := o.leftOut[p]; {
			case m.End == 0 || room >= 0:
				enter(l, m.Session)
			case !known:
				o.leftOut[p] = l
			}
		}
	}
	return nil
}

// authorizeFound removes the members of patterns that the client may not read, or has read to their ends.
func (o *groupOpener) authorizeFound() error {
	g := o.group
	for i, m := range o.members { // a member that had ended at the client's position, or before it came, is not reported
		if m.of == nil || m.over {
			continue
		}
		if end := m.reader.endAt(); end > 0 && (m.ended && end <= o.at[i] || !o.resumes && end <= m.lane.end) {
			m.over = true
			m.release()
		}
	}
	over := func(m *Member) bool { return m.over }
	for _, l := range g.lanes {
		l.members = slices.DeleteFunc(l.members, over)
	}
	g.members = slices.DeleteFunc(g.members, over)
	if open, _ := g.count(); open > g.cfg.MaxMembers {
		return ErrTooManySessions
	}
	for _, p := range g.patterns {
		if l := o.leftOut[p]; l != nil {
			g.leaveOut(l, p)
		}
	}
	return nil
}

// cover finds out which members the client's ID covers, and how far. Beside members that it covers,
// others have to catch up.
func (o *groupOpener) cover() {
	whole := o.resumes && o.id.Names == o.group.names
	for i, m := range o.members {
		at, there := o.id.At[m.lane.part.number]
		o.covered[i] = there && (whole || !m.isNew)
		o.at[i] = at.Sequence
		if m.added = there && m.isNew && (!whole || at.Added < at.Sequence); m.added {
			o.at[i] = at.Added
		}
	}
	for _, l := range o.group.lanes {
		if at := o.id.At[l.part.number]; at.Added < at.Sequence && (!whole || !slices.ContainsFunc(l.members, func(m *Member) bool { return m.added })) {
			for i, m := range o.members { // it is unknown which members were behind
				if m.lane == l {
					o.at[i] = at.Added
				}
			}
		}
	}
}

// open opens the reader of a member.
func (o *groupOpener) open(ctx context.Context, i int) error {
	m := o.members[i]
	life, ok, from := placeLife, true, Start{Continues: true, At: m.lane.end, NewStream: true}
	var err error
	if m.place == nil {
		if m.of != nil {
			life, ok, err = m.lane.authorize(ctx, m.Place.Session, "")
		} else {
			life, ok, err = o.group.authorize(ctx, m.Place.Session, "")
		}
		if err != nil {
			return err
		}
		if m.over = m.of != nil && !ok; m.over {
			return nil
		}
		from = Start{At: m.lane.start}
		if o.from.Now {
			from = Start{Continues: true, At: m.lane.end}
		}
		if o.covered[i] {
			if from.of, err = m.lane.part.lifeAt(ctx, m.Place.Session, life, o.at[i]); err != nil {
				return err
			}
			life = from.of.token
		}
	}
	if o.covered[i] {
		from.After, from.look = o.cursorOf(i, life), m.lane.id.look
	}
	if o.from.After != "" && !o.resumes {
		from.After = o.from.After // which the reader cannot read either: a gap
	}
	return m.follow(ctx, life, ok, from, o.group.limits())
}

// cursorOf returns the position of the client's ID as an ID of a life of one member, in the same generation.
func (o *groupOpener) cursorOf(i int, life string) string {
	m := o.members[i]
	at := m.lane.id
	if !at.known {
		return o.from.After // a gap
	}
	tag := event.TagParts{Origin: at.origin, Generation: at.generation, Session: m.Place.Session, Life: life, Stream: m.Place.Stream}.Tag()
	return event.ID{Stream: m.Place.Stream, Tag: tag, Sequence: o.at[i]}.String()
}

// position is where in a partition's history a client's ID lies.
type position struct {
	origin, generation string          // for a generation that the log has lost, one that is on no list
	known              bool            // the position is of this log
	look               *eventlog.State // see Start
}

// locate finds a position. If it lies ahead of the window, the leader is looked at, once for all members: another
// edge may know a newer generation.
func (p *Partition) locate(ctx context.Context, at GroupPosition) (position, error) {
	origin, gens := p.window.Generations()
	find := func() (generation string, known bool) {
		for _, g := range slices.Backward(gens) {
			if partitionTag(origin, g.ID) == at.Tag {
				return g.ID, true
			}
		}
		return "lost " + at.Tag, false
	}
	generation, known := find()
	if known && !p.isBehind(at.Sequence) {
		return position{origin, generation, true, nil}, nil
	}
	state, err := p.askLeader(ctx)
	if err == nil && at.Tag == partitionTag(state.Origin, state.Generation().ID) {
		state, err = lookUntil(ctx, state, at.Sequence, p.askLeader)
	}
	if !known { // else the readers find out whether the window is behind
		origin, gens = state.Origin, state.Generations
		generation, known = find()
	}
	return position{origin, generation, known || event.SamePlace(at.Tag, partitionTag(origin, "")), &state}, err
}

// stayed reports whether a member's life is the one that it had at the client's position.
func (o *groupOpener) stayed(i int) bool {
	m := o.members[i]
	return o.covered[i] && !m.over && !m.refused && m.opened <= o.at[i] && (m.life != "" || m.began())
}

// tellOfLives reports sessions that may have had another life at the client's position: names that are
// used again, or not any more. The checksum of lives shows whether there may be any.
//
// The checksum is that of the lives that were open at the position. A life that the client was allowed to
// read only later is not part of it.
func (o *groupOpener) tellOfLives() {
	if !o.resumes {
		return
	}
	var sum uint32
	others := false // there are members that may have had another life
	for i, m := range o.members {
		switch {
		case o.stayed(i):
			if at := m.reader.endAt(); at == 0 || at > o.at[i] {
				sum += m.lifeSum()
			}
		case o.covered[i]:
			others = true
		}
	}
	if sum == o.id.Lives {
		return
	}
	tell := func(i int) bool { return o.members[i].of == nil && !o.stayed(i) }
	one := -1
	if o.group.cfg.Authorize != nil {
		if one = slices.IndexFunc(o.members, func(m *Member) bool { return !m.over && !m.refused && sum-m.lifeSum() == o.id.Lives }); one >= 0 && o.stayed(one) {
			tell = func(i int) bool { return i == one }
		} else if one = -1; !others {
			tell = func(i int) bool { return o.members[i].of == nil }
		}
	}
	patterns := slices.Clone(o.group.patterns) // a session of theirs may have had another life, or have none now
	for i, m := range o.members {
		of := slices.Index(patterns, m.place)
		switch {
		case !o.covered[i] || m.over:
			continue
		case m.place != nil && one < 0 && of >= 0:
			patterns[of] = nil // once is enough
		case m.place != nil || !tell(i) || len(m.gaps) > 0: // a gap of a life in between reports the same
			continue
		}
		m.reader.Pending = append(m.reader.Pending, Gap{Reason: ReasonUnknown, Stream: m.Place.Stream, Requested: o.from.After})
	}
}
