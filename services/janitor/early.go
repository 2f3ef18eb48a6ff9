package janitor

import (
	"context"
	"slices"
	"time"

	"rejoin/shared/link"
)

// How long after a session's alarm the early trimming begins: as long as the last one
// took, but not shorter or longer than these, nor than half of an interval. A session
// that is written to without a pause is trimmed in many small steps; many sessions
// that are a little over their limits are trimmed together.
const (
	alarmDelay    = 50 * time.Millisecond
	alarmDelayMax = 250 * time.Millisecond
)

// alarmEvery is how often a sweep with much to delete looks for alarms.
const alarmEvery = 250 * time.Millisecond

// setAlarms sets the alarms of all partitions; plan does it again, since the limits may change.
func (w *sweeper) setAlarms() {
	for _, p := range w.partitions {
		p.with(func(l *ledger) { l.alarm = w.limits().alarm() })
	}
}

// trimEarly trims the sessions that hold too much.
func (w *sweeper) trimEarly(ctx context.Context) {
	if !w.nc.IsConnected() {
		return
	}
	begun := time.Now()
	stopped := ctx
	ctx, done := link.While(ctx, w.nc)
	defer done()
	err := w.current(ctx)
	if err == nil {
		_, err = w.remove(ctx, nil, w.early)
	}
	took := time.Since(begun)
	w.metrics.sweep.Observe(took.Seconds())
	w.delay = min(max(took, alarmDelay), alarmDelayMax, w.interval/2)
	if err != nil {
		w.delay = min(alarmDelayMax, w.interval/2)
		w.report(stopped, false, took, w.early, err)
		clear(w.early)
	}
}

// planEarly dooms what is too much of the sessions that the alarm rang for, and of
// these alone. It adds their partitions to the busy ones.
func (w *sweeper) planEarly(busy []*partition) []*partition {
	for _, p := range w.partitions {
		now := p.now()
		p.with(func(l *ledger) {
			if !l.alarmed() {
				return
			}
			lim := w.limits()
			for _, name := range l.alarms() {
				for _, r := range w.ofSession(l, name, lim, now) {
					l.condemn(r)
					l.hush(name)
				}
			}
			l.sortDoomed()
			if l.left() == urgentLeft && !slices.Contains(busy, p) {
				busy = append(busy, p)
			}
		})
	}
	return busy
}
