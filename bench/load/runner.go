package load

import (
	"context"
	"time"

	"rejoin/bench/measure"
)

// Sink is a server that messages are published to.
type Sink interface {
	// Publish sends a message to a stream; messages may wait in a buffer until Push.
	// Flush returns when all were taken.
	Publish(ctx context.Context, stream int, message []byte) error
	Push() error
	Flush(ctx context.Context) error
	// PIDs are its processes.
	PIDs() []int
}

// Runner sends numbered messages, to one stream after the other, and watches their delivery.
type Runner struct {
	Server  Sink
	Load    *Load
	Streams int
	Clients int // of each stream
	Bytes   int // of a message; 0 means MessageBytes
	sent    int
}

// Burst sends n messages, at most ahead of them before their delivery when ahead is
// positive, and returns deliveries a second and CPU microseconds for each.
func (r *Runner) Burst(ctx context.Context, n, ahead int) (perSecond, cpuMicros float64, err error) {
	before, err := measure.CPU(r.Server.PIDs())
	if err != nil {
		return 0, 0, err
	}
	start, base := time.Now(), r.sent
	for i := range n {
		if ahead > 0 && i >= ahead {
			if err := r.Server.Push(); err != nil {
				return 0, 0, err
			}
			if err := r.Load.WaitFor(ctx, int64(base+i-ahead+1)*int64(r.Clients)); err != nil {
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
	return float64(n*r.Clients) / took.Seconds(), each, err
}

// Paced sends perSecond messages a second, and those that are late at once.
func (r *Runner) Paced(ctx context.Context, perSecond int, d time.Duration) (cpuMicros float64, err error) {
	before, err := measure.CPU(r.Server.PIDs())
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
		if err := r.Server.Push(); err != nil {
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
func (r *Runner) each(before time.Duration, n int) (float64, error) {
	after, err := measure.CPU(r.Server.PIDs())
	return float64((after - before).Microseconds()) / float64(n*r.Clients), err
}

func (r *Runner) send(ctx context.Context) error {
	size := r.Bytes
	if size == 0 {
		size = MessageBytes
	}
	err := r.Server.Publish(ctx, r.sent%r.Streams, Stamped(r.sent/r.Streams, size))
	r.sent++
	return err
}

// delivered waits until every client has everything; without clients, until everything
// was taken.
func (r *Runner) delivered(ctx context.Context) error {
	if err := r.Server.Flush(ctx); err != nil || r.Load == nil {
		return err
	}
	return r.Load.WaitFor(ctx, int64(r.sent)*int64(r.Clients))
}
