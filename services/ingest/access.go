package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/auth"
	"rejoin/shared/session"
	"rejoin/shared/web"
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
// but its owner, who acts for the owner, and its members it is not there, open or not; who reaches NATS may publish to all that
// are there, since they could write to the log itself. Errors wrap [session.ErrNotFound],
// [session.ErrClosed], [session.ErrUnavailable] or [auth.ErrExpired], or are those of create.
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

// usedBy returns whether a session is there for a caller; see [auth.Grants.Uses].
func usedBy(g auth.Grants) func(session.Record) bool {
	return func(rec session.Record) bool { return g.Uses(rec.Owner, rec.Members) }
}

// checkOwner returns an error unless the caller is the session's owner or acts for the owner,
// which is not asked without access control: errMember to a member, and to all others one that
// wraps [session.ErrNotFound]. The copy of the registry may have a session of a name that is
// another owner's by now, so the log is asked too.
func (s *Service) checkOwner(ctx context.Context, name string, grants auth.Grants) error {
	if !s.cfg.Access.On() {
		return nil
	}
	if _, err := s.backend.Sessions.Visible(ctx, name, usedBy(grants)); err != nil {
		return err
	}
	now, err := s.backend.Sessions.Get(ctx, name)
	if err != nil {
		return err
	}
	return mayManage(now, grants)
}

// mayManage is checkOwner for a record.
func mayManage(rec session.Record, grants auth.Grants) error {
	switch {
	case grants.ActsFor(rec.Owner):
		return nil
	case grants.Uses(rec.Owner, rec.Members):
		return errMember
	default:
		return session.ErrNotFound
	}
}
