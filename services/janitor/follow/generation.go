package follow

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"rejoin/services/janitor/lease"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/eventlog"
)

// generationRetry is how long a failed attempt to begin a generation is waited after.
const generationRetry = 50 * time.Millisecond

// generationTimeout bounds one attempt.
const generationTimeout = 2 * time.Second

// Generations begins them.
type Generations struct {
	Log    *eventlog.Log
	Roster *Roster
	Begun  prometheus.Counter
	Logger *slog.Logger
}

// Run makes sure, from the beginning of a term, that every partition has a
// generation for the servers that hold it. Publishing and tails wait up to 3 s for it after
// a start of the server that they are connected to, so it waits for nothing itself. A term
// ends with its connection, and so for a server that is alone it need be done only once.
func (g *Generations) Run(ctx context.Context) {
	complained := false
	for lease.StillActing(ctx) == nil {
		looks, seen := g.Roster.All()
		err := g.beginAll(ctx, looks)
		if err != nil && !complained && ctx.Err() == nil {
			g.Logger.Warn("cannot begin a generation", "error", err)
		}
		complained = err != nil
		var again <-chan time.Time
		switch {
		case err != nil:
			again = time.After(generationRetry)
		case !g.Log.Clustered():
			return
		}
		select {
		case <-ctx.Done():
		case <-seen:
		case <-again:
		}
	}
}

// beginAll does it for all partitions at once and returns the first error. looks is what
// was seen of a cluster.
func (g *Generations) beginAll(ctx context.Context, looks []eventlog.Servers) error {
	ctx, cancel := context.WithTimeout(ctx, generationTimeout)
	defer cancel()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		begun int
		first error
	)
	for p := range g.Log.Settings().Partitions {
		wg.Go(func() {
			ok, err := g.Log.BeginGeneration(ctx, p, looks...)
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
		g.Begun.Add(float64(begun))
		g.Logger.Info("the server was restarted, or most of those that hold a partition; generations begun", "partitions", begun)
	}
	return first
}
