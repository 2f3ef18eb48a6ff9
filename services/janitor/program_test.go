package janitor

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func parse(t *testing.T, args ...string) (ProgramConfig, error) {
	t.Helper()
	var cfg ProgramConfig
	parser, err := kong.New(&cfg, kong.Vars{"admin_addr": "127.0.0.1:0", "version": "test"})
	must.NoError(t, err)
	_, err = parser.Parse(args)
	return cfg, err
}

func TestFlags(t *testing.T) {
	cfg, err := parse(t)
	must.NoError(t, err)
	if cfg.Janitor.Interval != 5*time.Second || cfg.Janitor.JanitorAddr != "127.0.0.1:8082" || cfg.Janitor.Validate() != nil {
		t.Errorf("the defaults are %+v", cfg.Janitor)
	}
	if got, want := cfg.Log.Settings(), (eventlog.Settings{Compression: true}); got != want {
		t.Errorf("the settings are %+v", got)
	}
	cfg, err = parse(t, "--max-age=-1", "--no-compression", "--partitions=3", "--max-bytes=-1")
	must.NoError(t, err)
	if got, want := cfg.Log.Settings(), (eventlog.Settings{MaxAge: -1, Partitions: 3, MaxBytes: -1}); got != want {
		t.Errorf("the settings are %+v", got)
	}
	if cfg, err = parse(t, "--max-age=90m"); err != nil || cfg.Log.Settings().MaxAge != 90*time.Minute {
		t.Errorf("%+v, %v", cfg.Log, err)
	}
	if _, err = parse(t, "--max-age=soon"); err == nil {
		t.Error("--max-age=soon is accepted")
	}
	for _, args := range [][]string{{"--interval=1ms"}, {"--lease=999ms"}, {"--nats-sync-interval=1ns"}, {"--closed-grace=-1s"}, {"--tombstone-ttl=1s"}, {"--partitions=-1"}, {"--max-events-override=-2"}, {"--max-bytes-override=-2"}, {"--max-streams-override=-2"}} {
		flag, _, _ := strings.Cut(args[0], "=")
		if _, err := parse(t, args...); err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(flag, "--")) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestProgram_ExistingLogKeepsSettings(t *testing.T) {
	var out bytes.Buffer
	no := false
	f := LogFlags{Partitions: 4, MaxAge: -1, Compression: &no}
	has := eventlog.Settings{Partitions: 4, MaxAge: time.Hour, Compression: true, MaxBytes: 5}
	f.WarnOfDifferences(has, slog.New(slog.NewTextHandler(&out, nil)))
	for flag, want := range map[string]bool{"--partitions": false, "--max-age": true, "--compression": true, "--max-bytes": false} {
		if got := strings.Contains(out.String(), flag); got != want {
			t.Errorf("%s is mentioned: %t\n%s", flag, got, out.String())
		}
	}
}

func TestProgram_Flags(t *testing.T) {
	srv := natstest.Start(t)
	cfg := must.Value(parse(t, "--nats-url="+srv.URL(), "--janitor-addr=127.0.0.1:0", "--partitions=1", "--admin-addr=127.0.0.1:0"))(t)
	env := daemon.NewEnv(nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg, env) }()
	waittest.NoError(t, func() error {
		if r := env.Health.Readiness(); !r.Ready || len(r.Failing) > 0 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	cancel()
	must.NoError(t, <-ended)
}
