package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Term is the time from one acquisition of a lease to its loss.
//
// A term never outlives its connection: what a janitor does reaches the server over the
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
// here what its timers will say in a moment. Without a term there is nothing to lose.
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

// begin begins a term.
func (l *Lease) begin(ctx context.Context, act func(context.Context) error) *Term {
	s := l.of
	t := &Term{lease: l, ended: make(chan struct{})}
	ctx, t.end = context.WithCancelCause(ctx)
	t.Ctx = context.WithValue(ctx, termKey{}, t)
	t.timer = time.AfterFunc(time.Hour, t.check)
	s.mu.Lock()
	l.term, l.yields = t, false
	t.timer.Reset(l.state.left(s.now()))
	length := l.state.lease
	s.mu.Unlock()
	s.logger.Debug("a term begins", "partition", l.partition, "lease", length.String())
	go func() { // finish waits for it
		defer close(t.ended)
		if err := act(t.Ctx); err != nil && t.Ctx.Err() == nil {
			t.err = err
		}
	}()
	return t
}

// finish ends a term, and returns act's error when it has ended.
func (l *Lease) finish(t *Term, why error) error {
	t.end(why)
	t.timer.Stop()
	<-t.ended
	s := l.of
	s.mu.Lock() // after each Do that has seen that Ctx had not ended
	l.yields = false
	s.mu.Unlock()
	t.uses.Wait()
	s.mu.Lock()
	l.term = nil
	l.state.stepDown()
	s.mu.Unlock()
	if errors.Is(why, errStopped) || errors.Is(why, errShared) {
		s.logger.Debug("a term ends", "partition", l.partition, "reason", why)
	} else {
		s.logger.Warn("this janitor has stepped down", "partition", l.partition, "reason", context.Cause(t.Ctx))
	}
	return t.err
}
