package bridge

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"rejoin/shared/daemon"
)

func parseFlags(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	var cfg ProgramConfig
	parser, err := kong.New(&cfg, kong.Vars{"admin_addr": "", "version": ""})
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(args)
	return cfg.Bridge, err
}

func TestFlags(t *testing.T) {
	for _, bad := range []string{
		"--upstream=ftp://x", "--upstream=x", "--upstream=http://", "--upstream-command=a | b", "--upstream-command='", "--upstream-header=X",
		"--upstream-header=Mcp-Session-Id: 1", "--upstream-header=X Y: 1", "--forward-header=Host", "--forward-header=last-event-id", "--forward-header=authorization", "--forward-header=Cookie",
		"--accept-after=0s", "--open-timeout=0s", "--max-calls=0", "--call-timeout=soon",
	} {
		args := []string{"--upstream=http://x", bad} // the last of two counts
		if strings.HasPrefix(bad, "--upstream-command") {
			args = args[1:]
		}
		if _, err := parseFlags(t, args...); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
	if _, err := parseFlags(t, "--upstream=http://x", "--upstream-command=x"); err == nil {
		t.Error("two upstreams are taken")
	}
	if _, err := parseFlags(t, "--upstream-command=x", "--max-processes=0"); err == nil {
		t.Error("no processes are taken")
	}
	cfg, err := parseFlags(t, "--upstream-command=npx -y 'a b'", "--call-timeout=-1", "--upstream-header=A: b, c", "--upstream-header=A: d")
	if err != nil || cfg.CallTimeout != -1 {
		t.Fatal(cfg, err)
	}
	if argv, err := cfg.argv(); err != nil || !slices.Equal(argv, []string{"npx", "-y", "a b"}) {
		t.Errorf("the command is %q, %v", argv, err)
	}
	if h, err := cfg.header(); err != nil || !slices.Equal(h["A"], []string{"b, c", "d"}) {
		t.Errorf("the header is %v, %v", h, err)
	}
	if cfg.ForwardHeader[0] != "Accept-Language" || slices.Contains(cfg.ForwardHeader, "Authorization") {
		t.Errorf("these are forwarded: %v", cfg.ForwardHeader)
	}
}

func TestFlags_NoUpstream(t *testing.T) {
	if err := Run(t.Context(), ProgramConfig{}, daemon.NewEnv(nil)); !errors.Is(err, ErrNoUpstream) {
		t.Errorf("it runs without: %v", err)
	}
}

func TestFlags_InvalidLimit(t *testing.T) {
	cfg := ProgramConfig{Bridge: Config{Upstream: "http://127.0.0.1:1/mcp"}}
	cfg.Sessions.MaxSessions = -5
	if err := Run(t.Context(), cfg, daemon.NewEnv(nil)); err == nil || !strings.Contains(err.Error(), "--max-sessions") {
		t.Errorf("it runs with a limit of -5: %v", err)
	}
}

func TestPauseAfter_LongRun(t *testing.T) {
	for ran, want := range map[time.Duration]time.Duration{0: 8 * time.Second, listenPauseMax: 8 * time.Second, time.Hour: listenPause} {
		if got := pauseAfter(8*time.Second, ran); got != want {
			t.Errorf("after %v the pause is %v", ran, got)
		}
	}
}
