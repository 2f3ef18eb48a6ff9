package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrNotActing is returned when the lease has been lost, or is in doubt.
var ErrNotActing = errors.New("this janitor is not the acting one")

// Term is the time from one acquisition of a lease to its loss.
//
// A term never outlives its connection: the writes of a janitor reach the server over the
// connection on which it won the lease, or not at all.
type Term struct {
	lease *Lease
	Ctx   context.Context
	end   context.CancelCauseFunc
	timer *time.Timer
	ended chan struct{}  // act has returned
	uses  sync.WaitGroup // calls of Do; none is added after Ctx has ended
	err   error          // of act
}

type termKey struct{}

// StillActing returns an error that wraps [ErrNotActing] when ctx is of a term that is
// over, by any clock. A process that was stopped, or a machine that slept, finds out
// here before its timers fire. Without a term there is nothing to lose.
func StillActing(ctx context.Context) error {
	t, ok := ctx.Value(termKey{}).(*Term)
	if !ok {
		return ctx.Err()
	}
	t.check()
	if t.Ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrNotActing, context.Cause(t.Ctx))
	}
	return ctx.Err()
}

// check ends the term when it is over.
func (t *Term) check() {
	l := t.lease
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.term != t {
		return // it has ended
	}
	now := l.of.now()
	if l.state.over(now, l.of.connection()) {
		t.end(ErrNotActing)
		return
	}
	t.timer.Reset(l.state.left(now))
}
