// Package host has the log, the limits, the metrics and the lifetime that all parts of a bridge share.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/pause"
	"rejoin/services/bridge/resultcache"
	"rejoin/services/bridge/retry"
	"rejoin/shared/backend"
	"rejoin/shared/clocks"
	"rejoin/shared/daemon"
	"rejoin/shared/logrepeat"
	"rejoin/shared/metric"
	"rejoin/shared/quota"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
)

// Host is shared by all parts of a bridge: the log, the logger and metrics, the limits, and the
// lifetime. It is safe for concurrent use.
type Host struct {
	Config  config.Config
	Name    string // of the bridge
	Backend *backend.Backend
	Logger  *slog.Logger
	Metrics *Metrics
	Bodies  bool // the debug lines about publishing show messages

	Cache *resultcache.Cache // nil without --cache-bytes

	Limits *session.Limits
	// CallLimits are those of calls without sessions: a closed one counts until its name is free
	// again, and clients with sessions need room, too.
	CallLimits *session.Limits

	Memory *quota.Pool // bytes of the clients' messages, until they are served
	// Answers are the bytes of Memory that answers of clients take besides their clients' shares, each
	// client's up to [AnswerBytes]; one answer may always be larger.
	Answers *quota.Pool
	// Open and Processes have a place for each call of the upstream, and for each process of it.
	Open, Processes *quota.Pool
	// Files are those of the program that clients may make it open: connections to the upstream, and the
	// files of each process.
	Files *quota.Pool
	// Reloads has one token for each stream that is read from the log to be continued. Each takes a page of
	// memory, and a take-over begins all at once.
	Reloads chan struct{}

	Times  Times
	Pauses pause.Watch // of the process

	// Confirm returns nil when the bridge's name is its own: always, but after a pause of the process. It is
	// set before the first call.
	Confirm func(context.Context) error

	// Life is the context of all work, from Start on. Its cause is [upstream.ErrStopping].
	Life    context.Context //nolint:containedctx // of all work
	endLife context.CancelCauseFunc

	traces   *tracing.Traces
	troubles *logrepeat.Log // why the MCP server does not serve requests
	// unreachable is set while the last line that was logged about the MCP server is that it cannot be reached.
	unreachable atomic.Bool
	reached     atomic.Int64 // how often a line was logged that it can be reached again

	mu       sync.Mutex
	stopping bool
	work     sync.WaitGroup // grows only until stopping
}

// Times are how long a bridge waits. They are constant, but for tests.
type Times struct {
	// Doubt is how long the log surely knows the key of an attempt: less than its
	// duplicate window of 2 min.
	Doubt time.Duration
	// Now reads the clocks by which Doubt passes, also while the machine sleeps.
	Now func() clocks.Instant
	// Unused is how long a session is kept that its client does not use, when others want
	// its process. Clients list the tools as soon as they are ready.
	Unused time.Duration
	// Answer is how long a request without a session may take to be answered without the log. Until
	// then the request is lost with the bridge.
	Answer time.Duration
	// Gone is how long a bridge is unavailable before the listeners of its tasks receive that these have failed. It is
	// asked three times meanwhile.
	Gone time.Duration
	// Alive is how long another bridge has to answer.
	Alive time.Duration
	// Finish is how long a bridge that stops continues the requests that edges wait for.
	Finish time.Duration
	// After is [time.After]: the pauses before the upstream, tasks and other bridges are asked again.
	After func(time.Duration) <-chan time.Time
}

// reloadsAtOnce is how many streams are read from the log at a time.
const reloadsAtOnce = 16

// AnswerBytes is how much of the memory a client's answers may take besides its share.
const AnswerBytes = 1 << 20

// AnswerWithin is the usual Times.Answer.
const AnswerWithin = 250 * time.Millisecond

// New registers the metrics.
func New(cfg config.Config, name string, b *backend.Backend, env daemon.Env) *Host {
	m := newMetrics(env.Metrics)
	h := &Host{
		Config: cfg, Name: name, Backend: b, Logger: env.Log, Metrics: m, Bodies: env.LogBodies,
		Limits: session.NewLimits(cfg.Sessions, b.Sessions.Usage), CallLimits: session.NewLimits(cfg.Sessions.Half(), b.Sessions.Usage),
		Memory: env.Memory, Answers: quota.NewPool(env.Memory.Capacity()), Open: quota.NewPool(int64(cfg.MaxCalls)), Processes: quota.NewPool(int64(cfg.MaxProcesses)), Files: env.Files, Reloads: make(chan struct{}, reloadsAtOnce),
		Times: Times{
			Doubt: 90 * time.Second, Now: clocks.New(time.Now), Unused: time.Minute, Answer: AnswerWithin, Gone: 30 * time.Second, Alive: time.Second, Finish: time.Second,
			After: time.After,
		},
		traces: env.Traces, troubles: logrepeat.New(env.Log),
	}
	h.Answers.Each(AnswerBytes)
	metric.GaugeFunc(env.Metrics, "rejoin_bridge_processes", "Processes of the MCP server that run.", func() float64 { return float64(h.Processes.Used()) })
	if cfg.CacheBytes > 0 {
		h.Cache = resultcache.New(int(cfg.CacheBytes), h.Times.Now)
	}
	return h
}

