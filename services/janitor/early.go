package janitor

import (
	"context"
	"errors"
	"time"

	"rejoin/services/janitor/follow"

	"rejoin/services/janitor/ledger"

	"rejoin/shared/natsconn"
)

// How long after an alarm the early trimming begins: as long as the last one
// took, but not shorter or longer than these, nor than half of an interval. A session
// that is written to without a pause is trimmed in many small steps; many sessions
// that are over their limits are trimmed together.
const (
	alarmDelay    = 50 * time.Millisecond
	alarmDelayMax = 250 * time.Millisecond
)

// setAlarms sets the alarms of all partitions; each sweep does it again, since the limits may change.
func (w *sweeper) setAlarms() {
	for _, p := range w.partitions {
		p.With(func(l *ledger.Ledger) { l.Alarm = w.limits().Alarm() })
	}
}

// trimEarly trims the sessions that hold too much, and makes room in partitions that are full.
// What fails is tried again soon.
func (w *sweeper) trimEarly(ctx context.Context) {
	if !w.nc.IsConnected() {
		w.alarmed()
		return
	}
	begun := time.Now()
	stopped := ctx
	ctx, done := natsconn.While(ctx, w.nc)
	defer done()
	err := w.each(ctx, w.partitions, func(p *follow.Partition) error {
		var over []string
		p.With(func(l *ledger.Ledger) {
			if l.Alarmed() && l.Through >= l.Stored {
				over = l.Alarms()
			}
		})
		var err error
		if len(over) > 0 {
			if err = w.announce(ctx, p, over, w.early); err != nil {
				p.With(func(l *ledger.Ledger) { l.RingAgain(over) })
				w.alarmed()
			}
			p.CaughtUp(ctx)
		}
		if state, _ := p.Log.State(p.Number); w.rules().Used(state.Bytes) > ledger.FullShare {
			err = errors.Join(err, w.moveFloor(ctx, p))
		}
		return err
	})
	took := time.Since(begun)
	w.metrics.sweep.Observe(took.Seconds())
	w.delay = min(max(took, alarmDelay), alarmDelayMax, w.cfg.Interval/2)
	if err = errors.Join(err, ctx.Err()); err != nil {
		w.delay = min(alarmDelayMax, w.cfg.Interval/2)
		w.report(stopped, took, w.early, err)
		clear(w.early)
	}
}
