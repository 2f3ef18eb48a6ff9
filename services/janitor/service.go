package janitor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/janitor/adminpage"
	"rejoin/services/janitor/ask"
	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/lease"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// New opens the listener at cfg.JanitorAddr and registers metrics and the readiness
// check "ledger". The backend must stay open until Run has returned.
func New(cfg Config, b *backend.Backend, env daemon.Env) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, backend: b, logger: env.Log, freeMemory: env.FreeMemory, others: make(chan struct{}, 1), spare: make(chan struct{}, 1)}
	if cfg.JanitorAddr != "" {
		if err := cfg.Access.CheckListen(cfg.JanitorAddr, "--janitor-addr"); err != nil {
			return nil, err
		}
		ln, err := web.Listen(env, cfg.JanitorAddr, "--janitor-addr", web.Bounds{})
		if err != nil {
			return nil, err
		}
		s.ln = ln
		s.app = web.NewApp(web.Config{Service: "janitor", Log: env.Log, Metrics: env.Metrics, Traces: env.Traces, Memory: env.Memory})
		cfg.Access.Protect(s.app, "--janitor-hosts", cfg.JanitorHosts)
		web.Mount(s.app, s.Routes()...)
		env.Log.Info("janitor listens", "addr", ln.Addr().String())
	}
	var err error
	settings := b.Log.Settings()
	if s.leases, err = lease.New(cmp.Or(cfg.Lease, lease.Default), b.Conn, settings.Partitions, settings.Replicas, b.Now, env.Log); err != nil {
		return nil, err
	}
	s.leases.Elsewhere = func(p int) {
		s.keepings[p].want(false)
		follow.Ring(s.others)
	}
	settled := ledger.Rules{SyncInterval: cfg.SyncInterval}.Settled()
	s.deleter = &deleter{nc: b.Conn, do: s.leases.Do, log: b.Log, settled: settled, every: everyOf(settled), logger: env.Log}
	s.sweeper = newSweeper(cfg, b, s.deleter, env.Log)
	slots := eventlog.NewBackfillSlots(max(2, runtime.GOMAXPROCS(0)/2)) // with one, NATS and the janitor wait for each other
	for p := range settings.Partitions {
		part := follow.New(p, b.Log, slots, env.Log)
		part.Now = b.Now
		part.Cleared, part.Alarmed, part.Spare = s.sweeper.cleared, s.sweeper.alarmed, func() { follow.Ring(s.spare) }
		s.partitions, s.keepings = append(s.partitions, part), append(s.keepings, newKeeping(part))
		s.sweeper.floors = append(s.sweeper.floors, &floorState{})
	}
	m := newMetrics(env.Metrics, s.partitions, s.actingFor)
	s.sweeper.partitions, s.sweeper.metrics = s.partitions, m
	s.deleter.partitions, s.deleter.metrics = s.partitions, m
	s.sweeper.do = s.do
	s.sweeper.setAlarms()
	s.roster = follow.NewRoster(b.Log, env.Log)
	s.generations = follow.NewGenerations(b.Log, s.leases, s.roster, m.generations, env.Log)
	s.registrar = &registrar{now: b.Now, do: s.do, ready: s.actsWithRecords, log: b.Log, sessions: b.Sessions, partitions: s.partitions, cfg: cfg, patience: ledger.FinishAfter, metrics: m, logger: env.Log}
	s.setter = &setter{nc: b.Conn, log: b.Log, logger: env.Log}
	s.edges = newEdges(b.Conn)
	s.acting, s.holders = s.actingFor, s.leases.Holders
	s.asker = ask.New(b.Conn, rand.Text(), s.holding, s.answer)
	env.Health.Add("ledger", s.complete)
	return s, nil
}

// Routes returns the routes of the service, for another application to serve as
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

// actingFor returns the partitions that this janitor acts for.
func (s *Service) actingFor() (all []*follow.Partition) {
	for _, p := range s.partitions {
		if s.leases.Acts(p.Number) {
			all = append(all, p)
		}
	}
	return all
}

// complete returns an error until the janitor was ready once: each partition has one that acts,
// and those that this one acts for have complete ledgers. It stays nil through an outage of NATS,
// and while ledgers are built that another one had.
func (s *Service) complete() error {
	if s.wasReady.Load() {
		return nil
	}
	held, without := s.holders() // both at one time
	if without > 0 {
		return fmt.Errorf("%d partitions have no janitor that acts for them", without)
	}
	if err := s.incomplete(held); err != nil {
		return err
	}
	s.wasReady.Store(true)
	return nil
}

