package main

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

// crowd says who connects, and to what.
type crowd struct {
	clients int
	target  target
	// stream is the stream that client i asks for; nil means 0 for all.
	stream func(i int) int
	// after is the event ID that client i comes with, and the number of the message
	// that it must get first; nil means no ID, and message 0.
	after func(i int) (id string, first int)
	// atOnce opens all connections without waiting for the answers of the first
	// ones, and newLoad returns at once. A client whose connection ends comes back
	// with its newest event ID.
	atOnce bool
	// stalled are clients that never read again after their first block.
	stalled bool
}

// load is a crowd of SSE clients that costs little: a few goroutines with an epoll
// each, no goroutine and no allocation for an event. On every connection it checks
// that message n follows message n-1, and that sequences only grow.
type load struct {
	crowd   crowd
	engines []*engine
	// opened and connected count connections: begun, and past their first block.
	opened, connected atomic.Int64
	// delivered counts messages over all connections; reached receives a value when it has
	// come to want.
	delivered, want atomic.Int64
	reached         chan struct{}
	// returned counts connections that were opened again.
	returned atomic.Int64
	failed   chan error
	stop     chan struct{}
	done     sync.WaitGroup
}

const loadEngines = 2

// opening is how many connections may wait for their first block, unless all are to
// come at once: what the servers' accept queues hold.
const opening = 400

// newLoad opens the connections and waits until each has had its first block.
func newLoad(ctx context.Context, c crowd) (*load, error) {
	l := &load{crowd: c, reached: make(chan struct{}, 1), failed: make(chan error, 1), stop: make(chan struct{})}
	for i := range loadEngines {
		e, err := newEngine(l, i)
		if err != nil {
			return nil, errors.Join(err, l.end())
		}
		l.engines = append(l.engines, e)
	}
	for _, e := range l.engines {
		l.done.Go(e.run)
	}
	if c.atOnce {
		return l, nil
	}
	if err := l.wait(ctx, func() bool { return l.connected.Load() >= int64(c.clients) }); err != nil {
		return nil, errors.Join(err, l.end())
	}
	return l, nil
}

// wait looks every millisecond until ok, an error of a connection, or the end of ctx.
func (l *load) wait(ctx context.Context, ok func() bool) error {
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

// waitFor waits until so many messages were delivered.
func (l *load) waitFor(ctx context.Context, delivered int64) error {
	l.want.Store(delivered)
	for l.delivered.Load() < delivered {
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

func (l *load) unfinished(ctx context.Context) error {
	return fmt.Errorf("%w: %d connected, %d delivered", ctx.Err(), l.connected.Load(), l.delivered.Load())
}

// settled waits for a moment in which nothing wrong may come any more.
func (l *load) settled(ctx context.Context) error {
	select {
	case err := <-l.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(200 * time.Millisecond):
		return nil
	}
}

func (l *load) count(delivered int64) {
	if l.delivered.Add(delivered) >= l.want.Load() {
		select {
		case l.reached <- struct{}{}:
		default: // it has one already
		}
	}
}

func (l *load) fail(err error) {
	select {
	case l.failed <- err:
	default: // the first one counts
	}
}

// close ends all connections and returns the latencies of all messages.
func (l *load) close() *measure.Histogram {
	_ = l.end()
	return l.latencies()
}

// latencies returns those since the last reset. Call it while nothing is sent.
func (l *load) latencies() *measure.Histogram {
	var all measure.Histogram
	for _, e := range l.engines {
		all.Merge(&e.hist)
	}
	return &all
}

func (l *load) end() error {
	close(l.stop)
	l.done.Wait()
	var err error
	for _, e := range l.engines {
		err = errors.Join(err, e.close())
	}
	return err
}

// resetLatencies forgets what was measured so far. Call it while nothing is sent.
func (l *load) resetLatencies() {
	for _, e := range l.engines {
		e.hist = measure.Histogram{}
	}
}

// open counts the connections that the server has not ended. Call it for a crowd
// that is stalled: nothing else would notice.
func (l *load) open() (n int) {
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

// target is where clients connect.
type target struct {
	addr string // host:port
	path func(stream int) string
	// sequenced says that event ids end in a sequence that only grows.
	sequenced bool
}
