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
// the first message opens its session. With it, the owner has created the session before,
// and to all others it is not there, open or not; who reaches NATS may publish to all that
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
	case !time.Now().Before(m.expires): // while the body was still coming
		return rec, auth.ErrExpired
	default:
		rec, err = sessions.Owned(ctx, m.session, m.owner)
	}
	if err == nil && rec.State != session.Open {
		err = fmt.Errorf("%w: session %s", session.ErrClosed, m.session)
	}
	return rec, err
}

// checkOwner returns an error that wraps [session.ErrNotFound] unless the session is
// owner's, as everybody's are without access control. The copy of the registry may still
// have a session of owner's whose name is another's by now, so the log is asked too.
func (s *Service) checkOwner(ctx context.Context, name, owner string) error {
	if !s.cfg.Access.On() {
		return nil
	}
	rec, err := s.backend.Sessions.Owned(ctx, name, owner)
	if err != nil {
		return err
	}
	now, err := s.backend.Sessions.Get(ctx, name)
	if err == nil && now.Owner != rec.Owner {
		err = session.ErrNotFound
	}
	return err
}
