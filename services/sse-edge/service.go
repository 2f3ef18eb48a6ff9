// Package edge streams events to clients: over Server-Sent Events, and as pages of
// JSON to those that poll.
package edge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"rejoin/services/sse-edge/delivery"

	"rejoin/services/sse-edge/admission"

	"rejoin/services/sse-edge/cursor"

	"github.com/gofiber/fiber/v2"
	"github.com/nats-io/nats.go"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/inspect"
	"rejoin/shared/presence"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
	"rejoin/shared/web"
)

// Config configures the edge.
type Config struct {
	// EdgeAddr is where the edge listens; port 0 takes any free port.
	EdgeAddr string `name:"edge-addr" help:"Address for subscribers; port 0 selects a free port." default:"127.0.0.1:8080" placeholder:"HOST:PORT"`
	// EdgeHosts are the names, besides those of the loopback interface, under which
	// subscribers may address the edge.
	EdgeHosts []string `name:"edge-hosts" help:"Host names, in addition to localhost, that subscribers may use for the edge." placeholder:"HOST"`
	// WindowBytes bounds the memory of the windows of all partitions together.
	WindowBytes int `name:"window-bytes" help:"Memory for the newest events (the window), in bytes." default:"268435456" placeholder:"BYTES"`
	// WindowBackfill is how many bytes of the newest events the edge reads when it
	// starts; 0 means as much as fits, -1 none.
	WindowBackfill int `name:"window-backfill" help:"Bytes of the newest events to read into memory at start; 0 for as many as fit, -1 for none." default:"0" placeholder:"BYTES"`
	// LogReads is how many reads below the window go on at a time.
	LogReads int `name:"log-reads" help:"Maximum concurrent reads from disk for clients that are too far behind to be served from memory." default:"8" placeholder:"N"`
	// Heartbeat is the time between two cursor events on a connection.
	Heartbeat time.Duration `name:"heartbeat" help:"Time between two cursor events on a connection." default:"15s"`
	// Retry is the reconnection time that clients are told.
	Retry time.Duration `name:"retry" help:"Reconnection time sent to clients (retry:)." default:"3s"`
	// MaxAge is how long a connection lives, give or take a tenth.
	MaxAge time.Duration `name:"max-connection-age" help:"Maximum age of a connection, varied by up to a tenth." default:"10m"`
	// WriteTimeout is how long a write may make no progress.
	WriteTimeout time.Duration `name:"write-timeout" help:"How long a write to a client may stall before the connection is closed." default:"10s"`
	// MaxConnections bounds the event streams that are open at a time.
	MaxConnections int `name:"max-connections" help:"Maximum number of open event streams." default:"100000" placeholder:"N"`
	// MaxSessionConnections bounds those of one session.
	MaxSessionConnections int `name:"max-session-connections" help:"Maximum number of open event streams per session." default:"10000" placeholder:"N"`
	// MaxAddressConnections bounds those from one client address; all of an IPv6 /64
	// network are one.
	MaxAddressConnections int `name:"max-address-connections" help:"Maximum number of open event streams per client address (IPv6: one /64 network)." default:"10000" placeholder:"N"`
	// MaxAddressConnectRate bounds how often a client address may connect or poll, in
	// requests a second; what ten seconds give may come at once. 0 and -1: no limit.
	MaxAddressConnectRate int `name:"max-address-connect-rate" help:"Connects and polls per second from one client address (IPv6: one /64 network); bursts of ten seconds' worth are allowed; 0 or -1 for unlimited." default:"0" placeholder:"N"`
	// Drain is over how much time connections are closed when the edge stops.
	Drain time.Duration `name:"drain" help:"Time over which a stopping edge closes its connections." default:"20s"`
	// LedgerPatience is how long a janitor is waited for that has not read a partition since
	// its server started, before a gap is sent that is not certain.
	LedgerPatience time.Duration `name:"ledger-patience" help:"How long to wait until a janitor has checked a partition for damage, after its server started or its leader changed, before clients receive a gap that is not certain." default:"5s"`
	// CookieSameSite is the SameSite attribute of the cookies that tokens are exchanged
	// for; empty means lax.
	CookieSameSite web.SameSite `name:"cookie-same-site" help:"SameSite of the cookie at POST /v1/cookie: strict, lax, or none for pages of other sites, which implies Secure and Partitioned." enum:"strict,lax,none" default:"lax"`
	// MCPStreamMethods are the MCP requests that are answered with an event stream from
	// the start, so that their clients can come back. Others are answered with JSON when
	// their response is all there is.
	MCPStreamMethods []string `name:"mcp-stream-methods" help:"MCP methods whose requests always receive an event stream." default:"tools/call,resources/read" placeholder:"METHOD"`
	// PublicURL is where clients reach the edge: scheme and host. With access control,
	// MCP clients are told there where to get a token. Default: they are not.
	PublicURL string `name:"public-url" help:"URL under which clients reach the edge, such as https://mcp.example; tells MCP clients where to get a token." placeholder:"URL"`
	// AuthorizationServers are the issuers of the tokens, as MCP clients are told.
	AuthorizationServers []string `name:"authorization-server" help:"URL of the authorization server that issues tokens, announced to MCP clients; with --public-url." placeholder:"URL"`
	// Access lets requests in. Default: no access control.
	Access *web.Access `kong:"-"`
	// Clients tells clients apart. Default: by the peer's address.
	Clients *web.Clients `kong:"-"`
	// Playground serves the playground at /.
	Playground bool `name:"playground" help:"Serve the playground at /." negatable:""`
}

