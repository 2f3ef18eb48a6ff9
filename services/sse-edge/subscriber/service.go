// Package subscriber is the part of the edge that all forms of its streams share, those of /v1
// and of MCP: it lets subscribers in, opens the readers of their requests, answers polls, and
// hands connections over to the workers.
package subscriber

import (
	"context"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// Service serves subscribers. It is safe for concurrent use.
type Service struct {
	Parts    *cursor.Partitions
	Streams  *delivery.Streams
	Admitted *admission.Admission

	cfg      Config
	base     context.Context //nolint:containedctx // of all streams; ends when they must
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
	m := &metrics{
		pages: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rejoin", Subsystem: "edge", Name: "pages_total", Help: "Pages answered to polls."}),
		resumes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "rejoin", Subsystem: "edge", Name: "resumes_total", Help: "Subscribers that came with a cursor, by where it pointed: window, log.",
		}, []string{"from"}),
	}
	// Every value is there from the start: a rate over a series that appears with
	// its first event misses that event.
	for _, from := range []string{"window", "log"} {
		m.resumes.WithLabelValues(from)
	}
	reg.MustRegister(m.pages, m.resumes)
	return m
}

// New returns a service, whose streams end with base. The caller runs its partitions and streams.
func New(base context.Context, cfg Config, b *backend.Backend, env daemon.Env) *Service {
	s := &Service{
		cfg: cfg, base: base, sessions: b.Sessions, memory: env.Memory,
		connects: web.NewLimiter[netip.Addr](cfg.MaxAddressConnectRate), metrics: newMetrics(env.Metrics),
	}
	s.Admitted = admission.New(cfg.MaxConnections, cfg.MaxSessionConnections, cfg.MaxAddressConnections, func(name string) bool {
		_, ok := b.Sessions.Session(name)
		return ok
	})
	s.Streams = delivery.New(delivery.Config{
		Base: base, Admission: s.Admitted, Logger: env.Log, Metrics: env.Metrics, Traces: env.Traces, MaxConnections: cfg.MaxConnections,
		Heartbeat: cfg.Heartbeat, Retry: cfg.Retry, MaxAge: cfg.MaxAge, RequestLimit: cfg.ProxyRequestLimit, WriteTimeout: cfg.WriteTimeout, Drain: cfg.Drain,
		Retention: func() time.Duration { return b.Log.Settings().MaxAge },
	})
	s.Parts = cursor.New(cursor.Config{
		Base: base, Log: b.Log, Logger: env.Log, Metrics: env.Metrics, Traced: env.Traces.On(),
		WindowBytes: int(cfg.WindowBytes), Backfill: int(cfg.WindowBackfill), Linger: time.Duration(cfg.PartitionLinger), LogReads: cfg.LogReads, Patience: cfg.LedgerPatience,
	})
	return s
}
