package edge

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// groupRequest is the request of a subscriber of several sessions.
type groupRequest struct {
	places   []cursor.Follow
	patterns int // of the places
	start    cursor.Start
	filter   *delivery.Filter
}

// maxPatterns bounds the patterns of a connection: each, or each stream of one, takes a reader for each
// partition, and is compared with each session that begins.
const maxPatterns = 8

// memberBytes is about the memory of one place of a connection.
const memberBytes = 2 << 10

// parseGroup reads a request for several sessions. Each session, or each of its streams, is one place.
func (s *Service) parseGroup(c *fiber.Ctx) (groupRequest, error) {
	streams := web.Queries(c, "stream")
	for _, name := range streams {
		if err := event.CheckStream(name); err != nil {
			return groupRequest{}, web.Wrap(err, web.CodeInvalidName, "The stream is not valid: "+err.Error()+".")
		}
	}
	if len(streams) == 0 {
		streams = []string{""}
	}
	var req groupRequest
	known := map[cursor.Follow]bool{}
	for _, param := range []string{"session", "added"} {
		for _, name := range web.Queries(c, param) {
			pattern := strings.HasSuffix(name, "*")
			check := event.CheckSession
			if pattern {
				check = func(name string) error { return auth.Pattern(name).Check() }
			}
			if err := check(name); err != nil {
				return groupRequest{}, web.Wrap(err, web.CodeInvalidName, "The session is not valid: "+err.Error()+".")
			}
			for _, stream := range streams {
				if p := (cursor.Follow{Session: name, Stream: stream, Pattern: pattern}); !known[p] {
					known[p] = true
					if p.Added = param == "added"; pattern {
						req.patterns++
					}
					if req.places = append(req.places, p); len(req.places) > s.cfg.MaxConnectionSessions { // each session has each stream
						return groupRequest{}, web.New(web.CodeInvalidParameter, "The request names more sessions or streams than the "+strconv.Itoa(s.cfg.MaxConnectionSessions)+" that a connection may follow (--max-connection-sessions).")
					}
				}
			}
		}
	}
	switch {
	case len(req.places) == 0:
		return groupRequest{}, web.New(web.CodeInvalidParameter, `The parameter "session" names a session; it may be given more than once.`)
	case req.patterns > maxPatterns:
		return groupRequest{}, web.New(web.CodeInvalidParameter, "The request has more than "+strconv.Itoa(maxPatterns)+" patterns, or streams of patterns.")
	}
	if !s.hasRoomForID(c, s.partitionsOf(req)) {
		return groupRequest{}, web.New(web.CodeInvalidParameter, "The request line and headers leave no room for an event ID, so that the client could not resume: name fewer sessions.")
	}
	var err error
	if req.start, err = parseStart(c); err != nil {
		return groupRequest{}, err
	}
	req.filter, err = parseFilter(c)
	return req, err
}

// partitionsOf returns the number of partitions of which a connection's ID may have a position.
func (s *Service) partitionsOf(req groupRequest) int {
	if n := s.log.Settings().Partitions; req.patterns > 0 || n < len(req.places) {
		return n
	}
	return len(req.places)
}

// hasRoomForID reports whether a client can reconnect with the ID of its connection: an EventSource that
// is refused then ends for good. A client that already sends an ID is accepted as long as there is room.
func (s *Service) hasRoomForID(c *fiber.Ctx, partitions int) bool {
	const header = len("GET  HTTP/1.1\r\nLast-Event-ID: \r\n\r\n")
	h := &c.Request().Header
	return len(h.Peek("Last-Event-ID")) > 0 ||
		len(h.RequestURI())+len(h.RawHeaders())+header+cursor.GroupIDLen(partitions) <= web.MaxHeaderBytes
}

