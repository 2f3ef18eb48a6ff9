package janitor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/janitor/adminpage"
	"rejoin/services/janitor/ask"
	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/lease"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

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
		ln, err := web.Listen(env, cfg.JanitorAddr, "--janitor-addr")
		if err != nil {
			return nil, err
		}
		s.ln = ln
		s.app = web.NewApp(web.Config{Service: "janitor", Log: env.Log, Metrics: env.Metrics, Traces: env.Traces})
		cfg.Access.Protect(s.app, "--janitor-hosts", cfg.JanitorHosts)
		web.Mount(s.app, s.Routes()...)
		env.Log.Info("janitor listens", "addr", ln.Addr().String())
	}
	var err error
	if s.lease, err = lease.New(cmp.Or(cfg.Lease, lease.Default), b.Conn, b.Log.Settings().Replicas, b.Now, env.Log); err != nil {
		return nil, err
	}
	settled := ledger.Rules{SyncInterval: cfg.SyncInterval}.Settled()
	s.deleter = &deleter{nc: b.Conn, log: b.Log, settled: settled, every: everyOf(settled), logger: env.Log}
	s.sweeper = newSweeper(cfg, b, s.deleter, env.Log)
	for p := range b.Log.Settings().Partitions {
		part := follow.New(p, b.Log, settled, env.Log)
		part.Now = b.Now
		part.Cleared, part.Alarmed, part.Acts = s.sweeper.cleared, s.sweeper.alarmed, s.lease.Held
		s.partitions = append(s.partitions, part)
		s.sweeper.floors = append(s.sweeper.floors, &floorKeeper{})
	}
	b.Register("janitor", env.Metrics)
	m := newMetrics(env.Metrics, s.partitions, s.lease.Held)
	s.sweeper.partitions, s.sweeper.metrics = s.partitions, m
	s.deleter.partitions, s.deleter.metrics = s.partitions, m
	s.checker = &follow.Checker{Partitions: s.partitions, Logger: env.Log}
	s.sweeper.setAlarms()
	s.roster = follow.NewRoster(b.Log, env.Log)
	s.generations = &follow.Generations{Log: b.Log, Roster: s.roster, Begun: m.generations, Logger: env.Log}
	s.registrar = &registrar{now: b.Now, log: b.Log, sessions: b.Sessions, partitions: s.partitions, cfg: cfg, patience: ledger.FinishAfter, metrics: m, logger: env.Log}
	s.setter = &setter{nc: b.Conn, log: b.Log, logger: env.Log}
	s.edges = newEdges(b.Conn)
	s.heldFor = s.held
	s.asker = ask.New(b.Conn, rand.Text(), s.holding, s.answer)
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
	routes := []web.Route{
		{Method: fiber.MethodGet, Path: "/v1/sessions", Handler: s.guard(s.listSessions), Query: []string{"limit", "sort", "after", "contains", "clients", "state"}},
		{Method: fiber.MethodGet, Path: "/v1/sessions/:session", Handler: s.guard(s.getSession)},
		{Method: fiber.MethodGet, Path: "/v1/sessions/:session/connections", Handler: s.guard(s.getConnections), Query: []string{"limit"}},
		{Method: fiber.MethodGet, Path: "/v1/sessions/:session/timeline", Handler: s.guard(s.getTimeline), Query: []string{"limit"}},
		{Method: fiber.MethodGet, Path: "/v1/gaps", Handler: s.guard(s.getGaps), Query: []string{"limit"}},
		{Method: fiber.MethodGet, Path: "/v1/limits", Handler: s.guard(s.getLimits), Query: []string{"limit", "share"}},
		{Method: fiber.MethodPost, Path: "/v1/sweep", Handler: s.guard(s.sweep), Query: []string{"dry_run"}},
	}
	if s.cfg.AdminPage {
		routes = append(routes, adminpage.Routes()...)
	}
	return routes
}

// held returns the partitions that this janitor acts for.
func (s *Service) held() []*follow.Partition {
	if !s.lease.Held() {
		return nil
	}
	return s.partitions
}

// complete returns an error until every ledger was complete once. It stays nil
// through an outage of NATS.
func (s *Service) complete() error {
	for _, p := range s.partitions {
		if !p.Complete() {
			return fmt.Errorf("the ledger of partition %d is not complete", p.Number)
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
	if s.ln != nil {
		start(func(ctx context.Context) error { return web.Serve(ctx, s.app, s.ln, stopGrace) })
	}
	start(func(ctx context.Context) error { return s.lease.Run(ctx, s.act) })
	start(s.keepLedger)
	start(s.asker.Serve)
	start(func(ctx context.Context) error {
		s.roster.Run(ctx)
		return nil
	})
	wg.Wait()
	return errs
}

// keepLedger keeps the ledgers until ctx ends, whether or not this janitor acts.
func (s *Service) keepLedger(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, p := range s.partitions {
		wg.Go(func() { p.Tail(ctx) })
		wg.Go(func() { p.Follow(ctx) })
	}
	wg.Wait()
	return nil
}

// act does what only the acting janitor may do, until its term is over.
func (s *Service) act(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, run := range []func(context.Context){s.generations.Run, s.sweeper.run, s.deleter.run, s.checker.Run, s.registrar.run} {
		wg.Go(func() { run(ctx) })
	}
	err := s.setter.run(ctx)
	stop()
	return err
}

// ProgramConfig holds the flags of the program that runs nothing but the janitor.
type ProgramConfig struct {
	daemon.Config
	Backend backend.Config          `embed:""`
	Log     LogFlags                `embed:""`
	Janitor Config                  `embed:""`
	Streams session.StreamsOverride `embed:""`
	Access  web.AccessConfig        `embed:""`
}

// Check reports what would keep the program from starting, a line for each problem.
func (cfg *ProgramConfig) Check() error {
	c := cfg.Janitor
	c.Streams = cfg.Streams
	_, accessErr := web.NewAccess(cfg.Access, daemon.NewEnv(nil))
	return errors.Join(c.Validate(), cfg.Log.Validate(), accessErr, cfg.Access.CheckListen(c.JanitorAddr, "--janitor-addr"))
}

// Run creates what is missing of the log and the registry, then runs the service
// until ctx ends; see [backend.Serve]. It is ready when the ledger is complete.
func Run(ctx context.Context, cfg ProgramConfig, env daemon.Env) error {
	cfg.Janitor.Streams = cfg.Streams
	if err := errors.Join(cfg.Janitor.Validate(), cfg.Log.Validate()); err != nil {
		return err
	}
	access, err := web.NewAccess(cfg.Access, env)
	if err != nil {
		return err
	}
	cfg.Janitor.Access = access
	return backend.Serve(ctx, cfg.Config, env, "janitor",
		func(ctx context.Context) (*backend.Backend, error) {
			return backend.Create(ctx, cfg.Backend, "janitor", cfg.Log.Settings(), env.Log)
		},
		func(b *backend.Backend) (*Service, error) {
			cfg.Log.WarnOfDifferences(b.Log.Settings(), env.Log)
			return New(cfg.Janitor, b, env)
		})
}
