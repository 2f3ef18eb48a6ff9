package backend_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/leaktest"
	"rejoin/shared/metric/metrictest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// create creates a log on a connection that is tried again soon.
func create(ctx context.Context, cfg backend.Config, log *slog.Logger) (*backend.Backend, error) {
	return backend.Create(ctx, cfg, "test", eventlog.Settings{Partitions: 4}, log, nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0))
}

// opening creates a log in another goroutine, and closes it.
func opening(ctx context.Context, url string, log *slog.Logger) <-chan error {
	opened := make(chan error, 1)
	go func() {
		b, err := create(ctx, backend.Config{NATSURL: url}, log)
		if err == nil {
			b.Close()
		}
		opened <- err
	}()
	return opened
}

// A service that starts while NATS restarts neither gives up nor waits for lost
// answers: JetStream's client would wait for those as long as ctx lasts. Found by the
// property test of e2e.
func TestCreate_NATSRestarts(t *testing.T) {
	srv := natstest.StartParallel(t)
	for n := range 12 {
		opened := opening(waittest.Context(t), srv.URL(), slog.New(slog.DiscardHandler))
		time.Sleep(time.Duration(n) * 2 * time.Millisecond) // to meet it at another step each time
		srv.Stop()
		srv.Start()
		if err := <-opened; err != nil {
			t.Fatalf("%d: %v", n, err)
		}
	}
}

// A service that waits for NATS has the metric: without it an alert could not distinguish it from one that does not run.
func TestMetrics_Connected(t *testing.T) {
	srv := natstest.StartParallel(t)
	registry := prometheus.NewRegistry()
	cfg := backend.Config{NATSURL: srv.URL(), Metrics: registry}
	srv.Stop()
	value := func(name string) float64 { return metrictest.Value(t, registry, "rejoin_test_nats_"+name) }
	wait := func(name string, want float64) {
		t.Helper()
		waittest.Value(t, fmt.Sprintf("%s %v", name, want), func() float64 { return value(name) }, func(got float64) bool { return got == want })
	}
	opened := make(chan func(must.TB) *backend.Backend, 1)
	go func() { opened <- must.Value(create(waittest.Context(t), cfg, slog.New(slog.DiscardHandler))) }()
	waittest.Until(t, "the metrics are there", func() bool { return must.Value(testutil.GatherAndCount(registry))(t) > 1 })
	wait("connected", 0)
	srv.Start()
	defer (<-opened)(t).Close()
	wait("connected", 1)
	srv.Stop()
	wait("connected", 0)
	srv.Start()
	wait("connected", 1)
	wait("reconnects_total", 1) // the first connection does not count
}

// The service waits for a log whose replicas need more servers than the cluster has.
func TestCreate_WaitsForEnoughServers(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	settings := eventlog.Settings{Partitions: 1, Replicas: 5}
	_, err := backend.Create(ctx, backend.Config{NATSURL: c.URL()}, "test", settings, slog.New(slog.DiscardHandler))
	if ctx.Err() == nil || !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("it ends with %v", err)
	}
}

// A log of another layout is no outage, and the error has the advice.
func TestOpen_LogOfAnotherVersion(t *testing.T) {
	srv := natstest.StartParallel(t)
	js := natstest.JetStream(t, srv.Connect(), jetstream.WithDefaultTimeout(waittest.Timeout))
	config := jetstream.StreamConfig{Name: "MCP_0", Subjects: []string{"mcp.0.*.*"}, Metadata: map[string]string{"rejoin.version": "1", "rejoin.partitions": "1", "rejoin.birth": "x"}}
	must.Value(js.CreateStream(t.Context(), config))(t)
	want := srv.URL() + `: the stored log does not match: it has version "1" and this program reads version "3"; use the program that wrote it, or begin another log; --nats-url chooses another server`
	cfg, none := backend.Config{NATSURL: srv.URL()}, slog.New(slog.DiscardHandler)
	if _, err := backend.Open(t.Context(), cfg, "test", none); err == nil || err.Error() != want {
		t.Errorf("Open: %v, want %s", err, want)
	}
	if _, err := backend.Create(t.Context(), cfg, "test", eventlog.Settings{Partitions: 1}, none); err == nil || err.Error() != want {
		t.Errorf("Create: %v, want %s", err, want)
	}
}

// waits is a service that does nothing.
type waits struct{ runs chan struct{} }

func (w waits) Run(ctx context.Context) error {
	close(w.runs)
	<-ctx.Done()
	return nil
}

