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
	// Name names the actor in errors.
	Name string

	// Run works until ctx ends, then stops in an orderly way and returns.
	// When it returns earlier, with or without an error, the whole program
	// stops. It must not panic.
	Run func(ctx context.Context) error
}

// Run serves the admin port, unless cfg.AdminAddr is empty, and runs the actors, each in a
// goroutine of its own with a context of its own, until ctx ends or one of them returns. The
// resources that make an actor reachable, such as its listener, should be open already: no actor
// waits for another one to start.
//
// The stop begins with env.Health.Drain. Then Run cancels the context of the last actor, waits until
// that one has returned, and continues with the one before it; the admin port stops last. So an
// actor may rely on all earlier actors until it has returned. An actor's context carries ctx's values
// but does not end with ctx.
//
// Run returns nil when no actor failed. Otherwise the error joins, each with
// the actor's name, the error that began the stop and the errors of actors
// that failed while they were stopping. Returning [context.Canceled] after
// the context was canceled is no failure.
//
// When cfg.StopTimeout is over, Run cancels the contexts of all remaining
// actors at once, and returns an error that wraps [ErrStopTimeout] and names
// the actor for which it waited. The goroutines of actors that do not
// return continue then: the program should exit.
func Run(ctx context.Context, cfg Config, env Env, actors ...Actor) error {
	if cfg.AdminAddr != "" {
		addr, run, err := openAdmin(cfg, env)
		if err != nil {
			return err
		}
		env.Log.Info("admin port open", "addr", addr.String())
		actors = slices.Insert(actors, 0, Actor{"admin port", run})
	}
	actors = append(actors, Actor{"drain", func(ctx context.Context) error {
		<-ctx.Done()
		env.Log.Info("stopping")
		env.Health.Drain()
		return nil
	}})
	started := make([]*running, 0, len(actors))
	first := make(chan *running, len(actors))
	for _, a := range actors {
		r := &running{name: a.Name, done: make(chan struct{})}
		var own context.Context
		own, r.stop = context.WithCancel(context.WithoutCancel(ctx))
		started = append(started, r)
		go func() {
			if err := a.Run(own); own.Err() == nil || !errors.Is(err, context.Canceled) {
				r.err = err
			}
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

	timeout := cmp.Or(cfg.StopTimeout, DefaultStopTimeout)
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
	if r.collected || r.err == nil {
		return errs
	}
	r.collected = true
	return append(errs, fmt.Errorf("%s: %w", r.name, r.err))
}
