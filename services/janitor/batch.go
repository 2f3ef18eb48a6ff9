package janitor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"rejoin/shared/eventlog"
)

// batchSize is how many entries are deleted between two looks at whether the
// partition is still the one of the ledger.
const batchSize = 256

// deleteTimeout bounds one delete.
const deleteTimeout = 5 * time.Second

// errMoved is returned when the partition is not the one that the ledger follows.
var errMoved = errors.New("the partition is not what it was")

// batch deletes the next doomed entries of a partition, counts them by reason, and
// reports whether there are more. What is deleted is in order of sequence, with up
// to lanes entries in flight.
func (w *sweeper) batch(ctx context.Context, p *partition, deleted map[Reason]int) (more bool, err error) {
	var epoch int
	var through uint64
	p.with(func(l *ledger) { epoch, through = l.epoch, l.through })
	state, err := p.log.Look(ctx, p.number)
	if err != nil {
		return false, err
	}
	var todo []doom
	p.with(func(l *ledger) {
		if l.epoch == epoch && l.followed(state, through) {
			l.advance(state.First)
			todo = l.batch(batchSize)
			more = len(l.doomed) > len(todo)
			p.deleting = true
		} else {
			err = errMoved
		}
	})
	defer p.with(func(*ledger) { p.deleting = false })
	if err != nil || len(todo) == 0 {
		return false, err
	}
	done, err := deleteAll(ctx, p.log, p.number, todo)
	for _, d := range done {
		deleted[d.reason]++
	}
	p.with(func(l *ledger) {
		if l.epoch == epoch {
			l.deleted(done)
		}
	})
	return more && err == nil, err
}

// deleteAll deletes entries and returns those that are gone, in order. A lane
// stops at its first error, since what follows may be of the same stream.
func deleteAll(ctx context.Context, log *eventlog.Log, p int, todo []doom) ([]doom, error) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		gone = make([]bool, len(todo))
		errs error
	)
	for lane := range uint8(lanes) {
		wg.Go(func() {
			for i, d := range todo {
				if d.lane != lane {
					continue
				}
				if err := deleteOne(ctx, log, p, d.seq); err != nil {
					mu.Lock()
					errs = errors.Join(errs, err)
					mu.Unlock()
					return
				}
				gone[i] = true
			}
		})
	}
	wg.Wait()
	done := make([]doom, 0, len(todo))
	for i, d := range todo {
		if gone[i] {
			done = append(done, d)
		}
	}
	return done, errs
}

func deleteOne(ctx context.Context, log *eventlog.Log, p int, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	if err := log.Delete(ctx, p, seq); err != nil {
		return fmt.Errorf("cannot delete %d: %w", seq, err)
	}
	return nil
}
