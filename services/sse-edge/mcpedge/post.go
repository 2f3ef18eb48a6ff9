package mcpedge

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/web"
)

// atOnce is how long a streamable call may take to be answered on a connection that
// is kept. A new connection costs about as much as such a call.
const atOnce = 10 * time.Millisecond

// post takes a client's messages: a request is answered with its response, or with
// the stream on which that comes; anything else with 202.
func (s *Service) post(c *fiber.Ctx, who caller) (err error) {
	result := postRefused
	defer func() { s.countPost(result, err) }()
	p, body, err := s.body(c, who, true)
	if err != nil {
		return err
	}
	defer func() { err = refusal.WithID(err, p.only()) }()
	if p.stateless {
		result, err = s.statelessPost(c, who, p, body)
		return err
	}
	if p.opens() {
		result, err = s.openSession(c, who, body)
		return err
	}
	rec, err := s.sessionInHeader(c, who)
	if err != nil {
		return err
	}
	ask := rpc.Ask{Action: rpc.Post, Session: rec.Session, Owner: who.grants.Subject, Header: forwarded(c), Data: body}
	if len(p.ids) == 0 {
		result, err = s.postWithoutResponse(c, ask)
		return err
	}
	result, err = s.call(c, who, rec.Life, ask, p)
	return err
}

// countPost counts how a POST was answered.
func (s *Service) countPost(result string, err error) {
	if err != nil && refusal.From(err).Status >= http.StatusInternalServerError {
		result = postUnavailable
	}
	s.metrics.posts.WithLabelValues(result).Inc()
}

// body reads and checks the body of a POST; answered says whether the client takes the
// answer from the response.
func (s *Service) body(c *fiber.Ctx, who caller, answered bool) (p posted, body []byte, err error) {
	if media, _, _ := strings.Cut(c.Get(fiber.HeaderContentType), ";"); !strings.EqualFold(strings.TrimSpace(media), fiber.MIMEApplicationJSON) {
		return p, nil, web.New(web.CodeUnsupportedMediaType, "The Content-Type must be application/json.")
	}
	if body, err = web.StreamedBody(c).Limited(s.log.Settings().MaxMessageBytes); err != nil {
		return p, nil, err
	}
	p, err = parsePosted(body)
	p.stateless = answered && err == nil && who.stateless(p, body)
	if known := answered && who.asked == mcp.Stateless; !p.stateless && !known { // else err has the reason, or the batch is refused
		if unsupported := who.unsupported(p.only()); unsupported != nil {
			return p, nil, unsupported
		}
	}
	accept := c.Get(fiber.HeaderAccept)
	switch {
	case err != nil:
		return p, nil, err
	case answered && (!subscriber.Accepts(accept, fiber.MIMEApplicationJSON) || !subscriber.Accepts(accept, subscriber.MediaStream)):
		return p, nil, web.New(web.CodeNotAcceptable, "Accept must list application/json and text/event-stream.")
	}
	if p.stateless {
		return p, body, nil
	}
	return p, body, p.check(who.version)
}

// openSession begins a session: the edge names it, the bridge creates it.
func (s *Service) openSession(c *fiber.Ctx, who caller, body []byte) (result string, err error) {
	name := uuid.NewString()
	answer, err := s.initialize(c, who, rpc.Ask{Session: name, Data: body})
	if err != nil {
		return postRefused, err
	}
	if err := pass(c, answer, nil); err != nil || answer.Status != http.StatusOK || isError(answer.Data) {
		return postRefused, err
	}
	c.Set(headerSession, name)
	return postOpened, nil
}

// initialize has a bridge create a session.
func (s *Service) initialize(c *fiber.Ctx, who caller, ask rpc.Ask) (rpc.Answer, error) {
	if !who.grants.MayPublish(ask.Session) || !who.grants.MaySubscribe(ask.Session) {
		return rpc.Answer{}, s.subs.Config.Access.Insufficient(c)
	}
	ask.Action, ask.Owner, ask.Client, ask.Header = rpc.Open, who.grants.Subject, s.subs.ClientAddress(c).String(), forwarded(c)
	return s.ask(c.UserContext(), ask, bridgeTimeout)
}

// postWithoutResponse has a bridge take messages that have no response.
func (s *Service) postWithoutResponse(c *fiber.Ctx, ask rpc.Ask) (result string, err error) {
	answer, err := s.ask(c.UserContext(), ask, bridgeTimeout)
	switch {
	case err != nil:
		return postRefused, err
	case answer.Status != http.StatusAccepted:
		return postRefused, pass(c, answer, nil)
	}
	c.Status(http.StatusAccepted)
	return postAccepted, nil
}