// HasName reports whether the bridge's name is its own. After a pause of the process it tries for a while to
// learn that: the bridge may be about to reconnect to NATS.
func (h *Host) HasName() bool {
	ctx, cancel := context.WithTimeout(h.Life, h.Config.CloseTimeout())
	defer cancel()
	has := false
	_ = retry.Do(ctx, func() error { // without an answer in time the name may be another bridge's
		err := h.Confirm(ctx)
		if has = err == nil; errors.Is(err, ErrReplaced) {
			return nil
		}
		return err
	})
	return has
}

// CreateSession opens a session in the log, which has this bridge's name: another bridge that has the name would
// not hold it. Errors are those of [Host.Confirm] and [session.Registry.Create].
func (h *Host) CreateSession(ctx context.Context, rec session.Record) (made session.Record, err error) {
	mayBeMade := false // by an attempt without an answer
	err = h.untilAvailable(ctx, func(ctx context.Context) error {
		found, err := h.Backend.Sessions.Create(ctx, rec)
		if mayBeMade && errors.Is(err, session.ErrExists) {
			if found, err = h.Backend.Sessions.Get(ctx, rec.Session); err == nil && found.Life != rec.Life {
				err = session.ErrExists
			}
		}
		if mayBeMade = true; err != nil {
			return err
		}
		if made = found; made.Revision == 0 { // the next bridge looks for it in the index
			return fmt.Errorf("%w: the index is not written", session.ErrUnavailable)
		}
		return nil
	})
	if made.Session != "" { // it is in the log, if not in the index
		err = nil
	}
	return made, err
}

// SetMetadata changes the metadata of a session, which another bridge that has the name may have changed since.
// Errors are those of [Host.Confirm] and [session.Registry.SetMetadata].
func (h *Host) SetMetadata(ctx context.Context, name, life string, metadata []byte) error {
	return h.untilAvailable(ctx, func(ctx context.Context) error {
		_, err := h.Backend.Sessions.SetMetadata(ctx, name, life, metadata)
		return err
	})
}

// untilAvailable calls do once the bridge's name is confirmed, again and again until ctx ends while the registry is
// unavailable: while a stream changes its leader, JetStream refuses at once, or does not answer.
func (h *Host) untilAvailable(ctx context.Context, do func(context.Context) error) (err error) {
	_ = retry.Do(ctx, func() error {
		if err = h.Confirm(ctx); err == nil {
			once, done := context.WithTimeout(ctx, h.Config.AckTimeout)
			err = do(once)
			done()
		}
		if errors.Is(err, session.ErrUnavailable) {
			return err
		}
		return nil
	})
	return err
}

// Start begins the life of all work, which ctx does not end.
func (h *Host) Start(ctx context.Context) {
	h.Life, h.endLife = context.WithCancelCause(context.WithoutCancel(ctx))
}

// Go runs work, unless the service stops.
func (h *Host) Go(work func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping {
		return false
	}
	h.work.Go(work)
	return true
}

// Pause waits for a while, and reports whether ctx has not ended meanwhile.
func (h *Host) Pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-h.Times.After(d):
		return true
	}
}

// Stop lets no more work begin, and ends the running work with a cause.
func (h *Host) Stop(cause error) {
	h.mu.Lock()
	h.stopping = true
	h.mu.Unlock()
	h.endLife(cause)
}

// Wait waits for the running work, after Stop.
func (h *Host) Wait() { h.work.Wait() }

// ClientOf returns the client in whose share the session is that a call begins: the owner, or without
// access control the client's address; empty when it is not known.
func ClientOf(c rpc.Ask) string { return cmp.Or(c.Owner, c.Client) }

// MaxBytes is the size of the largest message that the log takes.
func (h *Host) MaxBytes() int { return h.Backend.Log.Settings().MaxMessageBytes }
