package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/web"
	"rejoin/shared/auth"
	"rejoin/shared/session"
)

// guard returns a handler that calls h for requests whose token may publish to the
// session in the path. A name that is none is left to h.
func (s *Service) guard(h fiber.Handler) fiber.Handler {
	return s.cfg.Access.GuardFor(func(c *fiber.Ctx, grants auth.Grants) bool {
		name, err := web.Param(c, "session")
		return err != nil || grants.MayPublish(name)
	}, h)
}

// admit returns the record of a message's session, if it is open. Without access control
// the first message opens its session. With it, the session was created before, and to all
// but its owner and who acts for the owner it is not there, open or not; who reaches NATS may publish to all that
// are there, since they could write to the log itself. Errors wrap [session.ErrNotFound],
// [session.ErrClosed], [session.ErrUnavailable] or [auth.ErrExpired], or are those of create.
func (s *Service) admit(ctx context.Context, m message) (rec session.Record, err error) {
	sessions := s.backend.Sessions
	switch {
	case !s.cfg.Access.On():
		return sessions.Ensure(ctx, m.session, func() (session.Record, error) {
			rec := session.New(m.session, "", nil, time.Now())
			rec.Client = m.client
			return s.create(ctx, rec, m.publisher)
		})
	case m.trusted:
		rec, err = sessions.Learn(ctx, m.session)
	case !time.Now().Before(m.grants.Expires): // while the body was still coming
		return rec, auth.ErrExpired
	default:
		rec, err = sessions.Visible(ctx, m.session, ownedBy(m.grants))
	}
	if err == nil && rec.State != session.Open {
		err = fmt.Errorf("%w: session %s", session.ErrClosed, m.session)
	}
	return rec, err
}

// ownedBy returns whether a session is the caller's own, or that of an owner for whom the
// caller acts.
func ownedBy(g auth.Grants) func(session.Record) bool {
	return func(rec session.Record) bool { return g.ActsFor(rec.Owner) }
}

// checkOwner returns an error that wraps [session.ErrNotFound] unless the session is the
// caller's or that of an owner for whom the caller acts, as all are without access control.
// The copy of the registry may have a session of a name that is another owner's by now, so
// the log is asked too.
func (s *Service) checkOwner(ctx context.Context, name string, grants auth.Grants) error {
	if !s.cfg.Access.On() {
		return nil
	}
	if _, err := s.backend.Sessions.Visible(ctx, name, ownedBy(grants)); err != nil {
		return err
	}
	now, err := s.backend.Sessions.Get(ctx, name)
	if err == nil && !grants.ActsFor(now.Owner) {
		err = session.ErrNotFound
	}
	return err
}
