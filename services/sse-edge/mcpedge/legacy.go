package mcpedge

import (
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/rpc"
	"rejoin/shared/web"
)

// The transport of MCP 2024-11-05: one event stream carries all messages of a session, and
// names the URL to post to. The edge names the session when the stream is opened, and a
// bridge creates it when initialize is posted, at any edge.

// legacyGet opens the event stream of a new session, or resumes one.
func (s *Service) legacyGet(c *fiber.Ctx, who caller) error {
	form := &streamForm{sse2024: true}
	req := subscriber.Request{At: window.Place{Session: uuid.NewString()}, Start: cursor.Start{Now: true}}
	if last := c.Get(headerLastID); last != "" {
		name, id, ok := parseSessionEventID(strings.Clone(last))
		if !ok {
			return refusal.Invalid("Last-Event-ID is not one of this server.")
		}
		rec, err := s.sessionOf(c, name, who.grants)
		if err != nil {
			return err
		}
		req.At.Session, req.At.Life, req.Start = name, rec.Life, cursor.Start{After: id}
	} else if !who.grants.MaySubscribe(req.At.Session) {
		return s.subs.Config.Access.Insufficient(c)
	}
	if err := s.begin(c, who, req, form); err != nil {
		return err
	}
	if !req.Start.Now {
		form.WaitTurn(false)
		form.claim = s.attached.claim(attachKey(req.At))
	}
	return form.start(c)
}

// legacyPost takes a message. Its response comes on the event stream.
func (s *Service) legacyPost(c *fiber.Ctx, who caller) (err error) {
	result := postRefused
	defer func() { s.countPost(result, err) }()
	name, _, err := web.Query(c, "session")
	if err != nil {
		return err
	}
	p, body, err := s.body(c, who, false)
	if err != nil {
		return err
	}
	if p.opens() && s.unheardOf(name) {
		result, err = s.legacyOpen(c, who, name, p, body)
		return refusal.WithID(err, p.only())
	}
	rec, err := s.sessionOf(c, name, who.grants)
	if err != nil {
		return err
	}
	ask := rpc.Ask{Action: rpc.Post, Session: rec.Session, Owner: who.grants.Subject, Header: forwarded(c), Data: body}
	if len(p.ids) > 0 {
		if ask.Stream, err = rpc.NewStream(p.ids, p.batch); err != nil {
			return refusal.Invalid("Invalid request: " + err.Error())
		}
	}
	result, err = s.postWithoutResponse(c, ask)
	return refusal.WithID(err, p.only())
}

// unheardOf reports whether no session has a name, as far as the copy of the registry knows, and one may have it.
func (s *Service) unheardOf(name string) bool {
	_, ok := s.sessions.Session(name)
	return !ok && uuid.Validate(name) == nil
}

// legacyOpen has a bridge create the session. Its response comes on the event stream, as all others do.
func (s *Service) legacyOpen(c *fiber.Ctx, who caller, name string, p posted, body []byte) (result string, err error) {
	stream, err := rpc.NewStream(p.ids, false)
	if err != nil {
		return postRefused, refusal.Invalid("Invalid request: " + err.Error())
	}
	answer, err := s.initialize(c, who, rpc.Ask{Session: name, Stream: stream, Data: body})
	switch {
	case err != nil:
		return postRefused, err
	case answer.Status == http.StatusOK && isError(answer.Data):
		answer.Status = http.StatusBadRequest // there is no session whose stream could carry it
		return postRefused, pass(c, answer, nil)
	case answer.Status != http.StatusOK:
		return postRefused, pass(c, answer, nil)
	}
	c.Status(http.StatusAccepted)
	return postOpened, nil
}
