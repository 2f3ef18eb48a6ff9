package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/racetest"
)

// sent returns how far an edge is known to have been in each partition.
func (w *world) sent(life string) map[int]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.processed[life])
}

// sends notes that an edge has sent an event.
func (w *world) sends(life string, p int, sequence uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.processed[life] == nil {
		w.processed[life] = map[int]uint64{}
	}
	w.processed[life][p] = max(w.processed[life][p], sequence)
}

// checkTime bounds every wait of a check. Nothing depends on it.
const checkTime = min(racetest.Slowdown, 3) * 45 * time.Second

func (w *world) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.ctx, checkTime)
}

// checkMessage compares an event with the entry stored at its sequence. asOf is how far
// the edge had been when the subscriber connected to it: a clear up to there was
// processed, and events before it must not be sent any more.
func (w *world) checkMessage(s *subscriber, session, stream string, sequence uint64, typ string, data []byte, asJSON bool, asOf uint64) {
	ctx, cancel := w.bounded()
	defer cancel()
	p := w.truth.partition(session)
	if err := w.truth.await(ctx, p, sequence); err != nil {
		if w.ctx.Err() == nil {
			w.violate("%s: event %d is not in the log's history: %v", s, sequence, err)
		}
		return
	}
	e, ok := w.truth.at(p, sequence)
	switch {
	case !ok && w.published(place{session, stream}, data, asJSON):
		// It was removed before the truth could see it; the publisher knows it.
	case !ok:
		w.violate("%s: event %d of %s was never stored: %q", s, sequence, stream, data)
	case !e.valid || e.kind != event.Message || e.place() != (place{session, stream}) || e.subject.Life != w.truth.history(session).life:
		w.violate("%s: event %d of %s is %v in the log", s, sequence, stream, e.subject)
	case e.typ != typ:
		w.violate("%s: event %d of %s has the type %q and not %q", s, sequence, stream, typ, e.typ)
	case asJSON && !sameJSON(e.data, data), !asJSON && !bytes.Equal(e.data, data):
		w.violate("%s: event %d of %s is %q in the log, and %q was sent", s, sequence, stream, e.data, data)
	default:
		for _, m := range w.truth.history(session).clears {
			if m.sequence <= asOf && m.sequence > sequence && (m.subject.Stream == "" || m.subject.Stream == stream) {
				w.violate("%s: event %d of %s was sent though the edge was past the clear %d", s, sequence, stream, m.sequence)
			}
		}
	}
}

func (w *world) published(at place, data []byte, asJSON bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.attempts[at], func(a *attempt) bool {
		return bytes.Equal(a.data, data) || asJSON && sameJSON(a.data, data)
	})
}

// checkStart finds out whether a subscriber without a cursor was denied an event
// that is retained, and on a flow which of the events that lie between others were
// removed when it connected.
func (w *world) checkStart(s *subscriber, at uint64) {
	ctx, cancel := w.bounded()
	defer cancel()
	// All entries stored when the subscriber connected have to be known, also those after
	// its cursor: the truth may be later than an edge.
	p := w.truth.partition(s.plan.session)
	if _, err := w.truth.upToNow(ctx, p); err != nil {
		return // the end of the schedule finds out
	}
	var there []stored
	if s.plan.stream == "" {
		there = w.truth.history(s.plan.session).events("", at, ^uint64(0))
	}
	h := w.truth.history(s.plan.session)
	for _, e := range there {
		if removed, err := w.truth.removed(ctx, h, e); err == nil && removed {
			s.mu.Lock()
			s.excused[e.sequence] = true
			s.mu.Unlock()
		}
	}
	for _, e := range h.events(s.plan.stream, 0, at) {
		if removed, err := w.truth.removed(ctx, h, e); err == nil && !removed {
			w.violate("%s began behind %d, and event %d of %s is retained", s, at, e.sequence, e.subject.Stream)
			return
		}
	}
}

