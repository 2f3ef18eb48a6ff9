package janitor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
	who "rejoin/shared/presence"
	"rejoin/shared/session"
)

// registrar keeps the index of sessions, and ends what others have left unfinished.
type registrar struct {
	now        func() time.Time
	log        *eventlog.Log
	sessions   *session.Registry
	partitions []*partition
	cfg        Config
	patience   time.Duration // finishAfter
	metrics    *metrics
	logger     *slog.Logger
	vigil      vigil
}

// run does them every interval until ctx ends.
func (r *registrar) run(ctx context.Context) {
	ticker := time.NewTicker(r.cfg.Interval)
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

// round does what is due. What fails is due again in the next round.
func (r *registrar) round(ctx context.Context) {
	ctx, stop := natsconn.While(ctx, r.log.Conn())
	defer stop()
	records := r.sessions.Sessions() // before the log: what is removed there stays
	inLog, ok := r.inLog()
	if !ok {
		return
	}
	if r.doAll(ctx, duties(records, inLog, r.cfg.TombstoneTTL, r.patience, r.now(), r.clock())) {
		r.doAll(ctx, r.idle(ctx, records, inLog))
	}
}

// clock returns the time of the log's server, by which its entries are forgotten: a record must
// not outlive them because this machine's clock is behind, nor go before.
func (r *registrar) clock() (now time.Time) {
	p := r.partitions[0]
	p.with(func(l *ledger) { now = l.clock(p.now()) })
	return now
}

// doAll does duties, and reports whether it makes sense to go on.
func (r *registrar) doAll(ctx context.Context, todo []duty) bool {
	for _, d := range todo {
		if ctx.Err() != nil {
			return false
		}
		err := r.do(ctx, d)
		switch {
		case err == nil:
			r.metrics.duties.WithLabelValues(d.task.String()).Inc()
		case ctx.Err() != nil:
			return false
		case errors.Is(err, session.ErrConflict), errors.Is(err, session.ErrNotFound), errors.Is(err, session.ErrClosed), errors.Is(err, eventlog.ErrMismatch):
			r.logger.Debug("a record was changed by somebody else", "task", d.task.String(), "error", err)
		default:
			r.logger.Warn("the registry is not up to date", "task", d.task.String(), "error", err)
			return false
		}
	}
	return true
}

// idle returns the sessions that nobody needs, as duties. It asks the edges who is
// there, and looks again when they have answered.
func (r *registrar) idle(ctx context.Context, records []session.Record, inLog map[string]loggedSession) []duty {
	limit := r.cfg.idleLimit()
	asked := r.vigil.candidates(records, inLog, limit, r.lastEvent, r.now())
	if len(asked) == 0 && !r.vigil.rollCall(r.now()) {
		return nil
	}
	answers, err := who.Ask(ctx, r.log.Conn(), question(asked), askWithin)
	if err != nil && ctx.Err() == nil {
		r.logger.Debug("no session is idle for certain", "error", err)
	}
	alone := r.vigil.heard(asked, answers, err, r.now())
	if len(alone) == 0 {
		return nil
	}
	inLog, ok := r.inLog()
	if !ok {
		return nil
	}
	var todo []duty
	for _, c := range alone {
		// A record that was changed meanwhile is not written over: see do.
		if c.idle(inLog[c.record.Session], r.lastEvent, r.now()) {
			todo = append(todo, duty{closeIdle, c.record})
		}
	}
	return todo
}

func (r *registrar) lastEvent(rec session.Record) (last time.Time) {
	r.with(rec.Session, func(l *ledger) { last = l.lastEvent(event.LifeKey(rec.Session, rec.Life)) })
	return last
}

// with calls f with the ledger of a session.
func (r *registrar) with(session string, f func(*ledger)) {
	r.partitions[r.log.Partition(session)].with(f)
}

// holds reports whether something of a record's session is in the log now, or may be.
func (r *registrar) holds(rec session.Record) (some bool) {
	r.with(rec.Session, func(l *ledger) {
		s := loggedSession{opening: l.opening(rec.Session)}
		for _, life := range []string{rec.Life, ""} {
			s.add(life, l.accounts[event.LifeKey(rec.Session, life)])
		}
		some = !l.complete || s.holds(rec)
	})
	return some
}

func (r *registrar) do(ctx context.Context, d duty) error {
	rec := d.record
	now, _ := r.sessions.Session(rec.Session)
	switch d.task {
	case repair:
		if now.Revision != rec.Revision {
			return session.ErrConflict // the next round looks again
		}
		return r.repair(ctx, rec.Session)
	case closeIdle:
		return r.sessions.EndLife(ctx, rec)
	case finish:
		if now.Life == rec.Life {
			return r.sessions.EndLife(ctx, now)
		}
		return r.log.EndSession(ctx, rec.Session, rec.Life)
	case remove:
		if r.holds(rec) {
			return session.ErrConflict // it was published to since the round began
		}
		return r.sessions.Remove(ctx, rec)
	}
	return nil
}

// repair has the index say what the log does, and the ledger know whose the opening is.
func (r *registrar) repair(ctx context.Context, name string) error {
	o, err := r.log.Opening(ctx, name)
	switch {
	case err == nil:
		r.with(name, func(l *ledger) {
			l.learn(name, o.Sequence, o.Life)
			l.learnChanges(name, o.Sequence, o.Changes)
		})
		if rec, ok := r.sessions.Session(name); ok && rec.Life == o.Life && rec.State == session.Open && rec.Changes == o.Changes {
			return nil // it was the ledger that did not know
		}
	case !errors.Is(err, eventlog.ErrNotFound):
		return err
	}
	_, err = r.sessions.Get(ctx, name)
	return err
}

// inLog returns what the ledgers know of all sessions, if all are complete.
func (r *registrar) inLog() (map[string]loggedSession, bool) {
	all, ok := map[string]loggedSession{}, true
	for _, p := range r.partitions {
		p.with(func(l *ledger) {
			ok = ok && l.complete
			l.logged(all)
		})
	}
	return all, ok
}

// logged enters what the ledger knows of each session.
func (l *ledger) logged(all map[string]loggedSession) {
	for name := range l.openings {
		all[name] = loggedSession{opening: l.opening(name)}
	}
	for _, a := range l.accounts {
		s := all[a.session]
		if s.add(a.life, a) {
			all[a.session] = s
		}
	}
}

// add adds a life, if more of it is in the log than what explains holes, and reports whether it
// is.
func (s *loggedSession) add(life string, a *account) bool {
	if a == nil || a.bare() {
		return false
	}
	l := loggedLife{life: life, first: a.first, events: a.events > 0, sealed: a.markers.sealed(), ended: a.markers.ended()}
	if l.sealed && a.markers.seal.seq > 0 {
		l.since = a.markers.seal.at
	}
	l.unsealed = l.ended && a.markers.seal.seq == 0
	s.lives = append(s.lives, l)
	return true
}

// String returns the task's name in the metric.
func (t task) String() string {
	switch t {
	case repair:
		return "repaired"
	case closeIdle:
		return "closed"
	case finish:
		return "finished"
	case remove:
		return "removed"
	}
	return "unknown"
}
