package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/mcpserver"
	"rejoin/services/bridge/owners"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/standby"
	"rejoin/services/bridge/stateless"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/quota"
	"rejoin/shared/rpc"
)

// flushTimeout bounds the wait for NATS to know the subscriptions.
const flushTimeout = time.Second

// finishEvery is the time between two looks at whether edges are answered.
const finishEvery = 10 * time.Millisecond

// inboxSize is how many messages of edges may wait to be looked at, which takes microseconds.
const inboxSize = 8192

// ErrReplaced ends a bridge whose name another one has taken; see [host.ErrReplaced].
var ErrReplaced = host.ErrReplaced

// ErrNoUpstream is returned when a bridge has no MCP server to stand beside.
var ErrNoUpstream = errors.New("--upstream or --upstream-command is missing")

// New registers metrics and the readiness checks "nats" and "sessions". Errors are those of
// [config.Config.Validate], and [ErrNoUpstream]. The backend must stay open until Run has returned, and be closed
// then: nats.go leaves a subscription at the server that is drained while the connection is being made again.
func New(cfg Config, b *backend.Backend, env daemon.Env) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if !cfg.Wanted() {
		return nil, ErrNoUpstream
	}
	cfg = cfg.WithDefaults()
	name, err := cfg.Name()
	if err != nil {
		return nil, err
	}
	tools, err := cfg.TaskPolicies()
	if err != nil {
		return nil, err
	}
	h := host.New(cfg, name, b, env)
	server, err := mcpserver.New(h)
	if err != nil {
		return nil, err
	}
	s := &Service{host: h, server: server, inbox: make(chan *nats.Msg, inboxSize), handling: quota.NewPool(int64(cfg.MaxCalls))}
	h.Confirm = func(ctx context.Context) error { return s.name.Confirm(ctx) }
	s.table = sessions.NewTable(h, s.inbox)
	s.stateless = stateless.New(h, server, s.table, tools)
	server.EndUnused = s.table.EndUnused
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

// Run answers edges until ctx ends, then leaves the upstream alone and returns nil.
func (s *Service) Run(ctx context.Context) error {
	s.host.Start(ctx)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer s.server.Disconnect()
	leave, err := s.begin(ctx, end)
	defer leave()
	if err != nil {
		s.stop()
		if ctx.Err() != nil { // it is to stop, or another bridge has the name
			return s.endedBy(ctx)
		}
		return err
	}
	conn := s.host.Backend.Conn
	changes, err := conn.ChanSubscribe(host.ChangedSubject, s.inbox) // the order to calls is kept
	var opens *nats.Subscription
	if err == nil {
		defer func() { _ = changes.Unsubscribe() }() // the connection may be closed already
		opens, err = conn.ChanQueueSubscribe(rpc.OpenSubject, rpc.Queue, s.inbox)
	}
	if err != nil {
		s.stop()
		return fmt.Errorf("cannot listen on NATS: %w", err)
	}
	// A bridge that reports ready receives requests from NATS; without a connection, as soon
	// as there is one again.
	_ = conn.FlushTimeout(flushTimeout)
	s.host.Go(s.reconcile)
	s.host.Go(s.serveOpenCalls)
	s.host.Go(func() { s.records.Run(s.host.Life, s.name.Confirm, s.table.Open) })
	s.host.Go(s.server.Check)
	s.taken.Store(true)
	s.host.Logger.Info("bridge is open", "upstream", s.host.Config.ShownUpstream(), "name", s.host.Name)
	s.receive(ctx)

	_ = opens.Drain() // the connection may be closed already
	if s.hearNoMore(); s.endedBy(ctx) == nil {
		s.finish()
	}
	s.stop()
	if err := s.endedBy(ctx); err != nil {
		s.taken.Store(false)
		return err // the sessions, and the records of calls, are another bridge's
	}
	if conn.IsConnected() && errors.Is(s.name.Check(context.WithoutCancel(ctx)), host.ErrReplaced) {
		return nil // likewise: the order to stop came during a pause
	}
	if s.server.HasProcesses() {
		s.table.CloseAll()
	}
	s.records.WriteAll(s.name.Confirm, s.table.Open())
	return nil
}

// begin takes the name, and the sessions of the previous bridge. leave gives the name up, also after an
// error. When another bridge takes the name, end is called.
func (s *Service) begin(ctx context.Context, end context.CancelCauseFunc) (leave func(), err error) {
	leave = func() {}
	if s.records, err = records.Open(ctx, s.host.Backend, s.host.Logger); err != nil {
		return leave, err
	}
	s.name = standby.New(s.host, s.records.JS, end)
	claimed, err := s.name.Claim(ctx)
	if err != nil {
		return leave, err
	}
	s.table.Owners = owners.New(s.records.JS, s.host.Config.TaskTTL)
	s.stateless.Records = s.records
	return claimed, s.takeOver(ctx)
}

// endedBy returns the error of Run after the end of its context: nil unless another bridge has taken the name.
func (s *Service) endedBy(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, host.ErrReplaced) {
		return fmt.Errorf("%w: %s", err, s.host.Name)
	}
	return nil
}

// hearNoMore drains the subscriptions of the sessions: the inbox has the requests that NATS delivered in time, and gets
// no others.
func (s *Service) hearNoMore() {
	s.table.Drain()
	if conn := s.host.Backend.Conn; conn.IsConnected() {
		_ = conn.FlushTimeout(flushTimeout)
	}
}

// finish answers the requests in the inbox, which no other bridge gets: a quick call leaves nothing to the next bridge.
func (s *Service) finish() {
	for over := time.Now().Add(s.host.Times.Finish); time.Now().Before(over); {
		select {
		case msg := <-s.inbox:
			s.accept(msg)
		case <-time.After(finishEvery):
			if s.handling.Used() == 0 {
				return
			}
		}
	}
}

// stop ends all work and waits for it. Meanwhile it answers the requests in the inbox, as a service that stops: a
// process may take seconds to end.
func (s *Service) stop() {
	s.hearNoMore() // sessions may have begun since
	s.host.Stop(upstream.ErrStopping)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.host.Wait()
	}()
	for {
		select {
		case msg := <-s.inbox:
			s.accept(msg)
		case <-stopped:
			if len(s.inbox) == 0 {
				return
			}
		}
	}
}
