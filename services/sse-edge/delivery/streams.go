// Package delivery sends streams to clients. A [Stream] has a reader's cursor and a connection; one
// of a few workers moves its cursor and writes what follows, without ever waiting for a socket
// or for the log: a goroutine does that, and gives the stream back. A [Format] makes the bytes.
//
//	connection ─▶ Stream.Hand ─▶ goroutine: first read ─▶ worker ──┬─▶ writev
//	window ─ a chain has changed ─▶ worker's queue ────────────────┘
//	worker ─▶ goroutine: read of the log, or flush of a full socket ─▶ worker
package delivery

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/inspect"
	"rejoin/shared/tracing"
)

// Config configures the event streams of an edge.
type Config struct {
	// Base ends all streams when it is done.
	Base context.Context //nolint:containedctx // of the edge
	// Admission has let the clients in, and is left when their streams end.
	Admission *admission.Admission
	Logger    *slog.Logger
	Metrics   prometheus.Registerer
	Traces    *tracing.Traces
	// MaxConnections is how many streams may be open; it is shown as a metric.
	MaxConnections int
	// Heartbeat, Retry, MaxAge, WriteTimeout and Drain are the flags of these names.
	Heartbeat, Retry, MaxAge, WriteTimeout, Drain time.Duration
	// Retention says how long events are retained now; not positive: for as long as there is
	// room.
	Retention func() time.Duration
}

// Streams are the event streams of an edge: workers that share them out, and what is counted
// and remembered of them.
type Streams struct {
	cfg     Config
	base    context.Context //nolint:containedctx // of all streams; ends when they must
	drain   chan struct{}   // closed when the edge begins to stop
	logger  *slog.Logger
	Metrics *Metrics
	traces  *tracing.Traces
	History *History

	workers []*worker
	next    atomic.Uint64 // counts the streams, to share them out
	numbers atomic.Uint64 // of those that have begun
}

// New returns the streams of an edge: none, until Run and the first client.
func New(cfg Config) *Streams {
	s := &Streams{
		cfg: cfg, base: cfg.Base, drain: make(chan struct{}), logger: cfg.Logger, traces: cfg.Traces, History: newHistory(),
		Metrics: NewMetrics(cfg.Metrics, cfg.MaxConnections),
	}
	for range runtime.GOMAXPROCS(0) {
		s.workers = append(s.workers, newWorker(s))
	}
	return s
}

// Run runs the workers until stop is closed.
func (s *Streams) Run(stop <-chan struct{}) {
	var workers sync.WaitGroup
	for _, w := range s.workers {
		workers.Go(func() { w.run(stop) })
	}
	workers.Wait()
}

// BeginDrain has each stream end at a moment of its own within the time of a drain.
func (s *Streams) BeginDrain() { close(s.drain) }

// Draining is closed when the edge begins to stop.
func (s *Streams) Draining() <-chan struct{} { return s.drain }

func (s *Streams) nextWorker() *worker {
	return s.workers[s.next.Add(1)%uint64(len(s.workers))]
}

// Reconnects logs why a subscriber is sent away with a reconnection time.
func (s *Streams) Reconnects(ctx context.Context, at window.Place, why error) {
	s.logger.WarnContext(ctx, "a subscriber is sent away with a retry", "session", at.Session, "stream", at.Stream, "error", why)
}

// CountTold counts and notes what a client received of a step: its gaps, and n of its events.
func (s *Streams) CountTold(r *cursor.Reader, st cursor.Step, n int, by Request) {
	n = min(n, len(st.Items))
	s.Metrics.Sent.Add(float64(n))
	for _, g := range st.Gaps {
		s.Metrics.Gaps.WithLabelValues(string(g.Reason)).Inc()
		s.History.noteGap(r, st, g, by)
		s.logger.DebugContext(by.Ctx, "a subscriber receives a gap", "session", r.Place.Session, "stream", g.Stream,
			"reason", string(g.Reason), "certain", g.Certain, "requested", g.Requested)
	}
	if !s.traces.On() {
		return
	}
	for i := range n {
		if it := &st.Items[i]; it.Trail != nil {
			s.deliver(r, it, by)
		}
	}
}

// Connections returns the newest streams of a session, up to a limit, and how many there are.
func (s *Streams) Connections(ctx context.Context, session string, limit int) (newest []inspect.Connection, total int) {
	answers := make(chan found, len(s.workers))
	for _, w := range s.workers {
		w.send(post{run: func() { answers <- w.find(session, limit) }})
	}
	for range s.workers {
		select {
		case f := <-answers:
			newest, total = append(newest, f.newest...), total+f.total
		case <-ctx.Done():
			return nil, 0
		}
	}
	slices.SortFunc(newest, func(a, b inspect.Connection) int { return cmp.Compare(b.Number, a.Number) })
	return newest[:min(limit, len(newest))], total
}

// Request is a request that was let in.
type Request struct {
	admission.Visit
	number uint64          // of the connection that it became; 0 for none
	Ctx    context.Context //nolint:containedctx // has the request's span, and does not end
	Begun  time.Time
}
