package mcpedge

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// The revision without sessions: each POST is a request of its own, and the answer is JSON or an
// event stream that ends with the response. A bridge answers a quick request at once; any other
// gets a session in the log that no client ever learns of, with one stream.

// stateless reports whether a POST is of a revision without sessions, by its header or its body. Bodies
// of earlier revisions have no version.
func (m caller) stateless(p posted, body []byte) bool {
	return !p.batch && (m.asked == mcp.Stateless || mcp.Claims(body))
}

// statelessPost takes a request, or a notification: no notification of the revision is for a server
// that is reached over HTTP.
func (s *Service) statelessPost(c *fiber.Ctx, who caller, p posted, body []byte) (result string, err error) {
	if len(p.ids) == 0 {
		if m, _ := rpc.ParseMessage(body); m.Method == nil { // it has been read before
			return postRefused, refusal.Invalid("Revision " + mcp.Stateless + " has no requests of servers that this could be the response to.")
		}
		c.Status(http.StatusAccepted)
		return postAccepted, nil
	}
	r, err := mcp.Parse(body)
	if err == nil {
		err = r.Check(func(name string) string { return c.Get(name) })
	}
	if err != nil {
		return postRefused, refusal.FromMCP(err, p.only())
	}
	stream, err := rpc.NewStream(p.ids, false)
	if err != nil { // no stream may hold an ID of any length
		return postRefused, refusal.Invalid("Invalid request: " + err.Error())
	}
	if s.servesEvents(r.Method) {
		return s.eventsPost(c, who, r, body)
	}
	if state, ours, err := r.HandOver(); ours && err != nil { // before State, whose prefix it has too
		return postRefused, refusal.FromMCP(err, p.only())
	} else if ours {
		return s.statelessAgain(c, who, r, state)
	}
	state, held, task := mcp.State{}, false, false
	switch {
	case r.NeedsTasks() && !r.DeclaresTasks():
		err = mcp.ErrNeedsTasks
	case mcp.IsTaskMethod(r.Method):
		state.Session, task = mcp.ParseTaskID(r.Name)
	default:
		state, held, err = r.State()
	}
	if err != nil {
		return postRefused, refusal.FromMCP(err, p.only())
	}
	if !held && !task {
		state.Session, state.Life = s.subs.Parts.Near(uuid.NewString), session.NewLife()
	}
	if !who.grants.MayPublish(state.Session) || !who.grants.MaySubscribe(state.Session) {
		return postRefused, s.subs.Config.Access.Insufficient(c)
	}
	ask := rpc.Ask{
		Action: rpc.Request, Session: state.Session, Life: state.Life, Stream: stream, Held: held,
		Owner: who.grants.Subject, Client: s.subs.ClientAddress(c).String(), Header: forwarded(c), Data: body,
	}
	if task {
		return s.taskPost(c, who, ask, r)
	}
	return s.statelessCall(c, who, ask, r)
}

// statelessCall has a bridge take a request, and answers with the bridge's immediate answer, or with the
// stream that it stores: with the response alone where that is likely to be the only message.
func (s *Service) statelessCall(c *fiber.Ctx, who caller, ask rpc.Ask, r mcp.Request) (result string, err error) {
	req := subscriber.Request{At: window.Place{Session: ask.Session, Life: ask.Life, Stream: ask.Stream}, Start: cursor.Start{Now: true, NewStream: true}}
	form := newForm(who, ask.Stream)
	form.stateless, form.held, form.discovers = true, ask.Held, r.Method == mcp.MethodDiscover
	if !form.primed && mcp.CanHandOver(r.Method) {
		form.state = &mcp.HandOver{Session: ask.Session, Content: r.Content()}
	}
	if err := s.begin(c, who, req, form); err != nil {
		return postRefused, err
	}
	defer func() {
		if err != nil {
			form.Drop()
		}
	}()
	answer, err := s.ask(form.Request.Ctx, ask, s.requestTimeout)
	switch {
	case errors.Is(err, rpc.ErrNobody) && ask.Held:
		return postRefused, refusal.FromMCP(mcp.ErrState, nil)
	case err != nil:
		if errors.Is(err, rpc.ErrUnknown) {
			s.cancel(ask, false)
		}
		return postRefused, err
	case answer.Status >= http.StatusBadRequest:
		return postRefused, pass(c, answer, form.Drop)
	case answer.Status == http.StatusOK:
		result, err = direct(c, form.edited(answer.Data), form.Drop)
	case answer.Status != http.StatusAccepted:
		return postJSON, pass(c, answer, form.Drop)
	default:
		result, err = s.reply(c, form, r.Method != mcp.MethodListen && s.wantsPlain(c, r.Method))
	}
	return result, served(err, r.Method)
}

// maxTokenBytes bounds the progress token that an edge keeps of a request.
const maxTokenBytes = 1 << 10

