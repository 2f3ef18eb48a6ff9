// Package load makes the load on measured servers: SSE clients that check the received messages,
// publishers of numbered messages, and the names of the streams that both use. It starts no server.
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"rejoin/bench/measure"
)

// Crowd describes clients, and the server to which they connect.
type Crowd struct {
	Clients int
	Target  Target
	// Stream is the stream that client i asks for; nil means 0 for all.
	Stream func(i int) int
	// After is the event ID that client i sends, and the number of the message that it
	// must receive first; nil means no ID, and message 0.
	After func(i int) (id string, first int)
	// AtOnce opens all connections without waiting for the answers of the first ones, and
	// New returns at once. A client whose connection ends reconnects with its newest
	// event ID.
	AtOnce bool
	// Stalled are clients that never read again after their first block.
	Stalled bool
}

// Load is a crowd of SSE clients that costs little: a few goroutines with an epoll
// each, no goroutine and no allocation for an event. On every connection it checks
// that message n follows message n-1, and that sequences only grow.
type Load struct {
	crowd   Crowd
	engines []*engine
	// opened and connected count connections: begun, and past their first block.
	opened, connected atomic.Int64
	// Delivered counts messages over all connections; reached receives a value when that
	// reaches want.
	Delivered, want atomic.Int64
	reached         chan struct{}
	// Returned counts connections that were opened again.
	Returned atomic.Int64
	failed   chan error
	stop     chan struct{}
	done     sync.WaitGroup
}

const loadEngines = 2

// opening is how many connections may wait for their first block, unless all are to
// connect at once: the length of the servers' accept queues.
const opening = 400

// New opens the connections and waits until each has had its first block.
func New(ctx context.Context, c Crowd) (*Load, error) {
	l := &Load{crowd: c, reached: make(chan struct{}, 1), failed: make(chan error, 1), stop: make(chan struct{})}
	for i := range loadEngines {
		e, err := newEngine(l, i)
		if err != nil {
			return nil, errors.Join(err, l.End())
		}
		l.engines = append(l.engines, e)
	}
	for _, e := range l.engines {
		l.done.Go(e.run)
	}
	if c.AtOnce {
		return l, nil
	}
	if err := l.wait(ctx, func() bool { return l.connected.Load() >= int64(c.Clients) }); err != nil {
		return nil, errors.Join(err, l.End())
	}
	return l, nil
}

// wait looks every millisecond until ok, an error of a connection, or the end of ctx.
func (l *Load) wait(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case err := <-l.failed:
			return err
		case <-ctx.Done():
			return l.unfinished(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// WaitFor waits until so many messages were delivered.
func (l *Load) WaitFor(ctx context.Context, delivered int64) error {
	l.want.Store(delivered)
	for l.Delivered.Load() < delivered {
		select {
		case err := <-l.failed:
			return err
		case <-ctx.Done():
			return l.unfinished(ctx)
		case <-l.reached:
		}
	}
	return nil
}

func (l *Load) unfinished(ctx context.Context) error {
	return fmt.Errorf("%w: %d connected, %d delivered", ctx.Err(), l.connected.Load(), l.Delivered.Load())
}

// Settled waits for the time in which a wrong message may still arrive, and returns its error.
func (l *Load) Settled(ctx context.Context) error {
	select {
	case err := <-l.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(200 * time.Millisecond):
		return nil
	}
}

func (l *Load) count(delivered int64) {
	if l.Delivered.Add(delivered) >= l.want.Load() {
		select {
		case l.reached <- struct{}{}:
		default: // it has one already
		}
	}
}

func (l *Load) fail(err error) {
	select {
	case l.failed <- err:
	default: // the first one counts
	}
}

// Close ends all connections and returns the latencies of all messages.
func (l *Load) Close() *measure.Histogram {
	_ = l.End()
	return l.Latencies()
}

// Latencies returns those since the last reset. Call it while nothing is sent.
func (l *Load) Latencies() *measure.Histogram {
	var all measure.Histogram
	for _, e := range l.engines {
		all.Merge(&e.hist)
	}
	return &all
}

// End ends all connections.
func (l *Load) End() error {
	close(l.stop)
	l.done.Wait()
	var err error
	for _, e := range l.engines {
		err = errors.Join(err, e.close())
	}
	return err
}

// ResetLatencies deletes the latencies so far. Call it while nothing is sent.
func (l *Load) ResetLatencies() {
	for _, e := range l.engines {
		e.hist = measure.Histogram{}
	}
}

// Established counts the connections that the server has not ended. Call it for a stalled
// crowd, which does not notice the end of a connection.
func (l *Load) Established() (n int) {
	for _, e := range l.engines {
		for i := range e.conns {
			info, err := unix.GetsockoptTCPInfo(e.conns[i].fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			if err == nil && info.State == unix.BPF_TCP_ESTABLISHED {
				n++
			}
		}
	}
	return n
}

// Target is the address of a server and its paths for clients.
type Target struct {
	Addr string // host:port
	Path func(stream int) string
	// Sequenced means that event ids end in a sequence that only grows.
	Sequenced bool
}
