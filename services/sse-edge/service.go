package edge

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/front"
	"rejoin/services/sse-edge/mcpedge"
	"rejoin/services/sse-edge/playground"
	"rejoin/services/sse-edge/rejoinjs"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/inspect"
	"rejoin/shared/metric"
	"rejoin/shared/presence"
	"rejoin/shared/quota"
	"rejoin/shared/web"
	"rejoin/shared/web/pages"
)

// partitionParameter has a session's partition. The edge ignores it: a proxy that cannot compute a
// partition sends requests with the same one to the same edge.
const partitionParameter = "p"

// Routes returns the routes of the edge.
func (s *Service) Routes() []web.Route {
	query := []string{"after", "from", "last", "on_gap", "envelope", "method", "level", "limit", "wait", partitionParameter}
	routes := []web.Route{
		{Method: fiber.MethodGet, Path: "/v1/sessions/:session/streams/:stream/events", Handler: s.authenticated(s.events), NoHead: true, Query: query},
		{Method: fiber.MethodGet, Path: "/v1/sessions/:session/events", Handler: s.authenticated(s.events), NoHead: true, Query: query},
		{Method: fiber.MethodGet, Path: "/v1/events", Handler: s.authenticated(s.group), NoHead: true, Query: []string{"session", "stream", "added", "after", "from", "method", "level", partitionParameter}},
		{Method: fiber.MethodGet, Path: "/rejoin.js", Handler: pages.File(rejoinjs.Source, "text/javascript; charset=utf-8")},
	}
	routes = append(routes, s.mcp.Routes()...)
	if s.cfg.Access.On() {
		routes = append(routes, s.mcp.ResourceRoutes()...)
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
	s := &Service{cfg: cfg, log: b.Log, sessions: b.Sessions, logger: env.Log, memory: env.Memory, nc: b.Conn}
	s.subs = subscriber.New(cfg.Config, b, env)
	var err error
	if s.mcp, err = mcpedge.New(cfg.MCP, s.subs, b, env); err != nil {
		s.subs.Close()
		return nil, err
	}
	env.Health.Add("windows", s.subs.Parts.Ready)
	if err = cfg.Access.CheckListen(cfg.EdgeAddr, "--edge-addr"); err != nil {
		s.subs.Close()
		return nil, err
	}
	if s.ln, err = web.Listen(env, cfg.EdgeAddr, "--edge-addr", cfg.bounds()); err != nil {
		s.subs.Close()
		return nil, err
	}
	if cfg.TLS.On() {
		if s.front, err = front.New(s.ln, cfg.TLS, cfg.Clients.HeaderTimeout(), web.IdleTimeout, cfg.WriteTimeout, env.Log); err != nil {
			s.subs.Close()
			_ = s.ln.Close() // the first error has the cause
			return nil, err
		}
		bounds, refused := cfg.bounds(), web.NewRefused(env)
		requests := quota.NewPool(int64(bounds.Connections)) // each counts as a connection
		requests.Each(int64(bounds.Address))
		s.front.Bound(requests, env.Files, cfg.Clients.Peer, func(client net.Addr, err error) {
			reason := web.RefusedFiles
			if errors.Is(err, front.ErrTooManyRequests) {
				reason = web.RefusedConnections
			}
			refused.Note(reason, "requests over TLS are cut off: there is no room for more, or for more of their address (--max-connections, --max-address-connections, ulimit -n)",
				slog.String("client", client.String()), slog.Any("error", err))
		})
	}
	metric.GaugeFunc(env.Metrics, "rejoin_edge_certificate_expiry_timestamp_seconds", "When the certificate that clients receive expires, in Unix time; 0 without one.", func() float64 {
		if s.front == nil {
			return 0
		}
		return float64(s.front.Expires().Unix())
	})
	s.app = web.NewApp(web.Config{Service: "edge", Log: env.Log, Refusals: s.subs.Refusals, Metrics: env.Metrics, Traces: env.Traces, Clients: cfg.Clients, Memory: env.Memory, MaxBodyBytes: func() int { return web.BodyLimit(b.Log.Settings().MaxMessageBytes) }, WriteTimeout: time.Minute})
	s.app.Server().KeepHijackedConns = true // the workers own them
	cfg.Access.Protect(s.app, "--edge-hosts", cfg.EdgeHosts, cfg.MCP.PublicURL)
	web.Mount(s.app, s.Routes()...)
	web.Mount(s.app, more...)
	return s, nil
}

// Addr returns the address that the edge listens on.
func (s *Service) Addr() net.Addr { return s.ln.Addr() }

// URL returns the address as a URL.
func (s *Service) URL() string {
	scheme := "http"
	if s.front != nil {
		scheme = "https"
	}
	return scheme + "://" + s.ln.Addr().String()
}

// Run serves until ctx ends, then drains: it accepts no new streams, and closes the open
// ones spread over Config.Drain, each with a time to reconnect.
func (s *Service) Run(ctx context.Context) error {
	defer s.subs.Close()
	tailCtx, stopTails := context.WithCancel(context.WithoutCancel(ctx))
	var tails sync.WaitGroup
	subsCtx, stopSubs := context.WithCancel(tailCtx)
	var subs sync.WaitGroup
	subs.Go(func() { s.subs.Run(subsCtx) })
	tails.Go(func() {
		if err := presence.Serve(tailCtx, s.nc, s.subs.Admission.Answerer()); err != nil {
			s.logger.Warn("the janitor cannot ask for connections", "error", err)
		}
	})
	tails.Go(func() {
		if err := inspect.Serve(tailCtx, s.nc, s.audience(tailCtx)); err != nil {
			s.logger.Warn("the janitor cannot ask for deliveries", "error", err)
		}
	})
	s.mcp.Open(tailCtx)
	tails.Go(func() { s.mcp.Run(tailCtx) })
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
		s.subs.Drain(0)
	case <-ctx.Done():
		s.subs.Drain(s.cfg.Drain)
		stopServing()
		err = <-served
	}
	stopServing()
	if s.front != nil { // its connections end after the server
		ctx, cancel := context.WithTimeout(context.Background(), s.cfg.WriteTimeout)
		s.front.Stop(ctx)
		cancel()
	}
	stopSubs()
	subs.Wait()
	stopTails()
	tails.Wait()
	return err
}

