package janitor

import (
	"context"
	"slices"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/janitor/ask"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/inspect"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// defaultLimit is how many sessions, connections, happenings, events or gaps are answered.
const defaultLimit = 100

// sessionList is the body of GET /v1/sessions.
type sessionList struct {
	Sessions []ledger.SessionInfo `json:"sessions"`
	// Total counts those of all pages.
	Total int `json:"total"`
	// Next is the value of after for the next page; absent on the last one.
	Next string `json:"next,omitempty"`
	// Edges counts the edges that were asked for the numbers of clients; absent unless these are requested.
	Edges *edgesInfo `json:"edges,omitempty"`
}

// sweepAnswer is the body of POST /v1/sweep. Numbers are of entries, by reason.
type sweepAnswer struct {
	Removed map[ledger.Cause]int `json:"removed"`
	// Left counts the entries that are announced and not deleted yet, by the reason that readers receive.
	Left    map[eventlog.Reason]int `json:"left"`
	Seconds float64                 `json:"seconds"`
}

// dryAnswer is the body of POST /v1/sweep?dry_run=true.
type dryAnswer struct {
	WouldRemove map[ledger.Cause]int `json:"wouldRemove"`
	// Removals are the largest ones.
	Removals []ledger.RemovalInfo `json:"removals"`
	More     bool                 `json:"more"` // there are more than these
	// Left counts the entries that earlier sweeps have announced and that are not deleted yet.
	Left map[eventlog.Reason]int `json:"left"`
}

// guard returns a handler that calls h for requests whose token grants admin: the
// janitor's data is of all owners.
func (s *Service) guard(h fiber.Handler) fiber.Handler {
	return s.cfg.Access.GuardFor(func(_ *fiber.Ctx, grants auth.Grants) bool { return grants.Admin }, h)
}

func (s *Service) listSessions(c *fiber.Ctx) error {
	q, clients, err := parseListQuery(c)
	if err != nil {
		return err
	}
	answers, err := s.ask(ask.Question{About: ask.Rows, List: &q})
	if err != nil {
		return err
	}
	pages := make([]ask.Page, 0, len(answers))
	for _, a := range answers {
		pages = append(pages, a.Page)
	}
	page := q.Merge(pages)
	list := sessionList{Total: page.Total}
	if list.Sessions, err = s.infosOf(page.Rows); err != nil {
		return err
	}
	if page.More {
		list.Next = q.Next(page.Rows[len(page.Rows)-1])
	}
	if clients {
		if err := s.countClients(&list); err != nil {
			return err
		}
	}
	return answerJSON(c, list)
}

// infosOf returns the infos of the sessions of a page.
func (s *Service) infosOf(rows []ask.Row) ([]ledger.SessionInfo, error) {
	q := ask.Question{About: ask.Infos}
	for _, at := range rows {
		q.Sessions = append(q.Sessions, at.Name)
	}
	all := make([]ledger.SessionInfo, 0, len(rows))
	if len(rows) == 0 {
		return all, nil
	}
	answers, err := s.ask(q)
	if err != nil {
		return nil, err
	}
	of := make(map[string]ledger.SessionInfo, len(rows))
	for _, a := range answers {
		for _, one := range a.Infos {
			of[one.Session] = one
		}
	}
	for _, at := range rows {
		if one, ok := of[at.Name]; ok {
			all = append(all, one)
		}
	}
	return all, nil
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

// sessionParam returns the name of the session that a request is about.
func sessionParam(c *fiber.Ctx) (string, error) {
	name, err := web.Param(c, "session")
	if err != nil {
		return "", err
	}
	if err := event.CheckSession(name); err != nil {
		return "", web.Wrap(err, web.CodeInvalidName, err.Error())
	}
	return name, nil
}

func (s *Service) getSession(c *fiber.Ctx) error {
	name, err := sessionParam(c)
	if err != nil {
		return err
	}
	a, err := s.askAbout(name, ask.Question{About: ask.Detail})
	switch {
	case err != nil:
		return err
	case a.Detail != nil:
		return answerJSON(c, a.Detail)
	case a.Silent:
		return web.New(web.CodeUnavailable, "The registry of sessions does not answer.")
	}
	return web.New(web.CodeNotFound, "There is no such session.")
}

// sweep sweeps, or reports the removals that a sweep would make.
func (s *Service) sweep(c *fiber.Ctx) error {
	dry, err := web.Choice(c, "dry_run", "true", "false", false)
	if err != nil {
		return err
	}
	if dry {
		return s.dryRun(c)
	}
	answers, err := s.ask(ask.Question{About: ask.Sweep})
	if err != nil {
		return err
	}
	all := sweepAnswer{Removed: map[ledger.Cause]int{}, Left: map[eventlog.Reason]int{}}
	for _, a := range answers {
		switch a.Swept {
		case ask.Done:
		case ask.NotBegun:
			return web.New(web.CodeUnavailable, "No sweep can begin at the moment.")
		default:
			return web.New(web.CodeUnavailable, "The sweep is left unfinished; the next one continues.")
		}
		add(all.Removed, a.Removed)
		add(all.Left, a.Left)
		all.Seconds = max(all.Seconds, a.Seconds)
	}
	return answerJSON(c, all)
}

func (s *Service) dryRun(c *fiber.Ctx) error {
	answers, err := s.ask(ask.Question{About: ask.DryRun})
	if err != nil {
		return err
	}
	all := dryAnswer{WouldRemove: map[ledger.Cause]int{}, Left: map[eventlog.Reason]int{}}
	f := ledger.Firsts[ledger.RemovalInfo]{N: ask.MaxRows, Compare: compareRemovals}
	for _, a := range answers {
		add(all.WouldRemove, a.Removed)
		add(all.Left, a.Left)
		all.More = all.More || a.More
		f.Add(a.Removals...)
	}
	removals, more := f.All()
	all.Removals, all.More = append([]ledger.RemovalInfo{}, removals...), all.More || more
	return answerJSON(c, all)
}

// add adds numbers to those of the same reason.
func add[R comparable](to, more map[R]int) {
	for reason, n := range more {
		to[reason] += n
	}
}

func parseListQuery(c *fiber.Ctx) (q ask.List, clients bool, err error) {
	bad := func(detail string) (ask.List, bool, error) {
		return ask.List{}, false, web.New(web.CodeInvalidParameter, detail)
	}
	if q.Limit, err = web.Number(c, "limit", defaultLimit, 1, ask.MaxRows); err != nil {
		return ask.List{}, false, err
	}
	by, given, err := web.Query(c, "sort")
	if err != nil {
		return ask.List{}, false, err
	}
	if q.Order = ask.Order(by); given && (by == "" || !slices.Contains(ask.Orders, q.Order)) {
		return bad(`The parameter "sort" is "bytes", "events" or "activity".`)
	}
	after, _, err := web.Query(c, "after")
	if err != nil {
		return ask.List{}, false, err
	}
	if after != "" {
		at, ok := q.Place(after)
		if !ok || event.CheckSession(at.Name) != nil {
			return bad(`The parameter "after" is the "next" of a page in the same order; without "sort", it may be the name of any session.`)
		}
		q.After = &at
	}
	if q.Contains, given, err = web.Query(c, "contains"); err != nil {
		return ask.List{}, false, err
	}
	if given && (q.Contains == "" || len(q.Contains) > event.MaxNameLen) {
		return bad(`The parameter "contains" is a part of a name.`)
	}
	if clients, err = web.Choice(c, "clients", "true", "false", false); err != nil {
		return ask.List{}, false, err
	}
	state, given, err := web.Query(c, "state")
	if err != nil {
		return ask.List{}, false, err
	}
	if q.State = session.State(state); given && !slices.Contains([]session.State{session.Open, session.Closed}, q.State) {
		return bad(`The parameter "state" is "open" or "closed".`)
	}
	return q, clients, nil
}

func answerJSON(c *fiber.Ctx, body any) error {
	c.Set(fiber.HeaderCacheControl, "no-store")
	return c.JSON(body)
}
