// Package subscriber is the part of the edge that all forms of its streams share, those of /v1
// and of MCP: it lets subscribers in, opens the readers of their requests, answers polls, and
// hands connections over to the workers.
package subscriber

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/metric"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// Service serves subscribers. It is safe for concurrent use.
type Service struct {
	Parts       *cursor.Partitions
	Connections *delivery.Connections
	Admission   *admission.Admission
	// Refusals logs the refused requests of clients. The application closes it.
	Refusals *web.Refusals

	// Config is not to be changed.
	Config Config
	// Base is that of all streams: it ends when they must.
	Base context.Context //nolint:containedctx // see above

	end      context.CancelFunc
	sessions *session.Registry
	memory   *quota.Pool
	connects *web.Limiter[netip.Addr] // by client address; nil without a limit
	metrics  *metrics
}

// metrics are those of requests; none is labelled by session, stream or path.
type metrics struct {
	pages   prometheus.Counter
	resumes *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	return &metrics{
		pages:   metric.Counter(reg, "rejoin_edge_pages_total", "Pages answered to polls."),
		resumes: metric.CounterOf(reg, "rejoin_edge_resumes_total", "Subscribers that came with a cursor, by where it pointed: window, log.", "from", "window", "log"),
	}
}

// New returns a service, which has to be closed.
func New(cfg Config, b *backend.Backend, env daemon.Env) *Service {
	base, end := context.WithCancel(context.Background())
	s := &Service{
		Config: cfg, Base: base, end: end, sessions: b.Sessions, memory: env.Memory,
		Refusals: web.NewRefusals(env.Log, cfg.Clients), connects: web.NewLimiter[netip.Addr](cfg.MaxAddressConnectRate), metrics: newMetrics(env.Metrics),
	}
	s.Admission = admission.New(cfg.MaxConnections, cfg.MaxSessionConnections, cfg.MaxAddressConnections, func(name string) bool {
		_, ok := b.Sessions.Session(name)
		return ok
	})
	s.Connections = delivery.New(delivery.Config{
		Base: base, Admission: s.Admission, Logger: env.Log, Metrics: env.Metrics, Traces: env.Traces, Memory: env.Memory, MaxConnections: cfg.MaxConnections,
		Heartbeat: cfg.Heartbeat, Retry: cfg.Retry, MaxAge: cfg.MaxAge, RequestLimit: cfg.ProxyRequestLimit, WriteTimeout: cfg.WriteTimeout, Drain: cfg.Drain,
		SentAway:  s.SentAway,
		Retention: func() time.Duration { return b.Log.Settings().MaxAge },
	})
	s.Parts = cursor.New(cursor.Config{
		Base: base, Log: b.Log, Logger: env.Log, Metrics: env.Metrics, Traced: env.Traces.On(),
		WindowBytes: int(cfg.WindowBytes), Backfill: int(cfg.WindowBackfill), Linger: time.Duration(cfg.PartitionLinger), LogReads: cfg.LogReads, Patience: cfg.LedgerPatience,
	})
	return s
}

// SentAway logs or counts why a client is sent away with a reconnection time.
func (s *Service) SentAway(by delivery.Request, at window.Place, why error) {
	s.Refusals.Warn(by.Ctx, web.CodeUnavailable, by.Address, "a subscriber is sent away with a retry", why, "session", at.Session, "stream", at.Stream)
}

// Run follows partitions and moves cursors until ctx ends. Streams that are open then receive no more events.
func (s *Service) Run(ctx context.Context) {
	tailCtx, stopTails := context.WithCancel(context.WithoutCancel(ctx))
	var tails sync.WaitGroup
	tails.Go(func() { s.Parts.Run(tailCtx) })
	s.Connections.Run(ctx.Done())
	stopTails()
	tails.Wait()
}

// Drain admits no more clients, closes all streams within a time, and waits for them and for
// polls.
func (s *Service) Drain(within time.Duration) {
	s.Admission.Close()
	s.Connections.BeginDrain()
	// Each stream picks its own moment within the time. Those that are stuck in a
	// write to a client that does not read are cut off after it.
	cut := time.AfterFunc(within+s.Config.WriteTimeout, s.end)
	defer cut.Stop()
	s.Admission.Wait()
}

// Close ends all streams at once.
func (s *Service) Close() { s.end() }
