package edge

import (
	"net"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/delivery"
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
		s.streams.Reconnects(by.Ctx, req.at, err)
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
	st := delivery.NewSSE(s.streams, r, by, req.envelope)
	st.Filter, st.Expires, st.Revoked = req.filter, req.expires, s.revoked(req.guest)
	from := delivery.Beginning{Fresh: r.Fresh, Resumes: req.start.After != "", Position: r.Cursor, Read: req.onGapError}
	if req.onGapError {
		if st.Step, err = s.poll(s.base, r, 0); err != nil {
			s.streams.Reconnects(by.Ctx, req.at, err)
			return s.later(c, "unavailable")
		}
		if len(st.Step.Gaps) > 0 {
			s.streams.CountTold(r, st.Step, 0, by)
			return goneProblem(st.Step.Gaps[0])
		}
	}
	handedOver = true
	return handOver(c, st, from)
}

// handOver hands a stream over to a worker, after the request. A client of HTTP/1.1 that reads
// chunks gets them.
func handOver(c *fiber.Ctx, st *delivery.Stream, from delivery.Beginning) error {
	st.Head = responseHead(c, st.Chunked)
	c.Context().HijackSetNoResponse(true)
	c.Context().Hijack(func(conn net.Conn) { st.Hand(web.Unwrap(conn), from) }) // writev needs it
	return nil
}

// events answers a subscriber with an event stream or with a page.
//
// A stream is authorised when it begins, and ends with its token, at the end of the leeway. A
// member is checked again with each heartbeat against the copy of the registry; an owner never
// loses a session.
func (s *Service) events(c *fiber.Ctx) error {
	if s.connects.Take(s.clientAddress(c)) > 0 {
		return s.slowDown(c)
	}
	grants, err := s.cfg.Access.Authenticate(c)
	if err != nil {
		return s.turnAway(c, err)
	}
	req, err := parse(c)
	if err != nil {
		return err
	}
	uncached(c)
	if req.at.Life, err = s.admit(c, req.at.Session, grants); err != nil {
		return s.turnAway(c, err)
	}
	req.expires, req.guest = grants.Expires, s.guestOf(grants, req.at)
	switch form(c.Get(fiber.HeaderAccept)) {
	case formStream:
		return s.stream(c, req)
	case formPage:
		return s.page(c, req, appendPage)
	default:
		return web.New(web.CodeNotAcceptable, "Ask for text/event-stream or application/json.")
	}
}
