package janitor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/inspect"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// Page sizes of the list of sessions.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// recordPatience is how long a request waits for the registry.
const recordPatience = 5 * time.Second

// sessionList is the body of GET /v1/sessions.
type sessionList struct {
	Sessions []ledger.SessionInfo `json:"sessions"`
	// Total counts those of all pages.
	Total int `json:"total"`
	// Next is the value of after for the next page; absent on the last one.
	Next string `json:"next,omitempty"`
	// Edges says which edges the numbers of clients are of; absent unless asked for.
	Edges *edgesInfo `json:"edges,omitempty"`
}

// sweepAnswer is the body of POST /v1/sweep. Numbers are of entries, by reason.
type sweepAnswer struct {
	Removed map[ledger.Reason]int `json:"removed"`
	// Left is what is announced and not deleted yet, by what readers are told.
	Left    map[eventlog.Reason]int `json:"left"`
	Seconds float64                 `json:"seconds"`
}

// dryAnswer is the body of POST /v1/sweep?dry_run=true.
type dryAnswer struct {
	WouldRemove map[ledger.Reason]int `json:"wouldRemove"`
	// Removals are the largest ones.
	Removals []ledger.RemovalInfo `json:"removals"`
	More     bool                 `json:"more"` // there are more than these
	// Left is what earlier sweeps have announced and is not deleted yet.
	Left map[eventlog.Reason]int `json:"left"`
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
	records, inLog := s.backend.Sessions.Sessions(), map[string]ledger.Held{}
	for _, p := range s.partitions {
		p.With(func(l *ledger.Ledger) { l.Held(inLog) })
	}
	page, more, total := q.rows(records, inLog)
	list := sessionList{Sessions: make([]ledger.SessionInfo, 0, len(page)), Total: total}
	for _, at := range page {
		rec, _ := s.backend.Sessions.Session(at.name)
		list.Sessions = append(list.Sessions, s.info(at.name, rec))
	}
	if more {
		list.Next = q.next(page[len(page)-1])
	}
	if q.clients {
		if err := s.countClients(&list); err != nil {
			return err
		}
	}
	return answerJSON(c, list)
}

// countClients fills in how many clients the sessions of a page have.
func (s *Service) countClients(list *sessionList) error {
	question := inspect.Question{About: inspect.Clients}
	for i := range list.Sessions {
		question.Sessions = append(question.Sessions, list.Sessions[i].Session)
	}
	answers, info, err := s.edges.ask(context.Background(), question)
	if err != nil {
		return err
	}
	list.Edges = &info
	for i := range list.Sessions {
		n := 0
		for _, a := range answers {
			n += a.Of[i]
		}
		list.Sessions[i].Clients = &n
	}
	return nil
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
	rec, err := s.recordOf(name)
	d := s.detail(name, rec)
	switch {
	case rec.Session != "" || d.Events > 0:
		return answerJSON(c, d)
	case err != nil:
		return web.Wrap(err, web.CodeUnavailable, "The registry of sessions does not answer.")
	}
	return web.New(web.CodeNotFound, "Neither the registry nor the log has this session.")
}

// recordOf returns the record of a session, without a name when there is none. Where
// the copy has none, the log is asked: the copy may be a moment behind what somebody has
// just created.
func (s *Service) recordOf(name string) (session.Record, error) {
	if rec, ok := s.backend.Sessions.Session(name); ok {
		return rec, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordPatience)
	defer cancel()
	rec, err := s.backend.Sessions.Get(ctx, name)
	if errors.Is(err, session.ErrNotFound) {
		err = nil
	}
	return rec, err
}

// info puts together what index and ledger have of a session.
func (s *Service) info(name string, rec session.Record) (info ledger.SessionInfo) {
	p := s.partitions[s.backend.Log.Partition(name)]
	p.With(func(l *ledger.Ledger) {
		rec := l.Shown(name, rec)
		info = l.InfoOf(rec, l.StreamsOf(rec, s.retention()), s.sweeper.limitsOf(rec))
	})
	return info
}

