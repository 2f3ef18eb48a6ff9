package janitor

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"rejoin/services/janitor/ask"
	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// recordPatience is how long a request waits for the registry.
const recordPatience = 5 * time.Second

// ask puts a question to the janitors that hold the partitions of its sessions, or to all when it names
// none. An error is a problem.
func (s *Service) ask(q ask.Question) ([]ask.Answer, error) {
	var partitions []int
	for _, name := range q.Names() {
		partitions = append(partitions, s.backend.Log.Partition(name))
	}
	slices.Sort(partitions)
	if partitions = slices.Compact(partitions); len(partitions) == 0 {
		for p := range s.partitions {
			partitions = append(partitions, p)
		}
	}
	answers, err := s.asker.Ask(context.Background(), q, partitions)
	var lacking *ask.Lacking
	switch {
	case errors.As(err, &lacking):
		return answers, web.New(web.CodeUnavailable, lacking.Error())
	case errors.Is(err, ask.ErrTooLarge):
		return nil, web.Wrap(err, web.CodeUnavailable, "The answers of the other janitors are too large; a smaller limit may help.")
	case err != nil:
		return nil, web.Wrap(err, web.CodeUnavailable, "Too many requests wait for other janitors.")
	}
	return answers, nil
}

// askAbout puts a question about one session.
func (s *Service) askAbout(name string, q ask.Question) (ask.Answer, error) {
	q.Session = name
	answers, err := s.ask(q)
	if err != nil {
		return ask.Answer{}, err
	}
	return answers[0], nil
}

// answerable returns the partitions that this janitor acts for. Without NATS no other janitor can be asked,
// so any ledger that is complete will do.
func (s *Service) answerable() []*follow.Partition {
	if !s.backend.Conn.IsConnected() {
		return slices.DeleteFunc(slices.Clone(s.partitions), func(p *follow.Partition) bool { return !s.hasAll(p) })
	}
	return s.acting()
}

// holding returns which partitions this janitor answers for.
func (s *Service) holding() (h ask.Holding) {
	for _, p := range s.answerable() {
		if s.hasAll(p) {
			h.Complete = append(h.Complete, p.Number)
		} else {
			h.Incomplete = append(h.Incomplete, p.Number)
		}
	}
	return h
}

// hasAll reports whether this janitor has the whole ledger of a partition, and the records of its
// sessions.
func (s *Service) hasAll(p *follow.Partition) (yes bool) {
	p.With(func(l *ledger.Ledger) { yes = l.Complete })
	return yes && s.backend.Sessions.Has(p.Number)
}

// share is the partitions of a question that this janitor answers for.
type share struct {
	*Service
	of []*follow.Partition
}

// answer answers a question for those of its partitions that this janitor holds. It has no answer
// when it has lost one of them meanwhile: its data may be of an empty ledger, and
// without records.
func (s *Service) answer(ctx context.Context, q ask.Question) (a ask.Answer) {
	own := share{s, nil}
	for _, p := range s.answerable() {
		if slices.Contains(q.Partitions, p.Number) && s.hasAll(p) {
			own.of = append(own.of, p)
			a.Partitions = append(a.Partitions, p.Number)
		}
	}
	if len(own.of) == 0 {
		return a
	}
	switch q.About {
	case ask.Rows:
		a.Page = own.page(*q.List)
	case ask.Infos:
		a.Infos = own.infos(q.Sessions)
	case ask.Detail:
		own.detail(ctx, q.Session, &a)
	case ask.Timeline:
		a.Published = own.published(ctx, q.Session, q.Limit)
	case ask.Limits:
		own.limits(q, &a)
	case ask.DryRun:
		a.Removed, a.Removals, a.More = s.sweeper.dryRun(own.of, ask.MaxRows)
		a.Left = toDelete(own.of)
	case ask.Sweep:
		own.sweep(ctx, &a)
	case ask.Cursors: // below, as those of a timeline
	}
	if len(q.Cursors) > 0 {
		a.Cursors = own.cursors(q.Cursors)
	}
	if slices.ContainsFunc(own.of, func(p *follow.Partition) bool { return !s.hasAll(p) }) {
		return ask.Answer{}
	}
	return a
}

// partition returns the partition of a session, or nil if it is not in the share.
func (s share) partition(name string) *follow.Partition {
	p := s.partitions[s.backend.Log.Partition(name)]
	if !slices.Contains(s.of, p) {
		return nil
	}
	return p
}

func (s share) page(list ask.List) ask.Page {
	records, inLog := s.backend.Sessions.Sessions(), map[string]ledger.Retained{}
	if len(s.of) < s.backend.Log.Settings().Partitions {
		records = slices.DeleteFunc(records, func(r session.Record) bool { return s.partition(r.Session) == nil })
	}
	for _, p := range s.of {
		p.With(func(l *ledger.Ledger) { l.Retained(inLog) })
	}
	return list.Page(records, inLog)
}

