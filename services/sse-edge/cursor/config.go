package cursor

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/eventlog"
	"rejoin/shared/quota"
)

// Config configures the partitions of an edge.
type Config struct {
	// Base ends the tails and all reads of the log, at the latest.
	Base    context.Context //nolint:containedctx // of the edge
	Log     *eventlog.Log
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Traced says that there are traces.
	Traced bool
	// WindowBytes bounds the memory of all windows together.
	WindowBytes int
	// Backfill is how many bytes of the newest events the windows read when they
	// begin, all together; 0 means as much as fits, -1 none.
	Backfill int
	// Linger is how long a partition that has no reader any more is followed; -1 follows all
	// partitions from the start, always.
	Linger time.Duration
	// LogReads is how many reads below the windows may run at a time.
	LogReads int
	// Patience is how long a reader waits for the janitor to check a partition for damage.
	Patience time.Duration
}

// metrics are the counters of an edge's partitions.
type metrics struct {
	received, missed, rollbacks, logReads, logScans prometheus.Counter
	skipped                                         *prometheus.CounterVec
}

// clientKey is the key of a context's client.
type clientKey struct{}

// WithClient returns a context for the requests of a client, which count in the client's share of the
// requests that are answered with whole events, and of scans. Without a client there is no share.
func WithClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// clientOf returns the client of a context; empty without one.
func clientOf(ctx context.Context) string {
	client, _ := ctx.Value(clientKey{}).(string)
	return client
}

// takeOne waits for a slot of a pool for the client of a context. The caller has to call give.
func takeOne(ctx context.Context, from *quota.Pool) (give func(), err error) {
	client := clientOf(ctx)
	if err := from.Wait(ctx, client, 1); err != nil {
		return nil, err
	}
	return func() { from.Give(client, 1) }, nil
}
