package edge

import (
	"net"
	"net/netip"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/web"
)

// One step of the cursor loop: as many frames as one write may carry.
const (
	stepEvents = 1024
	stepBytes  = 256 << 10
)

// stream answers with an event stream. Trouble that will pass is a 200 that ends
// at once with a reconnection time, since anything else stops an EventSource for good.
func (s *Service) stream(c *fiber.Ctx, req request) error {
	by, err := s.letIn(c, req.at.Session)
	if err != nil {
		return s.sendLater(c)
	}
	handedOver := false
	defer func() {
		if !handedOver {
			s.admitted.Leave(by.Visit)
		}
	}()
	r, err := s.open(req, window.Limits{Events: stepEvents, Bytes: stepBytes})
	if problem := web.AsProblem(err); err != nil && problem.Code == web.CodeUnavailable {
		s.streams.reconnects(by.ctx, req.at, err)
		return s.later(c, "unavailable")
	}
	if err != nil {
		return err
	}
	defer func() {
		if !handedOver {
			r.Close()
		}
	}()
	if r.Finished() {
		return c.SendStatus(fiber.StatusNoContent)
	}
	st := newSSE(s.streams, r, by, req.envelope)
	st.filter, st.expires, st.revoked = req.filter, req.expires, s.revoked(req.guest)
	from := beginning{fresh: r.Fresh, resumes: req.start.After != "", position: r.Cursor, read: req.onGapError}
	if req.onGapError {
		if st.step, err = s.poll(s.base, r, 0); err != nil {
			s.streams.reconnects(by.ctx, req.at, err)
			return s.later(c, "unavailable")
		}
		if len(st.step.Gaps) > 0 {
			s.streams.told(r, st.step, 0, by)
			return goneProblem(st.step.Gaps[0])
		}
	}
	handedOver = true
	return handOver(c, st, from)
}

// clientAddress is what a request's client counts as.
func (s *Service) clientAddress(c *fiber.Ctx) netip.Addr {
	return web.Counted(s.cfg.Clients.Address(c))
}

// handOver hands a stream over to a worker, after the request. A client of HTTP/1.1 that reads
// chunks gets them.
func handOver(c *fiber.Ctx, st *stream, from beginning) error {
	st.head = responseHead(c, st.chunked)
	c.Context().HijackSetNoResponse(true)
	c.Context().Hijack(func(conn net.Conn) { st.hand(web.Unwrap(conn), from) }) // writev needs it
	return nil
}
