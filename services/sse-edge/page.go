package edge

import (
	"context"
	"strconv"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/web"
)

// pageBytes bounds a page: the first event that would exceed it begins the next one.
const pageBytes = 4 << 20

// page answers a poll, at once when there is something to tell, or else after at
// most the wait that was asked for.
func (s *Service) page(c *fiber.Ctx, req request) error {
	by, err := s.letIn(c, req.at.session)
	if err != nil {
		return err
	}
	defer s.admission.leave(by.visit)
	limit := limits{events: req.limit, bytes: pageBytes}
	if req.filter != nil {
		limit.events = maxLimit // most of them may be hidden
	}
	r, err := s.open(req, limit)
	if err != nil {
		return err
	}
	defer r.close()
	if !req.expires.IsZero() {
		req.wait = min(req.wait, max(time.Until(req.expires), 0))
	}
	var step step
	if req.filter == nil {
		step, err = s.poll(r, req.wait)
	} else {
		step, err = s.pollFiltered(r, req)
	}
	if err != nil {
		if passing(err) {
			return web.Wrap(err, web.CodeUnavailable, "The log cannot be reached at the moment.")
		}
		return err
	}
	if len(step.gaps) > 0 && req.onGapError {
		s.told(r, step, 0, by) // of its events the client gets none
		return goneProblem(step.gaps[0])
	}
	s.told(r, step, len(step.items), by)
	var g *gapData
	if len(step.gaps) > 0 {
		one := merged(step.gaps)
		g = &gapData{Reason: one.reason, Certain: one.certain, Stream: orNull(one.stream), Requested: one.requested, ResumesAt: r.id(r.resumesAt(step))}
	}
	s.metrics.pages.Inc()
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return c.Send(r.appendPage(nil, step, g))
}

// appendPage appends the answer to a poll: the events; cursor, which is where the next
// poll goes on; gap, which is what should have come before the events and no longer
// exists; and closed, which says that nothing will ever follow.
func (r *reader) appendPage(b []byte, step step, g *gapData) []byte {
	b = append(b, `{"events":[`...)
	for i := range step.items {
		if i > 0 {
			b = append(b, ',')
		}
		b = step.items[i].appendObject(b, r.tags)
	}
	b = appendString(append(b, `],"cursor":`...), r.id(r.cursor))
	b = append(append(b, `,"gap":`...), marshal(g)...)
	b = strconv.AppendBool(append(b, `,"closed":`...), step.ended)
	return append(b, '}')
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

// goneProblem is the answer to a client that asked for an error instead of a gap.
func goneProblem(g gap) error {
	return web.New(web.CodeGap, "The cursor cannot be continued: "+string(g.reason)+".")
}
