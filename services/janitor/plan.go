package janitor

import (
	"context"
	"errors"
	"time"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// removalsOf returns the removals that a life needs now, given the limits of all sessions. It returns none while
// the life's own limits are unknown: the copy of the registry is behind the log when it has just
// begun again, and is empty when the bucket was lost.
func (w *sweeper) removalsOf(l *ledger.Ledger, a *ledger.Account, lim ledger.Limits, now time.Time) []ledger.Removal {
	if a == nil {
		return nil
	}
	rec, _ := w.sessions.Session(a.Session)
	if l.Unheard(a.Session, a.Life, rec) {
		return nil
	}
	if rec.Life == a.Life {
		lim = w.cfg.limits(lim, rec.Retention)
	}
	state := l.LifeState(a)
	if now = l.Clock(now); a.Events == 0 || !lim.Concern(a) && !state.PastGrace(now, lim.ClosedGrace) {
		return nil
	}
	return ledger.Policy(l.View(a, state), lim, now)
}

// readLimits reads the log's current settings from partition 0: another janitor may have raised a limit, and
// removals announced by the previous limit cannot be taken back. While partition 0 does not
// answer, the other partitions would fill up: the settings seen last hold, and the rest of the sweep does not wait
// for it again. They cannot be changed then; only a change just before that this janitor, cut off itself,
// has not seen is missed.
func (w *sweeper) readLimits(ctx context.Context) error {
	if w.unanswered {
		return nil
	}
	_, err := w.log.Look(ctx, 0)
	if errors.Is(err, eventlog.ErrUnavailable) && ctx.Err() == nil {
		w.unanswered = true
		w.logger.Warn("partition 0, which has the limits of the log, does not answer; those seen last hold", "error", err)
		return nil
	}
	return err
}

// limitsOf returns the limits of a session.
func (w *sweeper) limitsOf(rec session.Record) ledger.Limits {
	return w.cfg.limits(w.limits(), rec.Retention)
}

// limits are those of all sessions, now: the log's may change.
//
// Limits of a session are computed for each sweep; those that its metadata asks for are read once,
// with its record.
func (w *sweeper) limits() ledger.Limits {
	s := w.log.Settings()
	return ledger.Limits{
		MaxPerStream: s.MaxEventsPerStream, MaxEvents: s.MaxEventsPerSession, MaxBytes: s.MaxBytesPerSession,
		MaxStreams: s.MaxStreamsPerSession, ClosedGrace: w.cfg.ClosedGrace,
	}
}

// rules are those of a partition's floor, now.
func (w *sweeper) rules(p *follow.Partition) ledger.Rules {
	state, _ := p.Log.State(p.Number)
	return ledger.Rules{
		MaxAge: w.log.Settings().MaxAge, MaxBytes: state.MaxBytes(w.log.Settings()),
		SyncInterval: w.cfg.SyncInterval, Interval: w.cfg.Interval,
	}
}

// limits returns the limits of a session that asks for others than all sessions have.
func (c Config) limits(lim ledger.Limits, asked session.Retention) ledger.Limits {
	lim.MaxEvents = session.Within(asked.MaxEvents, lim.MaxEvents, c.MaxEventsOverride)
	lim.MaxBytes = session.Within(asked.MaxBytes, lim.MaxBytes, int64(c.MaxBytesOverride))
	lim.MaxStreams = c.Streams.Limit(asked, lim.MaxStreams)
	lim.ClosedGrace = c.eventsKept(asked)
	return lim
}
