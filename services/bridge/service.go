package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/logrepeat"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

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
	tools, err := cfg.taskPolicies()
	if err != nil {
		return nil, err
	}
	m := newMetrics(env.Metrics)
	s := &Service{
		cfg: cfg, name: name, backend: b, log: env.Log, metrics: m, traces: env.Traces, bodies: env.LogBodies, troubles: logrepeat.New(env.Log, slog.LevelWarn, nil), endpoint: upstream.NewEndpoint(cfg.Upstream, static, cfg.ForwardHeader), command: command, doubtAfter: doubtAfter, unusedAfter: unusedAfter, answerWithin: answerWithin, taskTools: tools, after: time.After,
		limits:   session.NewLimits(cfg.Sessions, b.Sessions.Usage),
		inbox:    make(chan *nats.Msg, inboxSize),
		handling: make(chan struct{}, cfg.MaxCalls), open: newSlots(cfg.MaxCalls, m.calls), running: newSlots(cfg.MaxProcesses, m.processes),
		sessions: map[string]*clientSession{},
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

// Run takes calls until ctx ends, then leaves the upstream alone and returns nil.
func (s *Service) Run(ctx context.Context) error {
	s.life, s.endLife = context.WithCancelCause(context.WithoutCancel(ctx))
	defer s.endpoint.Close()
	alive, err := s.claimName(ctx)
	if err == nil {
		defer func() { _ = alive.Unsubscribe() }() // the connection may be closed already
		s.records, err = s.openRecords(ctx)
	}
	if err == nil {
		err = s.takeOver(ctx, s.records)
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
	s.run(s.reconcile)
	s.run(s.serveOpenCalls)
	s.run(s.records.run)
	s.run(s.checkUpstream)
	s.taken.Store(true)
	s.log.Info("bridge is open", "upstream", s.cfg.upstream(), "name", s.name)
	s.receive(ctx)

	_ = opens.Unsubscribe() // the connection may be closed already
	s.stop()
	if s.command != nil {
		s.closeAll()
	}
	s.records.writeAll()
	return nil
}

// stop ends all work and waits for it.
func (s *Service) stop() {
	s.closeSpares(true)
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

// ProgramConfig holds the flags of the program that runs nothing but a bridge.
type ProgramConfig struct {
	daemon.Config
	Backend  backend.Config       `embed:""`
	Bridge   Config               `embed:""`
	Sessions session.LimitsConfig `embed:""`

	// AckTimeout is that of [Config].
	AckTimeout time.Duration `default:"2s" help:"Maximum time that a publish waits for JetStream."`
}

// Run waits for the log, then runs the service, until ctx ends; see [backend.Serve].
func Run(ctx context.Context, cfg ProgramConfig, env daemon.Env) error {
	cfg.Bridge.AckTimeout, cfg.Bridge.Sessions = cfg.AckTimeout, cfg.Sessions
	if !cfg.Bridge.Wanted() {
		return ErrNoUpstream // before the wait for a log
	}
	return backend.Serve(ctx, cfg.Config, env, "bridge",
		func(ctx context.Context) (*backend.Backend, error) {
			return backend.Open(ctx, cfg.Backend, "bridge", env.Log)
		},
		func(b *backend.Backend) (*Service, error) { return New(cfg.Bridge, b, env) })
}
