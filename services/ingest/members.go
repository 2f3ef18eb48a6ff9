package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

const (
	// maxMembers is how many members a session may have.
	maxMembers = 100
	// maxMembersBody is the largest body of PUT /v1/sessions/{session}/members.
	maxMembersBody = 64 << 10
)

// noAccessControl answers a request for an owner or members where there are no subjects.
func noAccessControl() error {
	return web.New(web.CodeInvalidBody, "Without access control a session has neither an owner nor members.")
}

// putMembers answers PUT /v1/sessions/{session}/members. It may be repeated.
func (s *Service) putMembers(c *fiber.Ctx) error {
	name, err := web.Param(c, "session")
	if err == nil {
		err = event.CheckSession(name)
	}
	if err != nil {
		return problem(fmt.Errorf("session: %w", err))
	}
	body, err := jsonBody(c, maxMembersBody)
	if err != nil {
		return problem(err)
	}
	members, err := parseMembersBody(body)
	if err != nil {
		return problem(err)
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
		return problem(err)
	}
	return c.JSON(s.answerOf(rec))
}

// setMembers replaces the members of a session for its owner. Each change is an entry of the log
// as large as an opening, so it counts as one in the rate of who asks for it. Errors are those of
// checkOwner and [session.Registry.SetMembers], a [*rateError], a [*session.FullError] or errBusy.
//
// It returns only when log and index have the members, so that new members have access at once.
func (s *Service) setMembers(name string, members []string, grants auth.Grants, creator string) (session.Record, error) {
	ctx, cancel := s.limit(context.Background(), s.cfg.closeTimeout())
	defer cancel()
	if err := s.takePlace(ctx, s.cfg.AckTimeout); err != nil {
		return session.Record{}, err
	}
	defer s.givePlace()
	if err := s.checkOwner(ctx, name, grants); err != nil {
		return session.Record{}, err
	}
	if wait := s.creators.Take(creator); wait > 0 {
		return session.Record{}, &rateError{"client", "new sessions and changes of members", wait}
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
		leave() // what an attempt before had
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

// checkSize returns an error when members take too much together with a session's metadata. A
// session without members may have metadata that takes more as it is stored.
func checkSize(rec session.Record, members []string) error {
	if len(members) > 0 && session.MembersBytes(members)+len(rec.Metadata) > maxMetadata {
		return web.New(web.CodeBodyTooLarge, "members and metadata together may have up to 16 KiB.")
	}
	return nil
}

// parseMembersBody reads the body of PUT /v1/sessions/{session}/members.
func parseMembersBody(body []byte) ([]string, error) {
	req, err := parseSession(body)
	if err != nil {
		return nil, err
	}
	if req.members == nil || req.name != "" || req.owner != "" || req.metadata != nil {
		return nil, web.New(web.CodeInvalidBody, "The body must have the member members, and no others.")
	}
	return req.members, nil
}

// parseMembers reads a list of subjects and patterns of subjects, and returns it sorted, each of
// them once, and never nil.
func parseMembers(value json.RawMessage) ([]string, error) {
	var members []*string
	if err := json.Unmarshal(value, &members); err != nil || value[0] != '[' || slices.Contains(members, nil) {
		return nil, web.New(web.CodeInvalidBody, "members must be an array of strings.")
	}
	all := make([]string, 0, min(len(members), maxMembers+1))
	for _, m := range members {
		if err := auth.Pattern(*m).CheckSubject(); err != nil {
			return nil, web.New(web.CodeInvalidBody, "members: "+err.Error()+".")
		}
		all = append(all, *m)
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > maxMembers {
		return nil, web.New(web.CodeInvalidBody, fmt.Sprintf("A session may have up to %d members.", maxMembers))
	}
	return all, nil
}
