package upstream

import (
	"context"
	"sync"
	"time"

	"rejoin/services/bridge/pause"
)

// cancelGrace is how long the upstream may continue without a message when the client has
// cancelled the request.
const cancelGrace = 10 * time.Second

// IdleTimer ends a context when the upstream has sent nothing for too long. It is safe
// for concurrent use.
type IdleTimer struct {
	end    context.CancelCauseFunc
	pauses *pause.Watch

	mu      sync.Mutex
	timeout time.Duration // 0: no limit
	cause   error
	timer   *pause.Timer // nil while no time passes
}

// NewIdleTimer returns a context that ends with parent, or when no message has come for
// timeout; 0 or less means no limit. End must be called.
func NewIdleTimer(parent context.Context, timeout time.Duration, pauses *pause.Watch) (ctx context.Context, p *IdleTimer) {
	p = &IdleTimer{pauses: pauses, timeout: max(timeout, 0), cause: ErrTimeout}
	ctx, p.end = context.WithCancelCause(parent)
	p.Wait()
	return ctx, p
}

// Wait begins to wait for the next message.
func (p *IdleTimer) Wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop()
	if p.timeout > 0 {
		cause := p.cause
		p.timer = p.pauses.AfterFunc(p.timeout, func() { p.end(cause) })
	}
}

// Came notes that a message came: no time passes until Wait.
func (p *IdleTimer) Came() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop()
}

// Hurry shortens the time: the client has cancelled the request. The time passes from now on, also
// while the upstream waits for that client, which may never answer.
func (p *IdleTimer) Hurry() {
	p.mu.Lock()
	if p.timeout == 0 || p.timeout > cancelGrace {
		p.timeout = cancelGrace
	}
	p.cause = ErrCancelled
	p.mu.Unlock()
	p.Wait()
}

// Cancel ends the context: the client has cancelled the request.
func (p *IdleTimer) Cancel() {
	p.Came()
	p.end(ErrCancelled)
}

// End ends the context.
func (p *IdleTimer) End() {
	p.Came()
	p.end(nil)
}

func (p *IdleTimer) stop() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}
