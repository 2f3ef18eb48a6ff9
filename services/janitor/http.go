package janitor

import (
	"fmt"
	"slices"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/web"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/session"
)

// Page sizes of the list of sessions.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// sessionList is the body of GET /v1/sessions.
type sessionList struct {
	Sessions []sessionInfo `json:"sessions"`
	// Next is the value of after for the next page; absent on the last one.
	Next string `json:"next,omitempty"`
}

// sessionDetail is the body of GET /v1/sessions/{session}; streams is a list here.
type sessionDetail struct {
	sessionInfo
	Streams []streamInfo `json:"streams"`
}

// listQuery are the parameters of GET /v1/sessions.
type listQuery struct {
	limit int
	after string
	state session.State // empty: all
}

// guard returns a handler that calls h for requests whose token grants admin: what the
// janitor knows is of all owners.
func (s *Service) guard(h fiber.Handler) fiber.Handler {
	return s.cfg.Access.GuardFor(func(_ *fiber.Ctx, grants auth.Grants) bool { return grants.Admin }, h)
}

func (s *Service) listSessions(c *fiber.Ctx) error {
	q, err := parseListQuery(c)
	if err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		return err
	}
	records := map[string][]session.Record{}
	for _, r := range s.backend.Sessions.Sessions() {
		records[r.Session] = append(records[r.Session], r)
	}
	names := make([]string, 0, len(records))
	for name, rs := range records {
		if slices.ContainsFunc(rs, isSession) {
			names = append(names, name)
		}
	}
	for _, p := range s.partitions {
		p.with(func(l *ledger) {
			for name, a := range l.accounts {
				if a.events > 0 && !slices.ContainsFunc(records[name], isSession) {
					names = append(names, name)
				}
			}
		})
	}
	slices.Sort(names)
	from, found := slices.BinarySearch(names, q.after)
	if found {
		from++
	}
	list := sessionList{Sessions: []sessionInfo{}}
	for _, name := range names[from:] {
		info, _ := s.describe(name, records[name])
		if q.state != "" && info.State != q.state {
			continue
		}
		if len(list.Sessions) == q.limit {
			list.Next = list.Sessions[q.limit-1].Session
			break
		}
		list.Sessions = append(list.Sessions, info)
	}
	return answerJSON(c, list)
}

func (s *Service) getSession(c *fiber.Ctx) error {
	name, err := web.Param(c, "session")
	if err != nil {
		return err
	}
	if err := event.CheckSession(name); err != nil {
		return web.Wrap(err, web.CodeInvalidName, err.Error())
	}
	if err := s.ready(); err != nil {
		return err
	}
	var records []session.Record
	if rec, ok := s.backend.Sessions.Session(name); ok {
		for _, r := range s.backend.Sessions.Sessions() {
			if r.Session == name && r.Stream != "" {
				records = append(records, r)
			}
		}
		records = append(records, rec)
	}
	info, streams := s.describe(name, records)
	if len(records) == 0 && info.Events == 0 {
		return web.New(web.CodeNotFound, "Neither the registry nor the log has this session.")
	}
	if streams == nil {
		streams = []streamInfo{}
	}
	return answerJSON(c, sessionDetail{info, streams})
}

// describe puts together what registry and ledger have of a session.
func (s *Service) describe(name string, records []session.Record) (info sessionInfo, streams []streamInfo) {
	var rec session.Record
	if i := slices.IndexFunc(records, isSession); i >= 0 {
		rec = records[i]
	}
	p := s.partitions[s.backend.Log.Partition(name)]
	p.with(func(l *ledger) { streams = l.streamsOf(name, records, p.now()) })
	return infoOf(name, rec, streams), streams
}

func isSession(r session.Record) bool { return r.Stream == "" }

// ready returns the problem that answers a request while a ledger is not complete.
func (s *Service) ready() error {
	if err := s.complete(); err != nil {
		return web.Wrap(err, web.CodeUnavailable, "The janitor has not read the whole log yet.")
	}
	return nil
}

func parseListQuery(c *fiber.Ctx) (listQuery, error) {
	q := listQuery{limit: defaultLimit}
	bad := func(format string, args ...any) (listQuery, error) {
		return listQuery{}, web.New(web.CodeInvalidParameter, fmt.Sprintf(format, args...))
	}
	var err error
	if q.limit, err = web.Number(c, "limit", q.limit, 1, maxLimit); err != nil {
		return listQuery{}, err
	}
	if q.after, _, err = web.Query(c, "after"); err != nil {
		return listQuery{}, err
	}
	if q.after != "" && event.CheckSession(q.after) != nil {
		return bad(`The parameter "after" is the name of a session.`)
	}
	state, given, err := web.Query(c, "state")
	if err != nil {
		return listQuery{}, err
	}
	if q.state = session.State(state); given && !slices.Contains([]session.State{session.Open, session.Closing, session.Closed}, q.state) {
		return bad(`The parameter "state" is "open", "closing" or "closed".`)
	}
	return q, nil
}

func answerJSON(c *fiber.Ctx, body any) error {
	c.Set(fiber.HeaderCacheControl, "no-store")
	return c.JSON(body)
}
