package main

import (
	"context"
	"fmt"
	"time"
)

const messageBytes = 512

// contender is a way to broadcast that is measured.
type contender struct {
	name  string
	start func(ctx context.Context, program string) (server, error)
}

func contenders() []contender {
	return []contender{
		{"", func(ctx context.Context, program string) (server, error) { return startRejoin(ctx, program) }},
		{"raw_", func(ctx context.Context, _ string) (server, error) { return startRaw(ctx, "raw") }},
		{"rawbatch_", func(ctx context.Context, _ string) (server, error) { return startRaw(ctx, "raw-batch") }},
	}
}

// fanout measures one stream with many clients: as fast as it goes, with at most
// 16 events ahead of delivery, and at 20,000 deliveries a second.
func fanout(clients int) func(context.Context, string) (figures, error) {
	return func(ctx context.Context, program string) (figures, error) {
		var f figures
		for _, c := range contenders() {
			if err := fanoutOf(ctx, &f, c, program, clients); err != nil {
				return f, fmt.Errorf("%s: %w", c.name, err)
			}
		}
		return f, nil
	}
}

func fanoutOf(ctx context.Context, f *figures, c contender, program string, clients int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	s, err := c.start(ctx, program)
	if err != nil {
		return err
	}
	defer s.close()
	addr, path := s.target(0)
	l, err := newLoad(ctx, clients, target{addr: addr, path: func(int) (string, int) { return path, 0 }})
	if err != nil {
		return err
	}
	r := &runner{server: s, load: l, clients: int64(clients)}
	err = r.measure(ctx, f, c.name)
	hist := l.close()
	if err != nil {
		return err
	}
	f.add(c.name+"paced_p50_ms", hist.quantile(0.50))
	f.add(c.name+"paced_p99_ms", hist.quantile(0.99))
	f.add(c.name+"paced_p999_ms", hist.quantile(0.999))
	return nil
}

// runner sends numbered messages on stream 0 and watches their delivery.
type runner struct {
	server  server
	load    *load
	clients int64
	sent    int
}

func (r *runner) measure(ctx context.Context, f *figures, prefix string) error {
	// As many events as take a few seconds at a million deliveries a second.
	for _, m := range []struct {
		name   string
		events int
		ahead  int
	}{{"free", int(3_000_000 / r.clients), 0}, {"ahead16", int(1_500_000 / r.clients), 16}} {
		rate, each, err := r.burst(ctx, m.events, m.ahead)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		f.add(prefix+m.name+"_deliveries_per_s", rate)
		f.add(prefix+m.name+"_cpu_us", each)
	}
	r.load.resetLatencies()
	each, err := r.paced(ctx, int(20_000/r.clients), 5*time.Second)
	if err != nil {
		return fmt.Errorf("paced: %w", err)
	}
	f.add(prefix+"paced_cpu_us", each)
	return nil
}

// burst sends n messages, at most ahead of them before the slowest delivery when
// ahead is positive, and returns deliveries a second and CPU microseconds for each.
func (r *runner) burst(ctx context.Context, n, ahead int) (perSecond, cpuMicros float64, err error) {
	before, err := cpu(r.server.pids())
	if err != nil {
		return 0, 0, err
	}
	start, base := time.Now(), int64(r.sent)
	for i := range n {
		if ahead > 0 && i >= ahead {
			if err := r.server.flush(ctx); err != nil {
				return 0, 0, err
			}
			want := (base + int64(i-ahead+1)) * r.clients
			if err := r.load.wait(ctx, func() bool { return r.load.delivered.Load() >= want }); err != nil {
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
	after, err := cpu(r.server.pids())
	deliveries := float64(int64(n) * r.clients)
	return deliveries / took.Seconds(), float64((after - before).Microseconds()) / deliveries, err
}

// paced sends perSecond messages a second.
func (r *runner) paced(ctx context.Context, perSecond int, d time.Duration) (cpuMicros float64, err error) {
	before, err := cpu(r.server.pids())
	if err != nil {
		return 0, err
	}
	n := int(d.Seconds() * float64(perSecond))
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for range n {
		<-tick.C
		if err := r.send(ctx); err != nil {
			return 0, err
		}
		if err := r.server.flush(ctx); err != nil {
			return 0, err
		}
	}
	if err := r.delivered(ctx); err != nil {
		return 0, err
	}
	after, err := cpu(r.server.pids())
	return float64((after - before).Microseconds()) / float64(int64(n)*r.clients), err
}

func (r *runner) send(ctx context.Context) error {
	err := r.server.publish(ctx, 0, stamped(r.sent, messageBytes))
	r.sent++
	return err
}

// delivered waits until every client has everything.
func (r *runner) delivered(ctx context.Context) error {
	if err := r.server.flush(ctx); err != nil {
		return err
	}
	return r.load.wait(ctx, func() bool { return r.load.delivered.Load() >= int64(r.sent)*r.clients })
}
