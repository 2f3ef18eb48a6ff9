package janitor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/lease"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
)

const (
	// copiesAtOnce is how many control entries are written again at a time.
	copiesAtOnce = 64
	// maxCopies is how many are written again in one round.
	maxCopies = 16 * copiesAtOnce
	// maxCopyRounds bounds the copies that one sweep makes of a partition.
	maxCopyRounds = 8
	// floorSteps is how many steps the floor takes in the maximum age at most, unless the partition
	// is full.
	floorSteps = 64
	// limitsKept is how long a partition keeps limits that are not those of the settings: a change of the
	// limits looks the same while it is made.
	limitsKept = time.Minute
)

// floorState is the sweeper's state of a partition's floor in a term.
type floorState struct {
	term  <-chan struct{} // ends with it
	moved time.Time       // when it moved last for the entries' age
	other time.Time       // since when the partition has other limits than the settings; zero: it has not
}

// keepFloor copies the control entries that have to outlive the floor, moves the floor as far as it may, and resets the
// partition's limits. ctx is that of the term.
func (w *sweeper) keepFloor(ctx context.Context, p *follow.Partition) error {
	if err := w.readLimits(ctx); err != nil {
		return err
	}
	r, at := w.rules(p), w.floors[p.Number]
	if at.term != ctx.Done() { // meanwhile another janitor may have acted: the ledger has to know its copies
		if err := p.Check(ctx, func(s eventlog.State, l *ledger.Ledger) { l.Require(l.Restarts, s.Last) }); err != nil {
			return err
		}
		*at = floorState{term: ctx.Done()}
	}
	return errors.Join(w.copyControls(ctx, p, r), w.moveFloor(ctx, p, r, at), w.resetLimits(ctx, p, r, at))
}

// moveFloor moves the floor as far as it may.
func (w *sweeper) moveFloor(ctx context.Context, p *follow.Partition, r ledger.Rules, at *floorState) error {
	var before uint64
	var why string
	now := p.Now()
	err := p.Check(ctx, func(s eventlog.State, l *ledger.Ledger) {
		before, why = l.Target(r, s.Bytes, now)
		tooSoon := why == ledger.ByAge && r.Used(s.Bytes) <= ledger.FullShare && now.Sub(at.moved) < r.MaxAge/floorSteps
		if before <= s.First || tooSoon {
			before = 0
			return
		}
		l.DropSettled(r.Settled(), now)
		if before = w.survivors(l, now).Barrier(before); before <= s.First {
			before = 0
		}
	})
	if before > 0 {
		err = errors.Join(err, w.purge(ctx, p, before, why))
		if why == ledger.ByAge {
			at.moved = now
		}
	}
	return err
}

func (w *sweeper) survivors(l *ledger.Ledger, now time.Time) ledger.Survivors {
	return ledger.Survivors{Ledger: l, Now: l.Clock(now), TTL: w.cfg.nameKept, Registry: w.sessions.Session}
}

