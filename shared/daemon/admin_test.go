package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/must"
	"rejoin/shared/web/webtest"
)

// startAdmin runs an admin port for the length of the test.
func startAdmin(t *testing.T, cfg Config, env Env) (url string) {
	t.Helper()
	cfg.AdminAddr = "127.0.0.1:0"
	addr, run, err := openAdmin(cfg, env)
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("admin port: %v", err)
		}
	})
	return "http://" + addr.String()
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	a := webtest.Ask(t, http.MethodGet, url, "")
	return a.Status, a.Text
}

func TestReadyz_NamesFailingChecks(t *testing.T) {
	env := NewEnv(nil)
	url := startAdmin(t, Config{}, env)

	expect := func(status int, want Readiness) {
		t.Helper()
		got, body := get(t, url+"/readyz")
		var r Readiness
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		if got != status || r.Ready != want.Ready || r.Draining != want.Draining || len(r.Failing) != len(want.Failing) {
			t.Fatalf("got %d %s, want %d %+v", got, body, status, want)
		}
		for i, f := range want.Failing {
			if r.Failing[i] != f {
				t.Errorf("failing check %d is %+v, want %+v", i, r.Failing[i], f)
			}
		}
	}

	expect(http.StatusOK, Readiness{Ready: true})

	var caughtUp atomic.Bool
	env.Health.Add("nats", func() error { return nil })
	env.Health.Add("window", func() error {
		if !caughtUp.Load() {
			return errors.New("3 of 16 partitions are behind")
		}
		return nil
	})
	expect(http.StatusServiceUnavailable, Readiness{Failing: []Failing{{"window", "3 of 16 partitions are behind"}}})

	caughtUp.Store(true)
	expect(http.StatusOK, Readiness{Ready: true})

	env.Health.Drain()
	expect(http.StatusServiceUnavailable, Readiness{Draining: true})
	if status, _ := get(t, url+"/livez"); status != http.StatusOK {
		t.Errorf("/livez says %d while draining", status)
	}
}

func TestAdmin_ServesMetrics(t *testing.T) {
	env := NewEnv(nil)
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "rejoin_test_events_total"})
	env.Metrics.MustRegister(counter)
	counter.Add(3)
	url := startAdmin(t, Config{}, env)
	if status, body := get(t, url+"/metrics"); status != http.StatusOK || !strings.Contains(body, "rejoin_test_events_total 3\n") {
		t.Errorf("got %d\n%s", status, body)
	}
}

func TestAdmin_PprofIsOptional(t *testing.T) {
	for pprof, want := range map[bool]int{false: http.StatusNotFound, true: http.StatusOK} {
		url := startAdmin(t, Config{Pprof: pprof}, NewEnv(nil))
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=1"} {
			if status, _ := get(t, url+path); status != want {
				t.Errorf("pprof %t: %s answers %d, want %d", pprof, path, status, want)
			}
		}
	}
}

// A page whose name was made to resolve to this machine sends that name, and is one origin with
// the port to its browser: it differs from a monitoring system only by the name.
func TestAttackRebindingAdminPort(t *testing.T) {
	machine := must.Value(os.Hostname())(t)
	url := startAdmin(t, Config{Pprof: true, AdminHosts: []string{"rejoin.example", "[2001:db8::1]"}}, NewEnv(nil))
	for host, want := range map[string]int{
		"evil.example": 403, "evil.example:9080": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example:80": 403, "evil.example.:9080": 403,
		"localhost:80:80": 403, "a.rejoin.example": 403, "example": 200,
		"localhost:9080": 200, "LocalHost.": 200, "127.0.0.1": 200, "10.1.2.3:9082": 200, "[::1]:9080": 200, "[fe80::1]": 200,
		"janitor:9082": 200, "sse-edge": 200, "rejoin_janitor_1:9082": 200, "rejoin.example:9080": 200, "Rejoin.Example": 200, machine: 200,
	} {
		for _, path := range []string{"/livez", "/readyz", "/metrics", "/debug/pprof/cmdline"} {
			a := webtest.Ask(t, http.MethodGet, url+path, "", "Host", host)
			if a.Status != want || (want == 403) != strings.Contains(a.Text, "--admin-hosts") {
				t.Errorf("%s as %s: %d %s, want %d", path, host, a.Status, a.Text, want)
			}
		}
	}
}

