package cases

import (
	"context"
	"fmt"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
)

const (
	manyStreams   = 5000
	manyPerSecond = 5000
	manyWarmUp    = 2 * time.Second
	manyTime      = 6 * time.Second
)

// many measures many streams with one client each.
func many(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	for _, c := range p.Contenders(system.OfRejoin, system.OfRaw, system.OfNchan) {
		if err := manyOf(ctx, &f, c, p); err != nil {
			return f, fmt.Errorf("%smany: %w", c.Prefix, err)
		}
	}
	alone, err := jetStreamCPU(ctx, p, manyStreams, manyPerSecond, manyWarmUp, manyTime)
	if err != nil {
		return f, err
	}
	f.Add("jetstream_cpu_us", alone)
	f.Ratio("jetstream_cpu_vs_raw", "jetstream_cpu_us", "raw_cpu_us")
	f.Ratio("cpu_vs_raw", "cpu_us", "raw_cpu_us")
	f.Ratio("p99_vs_raw", "p99_ms", "raw_p99_ms")
	f.Ratio("cpu_vs_nchan", "cpu_us", "nchan_cpu_us")
	f.Ratio("p99_vs_nchan", "p99_ms", "nchan_p99_ms")
	return f, nil
}

func manyOf(ctx context.Context, f *measure.Figures, c system.Contender, p *system.Programs) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	s, err := c.Start(ctx, p)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := load.New(ctx, load.Crowd{Clients: manyStreams, Target: s.Target(), Stream: func(i int) int { return i }})
	if err != nil {
		return err
	}
	r := &load.Runner{Server: s, Load: l, Streams: manyStreams, Clients: 1}
	_, err = r.Paced(ctx, manyPerSecond, manyWarmUp)
	each := 0.0
	if err == nil {
		l.ResetLatencies()
		each, err = r.Paced(ctx, manyPerSecond, manyTime)
	}
	hist := l.Close()
	if err != nil {
		return err
	}
	f.AddHistogram(c.Prefix, hist)
	f.Add(c.Prefix+"cpu_us", each)
	return nil
}

// jetStreamCPU returns the CPU microseconds of JetStream alone for an event.
func jetStreamCPU(ctx context.Context, p *system.Programs, streams, perSecond int, warmUp, d time.Duration) (micros float64, err error) {
	log, err := system.StartBareLog(ctx, p, system.BareJetStream, "")
	if err != nil {
		return 0, err
	}
	defer log.Close()
	r := &load.Runner{Server: log, Streams: streams, Clients: 1}
	if _, err := r.Paced(ctx, perSecond, warmUp); err != nil {
		return 0, err
	}
	return r.Paced(ctx, perSecond, d)
}