// incomplete returns an error that names a partition whose whole ledger and records this janitor does not have.
func (s *Service) incomplete(partitions []int) error {
	for _, p := range partitions {
		if !s.hasAll(s.partitions[p]) {
			return fmt.Errorf("the ledger of partition %d, or the copy of its records, is not complete", p)
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
	start(func(ctx context.Context) error { return s.leases.Run(ctx, s.act) })
	runs := []func(context.Context){s.keepRecords, s.keepBuckets, s.roster.Run, s.generations.Run, s.sweeper.run, s.deleter.run, s.registrar.run}
	for _, k := range s.keepings {
		runs = append(runs, k.run)
	}
	for _, run := range runs {
		start(func(ctx context.Context) error {
			run(ctx)
			return nil
		})
	}
	start(s.asker.Serve)
	wg.Wait()
	return errs
}

// actsWithRecords reports whether this janitor acts for a partition, and has the records of its
// sessions: without them it would not know the limits that they ask for.
func (s *Service) actsWithRecords(p int) bool { return s.leases.Acts(p) && s.backend.Sessions.Has(p) }

// do is [lease.Leases.Do] for tasks that need the records of the sessions: without them it does nothing.
func (s *Service) do(p int, f func(term context.Context) error) (did bool, err error) {
	if !s.backend.Sessions.Has(p) {
		return false, nil
	}
	return s.leases.Do(p, f)
}

// gather is how long keepRecords waits for more partitions until the records are copied again.
const gather = 50 * time.Millisecond

// keepRecords has the registry copy the records of the sessions whose ledgers are kept, until ctx
// ends. It returns the memory that reading the log took, and that of partitions that are given up, to the
// operating system.
func (s *Service) keepRecords(ctx context.Context) {
	copied := make(chan struct{}, 1)
	for natsconn.Pause(ctx, gather) {
		kept := make([]bool, len(s.keepings))
		for p, k := range s.keepings {
			kept[p], _ = k.state()
		}
		s.backend.Sessions.Keep(kept, func() { follow.Ring(copied) })
		select {
		case <-s.others:
		case <-copied:
			s.freeMemory()
		case <-s.spare:
			if held, _ := s.leases.Holders(); s.incomplete(held) == nil {
				s.freeMemory()
			}
		case <-ctx.Done():
		}
	}
}

// keepBuckets creates buckets of MCP again that were lost, as with the disk of NATS, until ctx ends.
func (s *Service) keepBuckets(ctx context.Context) {
	for natsconn.Pause(ctx, max(s.cfg.Interval, time.Second)) {
		if err := rpc.CreateBuckets(ctx, s.backend.Conn, s.backend.Log.Settings().Replicas); err != nil {
			s.logger.Debug("a bucket may be missing, and cannot be created", "error", err)
		}
	}
}

// act runs the checker and the setter of a partition that this janitor acts for, until the term is
// over.
func (s *Service) act(ctx context.Context, p int) error {
	s.keepings[p].want(true)
	follow.Ring(s.others)
	s.generations.Wake()
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { s.partitions[p].KeepChecked(ctx) })
	return s.setter.run(ctx, p)
}

// ProgramConfig holds the flags of the program that runs only the janitor.
type ProgramConfig struct {
	daemon.Config
	Backend backend.Config          `embed:""`
	Log     LogFlags                `embed:""`
	Janitor Config                  `embed:""`
	Streams session.StreamsOverride `embed:""`
	Access  web.AccessConfig        `embed:""`
}

// Check reports the problems that would keep the program from starting, a line for each.
func (cfg *ProgramConfig) Check() error {
	c := cfg.Janitor
	c.Streams = cfg.Streams
	return errors.Join(c.Validate(), cfg.Log.Validate(), cfg.Access.Check(), cfg.Access.CheckListen(c.JanitorAddr, "--janitor-addr"))
}

// Run creates the missing parts of the log and the registry, then runs the service
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
			cfg.Backend.ByPartition, cfg.Backend.Metrics = true, env.Metrics
			return backend.Create(ctx, cfg.Backend, "janitor", cfg.Log.Settings(), env.Log)
		},
		func(b *backend.Backend) (*Service, error) {
			cfg.Log.WarnOfDifferences(b.Log.Settings(), env.Log)
			return New(cfg.Janitor, b, env)
		})
}
