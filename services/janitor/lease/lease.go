package lease

import (
	"context"
	"errors"
	"time"

	"rejoin/shared/natsconn"
)

// Lease is this janitor's side of one partition's lease.
type Lease struct {
	of        *Leases
	partition int
	key       string
	wake      chan struct{} // something has changed; a candidate tries at once

	// of.mu guards these.
	state  candidacy
	term   *Term // nil while another one acts
	yields bool  // the term is to end in favour of another janitor
}

func (l *Lease) ring() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// acting returns the term, or nil, and whether it is to end.
func (l *Lease) acting() (t *Term, yields bool) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	return l.term, l.yields
}

// wanted reports whether this janitor should try to get the lease.
func (l *Lease) wanted() bool {
	s := l.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.answered {
		return false
	}
	return s.sharing.wants(l.partition, len(s.mine()), s.now())
}

// compete is run for each connection, with which ctx ends. program is what ends with the program
// alone.
func (l *Lease) compete(ctx, program context.Context, act func(context.Context) error) error {
	for ctx.Err() == nil {
		t, yields := l.acting()
		wait := l.of.pause()
		switch {
		case t != nil && yields:
			if err := l.giveBack(ctx, t, errShared); err != nil {
				return err
			}
			t = nil
		case t != nil || l.wanted():
			var acting bool
			acting, wait = l.attempt(ctx)
			switch {
			case acting && t == nil:
				t = l.begin(ctx, act)
			case !acting && t != nil:
				if err := l.finish(t, ErrNotActing); err != nil {
					return err
				}
				t = nil
			}
		}
		var ended <-chan struct{}
		if t != nil {
			ended = t.ended
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		case <-l.wake:
		case <-ended:
			if err := l.finish(t, ErrNotActing); err != nil {
				return err
			}
		}
	}
	return l.leave(program)
}

// attempt does the next write, and says whether this janitor acts then, and when the next one is
// due. A term that is over is not renewed.
func (l *Lease) attempt(ctx context.Context) (acting bool, wait time.Duration) {
	s := l.of
	s.mu.Lock()
	w := l.state.next(s.now(), s.connection())
	over := l.term != nil && !l.state.acting
	s.mu.Unlock()
	if over {
		return false, 0
	}
	o := l.try(ctx, w)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	l.state.learn(w, o, now, s.connection())
	if l.state.acting && l.term != nil {
		l.term.timer.Reset(l.state.left(now))
	}
	if o.result == taken && o.holder != "" && o.holder != s.id && !o.gone {
		s.sharing.held(l.partition, o.holder, now)
		s.Elsewhere(l.partition)
	}
	return l.state.acting, l.state.due(now)
}

// leave ends the term at the end of a connection, and gives the lease back at the end of the
// program.
func (l *Lease) leave(program context.Context) error {
	t, _ := l.acting()
	switch {
	case t == nil:
		return nil
	case program.Err() != nil:
		return l.giveBack(program, t, errStopped)
	}
	return l.finish(t, natsconn.ErrChanged)
}

// giveBack ends a term, and then the lease, so that another one need not wait for it to run out.
func (l *Lease) giveBack(ctx context.Context, t *Term, why error) error {
	l.of.mu.Lock()
	revision := l.state.revision
	l.of.mu.Unlock()
	err := l.finish(t, why)
	l.release(ctx, revision)
	if errors.Is(why, errShared) {
		l.of.Elsewhere(l.partition)
	}
	return err
}
