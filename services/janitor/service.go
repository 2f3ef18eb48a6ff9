package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/web"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
)

// Service is the janitor. It is safe for concurrent use. For now exactly one may
// run in an installation.
//
//	Run ──▶ generations   one goroutine: a generation for every server that is
//	   │                  connected, at once; waits for nothing else
//	   ├──▶ tail, follow  two a partition: keep its ledger
//	   ├──▶ clerk         one, from when all ledgers are complete: answers marks;
//	   │                  and one for each question that waits for a ledger
//	   ├──▶ sweeper       one: policy, then deletes with up to 8 more
//	   ├──▶ registrar     one: duties in the session registry
//	   ├──▶ setter        one: changes the log's limits
//	   └──▶ web.Serve     one a connection, if there is a listener
//
// When Run's context ends, or one of them fails, all are told to stop, and Run
// returns when they have. The ledgers are locked for moments and never across I/O.
type Service struct {
	cfg        Config
	backend    *backend.Backend
	logger     *slog.Logger
	partitions []*partition
	trims      *trims
	clerk      *clerk
	sweeper    *sweeper
	registrar  *registrar
	setter     *setter
	app        *fiber.App
	ln         net.Listener // nil without a listener of its own
}

// stopGrace is how long requests under way may take at the end.
const stopGrace = 5 * time.Second

// New opens the listener at cfg.JanitorAddr and registers metrics and the readiness
// check "ledger". The backend must stay open until Run has returned.
func New(cfg Config, b *backend.Backend, env daemon.Env) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, backend: b, logger: env.Log}
	if cfg.JanitorAddr != "" {
		if err := cfg.Access.CheckListen(cfg.JanitorAddr, "--janitor-addr"); err != nil {
			return nil, err
		}
		ln, err := web.Listen(cfg.JanitorAddr, "--janitor-addr")
		if err != nil {
			return nil, err
		}
		s.ln = ln
		s.app = web.NewApp(web.Config{Service: "janitor", Log: env.Log, Metrics: env.Metrics})
		s.app.Use(cfg.Access.HostCheck(cfg.JanitorHosts), cfg.Access.CORS())
		web.Mount(s.app, s.Routes()...)
		env.Log.Info("janitor listens", "addr", ln.Addr().String())
	}
	s.trims = newTrims(b.Log, env.Log)
	s.sweeper = &sweeper{
		nc: b.Conn, trims: s.trims, sessions: b.Sessions, interval: cfg.Interval, logger: env.Log, kick: make(chan struct{}, 1),
		settings: b.Log.Settings, closedGrace: cfg.ClosedGrace,
	}
	for p := range b.Log.Settings().Partitions {
		s.partitions = append(s.partitions, newPartition(p, b.Log, s.trims, env.Log, s.sweeper.cleared))
	}
	m := newMetrics(env.Metrics, s.partitions)
	s.sweeper.partitions, s.sweeper.metrics = s.partitions, m
	s.registrar = &registrar{log: b.Log, sessions: b.Sessions, partitions: s.partitions, cfg: cfg, metrics: m, logger: env.Log}
	s.setter = &setter{nc: b.Conn, log: b.Log, partitions: s.partitions, logger: env.Log}
	s.clerk = &clerk{nc: b.Conn, partitions: s.partitions, metrics: m, logger: env.Log}
	env.Health.Add("ledger", s.complete)
	return s, nil
}

// Addr returns the address that the service is bound to, or nil without a listener.
func (s *Service) Addr() net.Addr {
	if s.ln == nil {
		return nil
	}
	return s.ln.Addr()
}

// Routes returns what the service answers, for another application to serve as
// well. That one should stop before Run's context ends.
func (s *Service) Routes() []web.Route {
	return []web.Route{
		{Method: fiber.MethodGet, Path: "/v1/sessions", Handler: s.guard(s.listSessions)},
		{Method: fiber.MethodGet, Path: "/v1/sessions/:session", Handler: s.guard(s.getSession)},
	}
}

// complete returns an error until every ledger was complete once. It stays nil
// through an outage of NATS.
func (s *Service) complete() error {
	for _, p := range s.partitions {
		if !p.complete() {
			return fmt.Errorf("the ledger of partition %d is not complete", p.number)
		}
	}
	return nil
}

// Run works until ctx ends, and returns nil then.
func (s *Service) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs error
	)
	start := func(run func(context.Context) error) {
		wg.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				mu.Lock()
				errs = errors.Join(errs, err)
				mu.Unlock()
			}
			stop()
		})
	}
	quietly := func(run func(context.Context)) {
		start(func(ctx context.Context) error { run(ctx); return nil })
	}
	if s.ln != nil {
		start(func(ctx context.Context) error { return web.Serve(ctx, s.app, s.ln, stopGrace) })
	}
	quietly(func(ctx context.Context) { beginGenerations(ctx, s.backend.Conn, s.backend.Log, s.logger) })
	start(s.keepLedger)
	wg.Wait()
	return errs
}

// keepLedger opens the durable trim marks, without which no ledger can begin, and
// runs all that needs them.
func (s *Service) keepLedger(ctx context.Context) error {
	if err := s.trims.open(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for _, p := range s.partitions {
		wg.Go(func() { p.tail(ctx) })
		wg.Go(func() { p.follow(ctx) })
	}
	wg.Go(func() { s.sweeper.run(ctx) })
	wg.Go(func() { s.registrar.run(ctx) })
	var setErr error
	wg.Go(func() {
		setErr = s.setter.run(ctx)
		stop()
	})
	err := s.clerk.run(ctx)
	stop()
	wg.Wait()
	return errors.Join(err, setErr)
}
