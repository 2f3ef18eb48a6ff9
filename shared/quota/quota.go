// Package quota shares out a limited resource of a service, such as memory, connections or
// processes, so that no client takes the share of all others.
package quota

import (
	"container/list"
	"context"
	"sync"
)

// Pool is an amount that clients take parts of and give back. While more than three quarters are
// taken, a client that would hold more than a quarter, its share, gets nothing more. A nil Pool bounds
// nothing. It is safe for concurrent use.
type Pool struct {
	capacity int64
	each     int64 // the most that one client may hold; 0: its share

	mu      sync.Mutex
	used    int64
	held    map[string]int64         // by client
	waiting map[string]*list.Element // by client, in turns
	turns   list.List                // of *queue, whose first waiters cannot take now
}

// queue are the waiters of a client.
type queue struct {
	client  string
	waiters list.List // of *waiter, in the order of their calls; never empty
}

// waiter waits for n.
type waiter struct {
	n     int64
	taken chan struct{} // closed once it is taken
}

// NewPool returns a Pool of a capacity, or nil when that is not positive.
func NewPool(capacity int64) *Pool {
	if capacity <= 0 {
		return nil
	}
	return &Pool{capacity: capacity, held: map[string]int64{}, waiting: map[string]*list.Element{}}
}

// Each sets a limit for each client besides its share. It must be called before the Pool is used.
func (p *Pool) Each(most int64) {
	if p != nil {
		p.each = most
	}
}

// Capacity returns the capacity; 0 when the Pool is nil.
func (p *Pool) Capacity() int64 {
	if p == nil {
		return 0
	}
	return p.capacity
}

// Share returns how much a client may hold once it gets tight. The Pool must not be nil.
func (p *Pool) Share() int64 { return share(p.capacity) }

func share(capacity int64) int64 { return max(capacity/4, 1) }

// Used returns how much is taken.
func (p *Pool) Used() int64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Take takes n for a client, and reports whether it could. An empty client is no client in
// particular, whose share is not bounded. The caller gives n back with [Pool.Give].
func (p *Pool) Take(client string, n int64) bool {
	if p == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(client, n)
}

// Wait takes n for a client as soon as that is possible, and returns ctx's error when ctx ends
// before. Clients take turns, and the waiters of one client take in the order of their calls. A
// client that may not take yet, since it has its share, holds up no other. More than the capacity is
// never possible.
func (p *Pool) Wait(ctx context.Context, client string, n int64) error {
	if p == nil {
		return ctx.Err()
	}
	p.mu.Lock()
	if p.take(client, n) {
		p.mu.Unlock()
		return nil
	}
	turn := p.waiting[client]
	if turn == nil {
		turn = p.turns.PushBack(&queue{client: client})
		p.waiting[client] = turn
	}
	q, w := queueOf(turn), &waiter{n, make(chan struct{})}
	at := q.waiters.PushBack(w)
	p.mu.Unlock()
	select {
	case <-w.taken:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.taken: // meanwhile
		return nil
	default:
		p.leave(turn, at)
		p.serve() // those after it may ask for less
		return ctx.Err()
	}
}

func queueOf(turn *list.Element) *queue { return turn.Value.(*queue) } //nolint:errcheck,forcetypeassert // there is nothing else

// leave takes a waiter out of its queue. The caller holds the lock.
func (p *Pool) leave(turn, at *list.Element) {
	q := queueOf(turn)
	if q.waiters.Remove(at); q.waiters.Len() == 0 {
		p.turns.Remove(turn)
		delete(p.waiting, q.client)
	}
}

// serve has waiters take their parts where they can. It visits clients and not all waiters: one client may
// have thousands that cannot take. The caller holds the lock.
func (p *Pool) serve() {
	for turn := p.turns.Front(); turn != nil && p.used < p.capacity; {
		next := turn.Next()
		q := queueOf(turn)
		at := q.waiters.Front()
		if w, ok := at.Value.(*waiter); ok && p.take(q.client, w.n) {
			close(w.taken)
			p.turns.MoveToBack(turn)
			if p.leave(turn, at); next == nil {
				next = p.turns.Back()
			}
		}
		turn = next
	}
}

// Within reports whether a client that holds a part of the used amount may take n more: once three
// quarters of the capacity are taken, only up to a quarter for each client. It is the rule of a
// [Pool], for amounts that are counted elsewhere. It does not check the capacity itself.
func Within(capacity, used, held, n int64) bool {
	return used+n <= capacity-capacity/4 || held+n <= share(capacity)
}

// take is [Pool.Take]. The caller holds the lock.
func (p *Pool) take(client string, n int64) bool {
	if n > 0 && (p.used+n > p.capacity || client != "" && !p.within(p.held[client], n)) {
		return false
	}
	p.used += n
	if client != "" && n != 0 {
		p.held[client] += n
	}
	return true
}

// within reports whether a client that holds a part may take n more. The caller holds the lock.
func (p *Pool) within(held, n int64) bool {
	return Within(p.capacity, p.used, held, n) && (p.each == 0 || held+n <= p.each)
}

// Give gives back n of a client's part.
func (p *Pool) Give(client string, n int64) {
	if p == nil || n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
	if client != "" {
		if p.held[client] -= n; p.held[client] == 0 {
			delete(p.held, client)
		}
	}
	p.serve()
}

// Part is one holder's part of a Pool, which may grow. Its methods must not be called at the
// same time.
type Part struct {
	pool   *Pool
	client string
	n      int64
}

// Part returns an empty Part for a client.
func (p *Pool) Part(client string) *Part { return &Part{pool: p, client: client} }

// Grow takes n more, and reports whether it could.
func (t *Part) Grow(n int64) bool {
	if !t.pool.Take(t.client, n) {
		return false
	}
	t.n += n
	return true
}

// Resize grows or shrinks it to n, and reports whether it could. If not, it keeps its size. It can always shrink.
func (t *Part) Resize(n int64) bool {
	if n > t.n {
		return t.Grow(n - t.n)
	}
	t.pool.Give(t.client, t.n-n)
	t.n = n
	return true
}

// Wait gives back the whole part, and takes n as soon as that is possible: a holder that kept a part while it waits
// might wait for itself. Errors are those of [Pool.Wait].
func (t *Part) Wait(ctx context.Context, n int64) error {
	t.Release()
	if err := t.pool.Wait(ctx, t.client, n); err != nil {
		return err
	}
	t.n = n
	return nil
}

// Release gives all of it back. It may be called again.
func (t *Part) Release() { t.Resize(0) }
