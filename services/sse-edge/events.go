package edge

import (
	"strconv"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/web"
)

// stream answers with an event stream. The answer to a temporary error is a 200 that ends
// at once with a reconnection time, since any other status stops an EventSource for good.
func (s *Service) stream(c *fiber.Ctx, req subscriber.Request) error {
	by, err := s.subs.Admit(c, req.At.Session)
	if err != nil {
		return s.sendLater(c)
	}
	r, err := s.subs.Open(by.Client, req, window.Limits{Events: subscriber.StepEvents, Bytes: subscriber.StepBytes})
	if err != nil {
		s.subs.Admission.Leave(by.Visit)
		if web.AsProblem(err).Code != web.CodeUnavailable {
			return err
		}
		s.subs.SentAway(by, req.At, err)
		return s.later(c, "unavailable")
	}
	conn := delivery.NewSSE(s.subs.Connections, r, by, req.Envelope)
	if r.Finished() {
		conn.Drop()
		return c.SendStatus(fiber.StatusNoContent)
	}
	conn.Filter, conn.Expires, conn.Revoked = req.Filter, req.Expires, s.subs.Revoked(req.Guest)
	from := delivery.Beginning{Fresh: r.Fresh, Resumes: req.Start.After != "", Position: r.Cursor, Read: req.OnGapError}
	if req.OnGapError {
		if conn.Step, err = s.subs.Poll(cursor.WithClient(s.subs.Base, by.Client), r, 0); err != nil {
			conn.Drop()
			s.subs.SentAway(by, req.At, err)
			return s.later(c, "unavailable")
		}
		if len(conn.Step.Gaps) > 0 {
			defer conn.Drop()
			s.subs.Connections.CountTold(r, conn.Step, 0, by)
			return subscriber.GoneProblem(conn.Step.Gap())
		}
	}
	return subscriber.SendStream(c, conn, from)
}

// authenticated returns a handler that has h answer clients with a valid token that do not come too often.
func (s *Service) authenticated(h func(*fiber.Ctx, auth.Grants) error) fiber.Handler {
	return func(c *fiber.Ctx) error {
		if s.subs.TooOften(c) {
			return s.slowDown(c)
		}
		grants, err := s.cfg.Access.Authenticate(c)
		if err != nil {
			return s.turnAway(c, err)
		}
		return h(c, grants)
	}
}

// events answers a subscriber with an event stream or with a page.
//
// A stream is authorised when it begins, and ends with its token, at the end of the leeway. A
// member is checked again with each heartbeat against the copy of the registry; an owner never
// loses a session.
func (s *Service) events(c *fiber.Ctx, grants auth.Grants) error {
	req, err := parse(c)
	if err != nil {
		return err
	}
	subscriber.Uncached(c)
	if req.At.Life, err = s.subs.Authorize(c, req.At.Session, grants); err != nil {
		return s.turnAway(c, err)
	}
	req.Expires, req.Guest = grants.Expires, s.subs.GuestOf(grants, req.At)
	switch subscriber.FormOf(c.Get(fiber.HeaderAccept)) {
	case subscriber.FormStream:
		return s.stream(c, req)
	case subscriber.FormPage:
		return s.subs.Page(c, req, appendPage)
	default:
		return web.New(web.CodeNotAcceptable, "Ask for text/event-stream or application/json.")
	}
}

// appendPage appends the answer to a poll: the events; cursor, after which the next poll
// continues; gaps, for earlier events that should have come before these and no longer
// exist; and closed, which says that no event will ever follow.
func appendPage(b []byte, r *cursor.Reader, step cursor.Step) ([]byte, error) {
	b = append(b, `{"events":[`...)
	for i := range step.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = delivery.AppendObject(b, &step.Items[i], r.Tags)
	}
	b = delivery.AppendString(append(b, `],"cursor":`...), r.ID(r.Cursor))
	b = append(append(b, `,"gaps":`...), event.MustJSON(delivery.GapsOf(r, step))...)
	b = strconv.AppendBool(append(b, `,"closed":`...), step.Ended)
	return append(b, '}'), nil
}
