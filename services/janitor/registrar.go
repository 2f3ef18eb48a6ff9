package janitor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/lease"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
	who "rejoin/shared/presence"
	"rejoin/shared/session"
)

// registrar keeps the registry, and completes the ends that other processes have left unfinished.
type registrar struct {
	now        func() time.Time
	do         func(p int, f func(term context.Context) error) (did bool, err error) // see [lease.Leases.Do]
	ready      func(p int) bool                                                      // see [Service.actsWithRecords]
	log        *eventlog.Log
	sessions   *session.Registry
	partitions []*follow.Partition
	cfg        Config
	patience   time.Duration // [ledger.FinishAfter]
	metrics    *metrics
	logger     *slog.Logger
	idleness   idleTracker
	// buffers are those of a round, for the next one: of many sessions they would be much garbage.
	buffers struct {
		names   [][]string // of each partition
		records []session.Record
		inLog   map[string]ledger.LoggedSession
	}
}

// run does the registry's duties every interval, but at least every minute, until ctx ends.
func (r *registrar) run(ctx context.Context) {
	ticker := time.NewTicker(min(r.cfg.Interval, presenceEvery)) // edges that were not asked for longer count as new
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if r.log.Conn().IsConnected() {
			r.round(ctx)
		}
	}
}

// round does the duties. A duty that fails is due again in the next round.
func (r *registrar) round(ctx context.Context) {
	ctx, stop := natsconn.While(ctx, r.log.Conn())
	defer stop()
	now, clock := r.now(), r.clock()
	idle := r.idleness.search(r.cfg.idleLimit, r.lastEvent, now)
	for p, names := range r.names() {
		records, inLog, complete := r.known(p, names)
		if !complete {
			continue
		}
		r.doAll(ctx, ledger.Duties(records, inLog, r.cfg.nameKept, r.patience, now, clock))
		if ctx.Err() != nil {
			return
		}
		idle.add(records, inLog)
	}
	r.doAll(ctx, r.idle(ctx, idle.end()))
}

// names returns the names of the sessions of each partition, until the next call.
func (r *registrar) names() [][]string {
	if r.buffers.names == nil {
		r.buffers.names, r.buffers.inLog = make([][]string, len(r.partitions)), map[string]ledger.LoggedSession{}
	}
	for p := range r.buffers.names {
		r.buffers.names[p] = r.buffers.names[p][:0]
	}
	for name := range r.sessions.Names() {
		p := r.log.Partition(name)
		r.buffers.names[p] = append(r.buffers.names[p], name)
	}
	return r.buffers.names
}

// known returns the records of a partition's sessions, and the sessions in its
// ledger, until the next call. complete is false while the ledger is not, and where this janitor
// does not act: then they count for nothing.
func (r *registrar) known(p int, names []string) (records []session.Record, inLog map[string]ledger.LoggedSession, complete bool) {
	records, inLog = r.buffers.records[:0], r.buffers.inLog
	clear(inLog)
	for _, name := range names { // before the log: what is removed there stays
		if rec, ok := r.sessions.Session(name); ok {
			records = append(records, rec)
		}
	}
	r.buffers.records = records
	r.partitions[p].With(func(l *ledger.Ledger) {
		if complete = l.Complete && r.ready(p); complete {
			l.Logged(inLog)
		}
	})
	return records, inLog, complete
}

// clock returns the time of the log's server, by which its entries are forgotten: a record must
// not outlive them because this machine's clock is behind, nor be removed before them.
func (r *registrar) clock() time.Time {
	for _, p := range r.partitions {
		if r.ready(p.Number) {
			now := p.Now()
			p.With(func(l *ledger.Ledger) { now = l.Clock(now) })
			return now
		}
	}
	return r.now()
}

