package e2e_test

import (
	"context"
	"encoding/json"
	"io"
)

// refusal is the 410 of a subscriber that had asked for an error instead of a gap. It
// reconnects to the same edge with the same cursor, and without asking for that, and must
// receive the gap before anything else: an edge must not take back its report, unless
// that was not certain, or the edge is another by then.
type refusal struct {
	edge     int
	life     string
	cursor   string
	position uint64
	doubt    string // why the gap may have been uncertain, as far as was known
}

// refuse handles a 410.
func (c *connection) refuse(ctx context.Context, body io.Reader, edge int) bool {
	var problem struct {
		Code   string
		Status int
	}
	err := json.NewDecoder(body).Decode(&problem)
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil || c.ended {
		return true
	}
	if err != nil || problem.Code != "gap" || problem.Status != 410 {
		c.w.violate("%s: the answer to on_gap=error is %+v: %v", c, problem, err)
	}
	c.refused = &refusal{edge: edge, life: c.life, cursor: c.asked, position: c.position, doubt: c.w.doubtful(c.w.truth.partition(c.plan.session), c.opened)}
	c.note(received{what: "410", edge: c.life, note: c.asked})
	c.w.count("on_gap=error: 410")
	return true
}

// goesOn notes that a subscriber receives something else than a gap. The caller
// holds mu.
func (c *connection) goesOn(what string) {
	if c.refusal == nil {
		return
	}
	switch {
	case c.refusal.life != c.life:
		c.w.count("on_gap=error: the edge is another by now")
	case c.refusal.doubt != "":
		c.w.count("on_gap=error: it was not certain")
	default:
		s, r := c.subscriber, c.refusal
		c.w.tasks.Go(func() { c.w.checkRefusal(s, r, what) })
	}
	c.refusal, c.refused = nil, nil
}

// checkRefusal makes sure that a gap which was not sent after a 410 may have been
// uncertain, though that was not known at once.
func (w *world) checkRefusal(s *subscriber, r *refusal, what string) {
	ctx, cancel := w.bounded()
	defer cancel()
	if w.belowFloor(ctx, w.truth.partition(s.plan.session), r.position) {
		w.count("on_gap=error: it was not certain")
		return
	}
	w.violate("%s: %s answered 410 after %s, and then continues with %s", s, r.life, r.cursor, what)
}

// toldAgain notes that a subscriber receives a gap. The caller holds mu.
func (c *connection) toldAgain(g *toldGap) {
	if c.refusal != nil {
		c.refusal, c.refused = nil, nil
		c.w.count("on_gap=error: then told as an event")
	}
	// A gap that an edge finds at once must not be in the stream.
	if c.strict && g.Reason == "unknown" {
		c.w.violate("%s: asked for an error and received %s", c, g)
	}
	if c.strict && c.plan.poll {
		c.w.violate("%s: a page that was to be an error has %s", c, g)
	}
}
