package ingest

import (
	"context"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/ingest/problem"
	"rejoin/shared/auth"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// guard returns a handler that calls h for requests whose token may publish to the
// session in the path. h handles an invalid name.
func (s *Service) guard(h fiber.Handler) fiber.Handler {
	return s.cfg.Access.GuardFor(func(c *fiber.Ctx, grants auth.Grants) bool {
		name, err := web.Param(c, "session")
		return err != nil || grants.MayPublish(name)
	}, h)
}

// usedBy returns a function that reports whether a session exists for a caller; see [auth.Grants.Uses].
func usedBy(g auth.Grants) func(session.Record) bool {
	return func(rec session.Record) bool { return g.Uses(rec.Owner, rec.Members) }
}

// owned returns a session as the log has it, if the caller is its owner or acts for the owner, which is
// not checked without access control: the error is problem.ErrMember for a member, and for all others one that
// wraps [session.ErrNotFound]. The name of a session in the registry's copy may be
// another owner's by now, so the log is asked too.
func (s *Service) owned(ctx context.Context, name string, grants auth.Grants) (session.Record, error) {
	if !s.cfg.Access.On() {
		return s.backend.Sessions.Get(ctx, name)
	}
	if _, err := s.backend.Sessions.Visible(ctx, name, usedBy(grants)); err != nil {
		return session.Record{}, err
	}
	now, err := s.backend.Sessions.Get(ctx, name)
	if err == nil {
		err = mayManage(now, grants)
	}
	return now, err
}

// mayManage returns the error of owned for a record.
func mayManage(rec session.Record, grants auth.Grants) error {
	switch {
	case grants.ActsFor(rec.Owner):
		return nil
	case grants.Uses(rec.Owner, rec.Members):
		return problem.ErrMember
	default:
		return session.ErrNotFound
	}
}

// publisher returns the publisher that the rates of a request are counted for: the token's subject, or the
// client's address without access control.
func (s *Service) publisher(c *fiber.Ctx, grants auth.Grants) string {
	if s.cfg.Access.On() {
		return grants.Subject
	}
	return web.Counted(s.cfg.Clients.Address(c)).String()
}
