package mcpedge

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/sse"
	"rejoin/shared/web"
)

// get answers with the messages that a session's server sends of itself, from now on, or with
// the rest of the one stream that Last-Event-ID names: 204 when no message will follow on it,
// since some clients reconnect after a response that is an error. A reconnecting client gives
// up after anything but a 200, so a temporary error is one. Of an ended session the rest of a
// call's stream can be fetched: an error of the bridge, or a rest that ends in a gap.
//
// The TypeScript SDK v1 reconnects for a call that ended in an error; only 204 or 405 stops it.
func (s *Service) get(c *fiber.Ctx, who caller) error {
	if who.asked == mcp.Stateless {
		return s.statelessGet(c, who)
	}
	if err := who.unsupported(nil); err != nil {
		return err
	}
	if !subscriber.Accepts(c.Get(fiber.HeaderAccept), subscriber.MediaStream) {
		return web.New(web.CodeNotAcceptable, "Accept must list text/event-stream.")
	}
	last := strings.Clone(c.Get(headerLastID))
	id, idErr := event.ParseID(last)
	if last != "" && (idErr != nil || !sessionStream(id.Stream)) {
		s.subs.Connections.Metrics.Gaps.WithLabelValues(string(cursor.ReasonUnknown)).Inc()
		return refusal.Invalid("Last-Event-ID is none that this server gives.")
	}
	rec, err := s.sessionInHeader(c, who)
	ended := errors.Is(err, refusal.ErrNoSession) && rec.Session != ""
	if err != nil && (!ended || last == "") {
		return err
	}
	req := subscriber.Request{At: window.Place{Session: rec.Session, Life: rec.Life, Stream: rpc.Standalone}, Start: cursor.Start{Now: true}}
	if last != "" {
		req.At.Stream, req.Start = id.Stream, cursor.Start{After: last}
	} else { // another edge may have sent events that this window has yet to receive
		ctx, cancel := context.WithTimeout(s.subs.Base, subscriber.OpenTimeout)
		_ = s.subs.Parts.CatchUp(ctx, rec.Session) // while the log does not answer, the client follows the window
		cancel()
	}
	form := newForm(who, req.At.Stream)
	if ended && len(form.call) == 0 {
		return refusal.ErrNoSession
	}
	if err := s.begin(c, who, req, form); err != nil {
		return err
	}
	if len(form.call) > 0 {
		over, err := s.isOver(c, req)
		switch {
		case err == nil && over && ended:
			err = refusal.ErrNoSession // only the rest of the answer could be fetched
		case err == nil && over:
			err = c.SendStatus(http.StatusNoContent)
		}
		if over || err != nil {
			form.Drop()
			return err
		}
	}
	if !form.endsInGap() {
		form.WaitTurn(req.Start.Now)
		form.claim = s.attached.claim(attachKey(req.At))
	}
	return form.start(c)
}

// sessionStream reports whether a session of MCP may have a stream of this name.
func sessionStream(stream string) bool {
	ids, _ := rpc.RequestIDs(stream)
	return len(ids) > 0 || stream == rpc.Standalone
}

// postOnly refuses the methods that the revision without sessions does not have.
func postOnly(c *fiber.Ctx) error {
	c.Set(fiber.HeaderAllow, fiber.MethodPost)
	return &refusal.Error{Status: http.StatusMethodNotAllowed, Code: rpc.CodeInvalid, Message: "Revision " + mcp.Stateless + " of MCP has no GET and no DELETE."}
}

// isOver reports whether no event follows a client's cursor, and none ever will.
func (s *Service) isOver(c *fiber.Ctx, req subscriber.Request) (bool, error) {
	client := s.subs.Config.Clients.Client(c)
	r, err := s.subs.Open(client, req, window.Limits{Events: 1, Bytes: subscriber.StepBytes})
	if err != nil {
		return false, err
	}
	defer r.Close()
	step, err := s.subs.Poll(cursor.WithClient(s.subs.Base, client), r, 0)
	return err == nil && step.Ended && len(step.Items)+len(step.Gaps) == 0, err
}

// later has a listening client reconnect if an error is temporary.
func (s *Service) later(c *fiber.Ctx, who caller, err error) error {
	if errors.Is(err, subscriber.ErrNoRoom) {
		return s.comeBack(c, who)
	}
	reason := "unavailable"
	switch refusal.From(err).Status {
	case http.StatusTooManyRequests:
		reason = "address_rate"
	case http.StatusServiceUnavailable:
		s.warn(c, web.CodeUnavailable, "an MCP client is sent away with a retry", err)
	default:
		return err
	}
	s.subs.Connections.CountRefused(reason)
	return s.comeBack(c, who)
}

// comeBack answers with a stream that ends at once, and keeps the client's cursor.
func (s *Service) comeBack(c *fiber.Ctx, who caller) error {
	b := sse.AppendRetry(nil, delivery.Jitter(s.subs.Config.Retry))
	name, last := "", c.Get(headerLastID)
	if who.resumes {
		name, last, _ = parseSessionEventID(last)
	}
	switch id, err := event.ParseID(last); {
	case err != nil || !who.primed():
		b = append(b, '\n')
	case who.resumes:
		b = appendPrime(b, sessionEventID(name, id.String()))
	default:
		b = appendPrime(b, id.String())
	}
	return subscriber.SendBriefly(c, b)
}

// delete ends a session, here and at its server.
func (s *Service) delete(c *fiber.Ctx, who caller) error {
	if who.asked == mcp.Stateless {
		return postOnly(c)
	}
	if err := who.unsupported(nil); err != nil {
		return err
	}
	rec, err := s.sessionInHeader(c, who)
	if err != nil {
		return err
	}
	if s.subs.Config.Access.On() && !who.grants.ActsFor(rec.Owner) { // a member
		return s.subs.Config.Access.Insufficient(c)
	}
	answer, err := s.ask(c.UserContext(), rpc.Ask{Action: rpc.End, Session: rec.Session, Owner: who.grants.Subject, Header: forwarded(c)}, bridgeTimeout)
	switch {
	case errors.Is(err, refusal.ErrNoSession):
		return c.SendStatus(http.StatusNoContent)
	case err != nil:
		return err
	}
	return pass(c, answer, nil)
}