// A service of an earlier version ends when a later one has converted the log.
func TestServe_LogIsConverted(t *testing.T) {
	srv := natstest.StartParallel(t)
	cfg, none := backend.Config{NATSURL: srv.URL()}, slog.New(slog.DiscardHandler)
	b := must.Value(backend.Create(t.Context(), cfg, "test", eventlog.Settings{Partitions: 1}, none))(t)
	defer b.Close()
	w, ended := waits{make(chan struct{})}, make(chan error, 1)
	go func() {
		ended <- backend.Serve(waittest.Context(t), daemon.Config{}, daemon.NewEnv(nil), "test",
			func(ctx context.Context) (*backend.Backend, error) { return backend.Open(ctx, cfg, "test", none) },
			func(*backend.Backend) (waits, error) { return w, nil })
	}()
	waittest.Receive(t, "the service runs", w.runs)
	js := natstest.JetStream(t, srv.Connect())
	stream := must.Value(js.Stream(t.Context(), "MCP_0"))(t)
	converted := stream.CachedInfo().Config
	maps.DeleteFunc(converted.Metadata, func(key, _ string) bool { return !strings.HasPrefix(key, "rejoin.") })
	converted.Metadata["rejoin.version"] = "4"
	must.Value(js.UpdateStream(t.Context(), converted))(t)
	if err := waittest.Receive(t, "it ends", ended); !errors.Is(err, eventlog.ErrMismatch) || !strings.Contains(err.Error(), `version "4"`) {
		t.Errorf("it ends with %v", err)
	}
}

// A service with configured credentials does not continue without them.
func TestConfig_InvalidSeed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "seed")
	must.NoError(t, os.WriteFile(file, []byte("SUA"), 0o600))
	for want, cfg := range map[string]backend.Config{
		"--nats-nkey " + file: {NATSNkey: file},
		"no such file":        {NATSNkey: file + "s"},
		"--nats-creds":        {NATSNkey: file, NATSCreds: file},
	} {
		cfg.NATSURL = "nats://127.0.0.1:1"
		if _, err := cfg.Connect("test", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// guard is a server's access control that can refuse every client.
type guard struct {
	refuses atomic.Bool
	refused atomic.Int32
}

func (g *guard) Check(server.ClientAuthentication) bool {
	if g.refuses.Load() {
		g.refused.Add(1)
		return false
	}
	return true
}

// refusable returns a server with a guard.
func refusable(t *testing.T) (*natstest.Server, *guard) {
	t.Helper()
	g := &guard{}
	file := filepath.Join(t.TempDir(), "nats.conf")
	must.NoError(t, os.WriteFile(file, []byte("jetstream: true"), 0o600))
	return natstest.StartConfig(t, file, func(o *server.Options) { o.CustomClientAuthentication = g }), g
}

// By default, the client library gives up a connection that one server refuses twice.
func TestConnect_ServerRefusesForAWhile(t *testing.T) {
	t.Parallel()
	srv, g := refusable(t)
	var logs waittest.Buffer
	nc, err := backend.Config{NATSURL: srv.URL()}.Connect("test", slog.New(slog.NewTextHandler(&logs, nil)),
		nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0))
	must.NoError(t, err)
	defer nc.Close()
	g.refuses.Store(true)
	srv.Stop()
	srv.Start()
	waittest.Until(t, "it is refused three times", func() bool { return g.refused.Load() >= 3 || nc.IsClosed() })
	g.refuses.Store(false)
	waittest.Until(t, "it is connected again", func() bool { return nc.IsConnected() || nc.IsClosed() })
	if nc.IsClosed() {
		t.Fatal("the connection is given up")
	}
	waittest.Until(t, "the log has it", func() bool { return strings.Contains(logs.String(), "reconnected") })
	if n := strings.Count(logs.String(), "authorization violation"); n != 1 {
		t.Errorf("the refusal is logged %d times:\n%s", n, logs.String())
	}
}

func TestCreate_ServerRefusesForAWhile(t *testing.T) {
	t.Parallel()
	srv, g := refusable(t)
	g.refuses.Store(true)
	var logs waittest.Buffer
	opened := opening(waittest.Context(t), srv.URL(), slog.New(slog.NewTextHandler(&logs, nil)))
	const reason = `msg="waiting for NATS" reason="nats: authorization violation"`
	waittest.Until(t, "the log has the reason", func() bool { return g.refused.Load() >= 3 && strings.Contains(logs.String(), reason) })
	g.refuses.Store(false)
	must.NoError(t, waittest.Receive(t, "it is opened", opened))
	if n := strings.Count(logs.String(), reason); n != 1 {
		t.Errorf("the reason is logged %d times", n)
	}
}

// Each try has a port of its own, which is no reason of its own.
func TestCreate_ServerResetsConnections(t *testing.T) {
	t.Parallel()
	ln := must.Value(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer func() { _ = ln.Close() }()
	tries := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			_ = c.Close()
			select {
			case tries <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	var logs waittest.Buffer
	opened := opening(ctx, ln.Addr().String(), slog.New(slog.NewTextHandler(&logs, nil)))
	waittest.Until(t, "the log has the reason", func() bool {
		waittest.Receive(t, "a try", tries)
		return strings.Contains(logs.String(), "reset by peer")
	})
	cancel()
	if err := waittest.Receive(t, "it gives up", opened); err == nil {
		t.Error("it is opened")
	}
	if strings.Contains(logs.String(), ln.Addr().String()) {
		t.Errorf("reasons have addresses:\n%s", logs.String())
	}
}

func TestConnect_InboxHasTheServiceName(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := must.Value(backend.Config{NATSURL: srv.URL()}.Connect("rejoin log", slog.New(slog.DiscardHandler)))(t)
	defer nc.Close()
	if got := nc.NewInbox(); !strings.HasPrefix(got, "_INBOX_rejoin=20log.") {
		t.Error(got)
	}
}
