package bridge

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/resultcache"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/logrepeat"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
)

// host is what all parts of a bridge share: the log, what they report to, their limits, and how long
// they run. It is safe for concurrent use.
type host struct {
	cfg     config.Config
	name    string // of the bridge
	backend *backend.Backend
	log     *slog.Logger
	metrics *metrics
	bodies  bool // the debug lines about publishing show messages

	cache *resultcache.Cache // nil without --cache-bytes

	limits *session.Limits
	// callLimits are those of calls without sessions: a closed one counts until its name is free
	// again, and clients with sessions need room, too.
	callLimits *session.Limits

	memory *quota.Pool // bytes of what clients have sent, until it is served
	open   slots       // calls of the upstream

	times times

	// life is the context of all work, from start on. Its cause is [upstream.ErrStopping].
	life    context.Context //nolint:containedctx // of all work
	endLife context.CancelCauseFunc

	traces   *tracing.Traces
	troubles *logrepeat.Log // why the MCP server does not serve requests

	mu       sync.Mutex
	stopping bool
	work     sync.WaitGroup // grows only until stopping
}

// times are how long a bridge waits. They are constant, but for tests.
type times struct {
	// doubt is how long the log surely knows the key of an attempt: less than its
	// duplicate window of 2 min.
	doubt time.Duration
	// unused is how long a session is kept that its client does not use, when others want
	// its process. Clients list the tools as soon as they are ready.
	unused time.Duration
	// answer is how long a request without a session may take to be answered without the log. It
	// is lost with the bridge until then.
	answer time.Duration
	// gone is how long a bridge is away before the listeners of its tasks are told. It is asked for
	// three times meanwhile.
	gone time.Duration
	// alive is how long another bridge has to answer.
	alive time.Duration
	// after is [time.After]: the pauses before the upstream, tasks and other bridges are asked again.
	after func(time.Duration) <-chan time.Time
}

// answerWithin is the usual times.answer.
const answerWithin = 250 * time.Millisecond

// newHost registers the metrics.
func newHost(cfg config.Config, name string, b *backend.Backend, env daemon.Env) *host {
	m := newMetrics(env.Metrics)
	h := &host{
		cfg: cfg, name: name, backend: b, log: env.Log, metrics: m, bodies: env.LogBodies,
		limits: session.NewLimits(cfg.Sessions, b.Sessions.Usage), callLimits: session.NewLimits(cfg.Sessions.Half(), b.Sessions.Usage),
		memory: env.Memory, open: newSlots(cfg.MaxCalls, m.calls),
		times: times{
			doubt: 90 * time.Second, unused: time.Minute, answer: answerWithin, gone: 30 * time.Second, alive: time.Second,
			after: time.After,
		},
		traces: env.Traces, troubles: logrepeat.New(env.Log, slog.LevelWarn, nil),
	}
	if cfg.CacheBytes > 0 {
		h.cache = resultcache.New(int(cfg.CacheBytes), time.Now)
	}
	return h
}

// start begins the life of all work, which ctx does not end.
func (h *host) start(ctx context.Context) {
	h.life, h.endLife = context.WithCancelCause(context.WithoutCancel(ctx))
}

// run runs work, unless the service stops.
func (h *host) run(work func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping {
		return false
	}
	h.work.Go(work)
	return true
}

// stop ends all work with a cause, and waits for it.
func (h *host) stop(cause error) {
	h.mu.Lock()
	h.stopping = true
	h.mu.Unlock()
	h.endLife(cause)
	h.work.Wait()
}

// maxBytes is the size of the largest message that the log takes.
func (h *host) maxBytes() int { return h.backend.Log.Settings().MaxMessageBytes }
