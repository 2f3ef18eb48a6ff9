package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Actor is one long-lived part of a program.
type Actor struct {
	// Name says in errors which actor it was.
	Name string

	// Run works until ctx ends, then stops in an orderly way and returns.
	// When it returns earlier, with or without an error, the whole group
	// stops. It must not panic.
	Run func(ctx context.Context) error
}

// Group runs actors side by side and stops them one by one in reverse order,
// so that an actor may rely on all that were added before it until it has
// returned. Its zero value is an empty group with the default time-out. Add
// and Run are not safe for concurrent use, and Run may be called once.
type Group struct {
	// StopTimeout bounds the whole stop, from its cause to the return of
	// Run. Zero: DefaultStopTimeout.
	StopTimeout time.Duration

	actors []Actor
}

// Add appends an actor. What it needs to be reachable, such as its listener,
// should be open already: Run starts the next actor without waiting for
// anything the last one does.
func (g *Group) Add(name string, run func(ctx context.Context) error) {
	g.actors = append(g.actors, Actor{name, run})
}

// Run starts all actors in the order of Add, each in a goroutine of its own
// with a context of its own, and waits until ctx ends or any actor returns.
// Then it cancels the context of the actor added last, waits until that one
// has returned, and continues with the one before it, up to the first. An
// actor's context carries ctx's values but does not end with ctx.
//
// Run returns nil when no actor failed. Otherwise the error joins, each with
// the actor's name, the error that ended the group and the errors of actors
// that failed while they were stopping. Returning [context.Canceled] when
// told to stop is no failure.
//
// When StopTimeout is over, Run cancels the contexts of all actors that are
// left at once, and returns an error that wraps [ErrStopTimeout] and names
// the actor that was being waited for. The goroutines of actors that do not
// return are left behind then: the program should exit.
func (g *Group) Run(ctx context.Context) error {
	if len(g.actors) == 0 {
		<-ctx.Done()
		return nil
	}
	started := make([]*running, 0, len(g.actors))
	first := make(chan *running, len(g.actors))
	for _, a := range g.actors {
		r := &running{name: a.Name, done: make(chan struct{})}
		var own context.Context
		own, r.stop = context.WithCancel(context.WithoutCancel(ctx))
		started = append(started, r)
		go func() {
			r.err = a.Run(own)
			close(r.done)
			first <- r
		}()
	}

	var errs []error
	select {
	case <-ctx.Done():
	case r := <-first:
		errs = r.collect(errs)
	}

	timeout := cmp.Or(g.StopTimeout, DefaultStopTimeout)
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for _, r := range slices.Backward(started) {
		r.stop()
		select {
		case <-r.done:
			errs = r.collect(errs)
		case <-deadline.C:
			for _, left := range started {
				left.stop()
			}
			return errors.Join(append(errs, fmt.Errorf("%s: %w (%s)", r.name, ErrStopTimeout, timeout))...)
		}
	}
	return errors.Join(errs...)
}

// running is an actor that was started.
type running struct {
	name      string
	stop      context.CancelFunc
	done      chan struct{} // closed when the actor has returned
	err       error         // set before done is closed
	collected bool
}

// collect appends the actor's failure to errs, once. Call it after done.
func (r *running) collect(errs []error) []error {
	if r.collected || r.err == nil || errors.Is(r.err, context.Canceled) {
		return errs
	}
	r.collected = true
	return append(errs, fmt.Errorf("%s: %w", r.name, r.err))
}
