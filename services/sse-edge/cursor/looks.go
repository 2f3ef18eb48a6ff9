package cursor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
)

// looks lets readers that look at the partition's leader at about the same time share
// one look. It judges the pages that were read before it, so it serves only the readers
// that asked before it began: a reader that asks during a look shares the next one. When a
// look is over, the window has reached the end of the log that it has shown: so the window
// knows every trim of the entries that were deleted before the look.
type looks struct {
	base   context.Context //nolint:containedctx // while the partition is followed: looks end with it
	look   func(context.Context) (eventlog.State, error)
	window *window.Window
	work   sync.WaitGroup

	mu   sync.Mutex
	busy bool
	next *look // of the waiting readers; nil without one
}

// look is one look at a partition's leader.
type look struct {
	state eventlog.State
	err   error
	done  chan struct{} // closed when state and err are set
}

// after returns the result of a look that begins after the call. Errors are those of the
// log; errOtherGeneration means that the window is not of the log's generation.
func (l *looks) after(ctx context.Context, x window.Extent) (eventlog.State, error) {
	k := l.join()
	select {
	case <-k.done:
	case <-ctx.Done():
		return eventlog.State{}, ctx.Err()
	}
	if k.err != nil {
		return eventlog.State{}, k.err
	}
	return k.state, sameGeneration(k.state, x)
}

// join takes part in the next look.
func (l *looks) join() *look {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = &look{done: make(chan struct{})}
	}
	if !l.busy {
		l.busy = true
		l.work.Go(l.run)
	}
	return l.next
}

// run looks at the leader for as long as readers wait.
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
		ctx, cancel := context.WithTimeout(l.base, lookTimeout)
		if now.state, now.err = l.look(ctx); now.err == nil {
			now.err = l.awaitWindow(ctx, now.state)
		}
		cancel()
		close(now.done)
	}
}

// awaitEvery is how often a look asks whether the window has reached its end: the window
// mostly has, or lacks the events of some milliseconds.
const awaitEvery = 2 * time.Millisecond

// lookTimeout bounds a look; its readers ask again after it.
const lookTimeout = 10 * time.Second

// awaitWindow waits until the window has reached the end of the log that a look has shown. The error
// errOtherGeneration means that the window is in another generation, and has not reached it.
func (l *looks) awaitWindow(ctx context.Context, state eventlog.State) error {
	for !l.window.Reached(state) {
		if !natsconn.Pause(ctx, awaitEvery) {
			return fmt.Errorf("%w: the window has not come to %d", eventlog.ErrUnavailable, state.Last)
		}
	}
	if l.window.Extent().End < state.Last {
		return errOtherGeneration
	}
	return nil
}

// sameGeneration returns errOtherGeneration if a window's newest generation is not the log's.
func sameGeneration(log eventlog.State, x window.Extent) error {
	if log.Origin != x.Origin || log.Generation().ID != x.Generation {
		return errOtherGeneration
	}
	return nil
}

// errOtherGeneration is returned when the log is in another generation than the window, which
// has yet to find out whether it was rolled back: the two must not be read as one.
//
// After a roll-back the log is of the new generation at once, the window a moment later. A read
// of the log that finds another generation than the window's is discarded and repeated.
var errOtherGeneration = fmt.Errorf("%w: the window is of an earlier generation", eventlog.ErrUnavailable)

// errNoQuorum is returned when the log ends before an entry that a reader or the window has, no generation
// reports a loss, and another server may lead the partition by now.
var errNoQuorum = fmt.Errorf("%w: the leader of the partition has not heard from most of its servers", eventlog.ErrUnavailable)

const (
	// lagLooks is how often a leader is looked at whose log seems to end too early, and lagEvery how far apart:
	// under load on two cores it was 80 ms behind at most.
	lagLooks = 5
	lagEvery = 50 * time.Millisecond
)

// lookUntil looks at a partition again while its log ends before a sequence that was in it, unless a generation
// reports that entries were lost. In a cluster the leader may store an entry, which most servers have, later than
// another server, from which an edge, or a client's previous one, has it already. state is the result of the first
// look; lookUntil returns that of the last one. Errors are those of look.
func lookUntil(ctx context.Context, state eventlog.State, sequence uint64, look func(context.Context) (eventlog.State, error)) (eventlog.State, error) {
	generation := state.Generation()
	for range lagLooks {
		if state.Leader == "" || state.Last >= sequence || state.Generation() != generation || !state.Quorum {
			break
		}
		if !natsconn.Pause(ctx, lagEvery) {
			return state, ctx.Err()
		}
		var err error
		if state, err = look(ctx); err != nil {
			return state, err
		}
	}
	return state, nil
}

const (
	// generationWithin is how long readers wait for a window of another generation: its
	// tail starts again as soon as it may.
	generationWithin = 5 * time.Second
	generationEvery  = 20 * time.Millisecond
)

// catchUp waits until the window has reached the end of the log, and returns the look that shows that end. Errors are
// those of [looks.after].
func (p *Partition) catchUp(ctx context.Context) (eventlog.State, error) {
	for begun := time.Now(); ; {
		state, err := p.looks.after(ctx, p.window.Extent())
		if !waitToRetry(ctx, begun, err) {
			return state, err
		}
	}
}

// tryCatchUp is catchUp that does not wait for a connection to NATS.
func (p *Partition) tryCatchUp(ctx context.Context) error {
	if !p.log.Conn().IsConnected() {
		return errNotReady
	}
	_, err := p.catchUp(ctx)
	return err
}

// waitToRetry waits a moment if an attempt failed because the window is of another generation, and
// reports whether to try again; begun is when the first attempt was made.
func waitToRetry(ctx context.Context, begun time.Time, err error) bool {
	return errors.Is(err, errOtherGeneration) && time.Since(begun) <= generationWithin && natsconn.Pause(ctx, generationEvery)
}
