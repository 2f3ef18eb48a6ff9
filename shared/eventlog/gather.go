package eventlog

import (
	"context"
	"fmt"
	"sync"

	"rejoin/shared/event"
)

// gathers are the events of different publishers that wait for one fence. In a cluster the leader
// lets one message or batch with a fence be on its way, and refuses the next: so what comes
// meanwhile waits here, and follows in the next atomic batch, in the order in which it came. It
// is safe for concurrent use.
type gathers struct {
	mu  sync.Mutex
	all map[event.Subject]*gather // those under way, by their fence
}

// gather is what waits for one fence.
type gather struct{ waiting []*Publishing }

// join has an event stored with those that wait for the same fence.
func (l *Log) join(w *Publishing) {
	fence := w.queued.event.fence(w.p)
	l.gathers.mu.Lock()
	defer l.gathers.mu.Unlock()
	if g := l.gathers.all[fence]; g != nil {
		g.waiting = append(g.waiting, w)
		return
	}
	if l.gathers.all == nil {
		l.gathers.all = map[event.Subject]*gather{}
	}
	g := &gather{waiting: []*Publishing{w}}
	l.gathers.all[fence] = g
	l.watched.Go(func() { l.storeGathered(fence, g) })
}

// storeGathered stores what waits for a fence until nothing does.
func (l *Log) storeGathered(fence event.Subject, g *gather) {
	for {
		l.gathers.mu.Lock()
		if len(g.waiting) == 0 {
			delete(l.gathers.all, fence)
			l.gathers.mu.Unlock()
			return
		}
		g.waiting = dropGivenUp(g.waiting)
		n := together(g.waiting)
		all := g.waiting[:n:n]
		g.waiting = g.waiting[n:]
		l.gathers.mu.Unlock()
		l.storeApart(all)
	}
}

// dropGivenUp removes those whose callers have given up. They are not sent.
func dropGivenUp(waiting []*Publishing) (left []*Publishing) {
	for _, w := range waiting {
		if err := w.queued.ctx.Err(); err != nil {
			w.queued.err = fmt.Errorf("%w: %w", ErrUnavailable, err)
			close(w.queued.done)
		} else {
			left = append(left, w)
		}
	}
	return left
}

// storeApart stores events of which none depends on another, and sets what became of each.
func (l *Log) storeApart(all []*Publishing) {
	settled := false
	if len(all) > 1 {
		settled, _ = l.storeTogether(context.WithoutCancel(all[0].queued.ctx), all)
	}
	for _, w := range all {
		if !settled {
			w.queued.ack, w.queued.err = l.publish(w.queued.ctx, w.p, w.queued.event.message(w.p))
		}
		close(w.queued.done)
	}
}

// together returns how many of those that wait are sent at once.
func together(waiting []*Publishing) (n int) {
	if len(waiting) == 0 {
		return 0
	}
	n, bytes := 1, len(waiting[0].queued.event.Data)
	for ; n < min(len(waiting), maxTogether); n++ {
		if bytes += len(waiting[n].queued.event.Data); bytes > maxTogetherBytes {
			break
		}
	}
	return n
}
