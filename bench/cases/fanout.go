package cases

import (
	"context"
	"fmt"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
)

// fanout measures one stream with many clients: as fast as it goes, with at most
// 16 events ahead of delivery, and at 20,000 deliveries a second.
func fanout(clients int) func(context.Context, *system.Programs) (measure.Figures, error) {
	return func(ctx context.Context, p *system.Programs) (measure.Figures, error) {
		var f measure.Figures
		for _, c := range p.Contenders(system.OfRejoin, system.OfRaw, system.OfRawBatch, system.OfNchan) {
			if err := fanoutOf(ctx, &f, c, p, clients); err != nil {
				return f, fmt.Errorf("%s%d clients: %w", c.Prefix, clients, err)
			}
		}
		f.Ratio("free_vs_rawbatch", "free_deliveries_per_s", "rawbatch_free_deliveries_per_s")
		f.Ratio("free_vs_nchan", "free_deliveries_per_s", "nchan_free_deliveries_per_s")
		f.Ratio("ahead16_vs_rawbatch", "ahead16_deliveries_per_s", "rawbatch_ahead16_deliveries_per_s")
		f.Ratio("ahead16_vs_nchan", "ahead16_deliveries_per_s", "nchan_ahead16_deliveries_per_s")
		f.Ratio("paced_p99_vs_raw", "paced_p99_ms", "raw_paced_p99_ms")
		f.Ratio("paced_cpu_vs_raw", "paced_cpu_us", "raw_paced_cpu_us")
		return f, nil
	}
}

func fanoutOf(ctx context.Context, f *measure.Figures, c system.Contender, p *system.Programs, clients int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	s, err := c.Start(ctx, p)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := load.New(ctx, load.Crowd{Clients: clients, Target: s.Target()})
	if err != nil {
		return err
	}
	r := &load.Runner{Server: s, Load: l, Streams: 1, Clients: clients}
	err = fanOut(ctx, r, f, c.Prefix)
	hist := l.Close()
	if err != nil {
		return err
	}
	f.AddHistogram(c.Prefix+"paced_", hist)
	return nil
}

// fanOut adds the figures of a stream with many clients, free and paced.
func fanOut(ctx context.Context, r *load.Runner, f *measure.Figures, prefix string) error {
	// As many events as take a few seconds at a million deliveries a second. As fast
	// as it goes is still no faster than retention: a session keeps 10,000 events.
	for _, m := range []struct {
		name   string
		events int
		ahead  int
	}{{"free", 3_000_000 / r.Clients, 5000}, {"ahead16", 1_500_000 / r.Clients, 16}} {
		rate, each, err := r.Burst(ctx, m.events, m.ahead)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		f.Add(prefix+m.name+"_deliveries_per_s", rate)
		f.Add(prefix+m.name+"_cpu_us", each)
	}
	r.Load.ResetLatencies()
	each, err := r.Paced(ctx, 20_000/r.Clients, 5*time.Second)
	if err != nil {
		return fmt.Errorf("paced: %w", err)
	}
	f.Add(prefix+"paced_cpu_us", each)
	return nil
}
