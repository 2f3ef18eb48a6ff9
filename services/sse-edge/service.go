package edge

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/front"
	"rejoin/services/sse-edge/playground"
	"rejoin/services/sse-edge/rejoinjs"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/inspect"
	"rejoin/shared/presence"
	"rejoin/shared/web"
	"rejoin/shared/web/pages"
)

// Routes are what the edge serves.
func (s *Service) Routes() []web.Route {
	query := []string{"after", "from", "last", "on_gap", "envelope", "method", "level", "limit", "wait"}
	routes := []web.Route{
		{Method: fiber.MethodGet, Path: "/v1/sessions/:session/streams/:stream/events", Handler: s.events, NoHead: true, Query: query},
		{Method: fiber.MethodGet, Path: "/v1/sessions/:session/events", Handler: s.events, NoHead: true, Query: query},
		{Method: fiber.MethodGet, Path: "/v1/events", Handler: s.group, NoHead: true, Query: []string{"session", "stream", "added", "after", "from", "method", "level"}},
		{Method: fiber.MethodGet, Path: "/rejoin.js", Handler: pages.File(rejoinjs.Source, "text/javascript; charset=utf-8")},
	}
	routes = append(routes, s.mcpRoutes()...)
	if s.cfg.Access.On() {
		routes = append(
			routes,
			web.Route{Method: fiber.MethodPost, Path: "/v1/cookie", Handler: func(c *fiber.Ctx) error {
				return s.cfg.Access.SetCookie(c, s.cfg.CookieSameSite)
			}},
			web.Route{Method: fiber.MethodDelete, Path: "/v1/cookie", Handler: func(c *fiber.Ctx) error {
				return s.cfg.Access.DeleteCookie(c, s.cfg.CookieSameSite)
			}},
		)
	}
	if s.cfg.Playground {
		routes = append(routes, playground.Routes()...)
	}
	return routes
}

// New binds the edge's listener. more are routes of other services that share its
// address. Errors are one sentence for the user.
func New(cfg Config, b *backend.Backend, env daemon.Env, more ...web.Route) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, log: b.Log, sessions: b.Sessions, logger: env.Log, traces: env.Traces, health: env.Health, memory: env.Memory,
		checks: make(chan struct{}, maxChecks), checkEvery: checkEvery, unheardFor: unheardFor, requestTimeout: requestTimeout,
		nc: b.Conn, connects: web.NewLimiter[netip.Addr](cfg.MaxAddressConnectRate),
	}
	s.admitted = admission.New(cfg.MaxConnections, cfg.MaxSessionConnections, cfg.MaxAddressConnections, func(name string) bool {
		_, ok := b.Sessions.Session(name)
		return ok
	})
	s.base, s.end = context.WithCancel(context.Background())
	records, err := newAttachRecords(b.Conn, b.Log.Settings().Replicas, env.Log)
	if err != nil {
		s.end()
		return nil, err
	}
	s.attached = newAttachments(s.base, records, env.Log)
	b.Register("edge", env.Metrics)
	s.metrics = newMetrics(env.Metrics)
	s.streams = delivery.New(delivery.Config{
		Base: s.base, Admission: s.admitted, Logger: env.Log, Metrics: env.Metrics, Traces: env.Traces, MaxConnections: cfg.MaxConnections,
		Heartbeat: cfg.Heartbeat, Retry: cfg.Retry, MaxAge: cfg.MaxAge, RequestLimit: cfg.ProxyRequestLimit, WriteTimeout: cfg.WriteTimeout, Drain: cfg.Drain,
		Retention: func() time.Duration { return b.Log.Settings().MaxAge },
	})
	s.parts = cursor.New(cursor.Config{
		Base: s.base, Log: b.Log, Logger: env.Log, Metrics: env.Metrics, Traced: env.Traces.On(),
		WindowBytes: int(cfg.WindowBytes), Backfill: int(cfg.WindowBackfill), Linger: time.Duration(cfg.PartitionLinger), LogReads: cfg.LogReads, Patience: cfg.LedgerPatience,
	})
	env.Health.Add("windows", s.parts.Ready)
	if err = cfg.Access.CheckListen(cfg.EdgeAddr, "--edge-addr"); err != nil {
		s.end()
		return nil, err
	}
	if s.ln, err = web.Listen(env, cfg.EdgeAddr, "--edge-addr"); err != nil {
		s.end()
		return nil, err
	}
	if cfg.TLS.On() {
		if s.front, err = front.New(s.ln, cfg.TLS, cfg.Clients.HeaderTimeout(), web.DefaultIdleTimeout, env.Log); err != nil {
			s.end()
			_ = s.ln.Close() // the other error says why
			return nil, err
		}
	}
	s.app = web.NewApp(web.Config{Service: "edge", Log: env.Log, Metrics: env.Metrics, Traces: env.Traces, Clients: cfg.Clients, Memory: env.Memory, MaxBodyBytes: func() int { return web.BodyLimit(b.Log.Settings().MaxMessageBytes) }, WriteTimeout: time.Minute})
	s.app.Server().KeepHijackedConns = true // they are the workers'
	cfg.Access.Protect(s.app, "--edge-hosts", cfg.EdgeHosts, cfg.PublicURL)
	web.Mount(s.app, s.Routes()...)
	web.Mount(s.app, more...)
	return s, nil
}

