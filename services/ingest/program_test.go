package ingest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"rejoin/services/ingest"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/web/webtest"
)

// startProgram runs the program until it has logged so many addresses, which are
// returned by the message of their log line. stop makes it end, and expects that it does in order.
func startProgram(t *testing.T, cfg *ingest.ProgramConfig, natsURL string, addresses int) (addrs map[string]string, stop func()) {
	t.Helper()
	logs, out := io.Pipe()
	signals := make(chan os.Signal, 1)
	code := make(chan int, 1)
	go func() {
		code <- daemon.App{
			Name: "ingest", CLI: cfg, Stderr: out, Signals: signals,
			Run:  func(ctx context.Context, env daemon.Env) error { return ingest.Run(ctx, *cfg, env) },
			Args: []string{"--nats-url", natsURL, "--ingest-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json"},
		}.Main()
		_ = out.Close()
	}()
	addrs = map[string]string{}
	for lines := bufio.NewScanner(logs); len(addrs) < addresses && lines.Scan(); {
		var line struct{ Msg, Addr string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%v in %q", err, lines.Text())
		}
		if line.Addr != "" {
			addrs[line.Msg] = line.Addr
		}
	}
	go func() { _, _ = io.Copy(io.Discard, logs) }()
	return addrs, func() {
		t.Helper()
		signals <- syscall.SIGTERM
		if got := <-code; got != daemon.ExitOK {
			t.Errorf("exit code %d", got)
		}
	}
}

func TestProgram_Stop(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	var cfg ingest.ProgramConfig
	addrs, stop := startProgram(t, &cfg, s.srv.URL(), 2)
	if cfg.Ingest.AckTimeout != 2*time.Second || cfg.Ingest.MaxInFlight != 4096 || cfg.Streams.MaxStreamsOverride != 0 || cfg.Ingest.MaxPublishRate != 0 || cfg.Ingest.MaxSessionPublishRate != 0 {
		t.Errorf("defaults %+v", cfg.Ingest)
	}
	program := &instance{url: "http://" + addrs["ingest listens"], http: newClient(t)}
	program.takes(t, "1", "k")
	admin := &instance{url: "http://" + addrs["admin port open"], http: program.http}
	admin.send(t, http.MethodGet, "/readyz", nil).got(t, http.StatusOK)
	stop()
}

func TestProgram_WaitsForLog(t *testing.T) {
	var cfg ingest.ProgramConfig
	addrs, stop := startProgram(t, &cfg, "nats://127.0.0.1:1", 1)
	addr := addrs["admin port open"]
	for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
		if a := webtest.Ask(t, http.MethodGet, "http://"+addr+path, ""); a.Status != want {
			t.Errorf("%s: %d, want %d", path, a.Status, want)
		}
	}
	stop()
}

func TestConfig_Invalid(t *testing.T) {
	for flag, change := range map[string]func(*ingest.Config){
		"--ingest-addr":              func(c *ingest.Config) { c.IngestAddr = "" },
		"--ack-timeout":              func(c *ingest.Config) { c.AckTimeout = 0 },
		"--max-in-flight":            func(c *ingest.Config) { c.MaxInFlight = 0 },
		"--max-publish-rate":         func(c *ingest.Config) { c.MaxPublishRate = -2 },
		"--max-session-publish-rate": func(c *ingest.Config) { c.MaxSessionPublishRate = -2 },
		"--max-streams-override":     func(c *ingest.Config) { c.Streams.MaxStreamsOverride = -2 },
	} {
		cfg := testConfig()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
		if _, err := ingest.New(cfg, nil, daemon.NewEnv(nil)); err == nil {
			t.Errorf("%s: New takes it", flag)
		}
	}
	must.NoError(t, testConfig().Validate())
	s, in := started(t)
	cfg := testConfig()
	cfg.IngestAddr = in.Addr().String()
	if _, err := ingest.New(cfg, s.b, daemon.NewEnv(nil)); err == nil || !strings.Contains(err.Error(), "--ingest-addr") {
		t.Errorf("a port that is taken: %v", err)
	}
}
