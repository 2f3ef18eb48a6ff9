package bridge

import (
	"context"
	"sync"
	"time"

	"rejoin/services/bridge/upstream"
)

// cancelGrace is how long the upstream may go on without a message when the client has
// cancelled the request.
const cancelGrace = 10 * time.Second

// patience ends a context when the upstream has sent nothing for too long. It is safe
// for concurrent use.
type patience struct {
	end context.CancelCauseFunc

	mu      sync.Mutex
	timeout time.Duration // 0: no limit
	cause   error
	timer   *time.Timer // nil while nothing is waited for
}

// newPatience returns a context that ends with parent, or when nothing has come for
// timeout; 0 or less means no limit. over must be called.
func newPatience(parent context.Context, timeout time.Duration) (ctx context.Context, p *patience) {
	p = &patience{timeout: max(timeout, 0), cause: upstream.ErrTimeout}
	ctx, p.end = context.WithCancelCause(parent)
	p.wait()
	return ctx, p
}

// wait begins to wait for the next message.
func (p *patience) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop()
	if p.timeout > 0 {
		cause := p.cause
		p.timer = time.AfterFunc(p.timeout, func() { p.end(cause) })
	}
}

// came says that something came: no time passes until wait.
func (p *patience) came() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop()
}

// hurry shortens the patience: the client has cancelled what is waited for.
func (p *patience) hurry() {
	p.mu.Lock()
	waiting := p.timer != nil || p.timeout == 0
	if p.timeout == 0 || p.timeout > cancelGrace {
		p.timeout = cancelGrace
	}
	p.cause = errCancelled
	p.mu.Unlock()
	if waiting {
		p.wait()
	}
}

// over ends the context.
func (p *patience) over() {
	p.came()
	p.end(nil)
}

func (p *patience) stop() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}