// Addr is where the edge listens.
func (s *Service) Addr() net.Addr { return s.ln.Addr() }

// URL is where the edge listens.
func (s *Service) URL() string {
	scheme := "http"
	if s.front != nil {
		scheme = "https"
	}
	return scheme + "://" + s.ln.Addr().String()
}

// Run serves until ctx ends, then drains: no new streams, the open ones closed
// spread over Config.Drain, each told when to come back.
func (s *Service) Run(ctx context.Context) error {
	defer s.end()
	tailCtx, stopTails := context.WithCancel(context.WithoutCancel(ctx))
	var tails sync.WaitGroup
	tails.Go(func() { s.parts.Run(tailCtx) })
	tails.Go(func() {
		if err := presence.Serve(tailCtx, s.nc, s.admitted.Answerer()); err != nil {
			s.logger.Warn("the janitor is not told who is connected", "error", err)
		}
	})
	tails.Go(func() {
		if err := inspect.Serve(tailCtx, s.nc, s.audience(tailCtx)); err != nil {
			s.logger.Warn("the janitor is not told what is sent to whom", "error", err)
		}
	})
	s.attached.open(tailCtx)
	tails.Go(func() { s.attached.run(tailCtx) })
	stopWorkers := make(chan struct{})
	var workers sync.WaitGroup
	workers.Go(func() { s.streams.Run(stopWorkers) })
	serveCtx, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 2)
	listener := s.ln
	if s.front != nil {
		listener = s.front.Backend()
		go func() {
			if err := s.front.Serve(); err != nil {
				served <- err
			}
		}()
	}
	go func() { served <- web.Serve(serveCtx, s.app, listener, s.cfg.WriteTimeout) }()
	s.logger.Info("edge open", "addr", s.ln.Addr().String())
	var err error
	select {
	case err = <-served:
		s.drainStreams(0)
	case <-ctx.Done():
		s.drainStreams(s.cfg.Drain)
		stopServing()
		err = <-served
	}
	stopServing()
	if s.front != nil {
		s.stopFront()
	}
	close(stopWorkers)
	workers.Wait()
	stopTails()
	tails.Wait()
	s.attached.work.Wait() // nothing begins any more
	s.end()
	return err
}

// stopFront ends the connections in front of the server, which has ended.
func (s *Service) stopFront() {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.WriteTimeout)
	defer cancel()
	s.front.Stop(ctx)
}

// drainStreams closes all event streams within a time and waits for them.
func (s *Service) drainStreams(within time.Duration) {
	s.admitted.Close()
	s.streams.BeginDrain()
	// Each stream picks its own moment within the time. Those that are stuck in a
	// write to a client that does not read are cut off behind it.
	cut := time.AfterFunc(within+s.cfg.WriteTimeout, s.end)
	defer cut.Stop()
	s.admitted.Wait()
}

// ProgramConfig holds the flags of the program that runs nothing but the edge.
type ProgramConfig struct {
	daemon.Config
	Backend backend.Config    `embed:""`
	Edge    Config            `embed:""`
	Access  web.AccessConfig  `embed:""`
	Clients web.ClientsConfig `embed:""`
}

// Check reports what would keep the program from starting, a line for each problem.
func (cfg *ProgramConfig) Check() error {
	_, accessErr := web.NewAccess(cfg.Access, daemon.NewEnv(nil))
	_, clientsErr := web.NewClients(cfg.Clients)
	return errors.Join(cfg.Edge.Validate(), cfg.Edge.TLS.Check(), accessErr, clientsErr, cfg.Access.CheckListen(cfg.Edge.EdgeAddr, "--edge-addr"))
}

// Run waits for the log, then runs the service, until ctx ends; see [backend.Serve].
func Run(ctx context.Context, cfg ProgramConfig, env daemon.Env) error {
	access, err := web.NewAccess(cfg.Access, env)
	if err != nil {
		return err
	}
	clients, err := web.NewClients(cfg.Clients)
	if err != nil {
		return err
	}
	cfg.Edge.Access, cfg.Edge.Clients = access, clients
	return backend.Serve(ctx, cfg.Config, env, "sse-edge",
		func(ctx context.Context) (*backend.Backend, error) {
			b, err := backend.Open(ctx, cfg.Backend, "sse-edge", env.Log)
			if err == nil {
				b.Sessions.ReadOnly()
			}
			return b, err
		},
		func(b *backend.Backend) (*Service, error) { return New(cfg.Edge, b, env) })
}

// audience returns how the edge answers the janitor until ctx ends.
func (s *Service) audience(ctx context.Context) func(inspect.Question) inspect.Answer {
	id := rand.Text()
	host, _ := os.Hostname() // or none is shown
	return func(q inspect.Question) inspect.Answer {
		a := inspect.Answer{Edge: id, Host: host}
		a.Clients, a.Of = s.admitted.Clients(q)
		limit := cmp.Or(q.Limit, inspect.MaxItems)
		switch q.About {
		case inspect.Clients:
		case inspect.Connections:
			a.Connections, a.Total = s.streams.Connections(ctx, q.Session, limit)
		case inspect.Happenings:
			a.Happenings, a.Total, a.Since = s.streams.History.OfSession(q.Session, limit)
		case inspect.Gaps:
			a.Happenings, a.Reasons, a.Total, a.Since = s.streams.History.Lately(limit)
		}
		return a
	}
}
