package follow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"rejoin/services/janitor/lease"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/cluster"
)

// generationRetry is how long a failed attempt to begin a generation is waited after.
const generationRetry = 50 * time.Millisecond

// generationTimeout bounds one attempt.
const generationTimeout = 2 * time.Second

// Generations begins the generations of the partitions that this janitor acts for.
type Generations struct {
	log    *eventlog.Log
	leases *lease.Leases
	roster *Roster
	begun  prometheus.Counter
	logger *slog.Logger

	wake chan struct{}
	done map[int]<-chan struct{} // the end of the term in which a partition of a server that is alone got its own
}

// NewGenerations returns one that begins none before Run.
func NewGenerations(log *eventlog.Log, leases *lease.Leases, roster *Roster, begun prometheus.Counter, logger *slog.Logger) *Generations {
	return &Generations{
		log: log, leases: leases, roster: roster, begun: begun, logger: logger,
		wake: make(chan struct{}, 1), done: map[int]<-chan struct{}{},
	}
}

// Wake says that a term has begun.
func (g *Generations) Wake() { Ring(g.wake) }

// Run makes sure, from the beginning of a term, that the partition has a
// generation for the servers that hold it. Publishing and tails wait up to 3 s for it after
// a start of the server that they are connected to, so it waits for nothing itself. A term
// ends with its connection, and so for a server that is alone it need be done only once.
func (g *Generations) Run(ctx context.Context) {
	complained := false
	for {
		looks, seen := g.roster.All()
		err := g.beginAll(looks)
		if err != nil && !complained {
			g.logger.Warn("cannot begin a generation", "error", err)
		}
		complained = err != nil
		var again <-chan time.Time
		if err != nil {
			again = time.After(generationRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		case <-seen:
		case <-again:
		}
	}
}

// beginAll does it for all partitions that this janitor acts for at once, and returns the first
// error. looks is what was seen of a cluster.
func (g *Generations) beginAll(looks []cluster.Servers) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		begun int
		first error
	)
	for p := range g.log.Settings().Partitions {
		wg.Go(func() {
			ok := false
			_, err := g.leases.Do(p, func(term context.Context) (err error) {
				mu.Lock()
				done := g.done[p] == term.Done() && !g.log.Clustered()
				mu.Unlock()
				if err := lease.StillActing(term); err != nil || done {
					return err
				}
				ctx, cancel := context.WithTimeout(term, generationTimeout)
				defer cancel()
				if ok, err = g.log.BeginGeneration(ctx, p, looks...); err == nil {
					mu.Lock()
					g.done[p] = term.Done()
					mu.Unlock()
				}
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			if ok {
				begun++
			}
			if err != nil && !errors.Is(err, lease.ErrNotActing) && first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	if begun > 0 {
		g.begun.Add(float64(begun))
		g.logger.Info("the server was restarted, or most of those that hold a partition; generations begun", "partitions", begun)
	}
	return first
}
