package cursor

import (
	"context"
	"slices"

	"rejoin/shared/event"
)

// opening opens the readers of a group.
type opening struct {
	group   *Group
	from    Start
	id      GroupID
	resumes bool     // id was read
	covered []bool   // which members id covers
	at      []uint64 // up to where
	opened  []uint64 // the sequence of each covered member's opening; see openedAt
}

// openAll opens the readers of a group's members. Several wait for the log at a time.
func openAll(ctx context.Context, g *Group, places []Follow, from Start) error {
	n := len(places)
	o := opening{group: g, from: from, covered: make([]bool, n), at: make([]uint64, n), opened: make([]uint64, n)}
	if from.After != "" {
		id, err := ParseGroupID(from.After)
		o.id, o.resumes = id, err == nil
	}
	for _, l := range g.lanes {
		if err := l.part.untilReady(ctx); err != nil {
			return err
		}
		holes := l.part.window.Holes()
		l.end, l.rollbacks = holes.End, holes.Rollbacks
		l.retag(holes)
	}
	if !from.Since.IsZero() {
		if err := inParallel(len(g.lanes), func(i int) (err error) {
			g.lanes[i].start, err = g.lanes[i].part.startAt(ctx, from.Since)
			return err
		}); err != nil {
			return err
		}
	}
	o.cover(places)
	if err := inParallel(n, func(i int) error { return o.open(ctx, i) }); err != nil {
		return err
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
		g.settle(m)
	}
	return nil
}

// cover finds out which members the client's ID covers, and how far. Beside members that it covers,
// others have to catch up.
func (o *opening) cover(places []Follow) {
	whole := o.resumes && o.id.Names == o.group.names
	for i, m := range o.group.members {
		at, there := o.id.At[m.lane.part.number]
		o.covered[i] = there && (whole || !places[i].Added)
		o.at[i] = at.Sequence
		if m.added = there && places[i].Added && (!whole || at.Added < at.Sequence); m.added {
			o.at[i] = at.Added
		}
	}
	for _, l := range o.group.lanes {
		if at := o.id.At[l.part.number]; at.Added < at.Sequence && (!whole || !slices.ContainsFunc(l.members, func(m *Member) bool { return m.added })) {
			for i, m := range o.group.members { // it is not known any more which were behind
				if m.lane == l {
					o.at[i] = at.Added
				}
			}
		}
	}
}

// open opens the reader of a member.
func (o *opening) open(ctx context.Context, i int) error {
	m := o.group.members[i]
	life, ok, err := o.group.admit(ctx, m.Place.Session, "")
	if err != nil {
		return err
	}
	from := Start{Now: o.from.Now, At: m.lane.start}
	if from.Now {
		from.At = m.lane.end
	}
	if o.covered[i] {
		if from.After, life, err = o.cursorOf(ctx, i, life); err != nil {
			return err
		}
	}
	if o.from.After != "" && !o.resumes {
		from.After = o.from.After // which the reader cannot read either: a gap
	}
	return m.follow(ctx, life, ok, from, o.group.each)
}

// cursorOf returns the position of the client's ID as an ID of one member, in the same generation,
// and the life that it is in.
func (o *opening) cursorOf(ctx context.Context, i int, life string) (cursor, _ string, err error) {
	m := o.group.members[i]
	p := m.lane.part
	if life == "" {
		of, err := p.lifeOf(ctx, m.Place.Session)
		if err != nil {
			return "", "", err
		}
		life = of.name
	}
	if o.opened[i], err = p.openedAt(ctx, m.Place.Session, o.at[i]); err != nil {
		return "", "", err
	}
	birth, generation, known, err := p.generationOf(ctx, o.id.At[p.number].Tag)
	if err != nil || !known {
		return o.from.After, life, err // of another log: a gap
	}
	tag := event.Place{Birth: birth, Generation: generation, Session: m.Place.Session, Life: life, Stream: m.Place.Stream}.Tag()
	return event.ID{Stream: m.Place.Stream, Tag: tag, Sequence: o.at[i]}.String(), life, nil
}

// generationOf returns the generation that a position's tag names: one that is on no list for a
// generation of this log that it has lost. known is false for another log.
func (p *Partition) generationOf(ctx context.Context, tag string) (birth, generation string, known bool, err error) {
	birth, gens := p.window.Generations()
	for again := false; ; again = true {
		for _, g := range slices.Backward(gens) {
			if partitionTag(birth, g.ID) == tag {
				return birth, g.ID, true, nil
			}
		}
		if again {
			return birth, "lost " + tag, event.SamePlace(tag, partitionTag(birth, "")), nil
		}
		state, err := p.log.Look(ctx, p.number) // another edge may know a newer one
		if err != nil {
			return "", "", false, err
		}
		birth, gens = state.Birth, state.Generations
	}
}

// openedAt returns the sequence of the newest opening of a session: 0, or one up to position, when
// it certainly lies there.
func (p *Partition) openedAt(ctx context.Context, session string, position uint64) (uint64, error) {
	if began, floor := p.window.BeganAt(session); began > 0 || position+1 >= floor {
		return began, nil
	}
	of, err := p.lookUpLife(ctx, session)
	return of.opened, err
}

// stayed reports whether a member's life is the one that it had at the client's position.
func (o *opening) stayed(i int) bool {
	m := o.group.members[i]
	return o.covered[i] && !m.refused && o.opened[i] <= o.at[i] && (m.life != "" || m.began())
}

// tellOfLives tells of sessions that may have been others at the client's position: names that are
// used again, or are not any more. The checksum of lives says whether there may be any.
//
// A session that has ended is part of the checksum until its client was told so. One that the client
// was let in to since is not part of it.
func (o *opening) tellOfLives() {
	if !o.resumes {
		return
	}
	var all, open uint32
	others := false // there are members that may have been others
	for i, m := range o.group.members {
		if o.stayed(i) {
			all += m.lifeSum()
			if !m.ended {
				open += m.lifeSum()
			}
		} else if o.covered[i] {
			others = true
		}
	}
	is := func(sum uint32) bool { return o.id.Lives == all-sum || o.id.Lives == open-sum }
	if is(0) {
		return
	}
	tell := func(i int) bool { return !o.stayed(i) }
	if o.group.cfg.Admit != nil {
		if one := slices.IndexFunc(o.group.members, func(m *Member) bool { return !m.refused && is(m.lifeSum()) }); one >= 0 && o.stayed(one) {
			tell = func(i int) bool { return i == one }
		} else if !others {
			tell = func(int) bool { return true }
		}
	}
	for i, m := range o.group.members {
		if o.covered[i] && tell(i) {
			m.reader.Pending = append(m.reader.Pending, Gap{Reason: ReasonUnknown, Stream: m.Place.Stream, Requested: o.from.After})
		}
	}
}
