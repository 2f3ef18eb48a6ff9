package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// Term is the time from one acquisition of the lease to its loss.
//
// A term never outlives its connection: what a janitor does reaches the server over the
// connection on which it won the lease, or not at all.
type Term struct {
	id    string
	lease *Lease
	Ctx   context.Context
	end   context.CancelCauseFunc
	timer *time.Timer
	ended chan struct{} // act has returned
	err   error         // of act
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != t {
		return // it has ended
	}
	now := l.now()
	if l.state.over(now, l.connection()) {
		t.end(ErrNotActing)
		return
	}
	t.timer.Reset(l.state.left(now))
}

// Acting returns the term, or nil.
func (l *Lease) Acting() *Term {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

// Held reports whether this janitor acts now.
func (l *Lease) Held() bool {
	t := l.Acting()
	return t != nil && t.Ctx.Err() == nil
}

// begin begins a term.
func (l *Lease) begin(ctx context.Context, act func(context.Context) error) *Term {
	t := &Term{id: rand.Text(), lease: l, ended: make(chan struct{})}
	ctx, t.end = context.WithCancelCause(ctx)
	t.Ctx = context.WithValue(ctx, termKey{}, t)
	t.timer = time.AfterFunc(time.Hour, t.check)
	l.mu.Lock()
	l.term = t
	t.timer.Reset(l.state.left(l.now()))
	l.mu.Unlock()
	l.logger.Info("this janitor acts from now on", "lease", l.state.lease.String())
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
	l.mu.Lock()
	l.term = nil
	l.state.stepDown()
	l.mu.Unlock()
	if errors.Is(why, errStopped) {
		l.logger.Info("this janitor has stopped acting")
	} else {
		l.logger.Warn("this janitor has stepped down", "reason", context.Cause(t.Ctx))
	}
	return t.err
}
