package janitor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/lease"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
)

const (
	// storeTimeout bounds one entry that is stored, and one that is deleted.
	storeTimeout = 5 * time.Second
	// announcing is how many trims of different lives are on their way at a time.
	announcing = 16
)

// announce stores the trims that the policy plans for a partition, and counts their events in removed. When it is
// early, it looks only at the lives that hold too much. The ledger learns of the trims by the tail: until then
// the partition is left alone.
func (w *sweeper) announce(ctx context.Context, p *follow.Partition, early bool, removed map[ledger.Cause]int) error {
	var over []string
	var lives [][]ledger.Announcement
	var restarts int
	if err := w.readLimits(ctx); err != nil {
		return err
	}
	err := p.Check(ctx, func(_ eventlog.State, l *ledger.Ledger) {
		if restarts = l.Restarts; l.Through >= l.Required {
			l.Alarm = w.limits().Alarm()
			if over = l.TakeAlarms(); early {
				lives = w.plannedTrims(l, over, p.Now())
			} else {
				lives = w.plannedTrims(l, nil, p.Now())
			}
		}
	})
	if err != nil || len(lives) == 0 {
		return err
	}
	var mu sync.Mutex
	err = inParallel(announcing, lives, func(all []ledger.Announcement) error {
		newest := map[string]uint64{} // trims that this one has stored, by stream
		for _, t := range all {
			follows := max(t.Follows, newest[t.Stream])
			ack, err := store(ctx, func(ctx context.Context) (eventlog.Ack, error) { return w.log.Announce(ctx, t.Trim, follows) })
			if errors.Is(err, eventlog.ErrConflict) {
				return nil // another janitor has stored a trim that the tail has yet to bring
			}
			if err != nil {
				return fmt.Errorf("cannot announce a trim: %w", err)
			}
			newest[t.Stream] = ack.Sequence
			p.With(func(l *ledger.Ledger) { l.Require(restarts, ack.Sequence) })
			w.metrics.trims.Inc()
			if t.Cause == "" {
				continue // it takes no events
			}
			w.metrics.trimmed.WithLabelValues(string(t.Cause)).Add(float64(len(t.Listed)))
			mu.Lock()
			removed[t.Cause] += len(t.Listed)
			mu.Unlock()
		}
		return nil
	})
	if err != nil && early {
		p.With(func(l *ledger.Ledger) { l.RingAgain(over) })
	}
	return err
}

// plannedTrims returns the trims of each life, of all or of only some. The caller holds the partition's lock.
func (w *sweeper) plannedTrims(l *ledger.Ledger, only []string, now time.Time) (lives [][]ledger.Announcement) {
	lim := w.limits()
	one := func(a *ledger.Account) {
		if all := ledger.Announcements(w.removalsOf(l, a, lim, now)); len(all) > 0 {
			for i := range all {
				all[i].Follows = a.NewestTrim(all[i].Stream)
			}
			lives = append(lives, all)
		}
	}
	if only != nil {
		for _, key := range only {
			one(l.Accounts[key])
		}
	} else {
		for _, a := range l.Accounts {
			one(a)
		}
		lives = append(lives, w.survivors(l, now).Forgettable(w.log.Settings().MaxAge > 0)...)
	}
	for _, all := range lives {
		for i := range all {
			all[i].Generation = l.Generation()
		}
	}
	return lives
}

// store stores an entry as the janitor that acts, and only as that.
func store(ctx context.Context, do func(context.Context) (eventlog.Ack, error)) (eventlog.Ack, error) {
	if err := lease.StillActing(ctx); err != nil {
		return eventlog.Ack{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return do(ctx)
}

// inParallel calls do for all of them, n at a time, and returns the first error, after which
// none is begun.
func inParallel[T any](n int, all []T, do func(T) error) error {
	var failed atomic.Bool
	var work errgroup.Group
	work.SetLimit(n)
	for _, one := range all {
		work.Go(func() error {
			if failed.Load() {
				return nil
			}
			err := do(one)
			if err != nil {
				failed.Store(true)
			}
			return err
		})
	}
	return work.Wait()
}
