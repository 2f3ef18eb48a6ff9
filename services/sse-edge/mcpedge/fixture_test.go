package mcpedge

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
)

// fixture is a log of one partition, and edges on it. The test is the janitor.
type fixture struct {
	*edgetest.Log
	t *testing.T
	// env and tune change an edge before it is made, and before it runs; nil for nothing.
	env  func(*daemon.Env)
	tune func(*edge)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{Log: edgetest.NewLog(t), t: t}
}

// config is the config of an edge that serves only MCP.
type config struct {
	subscriber.Config
	MCP Config
}

// edge is an edge that serves only MCP.
type edge struct {
	*Service
	ln net.Listener
}

func (s *edge) url() string { return "http://" + s.ln.Addr().String() }

// mcpService starts an edge, until the test or stop ends it.
func (f *fixture) mcpService(change func(*config)) (s *edge, stop func()) {
	f.t.Helper()
	env := daemon.NewEnv(nil)
	if f.env != nil {
		f.env(&env)
	}
	b := must.Value(backend.Open(waittest.Context(f.t), backend.Config{NATSURL: f.Server.URL()}, "edge", env.Log))(f.t)
	cfg := config{
		subscriber.Config{
			WindowBytes: 1 << 20, LogReads: 2, Heartbeat: 15 * time.Second, Retry: 3 * time.Second,
			MaxAge: 10 * time.Minute, WriteTimeout: 20 * time.Second, MaxConnections: 100, MaxSessionConnections: 100, MaxAddressConnections: 100,
			PartitionLinger: -1, LedgerPatience: 20 * time.Second, // longer than a slow machine takes
		},
		Config{StreamMethods: []string{"tools/call", "resources/read"}},
	}
	if change != nil {
		change(&cfg)
	}
	subs := subscriber.New(cfg.Config, b, env)
	service := must.Value(New(cfg.MCP, subs, b, env))(f.t)
	ln := must.Value(web.Listen(env, "127.0.0.1:0", "--edge-addr", web.Bounds{}))(f.t)
	s = &edge{service, ln}
	if f.tune != nil {
		f.tune(s)
	}
	app := web.NewApp(web.Config{Service: "edge", Log: env.Log, Refusals: subs.Refusals, Metrics: env.Metrics, Traces: env.Traces, Clients: cfg.Clients, Memory: env.Memory, MaxBodyBytes: func() int { return web.BodyLimit(b.Log.Settings().MaxMessageBytes) }, WriteTimeout: time.Minute})
	app.Server().KeepHijackedConns = true
	cfg.Access.Protect(app, "--edge-hosts", nil, cfg.MCP.PublicURL)
	web.Mount(app, append(s.Routes(), s.ResourceRoutes()...)...)
	// In the order of the whole edge: streams end before the services that serve them.
	serveCtx, stopServing := context.WithCancel(context.Background())
	subsCtx, stopSubs := context.WithCancel(context.Background())
	mcpCtx, stopMCP := context.WithCancel(context.Background())
	var serving, running, mcp sync.WaitGroup
	running.Go(func() { subs.Run(subsCtx) })
	s.Open(mcpCtx)
	mcp.Go(func() { s.Run(mcpCtx) })
	serving.Go(func() {
		if err := web.Serve(serveCtx, app, ln, cfg.WriteTimeout); err != nil {
			f.t.Errorf("the edge ended with %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		subs.Drain(cfg.Drain)
		stopServing()
		serving.Wait()
		stopSubs()
		running.Wait()
		stopMCP()
		mcp.Wait()
		subs.Close()
		b.Close()
	})
	f.t.Cleanup(stop)
	waittest.Until(f.t, "the edge is ready", func() bool { return subs.Parts.Ready() == nil })
	return s, stop
}

// mcpEdge is mcpService for tests that need only its URL.
func (f *fixture) mcpEdge(change func(*config)) string {
	f.t.Helper()
	s, _ := f.mcpService(change)
	return s.url()
}

// has waits until the window of an edge has received a sequence.
func (s *edge) has(t *testing.T, sequence uint64) {
	t.Helper()
	waittest.Until(t, "the window has it", func() bool { return s.subs.Parts.Of("s").Stats().End >= sequence })
}

// guarded has an edge accept only clients with a token, and pages of one origin.
func guarded(t *testing.T) func(*config) {
	t.Helper()
	access := edgetest.Access(t)
	return func(c *config) { c.Access = access }
}

// placeOf is a stream of a session without an opening.
func placeOf(session, stream string) window.Place {
	return window.Place{Session: session, Stream: stream}
}

// client is one connection to an event stream.
type client struct{ *edgetest.Client }

// subscribe opens an event stream; headers are pairs of names and values.
func subscribe(t *testing.T, url string, headers ...string) *client {
	t.Helper()
	return &client{edgetest.Subscribe(t, url, headers...)}
}