// statelessAgain answers the request of a client that the call was handed over to, with the rest of the
// stream that the call has. No bridge is asked: the call has all answers to its questions that there are.
func (s *Service) statelessAgain(c *fiber.Ctx, who caller, r mcp.Request, state mcp.HandOver) (result string, err error) {
	gone := refusal.FromMCP(mcp.ErrState, r.ID)
	token := r.Meta["progressToken"]
	if len(token) > maxTokenBytes {
		return postRefused, refusal.Invalid("Invalid request: the progress token is too long.")
	}
	id, err := event.ParseID(state.After)
	if ids, _ := rpc.RequestIDs(id.Stream); err != nil || len(ids) != 1 {
		return postRefused, gone
	}
	rec, err := s.sessionOf(c, state.Session, who.grants)
	ended := errors.Is(err, refusal.ErrNoSession)
	switch {
	case ended && rec.Session == "":
		return postRefused, gone
	case err != nil && !ended:
		return postRefused, err
	}
	req := subscriber.Request{At: window.Place{Session: state.Session, Life: rec.Life, Stream: id.Stream}, Start: cursor.Start{After: state.After}}
	form := &streamForm{
		stateless: true, call: []json.RawMessage{r.ID}, kind: rand.Text(),
		renamed: &mcp.Request{ID: r.ID, Meta: map[string]json.RawMessage{"progressToken": token}},
	}
	if state.Times < mcp.MaxHandOvers {
		form.state = &state
	}
	switch err := s.begin(c, who, req, form); {
	case errors.Is(err, subscriber.ErrStopping) && form.state != nil:
		return s.handOverAgain(c, r.ID, state)
	case err != nil:
		return postRefused, err
	}
	if result, err = s.reply(c, form, false); err != nil {
		form.Drop()
	}
	return result, err
}

// handOverAgain hands a call over once more, to a client that reconnected to an edge that stops: a proxy takes
// a moment to notice, and the client knows no other edge. The edge waits that moment.
func (s *Service) handOverAgain(c *fiber.Ctx, id json.RawMessage, state mcp.HandOver) (result string, err error) {
	natsconn.Pause(s.subs.Base, delivery.Jitter(s.subs.Config.Retry))
	return postStream, subscriber.SendBriefly(c, handOverBlock(id, state, state.After))
}

// statelessGet answers with the rest of a call's stream, which the event ID names with its session:
// 204 when no event is left, and the error of an unknown call as an event, since some clients take
// a 4xx for the end of the server.
func (s *Service) statelessGet(c *fiber.Ctx, who caller) error {
	last := strings.Clone(c.Get(headerLastID))
	if !who.resumes || last == "" {
		return postOnly(c)
	}
	if !subscriber.Accepts(c.Get(fiber.HeaderAccept), subscriber.MediaStream) {
		return web.New(web.CodeNotAcceptable, "Accept must list text/event-stream.")
	}
	name, text, ok := parseSessionEventID(last)
	id, err := event.ParseID(text)
	form := newForm(who, id.Stream)
	if form.stateless = true; !ok || err != nil || len(form.call) == 0 {
		s.subs.Connections.Metrics.Gaps.WithLabelValues(string(cursor.ReasonUnknown)).Inc()
		return refusal.Invalid("Last-Event-ID is none that this server gives.")
	}
	rec, err := s.sessionOf(c, name, who.grants)
	ended := errors.Is(err, refusal.ErrNoSession)
	if ended && rec.Session == "" {
		return subscriber.SendBriefly(c, appendErrors(nil, form.call, noResponse))
	}
	if err != nil && !ended {
		return err
	}
	req := subscriber.Request{At: window.Place{Session: name, Life: rec.Life, Stream: id.Stream}, Start: cursor.Start{After: text}}
	over, err := s.isOver(c, req)
	switch {
	case err != nil:
		return err
	case over:
		return s.statelessOver(c, req.At, form.call)
	}
	if err := s.begin(c, who, req, form); err != nil {
		return err
	}
	return form.start(c)
}

// statelessOver answers a client that has all of a call's stream: with 204 if that ends with the
// response, else with the error that a client connected at the end has received. The call was cancelled
// then: the client was disconnected for too long, or another one of the same principal has made the same call.
func (s *Service) statelessOver(c *fiber.Ctx, at window.Place, ids []json.RawMessage) error {
	e, err := s.newest(s.subs.Config.Clients.Client(c), at)
	switch {
	case err == nil && isResponse(e.Data):
		return c.SendStatus(http.StatusNoContent)
	case err == nil, errors.Is(err, eventlog.ErrNotFound):
		return subscriber.SendBriefly(c, appendErrors(nil, ids, noResponse))
	default:
		return err
	}
}

// newest returns the newest event of a stream, for a client. The error wraps [eventlog.ErrNotFound] where there
// is none.
func (s *Service) newest(client string, at window.Place) (eventlog.Entry, error) {
	ctx, cancel := context.WithTimeout(s.subs.Base, subscriber.OpenTimeout)
	defer cancel()
	last := event.Subject{Partition: s.log.Partition(at.Session), Session: at.Session, Life: at.Life, Stream: at.Stream, Kind: event.Message}
	e, err := s.subs.Parts.Newest(cursor.WithClient(ctx, client), last)
	if err != nil && cursor.Transient(err) && !errors.Is(err, eventlog.ErrNotFound) {
		err = web.Wrap(err, web.CodeUnavailable, "The log cannot be read at the moment.")
	}
	return e, err
}
