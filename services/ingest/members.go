package ingest

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/ingest/problem"
	"rejoin/services/ingest/request"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// putMembers answers PUT /v1/sessions/{session}/members. It may be repeated.
func (s *Service) putMembers(c *fiber.Ctx) error {
	name, err := web.Param(c, "session")
	if err == nil {
		err = event.CheckSession(name)
	}
	if err != nil {
		return problem.Of(fmt.Errorf("session: %w", err))
	}
	members, err := request.ReadMembers(c)
	if err != nil {
		return problem.Of(err)
	}
	if !s.cfg.Access.On() {
		return noAccessControl()
	}
	grants := s.cfg.Access.Grants(c)
	rec, err := s.setMembers(name, members, grants, s.publisher(c, grants))
	switch {
	case errors.Is(err, session.ErrUnavailable) && !errors.Is(err, eventlog.ErrFull):
		return web.Wrap(err, web.CodeUnavailable, "The members may have been changed; repeat the request.")
	case err != nil:
		return problem.Of(err)
	}
	return c.JSON(s.answerOf(rec))
}

// setMembers replaces the members of a session for its owner. Each change is an entry of the log
// as large as an opening, so it counts as one in the rate of the caller, which is creator. Errors are those of
// owned and [session.Registry.SetMembers], a [*problem.RateError], a [*session.FullError] or problem.ErrBusy.
//
// It returns only when log and index have the members, so that new members have access at once.
func (s *Service) setMembers(name string, members []string, grants auth.Grants, creator string) (session.Record, error) {
	ctx, cancel := s.limit(context.Background(), s.cfg.closeTimeout())
	defer cancel()
	if err := s.takeShared(ctx, sharerOf(creator), s.cfg.AckTimeout); err != nil {
		return session.Record{}, err
	}
	defer s.publishes.Give(sharerOf(creator), 1)
	if rec, err := s.owned(ctx, name, grants); err != nil {
		return rec, err
	}
	if wait := s.creators.Take(creator); wait > 0 {
		return session.Record{}, &problem.RateError{Of: "client", What: "new sessions and changes of members", Wait: wait}
	}
	leave := func() {}
	defer func() { leave() }()
	return s.backend.Sessions.SetMembers(ctx, name, members, func(rec session.Record) (err error) {
		if err := mayManage(rec, grants); err != nil {
			return err
		}
		if err := checkSize(rec, members); err != nil {
			return err
		}
		leave() // gives back the share of the previous attempt
		leave = func() {}
		more := session.MembersBytes(members) - session.MembersBytes(rec.Members)
		if more <= 0 {
			return nil
		}
		given, err := s.sessions.Grow(rec.Holder(), session.Usage{MetadataBytes: int64(more)})
		if err == nil {
			leave = given
		}
		return err
	})
}
