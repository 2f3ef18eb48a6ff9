package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/owners"
	"rejoin/services/bridge/resultcache"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/inbox"
	"rejoin/shared/logrepeat"
	"rejoin/shared/natsconn"
	"rejoin/shared/presence"
	"rejoin/shared/quota"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// Config configures the service; see [config.Config].
type Config = config.Config

// New registers metrics and the readiness checks "nats" and "sessions". Errors are those of
// [config.Config.Validate], and [ErrNoUpstream]. The backend must stay open until Run has returned.
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
	static, err := cfg.Header()
	if err != nil {
		return nil, err
	}
	command, err := cfg.Command(os.Environ())
	if err != nil {
		return nil, err
	}
	b.Register("bridge", env.Metrics)
	tools, err := cfg.TaskPolicies()
	if err != nil {
		return nil, err
	}
	m := newMetrics(env.Metrics)
	s := &Service{
		cfg: cfg, name: name, backend: b, log: env.Log, metrics: m, traces: env.Traces, bodies: env.LogBodies, troubles: logrepeat.New(env.Log, slog.LevelWarn, nil), endpoint: upstream.NewEndpoint(cfg.Upstream, static, cfg.ForwardHeader), command: command, doubtAfter: doubtAfter, unusedAfter: unusedAfter, answerWithin: answerWithin, goneAfter: goneAfter, aliveWithin: aliveWithin, taskTools: tools, after: time.After,
		limits: session.NewLimits(cfg.Sessions, b.Sessions.Usage), callLimits: session.NewLimits(cfg.Sessions.Half(), b.Sessions.Usage),
		id: rand.Text(), inbox: make(chan *nats.Msg, inboxSize),
		handling: quota.NewPool(int64(cfg.MaxCalls)), memory: env.Memory, closing: make(chan struct{}, closesAtOnce), open: newSlots(cfg.MaxCalls, m.calls), running: newSlots(cfg.MaxProcesses, m.processes),
		sessions: map[string]*clientSession{},
	}
	if cfg.CacheBytes > 0 {
		s.cache = resultcache.New(int(cfg.CacheBytes), time.Now)
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
	ctx, s.endRun = context.WithCancelCause(ctx)
	defer s.endRun(nil)
	defer s.endpoint.Close()
	var leave func()
	var err error
	if s.records, err = s.openRecords(ctx); err == nil {
		leave, err = s.claimName(ctx)
	}
	if err == nil {
		defer leave()
		s.owners = owners.New(s.records.js, s.cfg.TaskTTL)
		err = s.takeOver(ctx, s.records)
	}
	if err != nil {
		s.stop()
		if ctx.Err() != nil { // it is to stop, or another bridge has the name
			return s.endedBy(ctx)
		}
		return err
	}
	changes, err := s.backend.Conn.ChanSubscribe(changedSubject, s.inbox) // the order to calls is kept
	var opens *nats.Subscription
	if err == nil {
		defer func() { _ = changes.Unsubscribe() }() // the connection may be closed already
		opens, err = s.backend.Conn.ChanQueueSubscribe(rpc.OpenSubject, rpc.Queue, s.inbox)
	}
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
	s.log.Info("bridge is open", "upstream", s.cfg.ShownUpstream(), "name", s.name)
	s.receive(ctx)

	_ = opens.Unsubscribe() // the connection may be closed already
	s.stop()
	if err := s.endedBy(ctx); err != nil {
		s.taken.Store(false)
		return err // the sessions, and what is written of calls, are another bridge's
	}
	if s.backend.Conn.IsConnected() && errors.Is(s.checkName(context.WithoutCancel(ctx)), ErrReplaced) {
		return nil // likewise: it was told to stop during a pause
	}
	if s.command != nil {
		s.closeAll()
	}
	s.records.writeAll()
	return nil
}

// endedBy returns why Run ends with a context: nil when it was told to.
func (s *Service) endedBy(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, ErrReplaced) {
		return fmt.Errorf("%w: %s", err, s.name)
	}
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
// bridge can go on with them. One deadline for all bounds the stop.
func (s *Service) closeAll() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), s.cfg.CloseTimeout())
	defer cancel()
	var closing sync.WaitGroup
	for _, h := range s.all() {
		closing.Go(func() {
			if err := s.closeExited(ctx, h); err != nil {
				s.log.Warn("a session is left to the next bridge to end", "session", h.name, "error", err)
				return
			}
			s.release(h)
		})
	}
	closing.Wait()
}

