package cases

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
	"rejoin/shared/event"
)

const (
	removedSessions = 1000
	removedEvents   = removedSessions * system.StoredPerStream
	// removalGrace is how long the closed sessions stay, and publishing is measured.
	removalGrace  = 25 * time.Second
	removalRate   = 2000 // events/s
	removalBefore = 10 * time.Second
	removalWithin = 4 * time.Minute
)

func oneStreamSession(i int) string { return "alone" + strconv.Itoa(i) }

// oneLife is the life of the sessions of one stream.
const oneLife = "bench"

func oneStreamSubject(session string) string {
	return event.Subject{Partition: event.Partition(session, load.Partitions), Session: session, Life: oneLife, Stream: "main"}.String()
}

// openOneStream opens a session of one stream, as ingest would.
func openOneStream(ctx context.Context, r *system.Rejoin, session string) error {
	s := event.Subject{Partition: event.Partition(session, load.Partitions), Session: session, Kind: event.Open}
	_, err := r.Store(ctx, &nats.Msg{Subject: s.String(), Data: []byte(`{"life":"` + oneLife + `"}`)})
	return err
}

// removal measures the cost of the removal of closed sessions for others: 1,000,000
// events in 10,000 sessions of a stream each, interleaved; 1,000 of the sessions are
// closed, and their events removed, while another client publishes 2,000 events/s to
// others.
func removal(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	r, err := system.StartRejoin(ctx, p, "", "--closed-grace="+removalGrace.String())
	if err != nil {
		return f, err
	}
	defer r.Close()
	for i := range system.StoredStreams {
		if err := openOneStream(ctx, r, oneStreamSession(i)); err != nil {
			return f, err
		}
	}
	for n := range system.StoredPerStream {
		for i := range system.StoredStreams {
			if _, err := r.Store(ctx, &nats.Msg{Subject: oneStreamSubject(oneStreamSession(i)), Data: load.Varied(n, i)}); err != nil {
				return f, err
			}
		}
	}
	if err := r.Flush(ctx); err != nil {
		return f, err
	}
	if err := measure.Quiet(ctx, r.PIDs()); err != nil {
		return f, err
	}
	if err := closeSessions(ctx, r); err != nil {
		return f, err
	}
	pace := load.StartPacer(ctx, r.LogPublisher, removalRate, func(n int) string { return oneStreamSubject("live" + strconv.Itoa(n%1000)) })
	defer func() { _ = pace.Stop() }() // asked for below
	if err := measure.Pause(ctx, removalBefore); err != nil {
		return f, err
	}
	before := pace.Take()
	if err := removed(ctx, r, 1); err != nil {
		return f, err
	}
	pace.Take()
	start := time.Now()
	if err := removed(ctx, r, removedEvents); err != nil {
		return f, err
	}
	f.Add("seconds", time.Since(start).Seconds())
	during := pace.Take()
	if err := pace.Stop(); err != nil {
		return f, err
	}
	f.AddHistogram("before_", before)
	f.AddHistogram("during_", during)
	f.Ratio("p99_vs_before", "during_p99_ms", "before_p99_ms")
	return f, nil
}

// closeSessions closes every tenth of the sessions.
func closeSessions(ctx context.Context, r *system.Rejoin) error {
	errs := make([]error, removedSessions)
	var all sync.WaitGroup
	places := make(chan struct{}, 250)
	for i := range removedSessions {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			req, err := http.NewRequestWithContext(ctx, http.MethodDelete, r.Edge+"/v1/sessions/"+oneStreamSession(i*system.StoredStreams/removedSessions), http.NoBody)
			if err != nil {
				errs[i] = err
				return
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				errs[i] = err
				return
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusNoContent {
				errs[i] = fmt.Errorf("closing a session: %s", resp.Status)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// removed waits until the janitor has deleted so many entries, which it does some time after
// it has announced that.
func removed(ctx context.Context, r *system.Rejoin, entries float64) error {
	ctx, cancel := context.WithTimeout(ctx, removalWithin)
	defer cancel()
	for {
		n, err := r.Metric(ctx, "rejoin_janitor_deleted_entries_total")
		if err != nil {
			return err
		}
		if n >= entries {
			return nil
		}
		if err := measure.Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%.0f entries are removed, want %.0f: %w", n, entries, err)
		}
	}
}
