package ingest

import (
	"context"
	"errors"
	"net"
	"runtime"
	"time"

	"github.com/gofiber/fiber/v2"
	lru "github.com/hashicorp/golang-lru/v2"

	"rejoin/services/ingest/request"
	"rejoin/services/ingest/streams"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// New opens the listener at cfg.IngestAddr and registers metrics and the readiness
// check "nats". The backend must stay open until Run has returned.
func New(cfg Config, b *backend.Backend, env daemon.Env) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.Access.CheckListen(cfg.IngestAddr, "--ingest-addr"); err != nil {
		return nil, err
	}
	ln, err := web.Listen(env, cfg.IngestAddr, "--ingest-addr", web.Bounds{Clients: cfg.Clients})
	if err != nil {
		return nil, err
	}
	idPrefixes, err := lru.New[event.TagParts, string](maxPlaces)
	if err != nil {
		return nil, err
	}
	limits := session.NewLimits(cfg.Sessions, b.Sessions.Usage)
	publishes := quota.NewPool(int64(cfg.MaxInFlight))
	m := newMetrics(env.Metrics, limits.Share, publishes)
	s := &Service{
		cfg: cfg, backend: b, metrics: m, traces: env.Traces, log: publishLog{env.Log, env.LogBodies}, ln: ln,
		publishes:    publishes,
		visits:       visits{over: make(chan struct{})},
		natsRequests: quota.NewPool(int64(cfg.MaxInFlight)),
		arrays:       make(chan struct{}, arraysAtOnce(cfg.MaxInFlight)),
		bodies:       request.NewArrays(max(runtime.GOMAXPROCS(0)/4, 1)),
		endings:      streams.NewEndings(), idPrefixes: idPrefixes,
		memory:   env.Memory,
		sessions: limits,
		streams: streams.NewLimit(func(rec session.Record) int64 {
			return cfg.Streams.Limit(rec.Retention, b.Log.Settings().MaxStreamsPerSession)
		}, func() time.Duration { return b.Log.Settings().MaxAge }),
		publishers: web.NewLimiter[string](cfg.MaxPublishRate), perSession: web.NewLimiter[string](cfg.MaxSessionPublishRate),
		creators: web.NewLimiter[string](cfg.MaxSessionRate), looks: web.NewLimiter[string](endsAskedRate),
		limit: context.WithTimeout,
		app: web.NewApp(web.Config{
			Service: "ingest", Log: env.Log, Metrics: env.Metrics, Traces: env.Traces, Clients: cfg.Clients, Memory: env.Memory,
			MaxBodyBytes: func() int { return web.BodyLimit(b.Log.Settings().MaxMessageBytes) },
		}),
	}
	b.Log.TraceTo(env.Traces)
	cfg.Access.Protect(s.app, "--ingest-hosts", cfg.IngestHosts)
	web.Mount(s.app, s.Routes()...)
	env.Health.Add("nats", b.Connected)
	env.Log.Info("ingest listens", "addr", ln.Addr().String())
	return s, nil
}

// Addr returns the address that the service is bound to.
func (s *Service) Addr() net.Addr { return s.ln.Addr() }

// Routes returns the routes of the service, for another application to serve as
// well. That one should stop before Run's context ends.
func (s *Service) Routes() []web.Route {
	return []web.Route{
		{Method: fiber.MethodPost, Path: "/v1/sessions", Handler: s.cfg.Access.Guard(s.createSession)},
		{Method: fiber.MethodPut, Path: "/v1/sessions/:session/members", Handler: s.guard(s.putMembers)},
		{Method: fiber.MethodDelete, Path: "/v1/sessions/:session", Handler: s.guard(s.answerClose), Query: []string{"clear"}},
		{Method: fiber.MethodDelete, Path: "/v1/sessions/:session/streams/:stream", Handler: s.guard(s.answerClose), Query: []string{"clear"}},
		{Method: fiber.MethodPost, Path: "/v1/sessions/:session/streams/:stream/events", Handler: s.guard(s.postEvents), Query: []string{"results"}},
	}
}

// Run serves until ctx ends, then answers the requests under way, and returns nil. Requests
// that take longer than a close may are cut off.
func (s *Service) Run(ctx context.Context) error {
	onNATS, err := s.listen()
	if err != nil {
		_ = s.ln.Close() // the other error says why
		return err
	}
	err = web.Serve(ctx, s.app, s.ln, s.cfg.closeTimeout())
	if stopErr := onNATS.Stop(); stopErr != nil && s.backend.Connected() == nil {
		err = errors.Join(err, stopErr)
	}
	s.visits.close() // each is bounded by AckTimeout
	return err
}

// ProgramConfig holds the flags of the program that runs only ingest.
type ProgramConfig struct {
	daemon.Config
	Backend  backend.Config          `embed:""`
	Streams  session.StreamsOverride `embed:""`
	Sessions session.LimitsConfig    `embed:""`
	Ingest   Config                  `embed:""`
	Access   web.AccessConfig        `embed:""`
	Clients  web.ClientsConfig       `embed:""`
}

// Check reports the problems that would keep the program from starting, a line for each.
func (cfg *ProgramConfig) Check() error {
	c := cfg.Ingest
	c.Streams, c.Sessions = cfg.Streams, cfg.Sessions
	_, clientsErr := web.NewClients(cfg.Clients)
	return errors.Join(c.Validate(), cfg.Access.Check(), clientsErr, cfg.Access.CheckListen(c.IngestAddr, "--ingest-addr"))
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
	cfg.Ingest.Access, cfg.Ingest.Clients, cfg.Ingest.Streams = access, clients, cfg.Streams
	cfg.Ingest.Sessions = cfg.Sessions
	return backend.Serve(ctx, cfg.Config, env, "ingest",
		func(ctx context.Context) (*backend.Backend, error) {
			cfg.Backend.Metrics = env.Metrics
			return backend.Open(ctx, cfg.Backend, "ingest", env.Log)
		},
		func(b *backend.Backend) (*Service, error) { return New(cfg.Ingest, b, env) })
}