// checkGap finds the events that were really missing when a subscriber, which had some
// events by then, received a gap. why is the reason why it may be uncertain.
func (w *world) checkGap(s *subscriber, g *toldGap, had map[uint64]string, why string) {
	w.mu.Lock()
	w.tally["gap "+g.Reason+fmt.Sprintf(" certain=%t", g.Certain)]++
	w.mu.Unlock()
	ctx, cancel := w.bounded()
	defer cancel()
	if !g.Certain {
		w.checkDoubt(ctx, s, g, why)
	}
	p := w.truth.partition(s.plan.session)
	last, err := w.truth.upToNow(ctx, p)
	if err != nil {
		if w.ctx.Err() == nil {
			w.violate("%s: %s: %v", s, g, err)
		}
		return
	}
	stream := s.plan.stream
	if g.Stream != nil {
		stream = *g.Stream
	}
	upTo, flow := g.resumesAt, s.plan.stream == ""
	if flow {
		// Other streams' events come first: the events count that had been removed, or
		// were about to be, when the gap was sent.
		upTo = max(upTo, last)
	}
	h := w.truth.history(s.plan.session)
	var removed []stored
	for _, e := range w.everything(h, stream, g.requested, upTo) {
		if _, ok := had[e.sequence]; ok {
			continue
		}
		gone, err := w.truth.removed(ctx, h, e)
		if err != nil {
			if w.ctx.Err() == nil {
				w.violate("%s: %s: %v", s, g, err)
			}
			return
		}
		if gone {
			removed = append(removed, e)
		}
	}
	phantom := w.truth.lostIn(p, g.requested, upTo)
	s.mu.Lock()
	g.removed, g.phantom = removed, phantom
	if g.Reason == "damaged" {
		g.doubtTo = last
	}
	s.mu.Unlock()
	if len(removed) == 0 && g.Certain && !phantom {
		w.violate("%s: %s: nothing is missing", s, g)
	}
}

// everything returns the messages of a stream, or of all, with those that are no
// JSON: their removal looks like that of an event.
func (w *world) everything(h history, stream string, after, upTo uint64) []stored {
	out := h.events(stream, after, upTo)
	if len(h.entries) == 0 {
		return out
	}
	p := h.entries[0].subject.Partition
	w.truth.mu.Lock()
	defer w.truth.mu.Unlock()
	for _, e := range w.truth.parts[p] {
		if !e.valid && e.subject.Session == h.entries[0].subject.Session && e.subject.Life == h.life && e.subject.Partition == p && e.sequence > after && e.sequence <= upTo && (stream == "" || e.subject.Stream == stream) {
			out = append(out, e)
		}
	}
	return out
}

// goal returns the sequence that a subscriber has to reach, and whether its stream or
// session has ended.
func (w *world) goal(s *subscriber) (last uint64, closed bool) {
	h := w.truth.history(s.plan.session)
	if events := h.events(s.plan.stream, 0, ^uint64(0)); len(events) > 0 {
		last = events[len(events)-1].sequence
	}
	if s.plan.stream == "" {
		return last, h.closed[""] != 0
	}
	return last, h.closedAt(s.plan.stream) != 0
}

// checkEverything compares the events of every subscriber with the truth, when all have
// caught up with ends. An event that a publisher had given up may be stored still later.
func (w *world) checkEverything(ends []uint64) {
	for _, s := range w.subscribers {
		if p := w.truth.partition(s.plan.session); p < len(ends) {
			w.checkSubscriber(s, ends[p])
		}
	}
	w.checkPublishers()
}

func (w *world) checkSubscriber(s *subscriber, end uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := w.truth.history(s.plan.session)
	if !s.begun {
		w.violate("%s never began", s)
		return
	}
	var gaps []*toldGap
	seenClose := false
	for _, r := range s.log {
		switch {
		case r.gap != nil:
			if gaps = append(gaps, r.gap); !r.gap.late {
				w.checkReason(s, r.gap)
			}
		case r.what == "close":
			seenClose = true
		case r.what == "message":
			if seenClose {
				w.violate("%s: event %d of %s came after close", s, r.position, r.stream)
			}
		}
	}
	if _, closed := w.goal(s); seenClose && !closed {
		w.violate("%s was closed and there is no end", s)
	}
	if s.plan.from == "unknown" && (len(gaps) == 0 || gaps[0].Reason != "unknown") {
		w.violate("%s came with an ID of nowhere and was not told", s)
	}
	w.checkRepeats(s)
	var holes []string
	for _, e := range h.events(s.plan.stream, s.begin, end) {
		if _, ok := s.delivered[e.sequence]; ok || s.excused[e.sequence] || covered(s, gaps, e) {
			continue
		}
		holes = append(holes, fmt.Sprintf("%s:%d", e.subject.Stream, e.sequence))
	}
	if len(holes) > 0 {
		w.violate("%s began at %d and misses %s without a gap", s, s.begin, strings.Join(holes, " "))
	}
}

// covered reports whether a gap has reported an event to a subscriber as missing. On a
// flow a gap covers its stream's events up to the last removed one.
func covered(s *subscriber, gaps []*toldGap, e stored) bool {
	return slices.ContainsFunc(gaps, func(g *toldGap) bool {
		if g.Reason == "unknown" || e.sequence <= g.requested || !g.about(e.subject.Stream) {
			return false
		}
		return e.sequence <= max(g.resumesAt, g.doubtTo) || s.plan.stream == "" && slices.ContainsFunc(g.removed, func(r stored) bool {
			return r.subject.Stream == e.subject.Stream && e.sequence <= r.sequence
		})
	})
}