// The port is served under the name that it was bound to: --healthcheck asks for it.
func TestAdminHosts_BoundName(t *testing.T) {
	for addr, host := range map[string]string{"rejoin.example:9080": "rejoin.example:9080", "[::]:9080": "localhost:9080"} {
		served := false
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		req.Host = host
		checkHost(Config{AdminAddr: addr}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true })).ServeHTTP(httptest.NewRecorder(), req)
		if !served {
			t.Errorf("bound to %s, %s is refused", addr, host)
		}
	}
}

// HAProxy's checks have HTTP/1.0 and no Host.
func TestAdminHosts_NoHost(t *testing.T) {
	url := startAdmin(t, Config{}, NewEnv(nil))
	answer, err := io.ReadAll(webtest.Dial(t, strings.TrimPrefix(url, "http://"), "GET /readyz HTTP/1.0\r\n\r\n"))
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.0 200 ") {
		t.Errorf("%s, %v", answer, err)
	}
}

func TestListen_ErrorNamesTheFlag(t *testing.T) {
	taken := must.Value(Listen("127.0.0.1:0", "--edge-addr"))(t)
	defer func() { _ = taken.Close() }()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	must.NoError(t, err)

	for name, tt := range map[string]struct{ addr, want string }{
		"port taken":  {"127.0.0.1:" + port, "port " + port + " on 127.0.0.1 is taken by another program; stop it or choose another with --edge-addr"},
		"not ours":    {"192.0.2.1:0", "this machine has no address 192.0.2.1; choose another with --edge-addr"},
		"no port":     {"localhost", `--edge-addr must be HOST:PORT, not "localhost": address localhost: missing port in address`},
		"port no one": {"127.0.0.1:http!", `--edge-addr must be HOST:PORT, not "127.0.0.1:http!": lookup tcp/http!: unknown port`},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := Listen(tt.addr, "--edge-addr")
			if err == nil {
				_ = ln.Close()
				t.Fatal("no error")
			}
			if err.Error() != tt.want {
				t.Errorf("got  %q\nwant %q", err, tt.want)
			}
		})
	}
}

func TestRun_AdminPortClosesLast(t *testing.T) {
	var logged bytes.Buffer
	env := NewEnv(slog.New(slog.NewJSONHandler(&logged, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var status int
	var body string
	err := Run(ctx, Config{AdminAddr: "127.0.0.1:0"}, env, Actor{"edge", func(ctx context.Context) error {
		var line struct{ Addr string }
		if err := json.Unmarshal(logged.Bytes(), &line); err != nil {
			return err
		}
		cancel()
		<-ctx.Done()
		status, body = get(t, "http://"+line.Addr+"/readyz")
		return nil
	}})
	must.NoError(t, err)
	if status != http.StatusServiceUnavailable || !strings.Contains(body, `"draining":true`) {
		t.Errorf("while stopping, /readyz says %d %s", status, body)
	}
	if !env.Health.Readiness().Draining {
		t.Error("not draining")
	}
}

func TestRun_AdminPortIsTaken(t *testing.T) {
	ln, err := Listen("127.0.0.1:0", "--admin-addr")
	must.NoError(t, err)
	defer func() { _ = ln.Close() }()
	err = Run(t.Context(), Config{AdminAddr: ln.Addr().String()}, NewEnv(nil))
	if err == nil || !strings.Contains(err.Error(), "choose another with --admin-addr") {
		t.Errorf("got %v", err)
	}
}

func TestHealthcheck(t *testing.T) {
	env := NewEnv(nil)
	var trouble error
	env.Health.Add("log", func() error { return trouble })
	addr := strings.TrimPrefix(startAdmin(t, Config{}, env), "http://")
	_, port, err := net.SplitHostPort(addr)
	must.NoError(t, err)
	run := func(addr string) (int, string) {
		var cli testCLI
		a, _, stderr := app(&cli, func(context.Context, Env) error {
			t.Error("the program runs")
			return nil
		}, "--healthcheck")
		t.Setenv("REJOIN_ADMIN_ADDR", addr)
		return a.Main(), stderr.String()
	}
	for _, asked := range []string{addr, "0.0.0.0:" + port, ":" + port} {
		if code, said := run(asked); code != ExitOK {
			t.Errorf("%s: exit code %d: %s", asked, code, said)
		}
	}
	trouble = errors.New("it is not there yet")
	if code, said := run(addr); code != ExitError || !strings.Contains(said, "it is not there yet") {
		t.Errorf("exit code %d: %s", code, said)
	}
	for _, closed := range []string{"127.0.0.1:1", ""} {
		if code, said := run(closed); code != ExitError || said == "" {
			t.Errorf("%q: exit code %d: %s", closed, code, said)
		}
	}
}
