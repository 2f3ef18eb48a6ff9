package cases

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
)

const (
	// stormLimit is when a storm is given up; the figure is the limit then.
	stormLimit = 120 * time.Second
	// frameBytes is about what an event of 512 B takes in a window, with its entry.
	frameBytes = 700
	// stormWindow holds everything: partitions are not of equal size, and a backfill
	// fills four fifths.
	stormWindow = system.StoredEvents * frameBytes * 2
)

// stormInWindow measures 10,000 clients that reconnect at once to a window that has all
// their missing events.
func stormInWindow(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	err := stormOfRejoin(ctx, &f, p, stormWindow, nil)
	if err == nil {
		err = stormOfRaw(ctx, &f)
	}
	if err == nil && p.HasNchan() {
		err = stormOfNchan(ctx, &f, p)
	}
	f.Ratio("vs_raw", "seconds", "raw_seconds")
	f.Ratio("vs_nchan", "seconds", "nchan_seconds")
	return f, err
}

// stormBelow measures the same with a window of a tenth of the log, in which no client
// finds its next event.
func stormBelow(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	err := stormOfRejoin(ctx, &f, p, system.StoredEvents*frameBytes/10, func(ctx context.Context, r *system.Rejoin) error {
		if err := addDrains(ctx, &f, r.Conn, drained{}); err != nil {
			return err
		}
		return measure.Pause(ctx, forgotten)
	})
	f.Ratio("vs_drain", "seconds", "drain_seconds")
	f.Ratio("vs_drain16", "seconds", "drain16_seconds")
	return f, err
}

// stormOfRejoin measures a storm on an edge that was started on the stored log.
// before runs when it is up, unless nil.
func stormOfRejoin(ctx context.Context, f *measure.Figures, p *system.Programs, window int, before func(context.Context, *system.Rejoin) error) error {
	log, err := p.Stored(ctx)
	if err != nil {
		return err
	}
	r, err := system.StartRejoin(ctx, p, log.Dir, "--window-bytes="+strconv.Itoa(window), system.FollowAll)
	if err != nil {
		return err
	}
	defer r.Close()
	// The janitor reads the whole log first.
	if err := measure.Quiet(ctx, r.PIDs()); err != nil {
		return err
	}
	if before != nil {
		if err := before(ctx, r); err != nil {
			return err
		}
	}
	held, err := r.Metric(ctx, "rejoin_edge_window_events")
	if err != nil {
		return err
	}
	f.Add("events_in_window", held)
	t := r.Target()
	t.Path = load.EventsPath
	if err := storm(ctx, f, system.OfRejoin, r.PIDs(), t, system.StoredCursor, func(i int) string { return log.Cursors[i] }); err != nil {
		return err
	}
	reads, err := r.Metric(ctx, "rejoin_edge_log_reads_total")
	f.Add("log_reads", reads)
	return err
}

// stormOfRaw measures a raw server that writes the same bytes.
func stormOfRaw(ctx context.Context, f *measure.Figures) error {
	s, err := system.StartRaw(ctx, system.RawReplay)
	if err != nil {
		return err
	}
	defer s.Close()
	for n := system.StoredCursor + 1; n < system.StoredPerStream; n++ {
		if err := s.Publish(ctx, 0, load.Varied(n, 0)); err != nil {
			return err
		}
	}
	if err := s.Flush(ctx); err != nil {
		return err
	}
	if err := measure.Quiet(ctx, s.PIDs()); err != nil {
		return err
	}
	t := s.Target()
	t.Path = func(int) string { return "/0" }
	return storm(ctx, f, system.OfRaw, s.PIDs(), t, system.StoredCursor, func(int) string { return "raw_0000000_0" })
}

// stormOfNchan measures Nchan, which has to be given everything each time.
func stormOfNchan(ctx context.Context, f *measure.Figures, p *system.Programs) error {
	s, err := system.StartNchan(ctx, p)
	if err != nil {
		return err
	}
	defer s.Close()
	cursors := make([]string, system.StoredStreams)
	for n := range system.StoredPerStream {
		for i := range system.StoredStreams {
			var told func(string)
			if n == system.StoredCursor {
				told = func(id string) { cursors[i] = id }
			}
			if err := s.PublishTold(ctx, i, load.Varied(n, i), told); err != nil {
				return err
			}
		}
	}
	if err := s.Flush(ctx); err != nil {
		return err
	}
	return storm(ctx, f, system.OfNchan, s.PIDs(), s.Target(), system.StoredCursor, func(i int) string { return cursors[i] })
}

// storm has all clients connect at once, each after message number last, and waits until each
// has received its missing messages.
func storm(ctx context.Context, f *measure.Figures, prefix string, pids []int, t load.Target, last int, cursor func(i int) string) error {
	missing := int64(system.StoredStreams * (system.StoredPerStream - 1 - last))
	before, err := measure.CPU(pids)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, stormLimit)
	defer cancel()
	start := time.Now()
	l, err := load.New(limited, load.Crowd{
		Clients: system.StoredStreams, Target: t, AtOnce: true,
		Stream: func(i int) int { return i },
		After:  func(i int) (string, int) { return cursor(i), last + 1 },
	})
	if err != nil {
		return err
	}
	defer func() { _ = l.End() }()
	err = l.WaitFor(limited, missing)
	took := time.Since(start)
	switch {
	case err == nil:
		err = l.Settled(ctx) // no further message may come
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		f.Remark("%sstorm: given up after %s, with %d of %d events delivered.", prefix, stormLimit, l.Delivered.Load(), missing)
		err, took = nil, stormLimit
	}
	if err != nil {
		return fmt.Errorf("%sstorm: %w", prefix, err)
	}
	after, err := measure.CPU(pids)
	if err != nil {
		return err
	}
	f.Add(prefix+"seconds", took.Seconds())
	f.Add(prefix+"cpu_seconds", (after - before).Seconds())
	if n := l.Returned.Load(); n > 0 {
		f.Remark("%sstorm: %d connections were ended by the server and came back.", prefix, n)
	}
	return nil
}