// call has a bridge take requests, and answers with the stream of their messages. The stream's
// name is new, so all its events come after the cursor at which the reader begins.
func (s *Service) call(c *fiber.Ctx, who caller, life string, ask rpc.Ask, p posted) (result string, err error) {
	if ask.Stream, err = rpc.NewStream(p.ids, p.batch); err != nil {
		return postRefused, refusal.Invalid("Invalid request: " + err.Error())
	}
	req := subscriber.Request{At: window.Place{Session: ask.Session, Life: life, Stream: ask.Stream}, Start: cursor.Start{Now: true, NewStream: true}}
	form := newForm(who, ask.Stream)
	if err := s.begin(c, who, req, form); err != nil {
		return postRefused, err
	}
	defer func() {
		if err != nil {
			form.Drop()
		}
	}()
	answer, err := s.ask(form.Request.Ctx, ask, s.takenTimeout)
	switch {
	case errors.Is(err, rpc.ErrUnknown): // the bridge may be at work: if it is not, a check finds out
	case err != nil:
		return postRefused, err
	case answer.Status != http.StatusAccepted:
		return postRefused, pass(c, answer, form.Drop)
	}
	result, err = s.reply(c, form, !p.batch && s.wantsPlain(c, p.methods[0]))
	return result, served(err, p.methods...)
}

// wantsPlain reports whether a request is answered with JSON when the response is its only message.
func (s *Service) wantsPlain(c *fiber.Ctx, method string) bool {
	return !slices.Contains(s.cfg.StreamMethods, method) && !subscriber.PrefersStream(c.Get(fiber.HeaderAccept))
}

// reply answers a request that a bridge has taken: with the response alone, if plain and if that comes
// first, else with the stream, which is started unless it has ended. With an error the stream has to be
// dropped.
func (s *Service) reply(c *fiber.Ctx, form *streamForm, plain bool) (result string, err error) {
	patience := atOnce
	form.checkAt = time.Now().Add(s.checkEvery) // the bridge is asked about streams only
	if plain {
		patience = min(s.subs.Config.Heartbeat, s.checkEvery)
	}
	if at := s.subs.Connections.CutAt(form.Request); !at.IsZero() {
		patience = min(patience, max(time.Until(at), 0))
	}
	if form.Step, err = s.subs.Poll(cursor.WithClient(s.subs.Base, form.Request.Client), form.Reader, patience); err != nil {
		s.subs.Connections.Waits(form.Request.Ctx, "an MCP call waits for the log", form.Reader.Place, err)
	}
	switch {
	case form.renamed != nil && form.Step.Ended && len(form.Step.Gaps)+len(form.Step.Items) == 0: // the client has all of the call
		return postRefused, refusal.FromMCP(mcp.ErrState, form.renamed.ID)
	case plain && len(form.Step.Gaps) == 0 && len(form.Step.Items) > 0 && isResponse(messageOf(form.Step.Items[0])):
		result, err = postJSON, form.sendResponse(c)
	case form.Step.Ended:
		result, err = postStream, form.sendWhole(c)
	default:
		return postStream, form.start(c)
	}
	if err != nil && form.primed { // the log has the response: the client resumes to receive it
		result, err = postStream, subscriber.SendBriefly(c, form.Opening(c.UserContext(), delivery.Beginning{Position: form.Reader.ResumesAt(form.Step)}))
		form.Drop()
	}
	return result, err
}

// sendResponse answers with the response alone. It is copied: a client that does not read would hold its
// segment of the window.
func (m *streamForm) sendResponse(c *fiber.Ctx) error {
	response := m.edited(bytes.Clone(messageOf(m.Step.Items[0])))
	if err := m.send(c, response, m.Step, 1); err != nil {
		return err
	}
	if m.stateless {
		c.Status(mcp.StatusOf(response))
	}
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return nil
}

// sendWhole answers with all of a stream that has ended already, and keeps the connection.
func (m *streamForm) sendWhole(c *fiber.Ctx) error {
	body := m.Opening(c.UserContext(), delivery.Beginning{Position: m.Reader.ResumesAt(m.Step)})
	step := m.UpToGap(m.Step)
	var room []byte
	for i := range step.Items {
		if m.Rewrites() {
			body, room = m.Event(body, room, &step.Items[i])
		} else {
			body = append(body, step.Items[i].Frame...)
		}
	}
	body = append(body, m.Closing(step)...)
	if err := m.send(c, body, step, len(step.Items)); err != nil {
		return err
	}
	subscriber.EventStream(&c.Response().Header)
	return nil
}

// send answers with a body that holds the first events of a step, in place of the stream; see
// [web.Send].
func (m *streamForm) send(c *fiber.Ctx, body []byte, step cursor.Step, events int) error {
	if err := web.Send(c, body, m.Drop); err != nil {
		return err
	}
	m.service.subs.Connections.CountTold(m.Reader, step, events, m.Request)
	m.DropStep()
	return nil
}
