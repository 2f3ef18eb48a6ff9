package janitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"rejoin/shared/eventlog"
)

// How many entries are deleted between two looks at whether the partition is still the
// one of the ledger: of those that are urgent, and of those that are not.
const (
	batchSize   = 512
	leisureSize = 16
)

// left says what a partition has doomed.
type left uint8

const (
	nothingLeft left = iota
	leisureLeft      // nothing of it is urgent
	urgentLeft
)

// deleteTimeout bounds one delete.
const deleteTimeout = 5 * time.Second

// errMoved is returned when the partition is not the one that the ledger follows.
var errMoved = errors.New("the partition is not what it was")

// batch deletes the next doomed entries of a partition, counts them by reason, and
// says what is left. What is deleted is in order of sequence: of the urgent entries
// with up to inFlight at a time, of the others one after the other. How far their sessions
// are trimmed is written down before.
func (w *sweeper) batch(ctx context.Context, p *partition, deleted map[Reason]int) (rest left, err error) {
	var epoch int
	var through uint64
	var urgent bool
	p.with(func(l *ledger) { epoch, through = l.epoch, l.through })
	state, err := p.log.Look(ctx, p.number)
	if err != nil {
		return nothingLeft, err
	}
	var todo []doom
	p.with(func(l *ledger) {
		if l.epoch == epoch && l.followed(state, through) && p.compared(state) {
			l.advance(state.First)
			todo, urgent = l.batch()
			p.deleting = true
		} else {
			err = errMoved
		}
	})
	defer p.with(func(*ledger) { p.deleting = false })
	if err != nil || len(todo) == 0 {
		return nothingLeft, err
	}
	if err := w.trims.write(ctx, trimsOf(todo)); err != nil {
		return nothingLeft, err
	}
	remove := deleteInTurn
	if urgent {
		remove = deleteAll
	}
	done, err := remove(ctx, deleter{p.log, p.number, state.Created}, todo)
	for _, d := range done {
		deleted[d.reason]++
		w.metrics.trimmed.WithLabelValues(string(d.reason)).Inc()
	}
	p.with(func(l *ledger) {
		if l.epoch == epoch {
			l.deleted(done)
			rest = l.left()
		}
	})
	p.tellDeleted(done)
	if err != nil {
		return nothingLeft, err
	}
	return rest, nil
}

// deleteInTurn deletes entries one after the other, up to the first error.
func deleteInTurn(ctx context.Context, from deleter, todo []doom) ([]doom, error) {
	for i, d := range todo {
		if err := from.delete(ctx, d.seq); err != nil {
			return todo[:i], err
		}
	}
	return todo, nil
}

// inFlight is how many urgent entries of a partition are deleted at a time.
const inFlight = 16

// deleteAll deletes entries and returns those that are gone, in order. A lane
// stops at its first error, since what follows may be of the same stream.
func deleteAll(ctx context.Context, from deleter, todo []doom) ([]doom, error) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		gone = make([]bool, len(todo))
		errs error
	)
	work := make(chan []int, lanes)
	for _, lane := range inLanes(todo) {
		work <- lane
	}
	close(work)
	for range inFlight {
		wg.Go(func() {
			for lane := range work {
				for _, i := range lane {
					if err := from.delete(ctx, todo[i].seq); err != nil {
						mu.Lock()
						errs = errors.Join(errs, err)
						mu.Unlock()
						break
					}
					gone[i] = true
				}
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

// inLanes returns which entries each lane has, the longest first, so that nobody waits
// for it in the end.
func inLanes(todo []doom) [][]int {
	all := make([][]int, lanes)
	for i, d := range todo {
		all[d.lane] = append(all[d.lane], i)
	}
	slices.SortFunc(all, func(a, b []int) int { return cmp.Compare(len(b), len(a)) })
	return all
}

// deleter deletes from a partition that was made at some time.
type deleter struct {
	log       *eventlog.Log
	partition int
	created   time.Time
}

func (d deleter) delete(ctx context.Context, seq uint64) error {
	if err := stillActing(ctx); err != nil {
		return err
	}
	if now, _ := d.log.State(d.partition); !now.Created.Equal(d.created) {
		return errMoved // it was made anew since the batch was begun
	}
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	if err := d.log.Delete(ctx, d.partition, seq); err != nil {
		return fmt.Errorf("cannot delete %d: %w", seq, err)
	}
	return nil
}