// closeExited ends the calls of a session whose process has ended, and the session in the log, when
// it is its turn; see [closesAtOnce].
func (s *Service) closeExited(ctx context.Context, h *clientSession) error {
	select {
	case s.closing <- struct{}{}:
		defer func() { <-s.closing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, c := range h.streams() {
		c.over(upstream.ErrExited)
	}
	return s.closeOnce(ctx, h)
}

// receive answers calls until ctx ends.
func (s *Service) receive(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case msg := <-s.inbox:
			s.accept(msg)
		}
	}
}

// accept answers a call, in a goroutine of its own.
func (s *Service) accept(msg *nats.Msg) {
	if msg.Subject == changedSubject {
		s.hearChange(string(msg.Data))
		return
	}
	begun := time.Now()
	c, err := rpc.ParseCall(msg)
	respond := func(a rpc.Answer) {
		s.metrics.answered(c.Action, a.Status)
		s.metrics.acceptSeconds.Observe(time.Since(begun).Seconds())
		err := a.Respond(msg)
		if errors.Is(err, nats.ErrMaxPayload) {
			err = upstream.Failure(http.StatusBadGateway, rpc.CodeInternal, "the answer is larger than NATS takes").Respond(msg)
		}
		if err != nil {
			s.log.Info("an edge is not answered", "session", c.Session, "stream", c.Stream, "error", err)
		}
	}
	if err != nil {
		respond(upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, err.Error()))
		return
	}
	client := s.shareOf(c)
	if !s.handling.Take(client, 1) {
		respond(upstream.Busy("the bridge has too much to do, or too much for this client"))
		return
	}
	if !s.run(func() {
		defer s.handling.Give(client, 1)
		ctx, span := s.begin(&c)
		defer span.End()
		a := s.answer(c)
		s.log.DebugContext(ctx, "a call of an edge", "session", c.Session, "stream", c.Stream, "action", string(c.Action), "bytes", len(c.Data), "status", a.Status)
		respond(a)
	}) {
		s.handling.Give(client, 1)
		respond(upstream.Busy(upstream.ErrStopping.Error()))
	}
}

// answer does what an edge asks for.
func (s *Service) answer(c rpc.Call) rpc.Answer {
	switch {
	case c.Action == rpc.Open:
		return s.openSession(c)
	case c.Action == rpc.Request && !c.Held:
		return s.request(c)
	}
	h := s.session(c.Session)
	if h == nil {
		return ended()
	}
	switch c.Action {
	case rpc.Request:
		return h.again(c)
	case rpc.Cancel:
		return h.cancel(c)
	case rpc.Post:
		return h.post(c)
	case rpc.End:
		return h.endNow(c)
	case rpc.Check:
		return h.check(c)
	default:
		return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "the bridge does not know what to do")
	}
}

const (
	aliveWithin = time.Second // is how long another bridge of the name has to answer
	aliveEvery  = time.Second // between two questions
	// standbyQuestions is how many questions in a row must have no answer until a standby takes the name.
	standbyQuestions = 3
	nameEvery        = 5 * time.Second // between two looks at whose the name is
	// nameTTL is how long the bucket knows whose a name is, without renewal.
	nameTTL = time.Hour
)

// aliveSubject is where a bridge of a name says that it is there.
func aliveSubject(name string) string { return "mcp.rpc.b." + event.Token(name) }

// ErrReplaced ends a bridge whose name another one has taken. That one got no answer from it: it was
// paused, or cut off from NATS. Of two, each would get some of the requests of a session, and know
// only the calls of those.
var ErrReplaced = errors.New("another bridge has taken over, with the same --bridge-name")

// claimName waits until no other bridge of this name answers, since two would get in each other's
// way. Then the name is this bridge's, until another one takes it: see [Service.keepName]. The function
// that it returns ends the answers of this one.
//
// After a restart of NATS a bridge that has answered may be about to connect again: a standby asks more
// than once.
func (s *Service) claimName(ctx context.Context) (leave func(), err error) {
	told, unanswered := false, 0
	for {
		err := s.isAlive(ctx, s.name)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
			if unanswered++; !told || unanswered == standbyQuestions {
				return s.holdName(ctx)
			}
		case err == nil:
			unanswered = 0
			if !told {
				told = true
				s.log.Warn("another bridge has the same --bridge-name; this one waits until that has ended", "name", s.name)
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.after(aliveEvery):
		}
	}
}

