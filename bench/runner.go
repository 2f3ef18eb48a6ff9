package main

import (
	"context"
	"time"

	"rejoin/bench/measure"
)

// sink is a server that messages are published to.
type sink interface {
	// publish sends a message to a stream; messages may wait in a buffer until push.
	// flush returns when all were taken.
	publish(ctx context.Context, stream int, message []byte) error
	push() error
	flush(ctx context.Context) error
	// pids are its processes.
	pids() []int
}

// runner sends numbered messages, to one stream after the other, and watches their delivery.
type runner struct {
	server  sink
	load    *load
	streams int
	clients int // of each stream
	bytes   int // of a message; 0 means messageBytes
	sent    int
}

// burst sends n messages, at most ahead of them before their delivery when ahead is
// positive, and returns deliveries a second and CPU microseconds for each.
func (r *runner) burst(ctx context.Context, n, ahead int) (perSecond, cpuMicros float64, err error) {
	before, err := measure.CPU(r.server.pids())
	if err != nil {
		return 0, 0, err
	}
	start, base := time.Now(), r.sent
	for i := range n {
		if ahead > 0 && i >= ahead {
			if err := r.server.push(); err != nil {
				return 0, 0, err
			}
			if err := r.load.waitFor(ctx, int64(base+i-ahead+1)*int64(r.clients)); err != nil {
				return 0, 0, err
			}
		}
		if err := r.send(ctx); err != nil {
			return 0, 0, err
		}
	}
	if err := r.delivered(ctx); err != nil {
		return 0, 0, err
	}
	took := time.Since(start)
	each, err := r.each(before, n)
	return float64(n*r.clients) / took.Seconds(), each, err
}

// paced sends perSecond messages a second, and those that are late at once.
func (r *runner) paced(ctx context.Context, perSecond int, d time.Duration) (cpuMicros float64, err error) {
	before, err := measure.CPU(r.server.pids())
	if err != nil {
		return 0, err
	}
	n, every := int(d.Seconds()*float64(perSecond)), time.Second/time.Duration(perSecond)
	start := time.Now()
	for i := 0; i < n; {
		due := min(int(time.Since(start)/every)+1, n)
		for ; i < due; i++ {
			if err := r.send(ctx); err != nil {
				return 0, err
			}
		}
		if err := r.server.push(); err != nil {
			return 0, err
		}
		if err := measure.Pause(ctx, time.Until(start.Add(time.Duration(i)*every))); err != nil {
			return 0, err
		}
	}
	if err := r.delivered(ctx); err != nil {
		return 0, err
	}
	return r.each(before, n)
}

// each returns the CPU microseconds since before, for each delivery of n messages.
func (r *runner) each(before time.Duration, n int) (float64, error) {
	after, err := measure.CPU(r.server.pids())
	return float64((after - before).Microseconds()) / float64(n*r.clients), err
}

func (r *runner) send(ctx context.Context) error {
	size := r.bytes
	if size == 0 {
		size = messageBytes
	}
	err := r.server.publish(ctx, r.sent%r.streams, stamped(r.sent/r.streams, size))
	r.sent++
	return err
}

// delivered waits until every client has everything; without clients, until everything
// was taken.
func (r *runner) delivered(ctx context.Context) error {
	if err := r.server.flush(ctx); err != nil || r.load == nil {
		return err
	}
	return r.load.waitFor(ctx, int64(r.sent)*int64(r.clients))
}