// group answers a subscriber of several sessions with an event stream.
//
// A session that the caller may not read is treated like one that does not exist; the caller
// still receives the others.
func (s *Service) group(c *fiber.Ctx, grants auth.Grants) error {
	req, err := s.parseGroup(c)
	if err != nil {
		return err
	}
	subscriber.Uncached(c)
	if subscriber.FormOf(c.Get(fiber.HeaderAccept)) != subscriber.FormStream {
		return web.New(web.CodeNotAcceptable, "Several sessions come as an event stream: ask for text/event-stream.")
	}
	var names []string
	for _, p := range req.places {
		switch {
		case !s.cfg.Access.On():
		case p.Pattern && !grants.MaySubscribeAll(auth.Pattern(p.Session)), !p.Pattern && !grants.MaySubscribe(p.Session):
			return s.cfg.Access.Insufficient(c)
		}
		if !p.Pattern { // a pattern neither uses its sessions, nor counts as a connection of them
			names = append(names, p.Session)
		}
	}
	names = slices.Compact(names) // the streams of a session come together
	used := func() []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !s.uses(name, grants) })
	}
	by, err := s.subs.Admit(c, used()...)
	if err != nil {
		return s.sendLater(c)
	}
	g, err := s.openGroup(c, req, grants)
	if err != nil {
		s.subs.Admission.Leave(by.Visit)
		if problem := web.AsProblem(err); problem.Code == web.CodeUnavailable {
			s.subs.SentAway(by, window.Place{Session: req.places[0].Session}, err)
			return s.later(c, "unavailable")
		}
		return err
	}
	came := cursor.FromStart
	switch {
	case req.start.After != "":
		came = cursor.FromWindow
	case req.start.Now:
		came = cursor.FromNow
	}
	conn := delivery.NewGroup(s.subs.Connections, g, by, came)
	conn.Expires = grants.Expires
	conn.Revoked = func() bool {
		if !conn.IsAway() { // the copy of the registry may have more of these sessions by now
			s.subs.Admission.Move(&conn.Request.Visit, used())
		}
		return false
	}
	resumes := req.start.After != ""
	return subscriber.SendStream(c, conn, delivery.Beginning{Fresh: !resumes && !req.start.Now, Resumes: resumes})
}

// uses reports whether a caller may read a session, according to the copy of the registry. Sessions of
// others are not counted: a caller that names them must neither take their connections nor keep them
// from being idle.
func (s *Service) uses(name string, grants auth.Grants) bool {
	if !s.cfg.Access.On() {
		return true
	}
	rec, ok := s.sessions.Session(name)
	return ok && subscriber.UsedBy(grants)(rec)
}

// openGroup opens the places of a request. Errors are problems.
func (s *Service) openGroup(c *fiber.Ctx, req groupRequest, grants auth.Grants) (*cursor.Group, error) {
	client := s.cfg.Clients.Client(c)
	held, ahead := s.memory.Part(client), s.memory.Part(client)
	members := len(req.places)
	if req.patterns > 0 {
		members = s.cfg.MaxConnectionSessions + req.patterns*s.partitionsOf(req)
	}
	base := subscriber.StepBytes + members*memberBytes
	if !held.Grow(int64(base)) {
		return nil, web.ErrNoMemory
	}
	cfg := cursor.GroupConfig{Limit: window.Limits{Events: subscriber.StepEvents, Bytes: subscriber.StepBytes}, Frame: delivery.GroupFrame}
	cfg.Hold = func(bytes int) bool { return ahead.Resize(int64(bytes)) }
	cfg.Await = func(ctx context.Context, bytes int) error {
		s.subs.Connections.Waits(ctx, "an event stream waits for the log", window.Place{Session: req.places[0].Session}, cursor.ErrNoMemory)
		return ahead.Wait(ctx, int64(bytes))
	}
	if s.memory != nil {
		cfg.MaxHold = max(int(s.memory.Share())-base, subscriber.StepBytes)
	}
	cfg.Closed = func() {
		held.Release()
		ahead.Release()
	}
	if req.filter != nil {
		cfg.Show = req.filter.Shows
	}
	cfg.MaxMembers = s.cfg.MaxConnectionSessions
	cfg.Open = func(match func(string) bool) (all []string, _ error) {
		records, err := s.sessions.Matching(cfg.MaxMembers+1, func(rec session.Record) bool {
			return rec.State == session.Open && match(rec.Session) && (!s.cfg.Access.On() || subscriber.UsedBy(grants)(rec))
		})
		for _, rec := range records {
			all = append(all, rec.Session)
		}
		return all, err
	}
	if s.cfg.Access.On() {
		cfg.Authorize = func(ctx context.Context, name, life string) (string, bool, error) {
			return s.subs.AuthorizeLife(ctx, name, life, grants)
		}
		cfg.Uses = grants.Uses
		cfg.Others = func(name string) bool {
			rec, known := s.sessions.Session(name)
			return known && !subscriber.UsedBy(grants)(rec)
		}
		cfg.StillAuthorized = func(name, life string) bool {
			return !s.subs.Out(&subscriber.Guest{Grants: grants, Session: name, Life: life})
		}
	}
	ctx, cancel := context.WithTimeout(cursor.WithClient(s.subs.Base, client), subscriber.OpenTimeout)
	defer cancel()
	g, err := s.subs.Parts.OpenGroup(ctx, req.places, req.start, cfg)
	if errors.Is(err, cursor.ErrTooManySessions) {
		return nil, web.Wrap(err, web.CodeInvalidParameter, "More open sessions match than the "+strconv.Itoa(s.cfg.MaxConnectionSessions)+" that a connection may follow (--max-connection-sessions).")
	}
	return g, subscriber.Problem(err)
}
