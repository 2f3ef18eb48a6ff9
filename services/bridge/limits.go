package bridge

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/quota"
	"rejoin/shared/rpc"
)

// cancelGrace is how long the upstream may go on without a message when the client has
// cancelled the request.
const cancelGrace = 10 * time.Second

// idleTimer ends a context when the upstream has sent nothing for too long. It is safe
// for concurrent use.
type idleTimer struct {
	end context.CancelCauseFunc

	mu      sync.Mutex
	timeout time.Duration // 0: no limit
	cause   error
	timer   *time.Timer // nil while nothing is waited for
}

// newIdleTimer returns a context that ends with parent, or when nothing has come for
// timeout; 0 or less means no limit. over must be called.
func newIdleTimer(parent context.Context, timeout time.Duration) (ctx context.Context, p *idleTimer) {
	p = &idleTimer{timeout: max(timeout, 0), cause: upstream.ErrTimeout}
	ctx, p.end = context.WithCancelCause(parent)
	p.wait()
	return ctx, p
}

// wait begins to wait for the next message.
func (p *idleTimer) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop()
	if p.timeout > 0 {
		cause := p.cause
		p.timer = time.AfterFunc(p.timeout, func() { p.end(cause) })
	}
}

// came says that something came: no time passes until wait.
func (p *idleTimer) came() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop()
}

// hurry shortens the time: the client has cancelled what is waited for.
func (p *idleTimer) hurry() {
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
func (p *idleTimer) over() {
	p.came()
	p.end(nil)
}

func (p *idleTimer) stop() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// slots bounds how many there are at once of what a gauge counts, of which each client has a
// share; see [quota.Pool]. It is safe for concurrent use.
type slots struct {
	pool  *quota.Pool
	count prometheus.Gauge
}

func newSlots(n int, count prometheus.Gauge) slots {
	return slots{pool: quota.NewPool(int64(n)), count: count}
}

// enter takes a place for a client, if there is one; leave gives it back.
func (p slots) enter(client string) bool {
	if !p.pool.Take(client, 1) {
		return false
	}
	p.count.Inc()
	return true
}

func (p slots) leave(client string) {
	p.pool.Give(client, 1)
	p.count.Dec()
}

// mostlyFree reports whether less than half is taken.
func (p slots) mostlyFree() bool { return 2*p.pool.Used() < p.pool.Capacity() }

// clientOf returns whose share the session is of that a call begins: the owner's, or without
// access control that of the client's address; empty when it is not known.
func clientOf(c rpc.Call) string { return cmp.Or(c.Owner, c.Client) }
