package janitor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// term is the time from one acquisition of the lease to its loss.
type term struct {
	id    string
	lease *lease
	ctx   context.Context
	end   context.CancelCauseFunc
	timer *time.Timer
	ended chan struct{} // act has returned
	err   error         // of act
}

type termKey struct{}

// stillActing returns an error that wraps [errNotActing] when ctx is of a term that is
// over, by any clock. A process that was stopped, or a machine that slept, finds out
// here what its timers will say in a moment. Without a term there is nothing to lose.
func stillActing(ctx context.Context) error {
	t, ok := ctx.Value(termKey{}).(*term)
	if !ok {
		return ctx.Err()
	}
	t.check()
	if t.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errNotActing, context.Cause(t.ctx))
	}
	return ctx.Err()
}

// check ends the term when it is over.
func (t *term) check() {
	l := t.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != t {
		return // it has ended
	}
	now := l.now()
	if l.state.over(now, l.connection()) {
		t.end(errNotActing)
		return
	}
	t.timer.Reset(l.state.left(now))
}

// acting returns the term, or nil.
func (l *lease) acting() *term {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

// held reports whether this janitor acts now.
func (l *lease) held() bool {
	t := l.acting()
	return t != nil && t.ctx.Err() == nil
}

// begin begins a term.
func (l *lease) begin(ctx context.Context, act func(context.Context) error) *term {
	t := &term{id: rand.Text(), lease: l, ended: make(chan struct{})}
	ctx, t.end = context.WithCancelCause(ctx)
	t.ctx = context.WithValue(ctx, termKey{}, t)
	t.timer = time.AfterFunc(time.Hour, t.check)
	l.mu.Lock()
	l.term = t
	t.timer.Reset(l.state.left(l.now()))
	l.mu.Unlock()
	l.logger.Info("this janitor acts from now on", "lease", l.state.lease.String())
	go func() { // finish waits for it
		defer close(t.ended)
		if err := act(t.ctx); err != nil && t.ctx.Err() == nil {
			t.err = err
		}
	}()
	return t
}

// finish ends a term, and returns act's error when it has ended.
func (l *lease) finish(t *term, why error) error {
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
		l.logger.Warn("this janitor has stepped down", "reason", context.Cause(t.ctx))
	}
	return t.err
}