// infos combines the records of sessions with their state in the ledger.
func (s share) infos(names []string) (all []ledger.SessionInfo) {
	for _, name := range names {
		p := s.partition(name)
		if p == nil {
			continue
		}
		rec, _ := s.backend.Sessions.Session(name)
		p.With(func(l *ledger.Ledger) {
			rec := l.Shown(name, rec)
			all = append(all, l.InfoOf(rec, l.StreamsOf(rec, s.backend.Log.Settings()), s.sweeper.limitsOf(rec)))
		})
	}
	return all
}

// detail answers with the info of a session, its streams and the next removals.
func (s share) detail(ctx context.Context, name string, a *ask.Answer) {
	p := s.partition(name)
	if p == nil {
		return
	}
	rec, err := s.recordOf(ctx, name)
	var d ledger.SessionDetail
	p.With(func(l *ledger.Ledger) {
		rec := l.Shown(name, rec)
		removals := s.sweeper.removalsOf(l, l.Accounts[event.LifeKey(name, rec.Life)], s.sweeper.limits(), p.Now())
		d = l.Detail(rec, l.StreamsOf(rec, s.backend.Log.Settings()), removals, s.sweeper.limitsOf(rec))
	})
	if rec.Session != "" || d.Events > 0 {
		a.Detail = &d
	}
	a.Silent = err != nil
}

// recordOf returns the record of a session, without a name when there is none. Where
// the copy has none, the log is asked: the copy may lack a session that was created a moment
// ago.
func (s share) recordOf(ctx context.Context, name string) (session.Record, error) {
	if rec, ok := s.backend.Sessions.Session(name); ok {
		return rec, nil
	}
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	rec, err := s.backend.Sessions.Get(ctx, name)
	if errors.Is(err, session.ErrNotFound) {
		err = nil
	}
	return rec, err
}

// limits returns the sessions that are close to a limit, and sums over the retained events.
func (s share) limits(q ask.Question, a *ask.Answer) {
	f := ledger.Firsts[ledger.NearInfo]{N: q.Limit, Compare: compareNear}
	limitsOf := func(name, life string) (ledger.Limits, bool) {
		rec, registered := s.backend.Sessions.Session(name)
		return s.sweeper.limitsOf(rec), !registered || rec.Life == life && rec.State == session.Open
	}
	for _, p := range s.of {
		p.With(func(l *ledger.Ledger) {
			a.Total += l.Near(&f, float64(q.Share)/100, limitsOf)
			a.Retained.Add(l.Totals)
			a.Stored += l.Through
		})
	}
	a.Near, _ = f.All()
}

// sweep has the sweeper sweep.
func (s share) sweep(ctx context.Context, a *ask.Answer) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	done := s.sweeper.sweepOnce(ctx)
	a.Removed, a.Left, a.Seconds = done.removed, toDelete(s.of), done.took.Seconds()
	switch {
	case errors.Is(done.err, errNoSweep):
		a.Swept = ask.NotBegun
	case done.err != nil:
		a.Swept = ask.Unfinished
	}
}

// cursors returns the event IDs of cursors, and how many retained events lie after them.
func (s share) cursors(cursors []ask.Cursor) []ask.CursorInfo {
	all := make([]ask.CursorInfo, len(cursors))
	for i, c := range cursors {
		p := s.partition(c.Session)
		if p == nil {
			continue
		}
		rec, _ := s.backend.Sessions.Session(c.Session)
		// A session may have many streams, and the ledger is needed by others in between.
		p.With(func(l *ledger.Ledger) {
			life := l.Shown(c.Session, rec).Life
			if c.Count {
				all[i].Behind = l.RetainedAfter(event.LifeKey(c.Session, life), c.Stream, c.Sequence)
			}
			if c.Sequence > 0 && (c.Time.IsZero() || !c.Time.Before(rec.Created)) {
				all[i].ID = l.ID(c.Session, life, c.Stream, c.Sequence)
			}
		})
	}
	return all
}

// published returns the newest events, ends and clears of a session, the newest first. When the
// log does not answer in time, they are the ledger's, without types and with times in whole seconds.
func (s share) published(ctx context.Context, name string, limit int) []ledger.PublishedInfo {
	p := s.partition(name)
	if p == nil {
		return nil
	}
	rec, _ := s.backend.Sessions.Session(name)
	var life string
	var newest []ledger.PublishedInfo
	var through uint64
	p.With(func(l *ledger.Ledger) {
		life = l.Shown(name, rec).Life
		newest, through = l.NewestOf(event.LifeKey(name, life), limit), l.Through
		for i := range newest {
			if one := &newest[i]; one.Kind == "event" {
				one.ID = l.ID(name, life, one.Stream, one.Sequence)
			}
		}
	})
	if len(newest) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
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
