package edge

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/auth"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// admit returns an error unless a request may read a session: what the token does not
// allow is 403, whatever there is, and a session of another is 404, the same as one that
// is not there. So a client cannot wait for a session that somebody else may create. With
// access control it returns the life of the session that the caller may read: no other one
// of the name may be read.
func (s *Service) admit(c *fiber.Ctx, name string, grants auth.Grants) (life string, err error) {
	if !s.cfg.Access.On() {
		return "", nil
	}
	if !grants.MaySubscribe(name) {
		return "", s.cfg.Access.Insufficient(c)
	}
	ctx, cancel := context.WithTimeout(s.base, openTimeout)
	defer cancel()
	rec, err := s.visibleNow(ctx, name, grants)
	switch {
	case errors.Is(err, session.ErrNotFound):
		return "", web.Wrap(err, web.CodeNotFound, "There is no such session.")
	case err != nil && cursor.Transient(err):
		return "", web.Wrap(err, web.CodeUnavailable, "The log cannot be reached at the moment.")
	default:
		return rec.Life, err
	}
}

// usedBy returns whether a session is there for a caller; see [auth.Grants.Uses].
func usedBy(g auth.Grants) func(session.Record) bool {
	return func(rec session.Record) bool { return g.Uses(rec.Owner, rec.Members) }
}

// guest is who reads a session as its member, and may be taken out while it does. A nil guest
// is one who stays, as the owner.
type guest struct {
	grants        auth.Grants
	session, life string
}

// guestOf returns the guest that a caller is who was let in.
func (s *Service) guestOf(grants auth.Grants, at window.Place) *guest {
	if !s.cfg.Access.On() {
		return nil
	}
	if rec, ok := s.sessions.Session(at.Session); ok && rec.Life == at.Life && grants.ActsFor(rec.Owner) {
		return nil
	}
	return &guest{grants, at.Session, at.Life}
}

// out reports whether the guest is no member any more, as far as the copy of the registry knows.
func (s *Service) out(g *guest) bool {
	if g == nil {
		return false
	}
	rec, ok := s.sessions.Session(g.session)
	return ok && rec.Life == g.life && !usedBy(g.grants)(rec)
}

// revoked asks whether a stream's client is still let in; nil: always.
func (s *Service) revoked(g *guest) func() bool {
	if g == nil {
		return nil
	}
	return func() bool { return s.out(g) }
}

// visibleNow is [session.Registry.Visible], which may answer from a copy, unless the window
// knows better.
func (s *Service) visibleNow(ctx context.Context, name string, grants auth.Grants) (session.Record, error) {
	rec, err := s.sessions.Visible(ctx, name, usedBy(grants))
	if err != nil {
		return rec, err
	}
	if life, known, err := s.parts.Life(ctx, name); err != nil || !known || life == rec.Life {
		return rec, err
	}
	if _, err := s.sessions.Get(ctx, name); err != nil { // corrects the copy
		return session.Record{}, err
	}
	return s.sessions.Visible(ctx, name, usedBy(grants))
}

// turnAway answers a request that is not let in. Trouble that will pass must not stop an
// EventSource for good.
//
// While a JWKS cannot be fetched, an unknown key may be a new one: 503, and for an EventSource
// 200 and the end of the stream, since any other status stops it for good.
func (s *Service) turnAway(c *fiber.Ctx, err error) error {
	if web.AsProblem(err).Code != web.CodeUnavailable || form(c.Get(fiber.HeaderAccept)) != formStream {
		return err
	}
	session, stream := web.Place(c)
	s.streams.Reconnects(c.UserContext(), window.Place{Session: session, Stream: stream}, err)
	return s.later(c, "unavailable")
}

// slowDown answers a client that comes too often. It is answered before its token is
// looked at, which would be the work that it must not make.
func (s *Service) slowDown(c *fiber.Ctx) error {
	const reason = "address_rate"
	if form(c.Get(fiber.HeaderAccept)) == formStream {
		return s.later(c, reason)
	}
	s.streams.CountRefused(reason)
	return web.New(web.CodeRateLimited, "This address connects too often.")
}

// What [Service.letIn] returns, which has counted why.
var (
	errNoRoom   = web.New(web.CodeUnavailable, "The edge has no room at the moment.")
	errStopping = web.Wrap(errNoRoom, web.CodeUnavailable, "The edge is stopping.")
)

// letIn admits a request for events of sessions. A visit that is let in has to leave
// admission. The error is errNoRoom, or errStopping, which wraps it.
func (s *Service) letIn(c *fiber.Ctx, sessions ...string) (delivery.Request, error) {
	by := delivery.Request{Visit: admission.Visit{Sessions: sessions, Address: s.clientAddress(c), Client: s.cfg.Clients.Client(c)}, Ctx: c.UserContext(), Begun: time.Now()}
	if refused := s.admitted.Enter(by.Visit); refused != "" {
		s.streams.CountRefused(refused)
		if refused == admission.Closed {
			return by, errStopping
		}
		return by, errNoRoom
	}
	return by, nil
}

// clientAddress is what a request's client counts as.
func (s *Service) clientAddress(c *fiber.Ctx) netip.Addr {
	return web.Counted(s.cfg.Clients.Address(c))
}
