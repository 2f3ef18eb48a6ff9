package janitor

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
)

// generationRetry is how long a failed attempt to begin a generation is waited after.
const generationRetry = 50 * time.Millisecond

// generationTimeout bounds one attempt.
const generationTimeout = 2 * time.Second

// beginGenerations makes sure, until ctx ends, that every partition has a
// generation for the server that is connected. Publishing and tails wait up to 3 s
// for it after every start of the server, so it waits for nothing itself.
func beginGenerations(ctx context.Context, nc *nats.Conn, log *eventlog.Log, logger *slog.Logger) {
	connected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(connected)
	for {
		var retry <-chan time.Time
		if nc.IsConnected() {
			if err := beginAll(ctx, log, logger); err != nil {
				if ctx.Err() == nil {
					logger.Warn("cannot begin a generation", "error", err)
				}
				retry = time.After(generationRetry)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-connected:
		case <-retry:
		}
	}
}

// beginAll does it for all partitions at once and returns the first error.
func beginAll(ctx context.Context, log *eventlog.Log, logger *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, generationTimeout)
	defer cancel()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		begun int
		first error
	)
	for p := range log.Settings().Partitions {
		wg.Go(func() {
			ok, err := log.BeginGeneration(ctx, p)
			mu.Lock()
			defer mu.Unlock()
			if ok {
				begun++
			}
			if err != nil && first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	if begun > 0 {
		logger.Info("the server was started anew; generations begun", "partitions", begun)
	}
	return first
}
