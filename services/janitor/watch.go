package janitor

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/inspect"
	"rejoin/shared/web"
)

// connectionList is the body of GET /v1/sessions/{session}/connections.
type connectionList struct {
	Edges edgesInfo `json:"edges"`
	// Clients are all event streams and polls; Total are the event streams.
	Clients     int              `json:"clients"`
	Total       int              `json:"total"`
	Connections []connectionInfo `json:"connections"`
}

// connectionInfo is a connection with what the janitor knows of it.
type connectionInfo struct {
	Edge string `json:"edge"`
	Host string `json:"host,omitempty"`
	inspect.Connection
	// CursorID is the event ID of the cursor; absent while it is 0.
	CursorID string `json:"cursorId,omitempty"`
	// Behind is how many of the retained events the client has yet to get.
	Behind int `json:"behind"`
}

// timeline is the body of GET /v1/sessions/{session}/timeline.
type timeline struct {
	Edges edgesInfo `json:"edges"`
	// Since is from when on the edges remember everything; absent when there are none.
	Since      time.Time       `json:"since,omitzero"`
	Total      int             `json:"total"` // happenings that the edges remember
	Happenings []happeningInfo `json:"happenings"`
	// Published are the newest events of the log, and its =end and =clear entries.
	Published []ledger.PublishedInfo `json:"published"`
}

// happeningInfo is a happening with where it happened.
type happeningInfo struct {
	Edge string `json:"edge"`
	Host string `json:"host,omitempty"`
	inspect.Happening
	// CursorID is the event ID of the cursor; absent for 0, and for an earlier session of the
	// same name.
	CursorID string `json:"cursorId,omitempty"`
}

// gapList is the body of GET /v1/gaps.
type gapList struct {
	Edges edgesInfo `json:"edges"`
	// Since is from when on these are all: an hour ago, or later.
	Since time.Time `json:"since,omitzero"`
	// Clients are all event streams and polls of all edges.
	Clients int             `json:"clients"`
	Total   int             `json:"total"`
	Reasons map[string]int  `json:"reasons"`
	Gaps    []happeningInfo `json:"gaps"`
}

// defaultItems is how many connections, happenings, events or gaps are answered.
const defaultItems = 100

// watched reads the parameters of a request for what edges know of a session.
func (s *Service) watched(c *fiber.Ctx) (session string, limit int, err error) {
	if session, err = web.Param(c, "session"); err != nil {
		return "", 0, err
	}
	if err = event.CheckSession(session); err != nil {
		return "", 0, web.Wrap(err, web.CodeInvalidName, err.Error())
	}
	if limit, err = web.Number(c, "limit", defaultItems, 1, inspect.MaxItems); err != nil {
		return "", 0, err
	}
	return session, limit, s.ready()
}

func (s *Service) getConnections(c *fiber.Ctx) error {
	name, limit, err := s.watched(c)
	if err != nil {
		return err
	}
	answers, info, err := s.edges.ask(context.Background(), inspect.Question{About: inspect.Connections, Session: name, Limit: limit})
	if err != nil {
		return err
	}
	list := connectionList{Edges: info, Connections: []connectionInfo{}}
	for _, a := range answers {
		list.Clients += a.Clients
		list.Total += a.Total
		for _, one := range a.Connections {
			list.Connections = append(list.Connections, connectionInfo{Edge: a.Edge, Host: a.Host, Connection: one})
		}
	}
	slices.SortFunc(list.Connections, func(a, b connectionInfo) int {
		return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Edge, b.Edge), cmp.Compare(b.Number, a.Number))
	})
	list.Connections = list.Connections[:min(limit, len(list.Connections))]
	life, p := s.lifeOf(name)
	for i := range list.Connections {
		one := &list.Connections[i]
		// A session may have many streams, and the ledger has others to answer in between.
		p.With(func(l *ledger.Ledger) {
			one.Behind = l.Behind(event.LifeKey(name, life), one.Stream, one.Cursor)
			one.CursorID = idOf(l, name, life, one.Stream, one.Cursor)
		})
	}
	return answerJSON(c, list)
}

// lifeOf returns the life of a session that is shown, and the session's partition.
func (s *Service) lifeOf(name string) (life string, p *follow.Partition) {
	p = s.partitions[s.backend.Log.Partition(name)]
	rec, _ := s.backend.Sessions.Session(name)
	p.With(func(l *ledger.Ledger) { life = l.Shown(name, rec).Life })
	return life, p
}

