package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"rejoin/shared/event"
)

// segment has the messages of a subscriber from its beginning, or from a gap, to the next
// gap: everything of one life that lies between two sequences.
type segment struct {
	begin, end uint64
	messages   []received
	told       *toldGap // that ended it
	at         time.Duration
}

func (s *subscriber) segments() []segment {
	all := []segment{{begin: s.begin, end: s.begin}}
	for _, r := range s.log {
		this := &all[len(all)-1]
		switch {
		case r.gap != nil:
			this.told, this.at = r.gap, r.at
			all = append(all, segment{begin: r.gap.resumesAt, end: r.gap.resumesAt})
		case r.what == "message":
			this.messages = append(this.messages, r)
			this.end = max(this.end, r.position)
		case r.what == "cursor" || r.what == "connect":
			this.end = max(this.end, r.position)
		}
	}
	return all
}

// differs returns how a segment differs from the contents of a life, or "". A position
// after its last message counts up to common only: further on the log was another by the
// time that the subscriber received the gap.
func (s *subscriber) differs(g segment, life contents, common uint64) string {
	end := min(g.end, common)
	if n := len(g.messages); n > 0 {
		end = max(end, g.messages[n-1].position)
	}
	want := life.history(s.plan.session).events(s.plan.stream, g.begin, end)
	for i, r := range g.messages {
		switch {
		case i >= len(want):
			return fmt.Sprintf("has nothing at %d", r.position)
		case r.position != want[i].sequence || r.stream != want[i].subject.Stream:
			return fmt.Sprintf("has %s:%d where %s:%d came", want[i].subject.Stream, want[i].sequence, r.stream, r.position)
		case !s.same(r, want[i].data):
			return fmt.Sprintf("has another message at %d", r.position)
		}
	}
	if n := len(g.messages); n < len(want) {
		return fmt.Sprintf("has %s:%d, too, and %d more", want[n].subject.Stream, want[n].sequence, len(want)-n-1)
	}
	return ""
}

// checkRemoved makes sure that no event was removed: so events that a copy of the log
// does not have are lost with it.
func (w *world) checkRemoved(held []contents) {
	for _, c := range held {
		for _, part := range c.parts {
			for _, e := range part {
				if e.kind == event.Trim {
					w.violate("a janitor has removed events of %s", e.place())
				}
			}
		}
	}
}

// checkLives compares the messages of every subscriber with the lives of the log.
func (w *world) checkLives() {
	var held, copies []contents
	for _, rb := range w.lives.rollBacks {
		held = append(held, w.read(rb.life))
	}
	for _, rb := range w.lives.rollBacks {
		copies = append(copies, w.read(rb.copy))
	}
	held = append(held, w.read(""))
	w.checkRemoved(held)
	ctx, cancel := w.bounded() // the reading may have taken long
	defer cancel()
	for _, s := range w.subscribers {
		w.checkSegments(ctx, s, held, copies)
		w.checkTold(s, copies)
	}
	w.tally["roll-backs"] += len(copies)
}

// checkSegments finds for every segment the life that it is of.
func (w *world) checkSegments(ctx context.Context, s *subscriber, held, copies []contents) {
	p, life, previous := w.truth.partition(s.plan.session), 0, -1
	segments := s.segments()
	for i, g := range segments {
		if i == len(segments)-1 {
			life = len(held) - 1 // it is to be of the last one
		}
		differences := ""
		for ; life < len(held); life++ {
			d := s.differs(g, held[life], w.commonTo(g, p, life, copies))
			if d == "" {
				break
			}
			differences += fmt.Sprintf("; life %d %s", life, d)
		}
		if life == len(held) {
			w.violate("%s: what it got from %d to %d is of no life after %d%s", s, g.begin, g.end, previous, differences)
			return
		}
		if i > 0 {
			w.checkRollBackGap(ctx, s, segments[i-1], p, previous, copies)
			if passed := passedOver(s, segments[i-1].told, p, previous, life, held, copies); passed != 0 {
				w.violate("%s: %s leaves out %d of the new life", s, segments[i-1].told, passed)
			}
		}
		previous = life
	}
}

