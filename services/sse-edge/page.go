package edge

import (
	"context"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/web"
)

// pageBytes bounds a page: the first event that would exceed it begins the next one.
const pageBytes = 4 << 20

// page is the answer to a poll.
type page struct {
	Events []object `json:"events"`
	// Cursor is where the next poll goes on.
	Cursor string `json:"cursor"`
	// Gap is what should have come before Events and no longer exists.
	Gap *gapData `json:"gap"`
	// Closed says that nothing will ever follow.
	Closed bool `json:"closed"`
}

// page answers a poll, at once when there is something to tell, or else after at
// most the wait that was asked for.
func (s *Service) page(c *fiber.Ctx, req request) error {
	v := visit{session: req.at.session, address: s.clientAddress(c)}
	if refused := s.admission.enter(v); refused != "" {
		s.metrics.refused.WithLabelValues(refused).Inc()
		return web.New(web.CodeUnavailable, "The edge has no room at the moment.")
	}
	defer s.admission.leave(v)
	r, err := s.open(req, limits{events: req.limit, bytes: pageBytes})
	if err != nil {
		return err
	}
	defer r.close()
	if !req.expires.IsZero() {
		req.wait = min(req.wait, max(time.Until(req.expires), 0))
	}
	step, err := s.poll(r, req.wait)
	if err != nil {
		if passing(err) {
			return web.Wrap(err, web.CodeUnavailable, "The log cannot be reached at the moment.")
		}
		return err
	}
	s.count(step)
	if len(step.gaps) > 0 && req.onGapError {
		return goneProblem(step.gaps[0])
	}
	answer := page{Events: make([]object, 0, len(step.items)), Cursor: r.id(r.cursor), Closed: step.ended}
	if len(step.gaps) > 0 {
		g := merged(step.gaps)
		answer.Gap = &gapData{Reason: g.reason, Certain: g.certain, Stream: orNull(g.stream), Requested: g.requested, ResumesAt: r.id(r.resumesAt(step))}
	}
	for _, it := range step.items {
		answer.Events = append(answer.Events, it.object(r.tags))
	}
	s.metrics.pages.Inc()
	return c.JSON(answer)
}

// merged returns the one gap that a page tells of: the first one, about the whole
// session when there are others of other streams.
func merged(gaps []gap) gap {
	g := gaps[0]
	for _, other := range gaps[1:] {
		if other.stream != g.stream {
			g.stream = ""
		}
	}
	return g
}

// poll reads until there is something to tell or wait is over.
func (s *Service) poll(r *reader, wait time.Duration) (step, error) {
	ctx, cancel := context.WithTimeout(s.base, wait+openTimeout)
	defer cancel()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		step, err := r.next(ctx)
		if err != nil || !step.empty() || wait == 0 {
			return step, err
		}
		select {
		case <-r.wait(step):
		case <-timer.C:
			return step, nil
		case <-s.drain:
			return step, nil
		case <-ctx.Done():
			return step, ctx.Err()
		}
	}
}

// count counts what a step tells.
func (s *Service) count(st step) {
	s.metrics.sent.Add(float64(len(st.items)))
	for _, g := range st.gaps {
		s.metrics.gaps.WithLabelValues(string(g.reason)).Inc()
	}
}

// goneProblem is the answer to a client that asked for an error instead of a gap.
func goneProblem(g gap) error {
	return web.New(web.CodeGap, "The cursor cannot be continued: "+string(g.reason)+".")
}