// holdName takes the name. The bucket says whose it is: the newest writer's. A bridge that had it before
// is told to look there.
func (s *Service) holdName(ctx context.Context) (leave func(), err error) {
	nc, subject, other := s.backend.Conn, aliveSubject(s.name), make(chan struct{}, 1)
	sub, err := nc.Subscribe(subject, func(msg *nats.Msg) {
		switch {
		case inbox.Is(msg.Reply):
			_ = msg.Respond(nil)
		case string(msg.Data) != s.id:
			select {
			case other <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cannot listen on NATS: %w", err)
	}
	leave = func() { _ = sub.Unsubscribe() } // the connection may be closed already
	if err := retry(ctx, func() error { return s.records.putName(ctx) }); err != nil {
		leave()
		return nil, err
	}
	_ = nc.Publish(subject, []byte(s.id)) // else the other one looks by itself
	s.run(func() { s.keepName(other) })
	return leave, nil
}

// keepName looks now and then whether the name is this bridge's still, and at once when another one says
// that it has taken it, or when the connection is made.
func (s *Service) keepName(other <-chan struct{}) {
	for s.life.Err() == nil {
		ctx, done := natsconn.While(s.life, s.backend.Conn)
		if err := s.checkName(ctx); errors.Is(err, ErrReplaced) {
			s.endRun(err)
		}
		select {
		case <-ctx.Done():
		case <-other:
		case <-time.After(nameEvery):
		}
		done()
	}
}

// checkName returns ErrReplaced if another bridge has the name. Other errors say that this is unknown.
func (s *Service) checkName(ctx context.Context) error {
	id, written, err := s.records.nameHolder(ctx)
	switch {
	case err != nil:
		return err
	case id == "", id == s.id && time.Since(written) > nameTTL/2:
		return s.records.putName(ctx)
	case id != s.id:
		return ErrReplaced
	default:
		return nil
	}
}

// serveOpenCalls tells the janitor that sessions with open calls are not idle.
func (s *Service) serveOpenCalls() {
	id := "bridge-" + rand.Text()
	err := presence.Serve(s.life, s.backend.Conn, func(q presence.Question) presence.Answer {
		a := presence.Answer{Edge: id}
		for i, asked := range q.Sessions {
			if h := s.session(asked.Name); h != nil && h.busy() {
				a.Present = append(a.Present, presence.Present{Session: i})
			}
		}
		return a
	})
	if err != nil {
		s.log.Warn("the janitor does not hear of open calls", "error", err)
	}
}

// ProgramConfig holds the flags of the program that runs nothing but a bridge.
type ProgramConfig struct {
	daemon.Config
	Backend  backend.Config       `embed:""`
	Bridge   Config               `embed:""`
	Sessions session.LimitsConfig `embed:""`

	// AckTimeout is that of [config.Config].
	AckTimeout time.Duration `default:"2s" help:"Maximum time that a publish waits for JetStream."`
}

// Check reports what would keep the program from starting, a line for each problem.
func (cfg *ProgramConfig) Check() error {
	c := cfg.Bridge
	c.AckTimeout, c.Sessions = cfg.AckTimeout, cfg.Sessions
	if !c.Wanted() {
		return ErrNoUpstream
	}
	return errors.Join(c.Validate(), cfg.Sessions.Validate())
}

// Run waits for the log, then runs the service, until ctx ends; see [backend.Serve].
func Run(ctx context.Context, cfg ProgramConfig, env daemon.Env) error {
	cfg.Bridge.AckTimeout, cfg.Bridge.Sessions = cfg.AckTimeout, cfg.Sessions
	if !cfg.Bridge.Wanted() {
		return ErrNoUpstream // before the wait for a log
	}
	if err := cfg.Sessions.Validate(); err != nil {
		return err
	}
	return backend.Serve(ctx, cfg.Config, env, "bridge",
		func(ctx context.Context) (*backend.Backend, error) {
			return backend.Open(ctx, cfg.Backend, "bridge", env.Log)
		},
		func(b *backend.Backend) (*Service, error) { return New(cfg.Bridge, b, env) })
}