// detail is info with the streams, and what goes next.
func (s *Service) detail(name string, rec session.Record) (d ledger.SessionDetail) {
	p := s.partitions[s.backend.Log.Partition(name)]
	p.With(func(l *ledger.Ledger) {
		rec := l.Shown(name, rec)
		removals := s.sweeper.ofLife(l, l.Accounts[event.LifeKey(name, rec.Life)], s.sweeper.limits(), p.Now())
		d = l.Detail(rec, l.StreamsOf(rec, s.retention()), removals, s.sweeper.limitsOf(rec))
	})
	return d
}

func (s *Service) retention() ledger.Retention {
	settings := s.backend.Log.Settings()
	return ledger.Retention{MaxAge: settings.MaxAge, MaxPerStream: settings.MaxEventsPerStream}
}

// sweep sweeps, or says what a sweep would do.
func (s *Service) sweep(c *fiber.Ctx) error {
	dry, err := web.Choice(c, "dry_run", "true", "false", false)
	if err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		return err
	}
	if dry {
		d := s.sweeper.dryRun()
		return answerJSON(c, dryAnswer{d.total, d.removals, d.more, s.sweeper.toDelete()})
	}
	if len(s.held()) == 0 {
		return web.New(web.CodeUnavailable, "This janitor stands by; another one sweeps.")
	}
	done := s.sweeper.sweepNow(askPatience)
	switch {
	case errors.Is(done.err, errNoSweep):
		return web.Wrap(done.err, web.CodeUnavailable, "No sweep can begin at the moment.")
	case done.err != nil:
		return web.Wrap(done.err, web.CodeUnavailable, "The sweep is left unfinished; the next one continues.")
	}
	return answerJSON(c, sweepAnswer{done.removed, done.left, done.took.Seconds()})
}

// ready returns the problem that answers a request while a ledger is not complete: at
// the beginning, and while one starts again.
func (s *Service) ready() error {
	for _, p := range s.partitions {
		complete := false
		if p.With(func(l *ledger.Ledger) { complete = l.Complete }); !complete {
			return web.New(web.CodeUnavailable, "The janitor has not read the whole log yet.")
		}
	}
	return nil
}

func parseListQuery(c *fiber.Ctx) (listQuery, error) {
	q := listQuery{limit: defaultLimit}
	bad := func(detail string) (listQuery, error) {
		return listQuery{}, web.New(web.CodeInvalidParameter, detail)
	}
	var err error
	if q.limit, err = web.Number(c, "limit", q.limit, 1, maxLimit); err != nil {
		return listQuery{}, err
	}
	by, given, err := web.Query(c, "sort")
	if err != nil {
		return listQuery{}, err
	}
	if q.order = order(by); given && !slices.Contains([]order{byBytes, byEvents, byActivity}, q.order) {
		return bad(`The parameter "sort" is "bytes", "events" or "activity".`)
	}
	after, _, err := web.Query(c, "after")
	if err != nil {
		return listQuery{}, err
	}
	if after != "" {
		at, ok := q.place(after)
		if !ok || event.CheckSession(at.name) != nil {
			return bad(`The parameter "after" is the "next" of a page in the same order; without "sort", it may be the name of any session.`)
		}
		q.after = &at
	}
	if q.contains, given, err = web.Query(c, "contains"); err != nil {
		return listQuery{}, err
	}
	if given && (q.contains == "" || len(q.contains) > event.MaxNameLen) {
		return bad(`The parameter "contains" is a part of a name.`)
	}
	if q.clients, err = web.Choice(c, "clients", "true", "false", false); err != nil {
		return listQuery{}, err
	}
	state, given, err := web.Query(c, "state")
	if err != nil {
		return listQuery{}, err
	}
	if q.state = session.State(state); given && !slices.Contains([]session.State{session.Open, session.Closed}, q.state) {
		return bad(`The parameter "state" is "open" or "closed".`)
	}
	return q, nil
}

func answerJSON(c *fiber.Ctx, body any) error {
	c.Set(fiber.HeaderCacheControl, "no-store")
	return c.JSON(body)
}
