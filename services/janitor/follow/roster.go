package follow

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/cluster"
)

// rosterPause is the time between two looks at the servers of a cluster, which take 300 ms
// when all answer: looks can tell that servers restart one after the other, since
// each is down for a second. A server that is alone is looked at as often, for a restored backup.
const rosterPause = 700 * time.Millisecond

// rosterGap is how far apart two looks may be; after a longer pause the servers may have restarted unseen
// between them. To find another server takes less.
const rosterGap = 3 * time.Second

// rosterRefused is the pause after a look that NATS refused to the user: each one is logged.
const rosterRefused = time.Minute

// MaxRoster is how many looks that differ are kept.
const MaxRoster = 64

// Roster keeps this janitor's looks at the servers of a cluster, whether or not it acts:
// while none does, servers may restart one after the other.
//
// Every janitor looks once a second, acting or not: none may act while servers are updated one
// after the other (docs/adr/0015).
type Roster struct {
	log    *eventlog.Log
	logger *slog.Logger

	mu    sync.Mutex
	looks []cluster.Servers // oldest first, without repetitions; an empty one for a gap
	Last  time.Time         // when the newest look was
	seen  chan struct{}     // closed and replaced with every look
}

// NewRoster returns an empty roster, until Run.
func NewRoster(log *eventlog.Log, logger *slog.Logger) *Roster {
	return &Roster{log: log, logger: logger, seen: make(chan struct{})}
}

// Run looks every second, and after every connection at once, until ctx ends.
func (r *Roster) Run(ctx context.Context) {
	nc := r.log.Conn()
	connected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(connected)
	complained := false
	for {
		pause := rosterPause
		if nc.IsConnected() && r.log.Clustered() {
			err := r.Look(ctx)
			if err != nil && errors.Is(nc.LastError(), nats.ErrPermissionViolation) {
				pause = rosterRefused
			}
			if err != nil && !complained && ctx.Err() == nil {
				r.logger.Warn("cannot look at the servers of the cluster, so a loss of all of them together would not be noticed", "error", err)
			}
			complained = err != nil
		}
		select {
		case <-ctx.Done():
			return
		case <-connected:
		case <-time.After(pause):
		}
	}
}

// Look asks which servers hold the partitions.
func (r *Roster) Look(ctx context.Context) error {
	known := cluster.Servers{}
	looks, _ := r.All()
	for _, there := range looks {
		maps.Copy(known, there)
	}
	there, err := r.log.Servers(ctx, known)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.Last) > rosterGap {
		r.Note(nil)
	}
	r.Note(there)
	r.Last = now
	close(r.seen)
	r.seen = make(chan struct{})
	return nil
}

// Note keeps a look. The caller holds the lock.
func (r *Roster) Note(there cluster.Servers) {
	if n := len(r.looks); n == 0 || !maps.Equal(r.looks[n-1], there) {
		r.looks = append(slices.Clone(r.looks[max(n-MaxRoster+1, 0):]), there)
	}
}

// All returns the looks, which must not be changed, and a channel that is closed with the
// next look.
func (r *Roster) All() ([]cluster.Servers, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.looks, r.seen
}
