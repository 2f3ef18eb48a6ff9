package follow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"rejoin/services/janitor/lease"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/cluster"
)

// generationRetry is the pause after a failed attempt to begin a generation.
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
	done map[int]beginning // for a server that is alone
}

// beginning names the JetStream stream of a partition for which a generation has begun, and the term.
type beginning struct {
	term    <-chan struct{} // its end
	created time.Time
}

// NewGenerations returns one that begins none before Run.
func NewGenerations(log *eventlog.Log, leases *lease.Leases, roster *Roster, begun prometheus.Counter, logger *slog.Logger) *Generations {
	return &Generations{
		log: log, leases: leases, roster: roster, begun: begun, logger: logger,
		wake: make(chan struct{}, 1), done: map[int]beginning{},
	}
}

// Wake wakes Run, since a term has begun.
func (g *Generations) Wake() { Ring(g.wake) }

// Run makes sure, from the beginning of a term, that the partition has a
// generation for the servers that hold it. Publishing and tails wait up to 3 s for it after
// a start of the server that they are connected to, so Run waits for nothing itself. A term
// ends with its connection, and so for a server that is alone a generation is begun only once, unless a backup is
// restored meanwhile.
func (g *Generations) Run(ctx context.Context) {
	complained := false
	for {
		looks, seen := g.roster.All()
		err := g.beginAll(looks)
		if err != nil && !complained {
			g.logger.Warn("cannot begin a generation", "error", err)
		}
		complained = err != nil
		again := rosterPause
		if err != nil {
			again = generationRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		case <-seen:
		case <-time.After(again):
		}
	}
}

// beginAll begins the generations of all partitions that this janitor acts for at once, and returns the first
// error. looks are those of the roster at a cluster.
func (g *Generations) beginAll(looks []cluster.Servers) error {
	var work errgroup.Group
	var mu sync.Mutex
	var count atomic.Int64
	for p := range g.log.Settings().Partitions {
		work.Go(func() error {
			_, err := g.leases.Do(p, func(term context.Context) error {
				state, _ := g.log.State(p)
				now := beginning{term.Done(), state.Created}
				mu.Lock()
				done := g.done[p] == now && !g.log.Clustered()
				mu.Unlock()
				if err := lease.StillActing(term); err != nil || done {
					return err
				}
				ctx, cancel := context.WithTimeout(term, generationTimeout)
				defer cancel()
				ok, err := g.log.BeginGeneration(ctx, p, looks...)
				if ok {
					count.Add(1)
				}
				if err == nil {
					mu.Lock()
					g.done[p] = now
					mu.Unlock()
				}
				return err
			})
			if errors.Is(err, lease.ErrNotActing) {
				return nil
			}
			return err
		})
	}
	first := work.Wait()
	if n := count.Load(); n > 0 {
		g.begun.Add(float64(n))
		g.logger.Info("the server was restarted, or most of those that hold a partition, or a backup was restored; generations begun", "partitions", n)
	}
	return first
}
