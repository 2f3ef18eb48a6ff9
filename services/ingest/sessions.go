package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"

	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

const (
	// maxMetadata is the largest metadata of a session, in bytes as sent.
	maxMetadata = 16 << 10
	// maxSessionBody is the largest body of POST /v1/sessions.
	maxSessionBody = 64 << 10
)

// sessionRequest is the body of POST /v1/sessions.
type sessionRequest struct {
	name     string          // empty: choose one
	owner    string          // empty: the token's subject
	members  []string        // sorted; nil: none
	metadata json.RawMessage // nil: none
}

// sessionAnswer is a client's answer about its session.
type sessionAnswer struct {
	Session string `json:"session"`
	// Life tells this use of the name from earlier ones. Who publishes to the log
	// directly needs it: it is part of the subject.
	Life string `json:"life"`
	// Partition is the session's, for proxies that send each to few edges.
	Partition int             `json:"partition"`
	State     session.State   `json:"state"`
	Created   time.Time       `json:"created"`
	Members   []string        `json:"members,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
}

func (s *Service) answerOf(rec session.Record) sessionAnswer {
	return sessionAnswer{rec.Session, rec.Life, s.backend.Log.Partition(rec.Session), rec.State, rec.Created, rec.Members, rec.Metadata}
}

// createSession answers POST /v1/sessions.
//
// That a name is taken shows, also to those who do not own it: a name is given once. A client that must
// not learn other names has a pattern of its own in its token.
func (s *Service) createSession(c *fiber.Ctx) error {
	grants := s.cfg.Access.Grants(c)
	creator := s.publisher(c, grants)
	if err := s.mayCreate(creator); err != nil { // before the body is parsed, which costs more
		return problem(err)
	}
	req, err := readSession(c)
	if err != nil {
		return problem(err)
	}
	if req.name == "" {
		req.name = uuid.NewString()
	}
	if !grants.MayPublish(req.name) {
		return s.cfg.Access.Insufficient(c)
	}
	switch {
	case !s.cfg.Access.On() && (req.owner != "" || req.members != nil):
		return noAccessControl()
	case req.owner == "":
		req.owner = grants.Subject
	case !grants.ActsFor(req.owner):
		return s.cfg.Access.Insufficient(c)
	}
	ctx, cancel := s.limit(context.Background(), s.cfg.AckTimeout)
	defer cancel()
	rec := session.New(req.name, req.owner, req.metadata, s.backend.Now()).WithMembers(req.members)
	if err := checkSize(rec, req.members); err != nil {
		return err
	}
	if !s.cfg.Access.On() {
		rec.Client = s.cfg.Clients.Client(c)
	}
	if rec, err = s.create(ctx, rec, creator); err != nil {
		return problem(s.endedBefore(ctx, req.name, grants, err))
	}
	c.Location("/v1/sessions/" + url.PathEscape(rec.Session))
	return c.Status(fiber.StatusCreated).JSON(s.answerOf(rec))
}

// mayCreate counts an attempt to open a session for a creator; empty for none. The error is a
// [*rateError].
func (s *Service) mayCreate(creator string) error {
	if creator == "" {
		return nil
	}
	if wait := s.creators.Take(creator); wait > 0 {
		s.metrics.sessionsRefused.WithLabelValues(refusedRate).Inc()
		return &rateError{"client", "new sessions", wait}
	}
	return nil
}

// create opens a session that its creator may open now (mayCreate). A creator that finds the
// limits reached has used up the burst of its rate: such attempts cost as much as others. Errors
// are those of [session.Registry.Create] or a [*session.FullError].
func (s *Service) create(ctx context.Context, rec session.Record, creator string) (session.Record, error) {
	leave, err := s.sessions.Enter(rec)
	if err != nil {
		if creator != "" {
			s.creators.Drain(creator)
		}
		if full, ok := errors.AsType[*session.FullError](err); ok {
			s.metrics.sessionsRefused.WithLabelValues(full.Reason).Inc()
		}
		return session.Record{}, err
	}
	defer leave()
	return s.backend.Sessions.Create(ctx, rec)
}

// endedBefore returns what wraps [session.ErrClosed] when a name is taken by a session that
// has ended and that the caller may know of, and otherwise err as it is.
func (s *Service) endedBefore(ctx context.Context, name string, grants auth.Grants, err error) error {
	if errors.Is(err, session.ErrExists) {
		if there, getErr := s.backend.Sessions.Get(ctx, name); getErr == nil && there.State != session.Open && (!s.cfg.Access.On() || usedBy(grants)(there)) {
			return fmt.Errorf("%w: session %s", session.ErrClosed, name)
		}
	}
	return err
}

// readSession reads the request. No body at all is the same as {}.
func readSession(c *fiber.Ctx) (sessionRequest, error) {
	if web.StreamedBody(c).Empty() && c.Get(fiber.HeaderContentType) == "" {
		return sessionRequest{}, nil
	}
	body, err := jsonBody(c, maxSessionBody)
	if err != nil || len(body) == 0 {
		return sessionRequest{}, err
	}
	return parseSession(body)
}

// parseSession reads a body. Member names are taken literally and once, which
// encoding/json does not do with a struct. The result holds no part of body.
func parseSession(body []byte) (req sessionRequest, err error) {
	bad := func(detail string) (sessionRequest, error) {
		return sessionRequest{}, web.New(web.CodeInvalidBody, detail)
	}
	if !utf8.Valid(body) || !json.Valid(body) {
		return sessionRequest{}, web.New(web.CodeInvalidJSON, "")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if first, err := dec.Token(); err != nil || first != json.Delim('{') {
		return bad("The body must be an object.")
	}
	seen := map[string]bool{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return sessionRequest{}, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return sessionRequest{}, err
		}
		member, _ := name.(string)
		if seen[member] {
			return bad("The body has a member twice.")
		}
		seen[member] = true
		switch member {
		case "session":
			if err := json.Unmarshal(value, &req.name); err != nil || value[0] != '"' {
				return bad("session must be a string.")
			}
			if err := event.CheckSession(req.name); err != nil {
				return sessionRequest{}, fmt.Errorf("session: %w", err)
			}
		case "owner":
			if err := json.Unmarshal(value, &req.owner); err != nil || value[0] != '"' {
				return bad("owner must be a string.")
			}
			if err := auth.CheckSubject(req.owner); err != nil {
				return bad("owner: " + err.Error() + ".")
			}
		case "members":
			if req.members, err = parseMembers(value); err != nil {
				return sessionRequest{}, err
			}
		case "metadata":
			if value[0] != '{' {
				return bad("metadata must be an object.")
			}
			if len(value) > maxMetadata {
				return sessionRequest{}, web.New(web.CodeBodyTooLarge, "metadata may have up to 16 KiB.")
			}
			if _, err := session.ParseRetention(value); err != nil {
				return sessionRequest{}, err
			}
			if _, err := session.ParseMessages(value); err != nil {
				return sessionRequest{}, err
			}
			if ofBridge(value) {
				return bad("The member mcp of metadata belongs to bridges.")
			}
			req.metadata = value
		default:
			return bad("The body may have the members session, owner, members and metadata, and no others.")
		}
	}
	return req, nil
}

// ofBridge reports whether metadata, an object, has the member by which a bridge knows the
// sessions that are its own, in any case, since the bridge ignores that.
func ofBridge(metadata json.RawMessage) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(metadata, &members) != nil {
		return true
	}
	for name := range members {
		if strings.EqualFold(name, "mcp") {
			return true
		}
	}
	return false
}

// admit returns the record of a message's session, if it is open. Without access control
// the first message opens its session. With it, the session must exist. Its owner, who acts for the
// owner, and its members may publish; for everybody else it does not exist, open or not. A publisher
// on NATS may publish to every session, since it could write to the log itself.
//
// Errors wrap [session.ErrNotFound], [session.ErrClosed], [session.ErrUnavailable] or
// [auth.ErrExpired], or are those of create.
func (s *Service) admit(ctx context.Context, m message) (rec session.Record, err error) {
	sessions := s.backend.Sessions
	switch {
	case !s.cfg.Access.On():
		return sessions.Ensure(ctx, m.session, func() (session.Record, error) {
			rec := session.New(m.session, "", nil, s.backend.Now())
			rec.Client = m.client
			if err := s.mayCreate(m.publisher); err != nil {
				return session.Record{}, err
			}
			return s.create(ctx, rec, m.publisher)
		})
	case m.trusted:
		rec, err = sessions.Learn(ctx, m.session)
	case !time.Now().Before(m.grants.Expires): // while the body was still coming
		return rec, auth.ErrExpired
	default:
		rec, err = sessions.Visible(ctx, m.session, usedBy(m.grants))
	}
	if err == nil && rec.State != session.Open {
		err = fmt.Errorf("%w: session %s", session.ErrClosed, m.session)
	}
	return rec, err
}