// doAll does duties until ctx ends. Once one fails, it leaves out the rest of that partition: while
// that has no leader, each would take as long to fail.
func (r *registrar) doAll(ctx context.Context, todo []ledger.Duty) {
	failed := map[int]bool{}
	for _, d := range todo {
		p := r.log.Partition(d.Record.Session)
		if failed[p] {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		did, err := r.do(p, func(term context.Context) error { return r.fulfil(term, d) })
		switch {
		case !did: // another janitor does it
		case err == nil:
			r.metrics.duties.WithLabelValues(d.Task.String()).Inc()
		case ctx.Err() != nil:
			return
		case errors.Is(err, lease.ErrNotActing):
			r.logger.Debug("another janitor has the session now", "task", d.Task.String(), "error", err)
		case errors.Is(err, errAgrees): // nothing was repaired
		case errors.Is(err, session.ErrConflict), errors.Is(err, session.ErrNotFound), errors.Is(err, session.ErrClosed), errors.Is(err, eventlog.ErrMismatch), errors.Is(err, follow.ErrChanged):
			r.logger.Debug("a session or its partition has changed meanwhile", "task", d.Task.String(), "error", err)
		default:
			r.logger.Warn("the registry is not up to date", "partition", p, "task", d.Task.String(), "error", err)
			failed[p] = true
		}
	}
}

// idle returns those of the candidates that no edge knows of, as duties. It asks the edges for their connections and requests.
func (r *registrar) idle(ctx context.Context, asked []candidate) []ledger.Duty {
	if len(asked) == 0 && !r.idleness.edgesDue(r.now()) {
		return nil
	}
	answers, err := who.Ask(ctx, r.log.Conn(), question(asked), askWithin)
	if err != nil && ctx.Err() == nil {
		r.logger.Debug("no session is idle for certain", "error", err)
	}
	var todo []ledger.Duty
	for _, c := range r.idleness.heard(asked, answers, err, r.now()) {
		todo = append(todo, ledger.Duty{Task: ledger.CloseIdle, Record: c.record})
	}
	return todo
}

func (r *registrar) lastEvent(rec session.Record) (last time.Time) {
	r.with(rec.Session, func(l *ledger.Ledger) { last = l.NewestEventAt(event.LifeKey(rec.Session, rec.Life)) })
	return last
}

// with calls f with the ledger of a session.
func (r *registrar) with(session string, f func(*ledger.Ledger)) {
	r.partitions[r.log.Partition(session)].With(f)
}

// logged returns the state of a record's session in the ledger, and whether the ledger is complete.
func (r *registrar) logged(rec session.Record) (s ledger.LoggedSession, complete bool) {
	r.with(rec.Session, func(l *ledger.Ledger) {
		s.Opening, complete = l.Opening(rec.Session), l.Complete
		for _, life := range []string{rec.Life, ""} {
			s.Add(life, l.Accounts[event.LifeKey(rec.Session, life)])
		}
	})
	return s, complete
}

func (r *registrar) fulfil(ctx context.Context, d ledger.Duty) error {
	rec := d.Record
	now, _ := r.sessions.Session(rec.Session)
	switch d.Task {
	case ledger.Repair:
		if now.Revision != rec.Revision {
			return session.ErrConflict // the next round looks again
		}
		return r.repair(ctx, rec.Session)
	case ledger.CloseIdle:
		return r.closeIdle(ctx, rec, now)
	case ledger.Finish:
		if now.Life == rec.Life {
			return r.sessions.EndLife(ctx, now)
		}
		return r.log.EndSession(ctx, rec.Session, rec.Life)
	case ledger.Remove:
		if s, complete := r.logged(rec); !complete || s.Holds(rec) {
			return session.ErrConflict // it was published to since the round began
		}
		return r.sessions.Remove(ctx, rec)
	}
	return nil
}

// closeIdle ends a session that is still idle by all entries of the leader. now is the copy of its record.
func (r *registrar) closeIdle(ctx context.Context, rec, now session.Record) error {
	_, newest, err := r.log.LifeOf(ctx, rec.Session)
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return err
	}
	behind := false
	err = r.partitions[r.log.Partition(rec.Session)].Check(ctx, func(_ eventlog.State, l *ledger.Ledger) {
		behind = l.Through < newest || l.Unheard(rec.Session, rec.Life, now)
	})
	if err != nil {
		return err
	}
	in, complete := r.logged(rec)
	c := candidate{record: rec, after: r.cfg.idleLimit(rec.Retention, !in.Unused())}
	if !complete || behind || now.Revision != rec.Revision || !c.idle(in, r.lastEvent, r.now()) {
		return session.ErrConflict // it was published to, or may be allowed more time now
	}
	return r.sessions.EndLife(ctx, rec)
}

// repair corrects the registry by the log, and enters in the ledger which life the opening names.
func (r *registrar) repair(ctx context.Context, name string) error {
	before, _ := r.sessions.Session(name)
	o, err := r.log.Opening(ctx, name)
	switch {
	case err == nil:
		r.with(name, func(l *ledger.Ledger) { l.Learn(name, o.Sequence, o.Life) })
		if before.Life == o.Life && before.State == session.Open && before.Changes == o.Changes {
			return errAgrees // only the ledger did not know the opening
		}
	case !errors.Is(err, eventlog.ErrNotFound):
		return err
	}
	if now, err := r.sessions.Get(ctx, name); err != nil || now.Revision != before.Revision {
		return err
	}
	return errAgrees
}

// errAgrees is returned when there is nothing to repair.
var errAgrees = errors.New("the record agrees with the log")
