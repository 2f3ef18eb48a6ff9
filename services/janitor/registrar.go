package janitor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/link"
	who "rejoin/shared/presence"
	"rejoin/shared/session"
)

// registrar does the janitor's duties in the registry.
type registrar struct {
	log        *eventlog.Log
	sessions   *session.Registry
	partitions []*partition
	cfg        Config
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
	ctx, stop := link.While(ctx, r.log.Conn())
	defer stop()
	records := r.sessions.Sessions() // before the log: what is removed there stays
	inLog, ok := r.inLog()
	if !ok {
		return
	}
	if r.doAll(ctx, duties(records, inLog, r.cfg, time.Now())) {
		r.doAll(ctx, r.idle(ctx, records, inLog))
	}
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
		case errors.Is(err, session.ErrConflict), errors.Is(err, session.ErrNotFound), errors.Is(err, session.ErrClosed):
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
func (r *registrar) idle(ctx context.Context, records []session.Record, inLog map[string]presence) []duty {
	limit := r.cfg.idleLimit()
	asked := r.vigil.candidates(records, inLog, limit, r.lastEvent, time.Now())
	if len(asked) == 0 && !r.vigil.rollCall(time.Now()) {
		return nil
	}
	answers, err := who.Ask(ctx, r.log.Conn(), question(asked), askWithin)
	if err != nil && ctx.Err() == nil {
		r.logger.Debug("no session is idle for certain", "error", err)
	}
	alone := r.vigil.heard(asked, answers, err, time.Now())
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
		if c.idle(inLog[c.record.Session], r.lastEvent, time.Now()) {
			todo = append(todo, duty{closeIdle, c.record})
		}
	}
	return todo
}

func (r *registrar) lastEvent(name string) (last time.Time) {
	r.partitions[r.log.Partition(name)].with(func(l *ledger) { last = l.lastEvent(name) })
	return last
}

// holds reports whether something of a session is in the log.
func (r *registrar) holds(name string) (some bool) {
	r.partitions[r.log.Partition(name)].with(func(l *ledger) {
		a := l.accounts[name]
		some = !l.complete || a != nil && !a.empty()
	})
	return some
}

func (r *registrar) do(ctx context.Context, d duty) error {
	rec := d.record
	switch d.task {
	case register:
		_, err := r.sessions.Register(ctx, rec.Session, "")
		return err
	case closeIdle:
		rec.State, rec.Ended = session.Closing, time.Now().UTC()
		_, err := r.sessions.Update(ctx, rec)
		return err
	case finish:
		return session.Close(ctx, r.sessions, r.log, rec.Session, rec.Stream, rec.Clear, 0)
	case remove:
		if isSession(rec) && r.holds(rec.Session) {
			return session.ErrConflict // it was published to since the round began
		}
		return r.sessions.Remove(ctx, rec)
	}
	return nil
}

// inLog returns what the ledgers know of all sessions, if all are complete.
func (r *registrar) inLog() (map[string]presence, bool) {
	all, ok := map[string]presence{}, true
	for _, p := range r.partitions {
		p.with(func(l *ledger) {
			ok = ok && l.complete
			for name, a := range l.accounts {
				switch {
				case a.events == 0 && !a.empty():
					all[name] = hollow
				case a.events > 0 && a.markers.closedAt() == open:
					all[name] = present
				case !a.empty():
					all[name] = ended
				}
			}
		})
	}
	return all, ok
}

// String returns the task's name in the metric.
func (t task) String() string {
	switch t {
	case register:
		return "registered"
	case closeIdle:
		return "closed"
	case finish:
		return "finished"
	case remove:
		return "removed"
	}
	return "unknown"
}
