package main

import (
	"context"
	"fmt"
	"time"
)

// cold measures how long an edge of its own takes from its start until it is ready,
// on a log of 1,000,000 events, beside plain ordered consumers that read what its
// window holds then.
func cold(ctx context.Context, p *programs) (figures, error) {
	var f figures
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	log, err := p.log(ctx)
	if err != nil {
		return f, err
	}
	// The standalone program is the server here: its own edge reads nothing.
	r, err := startRejoin(ctx, p, log.dir, "--window-backfill=-1")
	if err != nil {
		return f, err
	}
	defer r.close()
	if err := quiet(ctx, r.pids()); err != nil {
		return f, err
	}
	start := time.Now()
	e, err := run(ctx, p.edge, []string{"edge open", "admin port open"},
		"--nats-url", r.nats, "--edge-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json")
	if err != nil {
		return f, err
	}
	f.add("seconds", time.Since(start).Seconds())
	held, err := e.metric(ctx, "rejoin_edge_window_events")
	e.stop()
	if err != nil {
		return f, err
	}
	f.add("events_in_window", held)
	for _, c := range []struct {
		metric  string
		atATime int
	}{{"drain_seconds", 1}, {"drain16_seconds", partitions}} {
		took, err := drain(ctx, r.nc, uint64(held/partitions), c.atATime)
		if err != nil {
			return f, fmt.Errorf("draining what the window holds: %w", err)
		}
		f.add(c.metric, took.Seconds())
	}
	f.ratio("vs_drain", "seconds", "drain_seconds")
	f.ratio("vs_drain16", "seconds", "drain16_seconds")
	return f, nil
}