// commonTo returns up to where a life is the same as the one that the log was in
// when a segment of it ended.
func (w *world) commonTo(g segment, p, life int, copies []contents) uint64 {
	common := ^uint64(0)
	for i := life; i < len(copies) && g.told != nil && w.lives.rollBacks[i].began <= g.at; i++ {
		common = min(common, copies[i].last[p])
	}
	return common
}

// passedOver returns the first event of a new life that a gap leaves out, or 0.
func passedOver(s *subscriber, g *toldGap, p, before, after int, held, copies []contents) uint64 {
	if before == after {
		return 0
	}
	common := slices.MinFunc(copies[before:after], func(a, b contents) int { return int(a.last[p]) - int(b.last[p]) }).last[p] //nolint:gosec // small
	if left := held[after].history(s.plan.session).events(s.plan.stream, common, g.resumesAt); len(left) > 0 {
		return left[0].sequence
	}
	return 0
}

// checkRollBackGap makes sure that a gap which ended a segment of a life is a
// roll-back, and one that the subscriber's cursor had to do with.
func (w *world) checkRollBackGap(ctx context.Context, s *subscriber, g segment, p, life int, copies []contents) {
	told := g.told
	w.count("gap " + told.Reason + fmt.Sprintf(" certain=%t", told.Certain))
	if !told.Certain && told.why != "" {
		return
	}
	if told.Reason != "rolled_back" {
		w.violate("%s: %s: nothing but roll-backs takes events away here", s, told)
		return
	}
	known := true
	for i := life; i < len(copies) && w.lives.rollBacks[i].began <= g.at; i++ {
		if told.requested > copies[i].last[p] {
			return
		}
		known = known && w.inCopy(ctx, told.Requested, s.place(), copies[i], p)
	}
	if known && told.why != "" {
		// Without a janitor for more than 3 s, the events that it had seen were stored
		// before a generation began that claims them: the price that ADR 0003 names.
		w.count("rolled back by a late generation")
		return
	}
	if known {
		w.violate("%s: %s: it had seen nothing that was lost", s, told)
		return
	}
	// Its ID is of a generation that was begun after the copy was made. Its beginning is
	// not known any more, and the edge moves back as far as it has to.
	w.count("told below the copy's end, with an ID of a lost generation")
}

// inCopy reports whether an event ID is of a generation that a copy knows.
func (w *world) inCopy(ctx context.Context, text string, at place, c contents, p int) bool {
	id, err := event.ParseID(text)
	if err != nil {
		return false
	}
	rec, err := w.own.Sessions.Get(ctx, at.session)
	if err != nil {
		w.violate("the session %s: %v", at.session, err)
		return false
	}
	return slices.ContainsFunc(c.generations[p], func(generation string) bool {
		return slices.ContainsFunc([]string{rec.Life, ""}, func(life string) bool {
			return event.TagParts{Origin: c.births[p], Generation: generation, Session: at.session, Life: life, Stream: at.stream}.Tag() == id.Tag
		})
	})
}

// checkTold makes sure that a subscriber which was further than a copy received a gap
// when that copy had been put back.
func (w *world) checkTold(s *subscriber, copies []contents) {
	p := w.truth.partition(s.plan.session)
	for i, rb := range w.lives.rollBacks {
		if rb.positions[s.n] <= copies[i].last[p] {
			w.tally["not further than the copy"]++
			continue
		}
		w.tally["further than the copy"]++
		if !slices.ContainsFunc(s.log, func(r received) bool { return r.gap != nil && r.gap.Reason == "rolled_back" && r.at >= rb.began }) {
			w.violate("%s was at %d when the log was rolled back to %d and was not told", s, rb.positions[s.n], copies[i].last[p])
		}
	}
}
