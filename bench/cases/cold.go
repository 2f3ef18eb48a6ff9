package cases

import (
	"context"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
)

// cold measures how long an edge of its own that follows all partitions takes from its start
// until it is ready, on a log of 1,000,000 events, beside plain ordered consumers that read the
// events which its window holds then.
func cold(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	log, err := p.Stored(ctx)
	if err != nil {
		return f, err
	}
	// The standalone program is the server here: its own edge reads nothing.
	r, err := system.StartRejoin(ctx, p, log.Dir)
	if err != nil {
		return f, err
	}
	defer r.Close()
	if err := measure.Quiet(ctx, r.PIDs()); err != nil {
		return f, err
	}
	if err := measure.Pause(ctx, forgotten); err != nil { // the janitor has read the log
		return f, err
	}
	start := time.Now()
	e, err := system.StartEdge(ctx, p, r.NATS, system.FollowAll)
	if err != nil {
		return f, err
	}
	f.Add("seconds", time.Since(start).Seconds())
	held, err := e.Metric(ctx, "rejoin_edge_window_events")
	e.Stop()
	if err != nil {
		return f, err
	}
	f.Add("events_in_window", held)
	if err := addDrains(ctx, &f, r.Conn, drained{newest: uint64(held / load.Partitions)}); err != nil {
		return f, err
	}
	f.Ratio("vs_drain", "seconds", "drain_seconds")
	f.Ratio("vs_drain16", "seconds", "drain16_seconds")
	return f, nil
}