// ProgramConfig holds the flags of the program that runs nothing but the edge.
type ProgramConfig struct {
	daemon.Config
	Backend backend.Config    `embed:""`
	Edge    Config            `embed:""`
	Access  web.AccessConfig  `embed:""`
	Clients web.ClientsConfig `embed:""`
}

// Check reports the problems that would keep the program from starting, one a line.
func (cfg *ProgramConfig) Check() error {
	_, clientsErr := web.NewClients(cfg.Clients)
	return errors.Join(cfg.Edge.Validate(), cfg.Edge.TLS.Check(), cfg.Access.Check(), clientsErr, cfg.Access.CheckListen(cfg.Edge.EdgeAddr, "--edge-addr"))
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
	cfg.Edge.DrainWithin(cfg.StopTimeout)
	return backend.Serve(ctx, cfg.Config, env, "sse-edge",
		func(ctx context.Context) (*backend.Backend, error) {
			cfg.Backend.Metrics = env.Metrics
			b, err := backend.Open(ctx, cfg.Backend, "sse-edge", env.Log)
			if err == nil {
				b.Sessions.ReadOnly()
			}
			return b, err
		},
		func(b *backend.Backend) (*Service, error) { return New(cfg.Edge, b, env) })
}

// audience returns the function that answers the janitor's questions until ctx ends.
func (s *Service) audience(ctx context.Context) func(inspect.Question) inspect.Answer {
	id := rand.Text()
	host, _ := os.Hostname() // without a name the janitor shows none
	return func(q inspect.Question) inspect.Answer {
		a := inspect.Answer{Edge: id, Host: host}
		a.Clients, a.Of = s.subs.Admission.Clients(q)
		limit := cmp.Or(q.Limit, inspect.MaxItems)
		switch q.About {
		case inspect.Clients:
		case inspect.Connections:
			a.Connections, a.Total = s.subs.Connections.Of(ctx, q.Session, limit)
		case inspect.Happenings:
			a.Happenings, a.Total, a.Since = s.subs.Connections.History.OfSession(q.Session, limit)
		case inspect.Gaps:
			a.Happenings, a.Reasons, a.Total, a.Since = s.subs.Connections.History.Lately(limit)
		}
		return a
	}
}
