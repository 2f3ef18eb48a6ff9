package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/lease"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
)

const (
	// batchSize is how many entries are deleted between two looks at whether the partition is
	// still the one of the ledger.
	batchSize = 512
	// inFlight is how many of them are deleted at a time.
	inFlight = ledger.InFlight
)

// Entries are deleted in a fifth of the time, so that publishers do not notice: a busy server
// takes longer for a delete, and gets a longer pause. If that is too slow to be done
// within a minute, they are deleted in up to half of the time.
const (
	deletedWithin = time.Minute
	pauseFactor   = 4 // times as long as the deletes before
)

// pauseAfter returns how long to wait after deletes that took some time, when so many are left.
func pauseAfter(took time.Duration, left int) time.Duration {
	inTime := deletedWithin*inFlight/time.Duration(max(left, inFlight)) - took
	return max(min(pauseFactor*took, inTime), took)
}

// deleter deletes the entries that any janitor announced two sync intervals of the NATS servers
// ago: so no power cut leaves a hole without its explanation. The time counts from when this
// janitor's ledger got the trim, so it begins again after a take-over.
type deleter struct {
	nc         *nats.Conn
	do         func(p int, f func(term context.Context) error) (did bool, err error) // see [lease.Leases.Do]
	log        *eventlog.Log
	partitions []*follow.Partition
	settled    time.Duration
	every      time.Duration // between two rounds
	metrics    *metrics
	logger     *slog.Logger
}

// everyOf returns the time between two rounds of the deleter.
func everyOf(settled time.Duration) time.Duration {
	return max(min(settled/16, time.Second), 10*time.Millisecond)
}

// run deletes due entries until ctx ends.
func (d *deleter) run(ctx context.Context) {
	ticker := time.NewTicker(d.every)
	defer ticker.Stop()
	complained := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !d.nc.IsConnected() {
			continue
		}
		err := d.round()
		if err != nil && !complained {
			d.logger.Warn("cannot delete announced entries; it is tried again", "error", err)
		}
		complained = err != nil
	}
}

// round deletes a batch of each partition in turns, until nothing is due. It leaves out a partition
// that has failed, since each try may take seconds while that has no leader. The next round tries
// it again, so this one then ends after deletedWithin.
func (d *deleter) round() (errs error) {
	begun, failed := time.Now(), map[int]bool{}
	for more := true; more && (errs == nil || time.Since(begun) < deletedWithin); {
		more = false
		for _, p := range d.partitions {
			if failed[p.Number] {
				continue
			}
			left := false
			_, err := d.do(p.Number, func(term context.Context) (err error) {
				left, err = d.batch(term, p)
				return err
			})
			if err != nil && !errors.Is(err, follow.ErrChanged) && !errors.Is(err, lease.ErrNotActing) {
				failed[p.Number] = true
				errs = errors.Join(errs, fmt.Errorf("partition %d: %w", p.Number, err))
			}
			more = more || left && err == nil
		}
	}
	return errs
}

// batch deletes the next entries that are due, and reports whether there are more.
func (d *deleter) batch(ctx context.Context, p *follow.Partition) (more bool, err error) {
	due := func(l *ledger.Ledger) (todo []uint64, all int) { return l.Due(p.Now(), d.settled, batchSize) }
	var todo []uint64
	left := 0
	if p.With(func(l *ledger.Ledger) { _, left = due(l) }); left == 0 {
		return false, nil
	}
	var created time.Time
	var restarts int
	err = p.Check(ctx, func(s eventlog.State, l *ledger.Ledger) {
		todo, left = due(l)
		created, restarts = s.Created, l.Restarts
	})
	for len(todo) > 0 && err == nil {
		begun := time.Now()
		some := todo[:min(inFlight, len(todo))]
		if err = inParallel(inFlight, some, func(seq uint64) error { return d.delete(ctx, p, created, restarts, seq) }); err != nil {
			break // the deleted entries are deleted again
		}
		todo, left = todo[len(some):], left-len(some)
		p.With(func(l *ledger.Ledger) {
			if l.Restarts == restarts {
				l.Deleted(some)
			}
		})
		d.metrics.deleted.Add(float64(len(some)))
		if left > 0 && !natsconn.Pause(ctx, pauseAfter(time.Since(begun), left)) {
			err = ctx.Err()
		}
	}
	return left > 0, err
}

func (d *deleter) delete(ctx context.Context, p *follow.Partition, created time.Time, restarts int, seq uint64) error {
	if err := lease.StillActing(ctx); err != nil {
		return err
	}
	state, _ := d.log.State(p.Number)
	same := state.Created.Equal(created)
	p.With(func(l *ledger.Ledger) { same = same && l.Restarts == restarts })
	if !same {
		return follow.ErrChanged // it was created again, restored or rolled back since the batch was begun
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := d.log.Delete(ctx, p.Number, seq); err != nil {
		return fmt.Errorf("cannot delete %d: %w", seq, err)
	}
	return nil
}
