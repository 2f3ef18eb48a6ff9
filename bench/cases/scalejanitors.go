package cases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
	"rejoin/services/janitor/lease"
	"rejoin/shared/backend"
	"rejoin/shared/event"
	"rejoin/shared/session"
)

const (
	sharedSessions = 100_000
	// sharedRounds is how many events each session has.
	sharedRounds = 40
	// takeOver is how often a reader of the log reads it in the time that a take-over may take
	// besides the lease.
	takeOver = 1.5
)

// scaleJanitors measures the memory of each of two janitors as a share of that of a single one, with
// 100,000 sessions and 4,000,000 events; and how long one takes to take over the partitions of the
// other when that is killed, beside a plain reader of the same headers.
func scaleJanitors(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	log, err := sharedLog(ctx, p, 1, sharedRounds)
	if err != nil {
		return f, err
	}
	defer log.Close()
	var taken [2]ledgerTaken
	janitors := make([]*system.Program, len(taken))
	defer func() {
		for _, j := range janitors {
			if j != nil {
				j.Stop()
			}
		}
	}()
	measureAll := func(started int) error {
		for i := range started {
			if err := holds(ctx, janitors[i], load.Partitions/started, time.Second); err != nil {
				return err
			}
		}
		for i := range started {
			if err := taken[i].measure(ctx, janitors[i]); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range janitors {
		if janitors[i], err = system.StartJanitor(ctx, p, log.URL); err != nil {
			return f, err
		}
		if err := measureAll(i + 1); err != nil {
			return f, err
		}
		if i == 0 {
			f.Add("alone_resident_mb", float64(taken[0].resident)/1e6)
			f.Add("alone_heap_mb", taken[0].heap/1e6)
		}
	}
	f.Add("first_resident_mb", float64(taken[0].resident)/1e6)
	f.Add("second_resident_mb", float64(taken[1].resident)/1e6)
	f.Add("each_resident_mb", max(f.Value("first_resident_mb"), f.Value("second_resident_mb")))
	f.Add("each_heap_mb", max(taken[0].heap, taken[1].heap)/1e6)
	f.Ratio("resident_vs_alone", "each_resident_mb", "alone_resident_mb")
	f.Ratio("heap_vs_alone", "each_heap_mb", "alone_heap_mb")
	if err := measure.Pause(ctx, forgotten); err != nil {
		return f, err
	}
	start := time.Now()
	if err := janitors[0].Kill(); err != nil {
		return f, err
	}
	if err := holds(ctx, janitors[1], load.Partitions, 100*time.Millisecond); err != nil {
		return f, err
	}
	f.Add("takeover_s", time.Since(start).Seconds())
	if err := addDrains(ctx, &f, log.Conn, drained{headersOnly: true}); err != nil {
		return f, err
	}
	f.Add("takeover_bound_s", lease.Default.Seconds()+takeOver*f.Value("drain16_seconds")/2)
	f.Ratio("takeover_vs_bound", "takeover_s", "takeover_bound_s")
	return f, nil
}

// sharedLog starts a log with the sessions, each with some streams, and some events in each stream.
func sharedLog(ctx context.Context, p *system.Programs, streams, events int) (*system.BareLog, error) {
	log, err := system.StartBareLog(ctx, p, system.BareNATS, "")
	if err != nil {
		return nil, err
	}
	if err := fillSessions(ctx, p, log, streams, events); err != nil {
		log.Close()
		return nil, err
	}
	return log, nil
}

func fillSessions(ctx context.Context, p *system.Programs, log *system.BareLog, streams, events int) error {
	j, err := system.StartJanitor(ctx, p, log.URL) // it begins the generations
	if err != nil {
		return err
	}
	defer j.Stop()
	b, err := backend.Open(ctx, backend.Config{NATSURL: log.URL}, "bench", slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer b.Close()
	var (
		wg       sync.WaitGroup
		next     atomic.Int64
		subjects = make([]string, sharedSessions*streams)
		errs     = make([]error, 64)
	)
	for w := range errs {
		wg.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= sharedSessions {
					return
				}
				name := sharedSession(i)
				var rec session.Record
				if rec, errs[w] = b.Sessions.Create(ctx, session.New(name, "", nil, time.Now())); errs[w] == nil {
					for j := range streams {
						subjects[i*streams+j] = event.Subject{Partition: b.Log.Partition(name), Session: name, Life: rec.Life, Stream: strconv.Itoa(j)}.String()
					}
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for n := range events {
		for i, subject := range subjects {
			if _, err := log.Store(ctx, &nats.Msg{Subject: subject, Data: load.Varied(n, i)}); err != nil {
				return err
			}
		}
	}
	return log.Flush(ctx)
}

func sharedSession(i int) string { return "shared-" + strconv.Itoa(i) }

// holds waits until a janitor acts for so many partitions, and its ledgers have all of them. It
// requests the janitor's metrics, which takes memory, every so often.
func holds(ctx context.Context, s *system.Program, n int, every time.Duration) error {
	for {
		held, err := s.Metric(ctx, "rejoin_janitor_partitions_held")
		if err != nil {
			return err
		}
		lag, err := s.Metric(ctx, "rejoin_janitor_lag_events")
		if err != nil {
			return err
		}
		if int(held) == n && lag == 0 {
			return nil
		}
		if err := measure.Pause(ctx, every); err != nil {
			return fmt.Errorf("a janitor holds %v partitions, of which it has %v entries to read: %w", held, lag, err)
		}
	}
}
