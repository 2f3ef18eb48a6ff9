// Package bridge connects an unmodified MCP server to the log: it hands over what
// clients send, which comes on NATS, and stores what the server sends.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/services/bridge/upstream"

	"github.com/nats-io/nats.go"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
)

// Service is the bridge. It is safe for concurrent use.
//
//	New ──▶ Service ── Run ──▶ receive: takes calls from NATS, a goroutine for each
//	                   │         ├─ open ──▶ held, a session
//	                   │         └─ post, end, check ──▶ its held
//	                   ├─────▶ records: writes down what is open, for the next bridge
//	                   ├─────▶ present: tells the janitor which sessions have open calls
//	                   ├─────▶ patrol: ends sessions that were ended elsewhere
//	                   └─────▶ what the sessions run, see [held]
//
// When Run's context ends, calls are taken no more; then life ends, and with it all
// waiting for the upstream, which is not told: the next bridge continues.
type Service struct {
	cfg      Config
	name     string
	backend  *backend.Backend
	log      *slog.Logger
	metrics  *metrics
	traces   *tracing.Traces
	bodies   bool // the debug lines about publishing show messages
	endpoint *upstream.Endpoint

	command *upstream.Command // of a server that speaks stdio; nil when it speaks HTTP

	doubtAfter  time.Duration                        // [doubtAfter], but for tests
	unusedAfter time.Duration                        // [unusedAfter], but for tests
	after       func(time.Duration) <-chan time.Time // [time.After], but for tests: the pauses before the upstream is asked again

	limits *session.Limits

	inbox    chan *nats.Msg // of all subscriptions; full: NATS drops, and edges hear nothing
	handling chan struct{}  // one token for a call of an edge
	open     places         // calls of the upstream
	running  places         // processes

	life    context.Context //nolint:containedctx // of all work
	endLife context.CancelCauseFunc

	taken atomic.Bool // the sessions of the bridge before are taken over

	mu       sync.Mutex
	sessions map[string]*held
	stopping bool
	work     sync.WaitGroup // grows only until stopping
}

// flushTimeout bounds the wait for NATS to know the subscriptions.
const flushTimeout = time.Second

// inboxSize is how many calls may wait to be looked at, which takes microseconds.
const inboxSize = 8192

// New registers metrics and the readiness checks "nats" and "sessions". Errors are those of
// [Config.Validate], and [ErrNoUpstream]. The backend must stay open until Run has returned.
func New(cfg Config, b *backend.Backend, env daemon.Env) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if !cfg.Wanted() {
		return nil, ErrNoUpstream
	}
	cfg = cfg.withDefaults()
	name, err := cfg.name()
	if err != nil {
		return nil, err
	}
	static, err := cfg.header()
	if err != nil {
		return nil, err
	}
	command, err := cfg.command(os.Environ())
	if err != nil {
		return nil, err
	}
	b.Register("bridge", env.Metrics)
	m := newMetrics(env.Metrics)
	s := &Service{
		cfg: cfg, name: name, backend: b, log: env.Log, metrics: m, traces: env.Traces, bodies: env.LogBodies, endpoint: upstream.NewEndpoint(cfg.Upstream, static, cfg.ForwardHeader), command: command, doubtAfter: doubtAfter, unusedAfter: unusedAfter, after: time.After,
		limits:   session.NewLimits(cfg.Sessions, b.Sessions.Usage),
		inbox:    make(chan *nats.Msg, inboxSize),
		handling: make(chan struct{}, cfg.MaxCalls), open: newPlaces(cfg.MaxCalls, m.calls), running: newPlaces(cfg.MaxProcesses, m.processes),
		sessions: map[string]*held{},
	}
	b.Log.TraceTo(env.Traces)
	env.Health.Add("nats", b.Connected)
	env.Health.Add("sessions", func() error {
		if !s.taken.Load() {
			return errors.New("the sessions are not taken over yet")
		}
		return nil
	})
	return s, nil
}

// maxBytes is the size of the largest message that the log takes.
func (s *Service) maxBytes() int { return s.backend.Log.Settings().MaxMessageBytes }

// Run takes calls until ctx ends, then leaves the upstream alone and returns nil.
func (s *Service) Run(ctx context.Context) error {
	s.life, s.endLife = context.WithCancelCause(context.WithoutCancel(ctx))
	defer s.endpoint.Close()
	alive, err := s.alone(ctx)
	var records *records
	if err == nil {
		defer func() { _ = alive.Unsubscribe() }() // the connection may be closed already
		records, err = s.openRecords(ctx)
	}
	if err == nil {
		err = s.takeOver(ctx, records)
	}
	if err != nil {
		s.stop()
		if ctx.Err() != nil {
			return nil // told to stop while it was starting
		}
		return err
	}
	opens, err := s.backend.Conn.ChanQueueSubscribe(rpc.OpenSubject, rpc.Queue, s.inbox)
	if err != nil {
		s.stop()
		return fmt.Errorf("cannot listen on NATS: %w", err)
	}
	// A bridge that reports ready is there on NATS, without a connection when there
	// is one again.
	_ = s.backend.Conn.FlushTimeout(flushTimeout)
	s.run(s.patrol)
	s.run(s.present)
	s.run(records.run)
	s.taken.Store(true)
	s.log.Info("bridge is open", "upstream", s.cfg.upstream(), "name", s.name)
	s.receive(ctx)

	_ = opens.Unsubscribe() // the connection may be closed already
	s.stop()
	if s.command != nil {
		s.closeAll()
	}
	records.writeAll()
	return nil
}

// stop ends all work and waits for it.
func (s *Service) stop() {
	for _, h := range s.all() {
		h.unsubscribe()
	}
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.endLife(upstream.ErrStopping)
	s.work.Wait()
	for {
		select {
		case msg := <-s.inbox:
			s.accept(msg) // as a service that stops
		default:
			return
		}
	}
}

// closeAll ends the sessions whose processes have ended with the service: no other
// bridge can go on with them.
func (s *Service) closeAll() {
	var closing sync.WaitGroup
	for _, h := range s.all() {
		closing.Go(func() {
			for _, c := range h.streams() {
				c.over(upstream.ErrExited)
			}
			if err := s.closeOnce(h); err != nil {
				s.log.Warn("a session is left to the next bridge to end", "session", h.name, "error", err)
				return
			}
			s.release(h)
		})
	}
	closing.Wait()
}

// streams returns what is open of all sessions.
func (s *Service) streams() (all []*call) {
	for _, h := range s.all() {
		all = append(all, h.streams()...)
	}
	return all
}

// run runs work, unless the service stops.
func (s *Service) run(work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.work.Go(work)
	return true
}

func (s *Service) held(name string) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[name]
}

func (s *Service) all() []*held {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*held, 0, len(s.sessions))
	for _, h := range s.sessions {
		all = append(all, h)
	}
	return all
}

// hold begins to answer for a session.
func (s *Service) hold(h *held) error {
	s.mu.Lock()
	s.sessions[h.name] = h
	s.metrics.sessions.Set(float64(len(s.sessions)))
	s.mu.Unlock()
	sub, err := s.backend.Conn.ChanQueueSubscribe(rpc.Subject(h.name), rpc.Queue, s.inbox)
	if err != nil {
		s.release(h)
		return err
	}
	h.mu.Lock()
	h.sub = sub
	h.mu.Unlock()
	return nil
}

// release ends what hold began.
func (s *Service) release(h *held) {
	h.unsubscribe()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[h.name] == h {
		delete(s.sessions, h.name)
	}
	s.metrics.sessions.Set(float64(len(s.sessions)))
}
