package ledger

import (
	"cmp"
	"slices"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// control is an entry in the log that is no event: an opening, a control entry of a life or
// stream, or, when all are nil, an entry that belongs nowhere.
type control struct {
	seq     uint64
	kind    event.Kind
	taken   bool   // a trim names it: it is no control entry any more
	size    uint32 // bytes of the message
	opening *Opening
	life    *Account
	stream  *stream // nil when it is about the whole life
}

// controls are all of them, in order of sequence.
type controls struct {
	list   []control
	popped int // those that popBefore has removed from the front of list's array
	taken  int // those in list that were taken out of the middle
}

func (c *controls) len() int { return len(c.list) - c.taken }

func (c *controls) push(one control) {
	if len(c.list) == cap(c.list) {
		c.popped = 0 // append moves them
	}
	c.list = append(c.list, one)
}

// popBefore takes the first one out if it lies before a sequence.
func (c *controls) popBefore(seq uint64) (one control, ok bool) {
	for len(c.list) > 0 && c.list[0].seq < seq {
		one = c.list[0]
		c.list[0] = control{}
		c.list = c.list[1:]
		if c.popped++; c.popped > len(c.list) {
			c.list, c.popped = slices.Clone(c.list), 0
		}
		if !one.taken {
			return one, true
		}
		c.taken--
	}
	return control{}, false
}

// take takes the entry at a sequence out, if there is one.
func (c *controls) take(seq uint64) (one control, ok bool) {
	i, found := slices.BinarySearchFunc(c.list, seq, func(c control, seq uint64) int { return cmp.Compare(c.seq, seq) })
	if !found || c.list[i].taken {
		return control{}, false
	}
	one = c.list[i]
	c.list[i] = control{seq: seq, taken: true}
	if c.taken++; c.taken > 64 && c.taken > len(c.list)/2 {
		c.compact()
	}
	return one, true
}

// compact drops the entries that were taken, and the references to forgotten lives.
func (c *controls) compact() {
	c.list = slices.Clone(slices.DeleteFunc(c.list, func(c control) bool { return c.taken }))
	for i := range c.list {
		if one := &c.list[i]; one.life != nil && one.life.forgotten {
			one.life, one.stream = nil, nil
		}
	}
	c.popped, c.taken = 0, 0
}

// copied is a control entry that was written again. Its original has to stay until the copy
// is surely on disk.
type copied struct {
	original uint64
	at       time.Time // when the ledger got the copy
}

// copied notes that the entry just received replaces another one; 0: none.
func (l *Ledger) copied(original uint64, now time.Time) {
	if original > 0 {
		l.copies = append(l.copies, copied{original, now})
	}
}

// open enters the opening of a session. A second one is a copy of the first, or changes its members
// or metadata: a name that has an opening gets no other one. Its content is read when it matters.
func (l *Ledger) open(e eventlog.Entry, now time.Time) {
	o := l.openings[e.Subject.Session]
	if o == nil {
		o = &Opening{Session: e.Subject.Session, First: e.Sequence, at: e.Time, Whole: !e.Again}
		l.openings[o.Session] = o
	}
	l.copied(o.Seq, now)
	o.Seq, o.Known, o.changes = e.Sequence, false, e.Changes
	l.controls.push(control{seq: e.Sequence, kind: event.Open, size: sizeOf(e), opening: o})
}

// Opening returns the newest opening of a session; the zero one when the log has none.
func (l *Ledger) Opening(session string) Opening {
	if o := l.openings[session]; o != nil {
		return *o
	}
	return Opening{}
}

// Learn enters the life that a session's opening names.
func (l *Ledger) Learn(session string, seq uint64, life string) {
	if o := l.openings[session]; o != nil && o.Seq == seq {
		o.Life, o.Known = life, true
	}
}

// Unheard reports whether the registry may still get a record of a session's life, or a newer one than
// rec, which is the record of its name or empty: the log has an opening that is newer. So limits that
// the session asks for are unknown.
func (l *Ledger) Unheard(name, life string, rec session.Record) bool {
	o := l.openings[name]
	if o == nil || life == "" || o.Known && o.Life != life {
		return false
	}
	return rec.Life != life || rec.Changes < o.changes
}

// mark enters a control entry of a life or of one of its streams. A second seal or end is a
// copy of the first one, and so is a birth that is marked as a copy. A second birth without that mark is
// from an ingest that does not know the first one, and is ignored.
func (l *Ledger) mark(a *Account, e eventlog.Entry, now time.Time) {
	c := control{seq: e.Sequence, kind: e.Subject.Kind, size: sizeOf(e), life: a}
	at := &a.markers
	a.controls++
	if e.Subject.Stream != "" {
		c.stream = a.stream(e.Subject.Stream)
		c.stream.controls++
		at = &c.stream.markers
		defer a.recount(c.stream)
	}
	l.controls.push(c)
	if *at == nil && c.kind != event.Birth && c.kind != event.Trim {
		*at = &markers{}
	}
	switch m := (*at).of(c.kind); c.kind {
	case event.Birth:
		l.bear(c.stream, e, now)
	case event.Trim:
		a.announced++
		if a.trims == nil {
			a.trims = map[string]uint64{}
		}
		a.trims[e.Subject.Stream] = e.Sequence
		if e.Trim != nil && e.Trim.Holds(l.Generations) {
			l.trim(a, e.Trim, now)
		}
	case event.Clear:
		*m = marker{e.Sequence, e.Sequence, e.Time}
		a.clears++
	case event.Seal: // duties some time after it depend on one clock
		l.copied(m.put(e.Sequence, now), now)
	case event.End:
		l.copied(m.put(e.Sequence, e.Time), now)
	case event.Message, event.Open: // Apply handles them
	}
}

// bear enters a birth. A copy covers all events that the ledger lacks only if it reaches up to the floor: before the
// ledger got the copy, the floor may have passed events that were stored just before it.
func (l *Ledger) bear(s *stream, e eventlog.Entry, now time.Time) {
	if s.birth == 0 {
		s.birth, s.copied = e.Sequence, e.Copy != nil
	}
	if e.Copy == nil {
		return
	}
	if s.birth != e.Sequence {
		l.copied(s.birth, now)
		s.birth = e.Sequence
	}
	if e.Copy.Holds(l.Generations) {
		s.newest, s.NewestRemoved = max(s.newest, e.Copy.Newest), max(s.NewestRemoved, e.Copy.NewestRemoved)
		s.known = s.known || e.Copy.Through+1 >= max(l.begunAt, l.first)
	}
}

// gone removes a control entry that the floor has passed or a trim has named.
func (l *Ledger) gone(c control) {
	switch {
	case c.opening != nil:
		if c.opening.Seq == c.seq {
			delete(l.openings, c.opening.Session)
		}
		return
	case c.life == nil || c.life.forgotten:
		return
	}
	a, s, at := c.life, c.stream, c.life.markers
	switch a.controls--; c.kind {
	case event.Clear:
		a.clears--
	case event.Trim:
		a.announced--
		name := ""
		if s != nil {
			name = s.name
		}
		if a.trims[name] == c.seq {
			delete(a.trims, name)
		}
	default:
	}
	if s != nil {
		s.controls--
		at = s.markers
		if s.birth == c.seq {
			s.birth = 0
		}
	}
	if at != nil {
		if m := at.of(c.kind); m != nil {
			m.drop(c.seq)
		}
	}
	if s != nil {
		a.recount(s)
		l.tidy(a, s)
	}
	l.tidy(a, nil)
}
