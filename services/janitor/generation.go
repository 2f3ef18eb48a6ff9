package janitor

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"rejoin/shared/eventlog"
)

// generationRetry is how long a failed attempt to begin a generation is waited after.
const generationRetry = 50 * time.Millisecond

// generationTimeout bounds one attempt.
const generationTimeout = 2 * time.Second

// beginGenerations makes sure, at the beginning of a term, that every partition has a
// generation for the server that is connected. Publishing and tails wait up to 3 s for
// it after every start of the server, so it waits for nothing itself. A term ends with
// its connection.
func beginGenerations(ctx context.Context, log *eventlog.Log, logger *slog.Logger) {
	for stillActing(ctx) == nil {
		err := beginAll(ctx, log, logger)
		if err == nil || ctx.Err() != nil {
			return
		}
		logger.Warn("cannot begin a generation", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(generationRetry):
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