func (s *Service) getTimeline(c *fiber.Ctx) error {
	name, limit, err := s.watched(c)
	if err != nil {
		return err
	}
	answers, info, err := s.edges.ask(context.Background(), inspect.Question{About: inspect.Happenings, Session: name, Limit: limit})
	if err != nil {
		return err
	}
	t := timeline{Edges: info, Published: s.published(name, limit)}
	t.Happenings, t.Total, t.Since = merge(answers, limit)
	for i := range t.Happenings {
		s.identify(&t.Happenings[i], name)
	}
	return answerJSON(c, t)
}

// identify fills in the event ID of the cursor of a happening of a session.
func (s *Service) identify(h *happeningInfo, session string) {
	if rec, _ := s.backend.Sessions.Session(session); h.Time.Before(rec.Created) {
		return
	}
	life, p := s.lifeOf(session)
	p.With(func(l *ledger.Ledger) { h.CursorID = idOf(l, session, life, h.Stream, h.Cursor) })
}

// idOf returns an event ID, or nothing for the beginning of the log.
func idOf(l *ledger.Ledger, session, life, stream string, sequence uint64) string {
	if sequence == 0 || !l.Complete {
		return ""
	}
	return l.ID(session, life, stream, sequence)
}

// merge returns the newest happenings of all edges, how many there are, and from when on
// all of the edges remember everything.
func merge(answers []inspect.Answer, limit int) (newest []happeningInfo, total int, since time.Time) {
	newest = []happeningInfo{}
	for _, a := range answers {
		total += a.Total
		since = ledger.Later(since, a.Since)
		for _, h := range a.Happenings {
			newest = append(newest, happeningInfo{Edge: a.Edge, Host: a.Host, Happening: h})
		}
	}
	slices.SortStableFunc(newest, func(a, b happeningInfo) int { return b.Time.Compare(a.Time) })
	return newest[:min(limit, len(newest))], total, since
}

// published returns the newest events, ends and clears of a session, the newest first. What
// the log does not say in time, the ledger does, without types and in whole seconds.
func (s *Service) published(name string, limit int) []ledger.PublishedInfo {
	life, p := s.lifeOf(name)
	var newest []ledger.PublishedInfo
	var through uint64
	p.With(func(l *ledger.Ledger) {
		newest, through = l.NewestOf(event.LifeKey(name, life), limit), l.Through
		for i := range newest {
			if one := &newest[i]; one.Kind == "event" {
				one.ID = l.ID(name, life, one.Stream, one.Sequence)
			}
		}
	})
	if len(newest) == 0 {
		return []ledger.PublishedInfo{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordPatience)
	defer cancel()
	page, err := s.backend.Log.Read(ctx, eventlog.Query{
		Session: name, Life: life, After: newest[len(newest)-1].Sequence - 1, UpTo: through, MaxEvents: limit, MaxBytes: math.MaxInt, HeadersOnly: true,
	})
	if err != nil {
		s.logger.Debug("a timeline shows what the ledger knows", "error", err)
		return newest
	}
	events := make(map[uint64]eventlog.Entry, len(page.Entries))
	for _, e := range page.Entries {
		events[e.Sequence] = e
	}
	for i := range newest {
		if e, ok := events[newest[i].Sequence]; ok {
			newest[i].Time, newest[i].Type, newest[i].Bytes, newest[i].Final = e.Time.UTC(), e.Type, e.Size, e.Final
		}
	}
	return newest
}

func (s *Service) getGaps(c *fiber.Ctx) error {
	limit, err := web.Number(c, "limit", defaultItems, 1, inspect.MaxItems)
	if err != nil {
		return err
	}
	answers, info, err := s.edges.ask(context.Background(), inspect.Question{About: inspect.Gaps, Limit: limit})
	if err != nil {
		return err
	}
	list := gapList{Edges: info, Reasons: map[string]int{}}
	for _, a := range answers {
		list.Clients += a.Clients
		for reason, n := range a.Reasons {
			list.Reasons[reason] += n
		}
	}
	list.Gaps, list.Total, list.Since = merge(answers, limit)
	for i := range list.Gaps {
		s.identify(&list.Gaps[i], list.Gaps[i].Session)
	}
	if hourAgo := time.Now().Add(-inspect.Kept).UTC(); len(answers) > 0 {
		list.Since = ledger.Later(list.Since, hourAgo)
	}
	return answerJSON(c, list)
}
