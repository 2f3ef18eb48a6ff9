package subscriber

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/auth"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// Authorize returns an error unless a request may read a session: a session that the token
// does not allow is 403, whether it exists or not, and another owner's session is 404, the
// same as one that does not exist. So a client cannot wait for a session that others may
// create. With access control it returns the life of the session that the caller may read:
// no other one of the name may be read.
func (s *Service) Authorize(c *fiber.Ctx, name string, grants auth.Grants) (life string, err error) {
	if !s.Config.Access.On() {
		return "", nil
	}
	if !grants.MaySubscribe(name) {
		return "", s.Config.Access.Insufficient(c)
	}
	ctx, cancel := context.WithTimeout(s.Base, OpenTimeout)
	defer cancel()
	rec, err := s.VisibleNow(ctx, name, grants)
	if errors.Is(err, session.ErrNotFound) {
		return "", web.Wrap(err, web.CodeNotFound, "There is no such session.")
	}
	return rec.Life, Problem(err)
}

// UsedBy returns a function that reports whether a session exists for a caller; see [auth.Grants.Uses].
func UsedBy(g auth.Grants) func(session.Record) bool {
	return func(rec session.Record) bool { return g.Uses(rec.Owner, rec.Members) }
}

// Guest is a client that reads a session as its member, and may be removed while it reads. A nil
// guest, such as the owner, is never removed. A guest that waits for a session has no life.
type Guest struct {
	Grants        auth.Grants
	Session, Life string
}

// GuestOf returns an authorized caller as a guest; nil without access control, and for the owner.
func (s *Service) GuestOf(grants auth.Grants, at window.Place) *Guest {
	if !s.Config.Access.On() {
		return nil
	}
	if rec, ok := s.sessions.Session(at.Session); ok && rec.Life == at.Life && grants.ActsFor(rec.Owner) {
		return nil
	}
	return &Guest{Grants: grants, Session: at.Session, Life: at.Life}
}

// Out reports whether the guest is no member any more, as far as the copy of the registry knows.
func (s *Service) Out(g *Guest) bool {
	if g == nil {
		return false
	}
	rec, ok := s.sessions.Session(g.Session)
	return ok && (g.Life == "" || rec.Life == g.Life) && !UsedBy(g.Grants)(rec)
}

// Revoked returns a function that reports whether a stream's client may no longer read; nil: it always may.
func (s *Service) Revoked(g *Guest) func() bool {
	if g == nil {
		return nil
	}
	return func() bool { return s.Out(g) }
}

// VisibleNow is [session.Registry.Visible], which may answer from a copy, unless the window
// knows another life.
func (s *Service) VisibleNow(ctx context.Context, name string, grants auth.Grants) (session.Record, error) {
	rec, err := s.sessions.Visible(ctx, name, UsedBy(grants))
	if err != nil {
		return rec, err
	}
	if life, known, err := s.Parts.Life(ctx, name); err != nil || !known || life == rec.Life {
		return rec, err
	}
	if _, err := s.sessions.Get(ctx, name); err != nil { // corrects the copy
		return session.Record{}, err
	}
	return s.sessions.Visible(ctx, name, UsedBy(grants))
}

// AuthorizeLife reports whether a caller may read a life of a session, or, when life is empty, the newest
// one, which it returns.
func (s *Service) AuthorizeLife(ctx context.Context, name, life string, grants auth.Grants) (string, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, OpenTimeout)
	defer cancel()
	rec, err := s.VisibleNow(ctx, name, grants)
	switch {
	case errors.Is(err, session.ErrNotFound):
		return life, false, nil
	case err != nil:
		return "", false, err
	case life != "" && rec.Life != life: // a newer one; the window will reach it
		return life, false, nil
	}
	return rec.Life, true, nil
}

// The errors of [Service.Admit], which has counted the reason.
var (
	ErrNoRoom   = web.New(web.CodeUnavailable, "The edge has no room at the moment.")
	ErrStopping = web.Wrap(ErrNoRoom, web.CodeUnavailable, "The edge is stopping.")
)

// Admit admits a request for events of sessions. A visit that is admitted has to leave
// admission. The error is ErrNoRoom, or ErrStopping, which wraps it.
func (s *Service) Admit(c *fiber.Ctx, sessions ...string) (delivery.Request, error) {
	by := delivery.Request{Visit: admission.Visit{Sessions: sessions, Address: s.ClientAddress(c), Client: s.Config.Clients.Client(c)}, Ctx: c.UserContext(), Begun: time.Now()}
	if refused := s.Admission.Enter(by.Visit); refused != "" {
		s.Connections.CountRefused(refused)
		if refused == admission.Closed {
			return by, ErrStopping
		}
		return by, ErrNoRoom
	}
	return by, nil
}

// ClientAddress is the address as which a request's client counts.
func (s *Service) ClientAddress(c *fiber.Ctx) netip.Addr {
	return web.Counted(s.Config.Clients.Address(c))
}

// TooOften reports whether a request's client address connects or polls above its limit.
func (s *Service) TooOften(c *fiber.Ctx) bool { return s.connects.Take(s.ClientAddress(c)) > 0 }
