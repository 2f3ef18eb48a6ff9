package janitor

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/gofiber/fiber/v2"

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
	Published []publishedInfo `json:"published"`
}

// happeningInfo is a happening with where it happened.
type happeningInfo struct {
	Edge string `json:"edge"`
	Host string `json:"host,omitempty"`
	inspect.Happening
}

// publishedInfo is an entry of the log, without its message.
type publishedInfo struct {
	// Kind is "event", "close" for an end, or "clear".
	Kind     string    `json:"kind"`
	Stream   string    `json:"stream,omitempty"` // absent for what is about the session
	Sequence uint64    `json:"sequence"`
	Time     time.Time `json:"time"`
	// Type and Bytes are the event's. Type is absent when only the ledger was asked.
	Type  string `json:"type,omitempty"`
	Bytes int    `json:"bytes"`
	Final bool   `json:"final,omitempty"` // the stream's last one
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
		p.with(func(l *ledger) { one.Behind = l.behind(event.LifeKey(name, life), one.Stream, one.Cursor) })
	}
	return answerJSON(c, list)
}

// lifeOf returns the life of a session that is shown, and the session's partition.
func (s *Service) lifeOf(name string) (life string, p *partition) {
	p = s.partitions[s.backend.Log.Partition(name)]
	rec, _ := s.backend.Sessions.Session(name)
	p.with(func(l *ledger) { life = l.shown(name, rec).Life })
	return life, p
}

// behind returns how many retained events lie behind a cursor in a stream of a life, or in
// all streams when it has no name.
func (l *ledger) behind(life, name string, cursor uint64) (n int) {
	a := l.accounts[life]
	if a == nil {
		return 0
	}
	after := func(s *stream) int {
		return len(s.events) - sort.Search(len(s.events), func(i int) bool { return s.events[i].seq > cursor })
	}
	if name != "" {
		if s := a.streams[name]; s != nil {
			n = after(s)
		}
		return n
	}
	for _, s := range a.streams {
		n += after(s)
	}
	return n
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
	return answerJSON(c, t)
}

// merge returns the newest happenings of all edges, how many there are, and from when on
// all of the edges remember everything.
func merge(answers []inspect.Answer, limit int) (newest []happeningInfo, total int, since time.Time) {
	newest = []happeningInfo{}
	for _, a := range answers {
		total += a.Total
		since = later(since, a.Since)
		for _, h := range a.Happenings {
			newest = append(newest, happeningInfo{a.Edge, a.Host, h})
		}
	}
	slices.SortStableFunc(newest, func(a, b happeningInfo) int { return b.Time.Compare(a.Time) })
	return newest[:min(limit, len(newest))], total, since
}

// published returns the newest events, ends and clears of a session, the newest first. What
// the log does not say in time, the ledger does, without types and in whole seconds.
func (s *Service) published(name string, limit int) []publishedInfo {
	life, p := s.lifeOf(name)
	var newest []publishedInfo
	var through uint64
	p.with(func(l *ledger) { newest, through = l.newestOf(event.LifeKey(name, life), limit), l.through })
	if len(newest) == 0 {
		return []publishedInfo{}
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

// newestOf returns the newest retained events, ends and clears of a life, the newest
// first, as far as the ledger knows them.
func (l *ledger) newestOf(life string, limit int) []publishedInfo {
	a := l.accounts[life]
	if a == nil {
		return nil
	}
	newest := firsts[publishedInfo]{n: limit, compare: func(a, b publishedInfo) int { return cmp.Compare(b.Sequence, a.Sequence) }}
	mark := func(stream string, m *markers) {
		if m == nil {
			return
		}
		for kind, e := range map[string]marker{"close": m.end, "clear": m.clear} {
			if e.seq > 0 {
				newest.add(publishedInfo{Kind: kind, Stream: stream, Sequence: e.first, Time: e.at.UTC()})
			}
		}
	}
	mark("", a.markers)
	for name, s := range a.streams {
		mark(name, s.markers)
		for _, e := range slices.Backward(s.events) {
			one := publishedInfo{Kind: "event", Stream: name, Sequence: e.seq, Time: e.time(), Bytes: int(e.size)}
			if newest.beyond(one) {
				break // and so are the older ones
			}
			newest.add(one)
		}
	}
	all, _ := newest.all()
	return all
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
	if hourAgo := time.Now().Add(-inspect.Kept).UTC(); len(answers) > 0 {
		list.Since = later(list.Since, hourAgo)
	}
	return answerJSON(c, list)
}