func (w *world) checkReason(s *subscriber, g *toldGap) {
	possible := map[string]bool{
		"unknown": s.plan.from == "unknown",
		"expired": w.sc.settings.MaxAge > 0 || w.sc.settings.MaxBytes > 0,
		"trimmed": w.sc.settings.MaxEventsPerStream > 0 || w.sc.sessionLimits(),
		"damaged": !g.Certain,
		"cleared": w.sc.clears || w.sc.has(opClose),
	}
	if !w.sc.loses() && g.Certain && g.Reason != "unknown" {
		w.violate("%s: %s: no event is ever lost here", s, g)
	}
	if !possible[g.Reason] {
		w.violate("%s: %s: that reason does not exist here", s, g)
	}
}

// checkRepeats makes sure that a stream's gap is sent once: a later gap must not report
// only events that an earlier one has reported. (On a flow it may.)
func (w *world) checkRepeats(s *subscriber) {
	if s.plan.stream == "" {
		return
	}
	var told uint64 // up to here
	previous := -1
	before := told
	for i, r := range s.log {
		if r.gap == nil || r.gap.Reason == "unknown" || r.gap.late {
			continue
		}
		if previous < 0 || i != previous+1 { // gaps of one step share resumesAt
			before = told
		}
		previous = i
		g := r.gap
		fresh := slices.ContainsFunc(g.removed, func(e stored) bool { return e.sequence > before })
		if g.Certain && !fresh && !g.phantom && before > 0 {
			w.violate("%s: %s: that was told before, up to %d", s, g, before)
		}
		told = max(told, g.resumesAt)
	}
}

// unfenced reports whether a torn block has taken the end of a stream or of its session.
func (w *world) unfenced(at place) bool { return w.torn[at] || w.torn[place{session: at.session}] }

func (w *world) checkPublishers() {
	w.mu.Lock()
	defer w.mu.Unlock()
	fail := func(format string, args ...any) { w.violations = append(w.violations, fmt.Sprintf(format, args...)) }
	for _, session := range sessionNames {
		for _, e := range w.truth.history(session).behind {
			if w.unfenced(e.place()) {
				continue
			}
			fail("%s: event %d lies behind its end", e.place(), e.sequence)
		}
	}
	for at, attempts := range w.attempts {
		p := w.truth.partition(at.session)
		h := w.truth.history(at.session)
		closes := []*closing{w.closes[at], w.closes[place{session: at.session}]}
		if w.unfenced(at) {
			closes = nil
		}
		where := map[string][]uint64{}
		for _, e := range h.events(at.stream, 0, ^uint64(0)) {
			where[string(e.data)] = append(where[string(e.data)], e.sequence)
			for _, c := range closes {
				if c != nil && c.last != 0 && e.sequence > c.last {
					fail("%s: event %d is stored after the 204 at %d", at, e.sequence, c.last)
				}
			}
		}
		var last uint64
		for _, a := range attempts {
			stored := where[string(a.data)]
			if len(stored) > 1 {
				fail("%s: %s is stored at %v", at, a.data, stored)
			}
			for _, c := range closes {
				if c != nil && !c.ended.IsZero() && a.began.After(c.ended) && (a.status == http.StatusCreated || len(stored) > 0) {
					fail("%s: %s was published after it was closed, answered %d, and is stored at %v", at, a.data, a.status, stored)
				}
			}
			if a.code == "direct" {
				continue
			}
			switch {
			case a.status == http.StatusCreated:
				if a.id.Sequence <= last {
					fail("%s: 201 for %d after %d", at, a.id.Sequence, last)
				}
				last = a.id.Sequence
				if len(stored) == 0 && w.truth.lost[p][a.id.Sequence] {
					break
				}
				if len(stored) != 1 || stored[0] != a.id.Sequence {
					fail("%s: 201 for %d, and it is stored at %v", at, a.id.Sequence, stored)
				}
			case a.status == 0 || a.code == "publish_unknown":
			case len(stored) > 0:
				fail("%s: the answer was %d %s, and the event is stored at %v", at, a.status, a.code, stored)
			case a.status == http.StatusConflict:
				if w.closes[at] == nil && w.closes[place{session: at.session}] == nil {
					fail("%s: %s though it was not closed", at, a.code)
				}
			}
		}
	}
}
