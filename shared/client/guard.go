package client

import (
	"context"
	"io"
	"time"
)

// guard ends a request whose server stays silent. Its clock runs only while
// the client waits for the server, so a slow caller does not count as a silent server.
type guard struct {
	ctx    context.Context // of the request
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// newGuard returns a guard for a request under its ctx. It must be closed.
func newGuard(parent context.Context) *guard {
	ctx, cancel := context.WithCancelCause(parent)
	g := &guard{ctx: ctx, cancel: cancel, timer: time.AfterFunc(time.Hour, func() { cancel(errSilent) })}
	g.timer.Stop()
	return g
}

// expect starts the clock: unless it is stopped or started again within so much time, the request ends.
func (g *guard) expect(within time.Duration) { g.timer.Reset(within) }

// rest stops the clock.
func (g *guard) rest() { g.timer.Stop() }

// close ends the request.
func (g *guard) close() {
	g.timer.Stop()
	g.cancel(context.Canceled)
}

// why returns the cause of an error of the request.
func (g *guard) why(err error) error {
	if g.ctx.Err() != nil {
		return context.Cause(g.ctx)
	}
	return err
}

// guarded is a body that is read under a guard.
type guarded struct {
	body   io.Reader
	guard  *guard
	within time.Duration
}

func (g guarded) Read(p []byte) (int, error) {
	g.guard.expect(g.within)
	n, err := g.body.Read(p)
	g.guard.rest()
	return n, err
}