// Validate reports the first setting that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.WindowBytes < 1<<10:
		return errors.New("--window-bytes must be at least 1024")
	case c.WindowBackfill < -1:
		return errors.New("--window-backfill must be -1 or more")
	case c.LogReads < 1:
		return errors.New("--log-reads must be at least 1")
	case c.MaxConnections < 1 || c.MaxSessionConnections < 1 || c.MaxAddressConnections < 1:
		return errors.New("--max-connections, --max-session-connections and --max-address-connections must be at least 1")
	case c.Heartbeat < 10*time.Millisecond || c.MaxAge < time.Second || c.WriteTimeout < 10*time.Millisecond:
		return errors.New("--heartbeat and --write-timeout must be at least 10ms, --max-connection-age at least 1s")
	case c.Retry < time.Millisecond || c.Drain < 0 || c.LedgerPatience < 0:
		return errors.New("--retry must be at least 1ms, and --drain and --ledger-patience must not be negative")
	}
	if err := c.checkURLs(); err != nil {
		return err
	}
	return web.CheckLimit(c.MaxAddressConnectRate, "--max-address-connect-rate")
}

// Service is a running edge.
//
//	Run ─┬─ for each partition: tail ──▶ window      (and one goroutine of nats.go)
//	     │                      watch, looks         generations; a look after a jump
//	     ├─ attachments: which of several connections of an MCP client gets the messages
//	     ├─ presence.Serve: tells the janitor which sessions have visitors
//	     ├─ inspect.Serve: tells it who they are, and what was sent to them
//	     ├─ workers, one a processor: the cursor loop of all event streams
//	     ├─ web.Serve ── for each request a goroutine of fasthttp
//	     │                 └─ for each event stream, once hijacked: a reader that
//	     │                    notices when the client goes
//	     └─ stops in this order: no new streams, streams closed over --drain, pages
//	        answered, listener closed, tails ended
type Service struct {
	cfg      Config
	nc       *nats.Conn
	log      *eventlog.Log
	sessions *session.Registry
	logger   *slog.Logger
	health   *daemon.Health
	app      *fiber.App
	ln       net.Listener
	parts    *cursor.Partitions
	streams  *delivery.Streams
	metrics  *metrics
	traces   *tracing.Traces
	memory   *quota.Pool // that clients may make the edge hold, in bytes

	base context.Context // of all streams; ends when they must
	end  context.CancelFunc

	attached *attachments
	checks   chan struct{} // holds a token for each check in progress
	// checkEvery and unheardFor are the constants, or a test's.
	checkEvery, unheardFor time.Duration
	admitted               *admission.Admission
	connects               *web.Limiter[netip.Addr] // by client address; nil without a limit
}

// New binds the edge's listener. more are routes of other services that share its
// address. Errors are one sentence for the user.
func New(cfg Config, b *backend.Backend, env daemon.Env, more ...web.Route) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, log: b.Log, sessions: b.Sessions, logger: env.Log, traces: env.Traces, health: env.Health, memory: env.Memory,
		checks: make(chan struct{}, maxChecks), checkEvery: checkEvery, unheardFor: unheardFor,
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
		Heartbeat: cfg.Heartbeat, Retry: cfg.Retry, MaxAge: cfg.MaxAge, WriteTimeout: cfg.WriteTimeout, Drain: cfg.Drain,
		Retention: func() time.Duration { return b.Log.Settings().MaxAge },
	})
	s.parts = cursor.New(cursor.Config{
		Base: s.base, Log: b.Log, Logger: env.Log, Metrics: env.Metrics, Traced: env.Traces.On(),
		WindowBytes: cfg.WindowBytes, Backfill: cfg.WindowBackfill, LogReads: cfg.LogReads, Patience: cfg.LedgerPatience,
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
	s.app = web.NewApp(web.Config{Service: "edge", Log: env.Log, Metrics: env.Metrics, Traces: env.Traces, Clients: cfg.Clients, Memory: env.Memory, MaxBodyBytes: web.BodyLimit(b.Log.Settings().MaxMessageBytes), WriteTimeout: time.Minute})
	s.app.Server().KeepHijackedConns = true // they are the workers'
	cfg.Access.Protect(s.app, cfg.EdgeHosts, cfg.PublicURL)
	web.Mount(s.app, s.Routes()...)
	web.Mount(s.app, more...)
	return s, nil
}

// Addr is where the edge listens.
func (s *Service) Addr() net.Addr { return s.ln.Addr() }

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
	served := make(chan error, 1)
	go func() { served <- web.Serve(serveCtx, s.app, s.ln, s.cfg.WriteTimeout) }()
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
	close(stopWorkers)
	workers.Wait()
	stopTails()
	tails.Wait()
	s.attached.work.Wait() // nothing begins any more
	s.end()
	s.parts.Wait()
	return err
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
