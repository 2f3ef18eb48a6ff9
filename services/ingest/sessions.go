package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"

	"rejoin/services/ingest/problem"
	"rejoin/services/ingest/request"
	"rejoin/shared/auth"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// sessionAnswer is a client's answer about its session.
type sessionAnswer struct {
	Session string `json:"session"`
	// Life tells this use of the name from earlier ones. A publisher that writes to the log
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

// noAccessControl answers a request for an owner or members where there are no subjects.
func noAccessControl() error {
	return web.New(web.CodeInvalidBody, "Without access control a session has neither an owner nor members.")
}

// createSession answers POST /v1/sessions.
//
// The answer shows to every client that a name is taken, also when another one owns it: a name is given once.
// A client that must not learn other names has a pattern of its own in its token.
func (s *Service) createSession(c *fiber.Ctx) error {
	grants := s.cfg.Access.Grants(c)
	creator := s.publisher(c, grants)
	if err := s.mayCreate(creator); err != nil { // before the body is parsed, which costs more
		return problem.Of(err)
	}
	req, err := request.ReadSession(c)
	if err != nil {
		return problem.Of(err)
	}
	if req.Name == "" {
		req.Name = uuid.NewString()
	}
	if !grants.MayPublish(req.Name) {
		return s.cfg.Access.Insufficient(c)
	}
	switch {
	case !s.cfg.Access.On() && (req.Owner != "" || req.Members != nil):
		return noAccessControl()
	case req.Owner == "":
		req.Owner = grants.Subject
	case !grants.ActsFor(req.Owner):
		return s.cfg.Access.Insufficient(c)
	}
	ctx, cancel := s.limit(context.Background(), s.cfg.AckTimeout)
	defer cancel()
	rec := session.New(req.Name, req.Owner, req.Metadata, s.backend.Now()).WithMembers(req.Members)
	if err := checkSize(rec, req.Members); err != nil {
		return err
	}
	if !s.cfg.Access.On() {
		rec.Client = s.cfg.Clients.Client(c)
	}
	rec, err = s.create(ctx, rec, creator)
	switch {
	case errors.Is(err, eventlog.ErrUnknown):
		return web.Wrap(err, web.CodeUnavailable, "The session may have been created; repeat the request. Code session_exists then means that it was, or that its name was taken.")
	case err != nil:
		return problem.Of(s.endedBefore(ctx, req.Name, grants, err))
	}
	c.Location("/v1/sessions/" + url.PathEscape(rec.Session))
	return c.Status(fiber.StatusCreated).JSON(s.answerOf(rec))
}

// mayCreate counts an attempt to open a session for a creator; empty for none. The error is a
// [*problem.RateError].
func (s *Service) mayCreate(creator string) error {
	if creator == "" {
		return nil
	}
	if wait := s.creators.Take(creator); wait > 0 {
		s.metrics.sessionsRefused.WithLabelValues(refusedRate).Inc()
		return &problem.RateError{Of: "client", What: "new sessions", Wait: wait}
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

// checkSize returns an error when members take too much together with a session's metadata. A
// session without members may have metadata that takes more as it is stored.
func checkSize(rec session.Record, members []string) error {
	if len(members) > 0 && session.MembersBytes(members)+len(rec.Metadata) > request.MaxMetadata {
		return web.New(web.CodeBodyTooLarge, "members and metadata together may have up to 16 KiB.")
	}
	return nil
}

// endedBefore returns an error that wraps [session.ErrClosed] when a name is taken by a session that
// has ended and that the caller may know of, and otherwise err as it is.
func (s *Service) endedBefore(ctx context.Context, name string, grants auth.Grants, err error) error {
	if errors.Is(err, session.ErrExists) {
		if there, getErr := s.backend.Sessions.Get(ctx, name); getErr == nil && there.State != session.Open && (!s.cfg.Access.On() || usedBy(grants)(there)) {
			return fmt.Errorf("%w: session %s", session.ErrClosed, name)
		}
	}
	return err
}

// open returns the record of a message's session, if it is open. It may be older than the log: JetStream
// refuses events after the end of their session or stream. Without access control
// the first message opens its session. With it, the session must exist. Its owner, clients that act for the
// owner, and its members may publish; for all others it does not exist, open or not. A publisher
// on NATS may publish to every session, since it could write to the log itself.
//
// Errors wrap [session.ErrNotFound], [session.ErrClosed], [session.ErrUnavailable] or
// [auth.ErrExpired], or are those of create.
func (s *Service) open(ctx context.Context, m message) (rec session.Record, err error) {
	sessions := s.backend.Sessions
	switch {
	case !s.cfg.Access.On():
		rec, err = sessions.Ensure(ctx, m.session, func() (session.Record, error) {
			rec := session.New(m.session, "", nil, s.backend.Now())
			rec.Client = m.client
			if err := s.mayCreate(m.publisher); err != nil {
				return session.Record{}, err
			}
			return s.create(ctx, rec, m.publisher)
		})
	case m.trusted:
		rec, err = sessions.CopyOrGet(ctx, m.session)
	case !time.Now().Before(m.grants.Expires): // while the body was still coming
		return rec, auth.ErrExpired
	default:
		rec, err = sessions.Visible(ctx, m.session, usedBy(m.grants))
	}
	if err == nil && rec.State != session.Open {
		err = fmt.Errorf("%w: session %s", session.ErrClosed, m.session)
	}
	return rec, m.mayBeRepeated(err)
}