func (w *sweeper) purge(ctx context.Context, p *follow.Partition, before uint64, why string) error {
	if err := lease.StillActing(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := w.log.Purge(ctx, p.Number, before); err != nil {
		return fmt.Errorf("cannot move the floor to %d: %w", before, err)
	}
	w.metrics.floors.WithLabelValues(why).Inc()
	w.logger.Debug("the floor has moved", "partition", p.Number, "first", before, "reason", why)
	return p.Look(ctx)
}

// copyControls writes the control entries again that the floor is about to reach. The floor
// waits for those that it does not copy.
func (w *sweeper) copyControls(ctx context.Context, p *follow.Partition, r ledger.Rules) error {
	for range maxCopyRounds {
		var todo []ledger.Copying
		err := p.Check(ctx, func(s eventlog.State, l *ledger.Ledger) {
			now := p.Now()
			if l.Through >= l.Required {
				todo = w.survivors(l, now).Overdue(l.Lead(r, s.Bytes, now), maxCopies)
			}
		})
		if err != nil || len(todo) == 0 {
			return err
		}
		done, err := w.copyAll(ctx, p, todo)
		if err != nil || done == 0 {
			return err
		}
	}
	return nil
}

// copyAll writes control entries again, or reads which life an opening names where that is not
// known: the opening may be copied then. It returns how many entries it has copied or read.
func (w *sweeper) copyAll(ctx context.Context, p *follow.Partition, todo []ledger.Copying) (done int, err error) {
	var mu sync.Mutex
	var restarts int
	p.With(func(l *ledger.Ledger) { restarts = l.Restarts })
	stored := map[uint64]ledger.Copying{} // by the sequences of the copies
	err = inParallel(copiesAtOnce, todo, func(c ledger.Copying) error {
		if c.Opening != nil && !c.Opening.Known {
			asked, err := w.learnOpening(ctx, p, c.Opening)
			mu.Lock()
			defer mu.Unlock()
			if asked {
				done++
			}
			return err
		}
		ack, err := w.copy(ctx, p, c)
		mu.Lock()
		defer mu.Unlock()
		if ack.Sequence > 0 {
			stored[ack.Sequence] = c
			done++
		}
		return err
	})
	p.With(func(l *ledger.Ledger) { l.Require(restarts, slices.Max(append(slices.Collect(maps.Keys(stored)), 0))) })
	p.AwaitRequired(ctx)
	p.With(func(l *ledger.Ledger) {
		for seq, c := range stored {
			if c.Opening != nil {
				l.Learn(c.Subject.Session, seq, c.Opening.Life)
			}
		}
	})
	return done, err
}

// copy writes a control entry again. One that was replaced or removed meanwhile is left to the
// tail.
func (w *sweeper) copy(ctx context.Context, p *follow.Partition, c ledger.Copying) (eventlog.Ack, error) {
	c.Subject.Partition = p.Number
	ack, err := store(ctx, func(ctx context.Context) (eventlog.Ack, error) { return w.log.Rewrite(ctx, c.Subject, c.Seq, c.Birth) })
	switch {
	case errors.Is(err, eventlog.ErrConflict), errors.Is(err, eventlog.ErrNotFound):
		w.logger.Debug("a control entry is not there to be copied", "subject", c.Subject.String(), "error", err)
		return eventlog.Ack{}, nil
	case err != nil:
		return eventlog.Ack{}, fmt.Errorf("cannot copy %s: %w", c.Subject, err)
	}
	w.metrics.copies.Inc()
	return ack, nil
}

// learnOpening reads which life an opening names, and enters it in the ledger.
func (w *sweeper) learnOpening(ctx context.Context, p *follow.Partition, of *ledger.Opening) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	o, err := w.log.Opening(ctx, of.Session)
	switch {
	case errors.Is(err, eventlog.ErrNotFound):
		return false, nil
	case errors.Is(err, eventlog.ErrMismatch): // it cannot be read, so it is not needed
		o.Sequence = of.Seq
	case err != nil:
		return false, err
	}
	p.With(func(l *ledger.Ledger) { l.Learn(of.Session, o.Sequence, o.Life) })
	return o.Sequence == of.Seq, nil
}

// makeRoom raises the bytes of a full partition for the entries that the janitor has to store before it may remove
// any. It deletes only one batch of the entries that are due, since the other partitions wait to be
// swept.
func (w *sweeper) makeRoom(ctx context.Context, p *follow.Partition) error {
	if _, err := w.deleter.batch(ctx, p); err != nil {
		return err
	}
	if err := lease.StillActing(ctx); err != nil {
		return err
	}
	made, err := w.log.MakeRoom(ctx, p.Number)
	if made && err == nil {
		w.logger.Warn("a partition was full; it got more room, so that its oldest part can go", "partition", p.Number)
	}
	return err
}

// resetLimits gives a partition whose limits are not those of the settings these: it got room, or a change of
// the limits was cut off. Room is taken back when there is room below it. Limits of another program, by which NATS
// removes entries, are replaced at once.
func (w *sweeper) resetLimits(ctx context.Context, p *follow.Partition, r ledger.Rules, at *floorState) error {
	state, _ := p.Log.State(p.Number)
	want := w.log.Settings().Limits()
	switch {
	case state.Limits.Removes:
		err := w.log.ResetLimits(ctx, p.Number)
		if err == nil {
			w.logger.Warn("a partition had limits by which NATS removes events unannounced; they are reset", "partition", p.Number)
		}
		return err
	case state.Limits == want, state.Limits.Replicas != want.Replicas,
		eventlog.SmallerLimit(want.MaxBytes, state.Limits.MaxBytes) && r.Used(state.Bytes) > ledger.FullShare:
		at.other = time.Time{}
	case at.other.IsZero():
		at.other = p.Now()
	case p.Now().Sub(at.other) >= limitsKept:
		return w.log.ResetLimits(ctx, p.Number)
	}
	return nil
}
