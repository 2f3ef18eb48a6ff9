package edge

import (
	"context"
	"sync"

	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
)

// askForAll is how many readers that need their marks at the same time make one
// question for all marks of the partition cheaper than one for each.
const askForAll = 64

// looks lets readers that need a look at the partition's leader at about the same
// time share one. What was read before the look must be judged by it, so a look
// serves only those who asked before it began: who comes while one is under way
// shares the next one.
type looks struct {
	base   context.Context //nolint:containedctx // of the edge: looks end with it
	log    *eventlog.Log
	number int
	work   sync.WaitGroup

	mu   sync.Mutex
	busy bool
	next *look // of those who wait; nil when nobody does
}

// look is one look at a partition's leader.
type look struct {
	shared int // by how many readers; settled when done is closed
	state  eventlog.State
	err    error
	done   chan struct{}

	once  sync.Once
	table *table
	none  error         // why there is no table
	asked chan struct{} // closed when the table is there, or never will be
}

// after returns a look that begins after the call.
func (l *looks) after(ctx context.Context) (*look, error) {
	l.mu.Lock()
	if l.next == nil {
		l.next = &look{done: make(chan struct{}), asked: make(chan struct{})}
	}
	mine := l.next
	mine.shared++
	if !l.busy {
		l.busy = true
		l.work.Go(l.run)
	}
	l.mu.Unlock()
	select {
	case <-mine.done:
		return mine, mine.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// run looks for as long as somebody waits.
func (l *looks) run() {
	for {
		l.mu.Lock()
		now := l.next
		if l.next = nil; now == nil {
			l.busy = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(l.base, openTimeout)
		now.state, now.err = l.log.Look(ctx, l.number)
		cancel()
		close(now.done)
	}
}

// marks returns the marks of the whole partition, which the first caller asks for
// and the others wait for.
func (l *look) marks(ctx context.Context, ask func(context.Context) (marks.Reply, error)) (*table, error) {
	l.once.Do(func() {
		go func() {
			defer close(l.asked)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openTimeout)
			defer cancel()
			reply, err := ask(ctx)
			l.table, l.none = newTable(0, 0, reply), err
		}()
	})
	select {
	case <-l.asked:
		return l.table, l.none
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
