package janitor

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/janitor/ask"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
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

// connectionInfo is a connection with its edge, and with the event ID and the lag of its cursor by the ledger.
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
	// Since is from when on the edges remember all happenings; absent when there are none.
	Since      time.Time       `json:"since,omitzero"`
	Total      int             `json:"total"` // happenings that the edges remember
	Happenings []happeningInfo `json:"happenings"`
	// Published are the newest events of the log, and its =end and =clear entries.
	Published []ledger.PublishedInfo `json:"published"`
}

// happeningInfo is a happening with its edge.
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
	// Since is from when on the list is complete: an hour ago, or later.
	Since time.Time `json:"since,omitzero"`
	// Clients are all event streams and polls of all edges.
	Clients int             `json:"clients"`
	Total   int             `json:"total"`
	Reasons map[string]int  `json:"reasons"`
	Gaps    []happeningInfo `json:"gaps"`
}

// watched reads the parameters of a request for a session's connections or timeline.
func (s *Service) watched(c *fiber.Ctx) (session string, limit int, err error) {
	if session, err = sessionParam(c); err != nil {
		return "", 0, err
	}
	limit, err = web.Number(c, "limit", defaultLimit, 1, inspect.MaxItems)
	return session, limit, err
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
	q := ask.Question{About: ask.Cursors}
	for _, one := range list.Connections {
		q.Cursors = append(q.Cursors, ask.Cursor{Session: name, Stream: one.Stream, Sequence: one.Cursor, Count: true})
	}
	a, err := s.askAbout(name, q)
	if err != nil {
		return err
	}
	for i, of := range a.Cursors {
		list.Connections[i].Behind, list.Connections[i].CursorID = of.Behind, of.ID
	}
	return answerJSON(c, list)
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
	t := timeline{Edges: info}
	t.Happenings, t.Total, t.Since = merge(answers, limit)
	q := ask.Question{About: ask.Timeline, Limit: limit}
	for _, h := range t.Happenings {
		q.Cursors = append(q.Cursors, h.at(name))
	}
	a, err := s.askAbout(name, q)
	if err != nil {
		return err
	}
	if t.Published = a.Published; t.Published == nil {
		t.Published = []ledger.PublishedInfo{}
	}
	for i, of := range a.Cursors {
		t.Happenings[i].CursorID = of.ID
	}
	return answerJSON(c, t)
}

// at returns the cursor of a happening of a session.
func (h happeningInfo) at(session string) ask.Cursor {
	return ask.Cursor{Session: session, Stream: h.Stream, Sequence: h.Cursor, Time: h.Time}
}

// merge returns the newest happenings of all edges, how many there are, and from when on
// all edges remember all of them.
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

func (s *Service) getGaps(c *fiber.Ctx) error {
	limit, err := web.Number(c, "limit", defaultLimit, 1, inspect.MaxItems)
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
		add(list.Reasons, a.Reasons)
	}
	list.Gaps, list.Total, list.Since = merge(answers, limit)
	s.identify(list.Gaps)
	if hourAgo := time.Now().Add(-inspect.Kept).UTC(); len(answers) > 0 {
		list.Since = ledger.Later(list.Since, hourAgo)
	}
	return answerJSON(c, list)
}

// identify fills in the event IDs of the cursors of happenings, as far as janitors answer.
func (s *Service) identify(all []happeningInfo) {
	q := ask.Question{About: ask.Cursors}
	var of []int // the index in all of each cursor
	for i, h := range all {
		if h.Cursor == 0 || event.CheckSession(h.Session) != nil {
			continue
		}
		q.Cursors, of = append(q.Cursors, h.at(h.Session)), append(of, i)
	}
	if len(of) == 0 {
		return
	}
	answers, _ := s.ask(q) // the gaps are known without them
	for _, a := range answers {
		for i, info := range a.Cursors {
			if info.ID != "" {
				all[of[i]].CursorID = info.ID
			}
		}
	}
}
