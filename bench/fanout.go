package main

import (
	"context"
	"fmt"
	"time"
)

const messageBytes = 512

// fanout measures one stream with many clients: as fast as it goes, with at most
// 16 events ahead of delivery, and at 20,000 deliveries a second.
func fanout(clients int) func(context.Context, *programs) (figures, error) {
	return func(ctx context.Context, p *programs) (figures, error) {
		var f figures
		for _, c := range p.contenders(ofRejoin, ofRaw, ofRawBatch, ofNchan) {
			if err := fanoutOf(ctx, &f, c, p, clients); err != nil {
				return f, fmt.Errorf("%s%d clients: %w", c.prefix, clients, err)
			}
		}
		f.ratio("free_vs_rawbatch", "free_deliveries_per_s", "rawbatch_free_deliveries_per_s")
		f.ratio("free_vs_nchan", "free_deliveries_per_s", "nchan_free_deliveries_per_s")
		f.ratio("ahead16_vs_rawbatch", "ahead16_deliveries_per_s", "rawbatch_ahead16_deliveries_per_s")
		f.ratio("ahead16_vs_nchan", "ahead16_deliveries_per_s", "nchan_ahead16_deliveries_per_s")
		f.ratio("paced_p99_vs_raw", "paced_p99_ms", "raw_paced_p99_ms")
		f.ratio("paced_cpu_vs_raw", "paced_cpu_us", "raw_paced_cpu_us")
		return f, nil
	}
}

func fanoutOf(ctx context.Context, f *figures, c contender, p *programs, clients int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	s, err := c.start(ctx, p)
	if err != nil {
		return err
	}
	defer s.close()
	l, err := newLoad(ctx, crowd{clients: clients, target: s.target()})
	if err != nil {
		return err
	}
	r := &runner{server: s, load: l, streams: 1, clients: clients}
	err = r.fanout(ctx, f, c.prefix)
	hist := l.close()
	if err != nil {
		return err
	}
	f.addHistogram(c.prefix+"paced_", hist)
	return nil
}

// runner sends numbered messages, to one stream after the other, and watches their delivery.
type runner struct {
	server  server
	load    *load
	streams int
	clients int // of each stream
	bytes   int // of a message; 0 means messageBytes
	sent    int
}

func (r *runner) fanout(ctx context.Context, f *figures, prefix string) error {
	// As many events as take a few seconds at a million deliveries a second. As fast
	// as it goes is still no faster than retention: a session keeps 10,000 events.
	for _, m := range []struct {
		name   string
		events int
		ahead  int
	}{{"free", 3_000_000 / r.clients, 5000}, {"ahead16", 1_500_000 / r.clients, 16}} {
		rate, each, err := r.burst(ctx, m.events, m.ahead)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		f.add(prefix+m.name+"_deliveries_per_s", rate)
		f.add(prefix+m.name+"_cpu_us", each)
	}
	r.load.resetLatencies()
	each, err := r.paced(ctx, 20_000/r.clients, 5*time.Second)
	if err != nil {
		return fmt.Errorf("paced: %w", err)
	}
	f.add(prefix+"paced_cpu_us", each)
	return nil
}

// burst sends n messages, at most ahead of them before their delivery when ahead is
// positive, and returns deliveries a second and CPU microseconds for each.
func (r *runner) burst(ctx context.Context, n, ahead int) (perSecond, cpuMicros float64, err error) {
	before, err := cpu(r.server.pids())
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
	before, err := cpu(r.server.pids())
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
		if err := pause(ctx, time.Until(start.Add(time.Duration(i)*every))); err != nil {
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
	after, err := cpu(r.server.pids())
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
