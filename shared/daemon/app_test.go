package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"rejoin/shared/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

type testCLI struct {
	Config
	Target string `help:"What to aim at."`
	Shots  int    `help:"How often."`
	Most   *int64 `help:"How often at most."`
}

// commandCLI is a program with subcommands.
type commandCLI struct {
	Config
	Serve struct{} `cmd:"" default:"1"`
	Log   struct {
		Set struct{ MaxAge time.Duration } `cmd:""`
	} `cmd:""`
}

// app is an App whose output is kept.
func app(cli CLI, run func(context.Context, Env) error, args ...string) (a App, stdout, stderr *bytes.Buffer) {
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	return App{
		Name:        "ingest",
		Description: "Takes messages in.",
		CLI:         cli,
		Run:         run,
		Args:        append([]string{}, args...),
		Stdout:      stdout,
		Stderr:      stderr,
	}, stdout, stderr
}

func TestMain_Precedence(t *testing.T) {
	t.Setenv("REJOIN_LOG_LEVEL", "warn")
	t.Setenv("REJOIN_TARGET", "environment")
	t.Setenv("REJOIN_VERSION", "true") // is not a flag's variable
	var cli testCLI
	a, _, stderr := app(&cli, func(context.Context, Env) error { return nil }, "--target=flag")
	a.Options = []kong.Option{kong.Vars{"admin_addr": "127.0.0.1:9081"}}
	if code := a.Main(); code != ExitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	want := testCLI{Target: "flag", Config: Config{
		AdminAddr:   "127.0.0.1:9081",
		LogLevel:    "warn",
		LogFormat:   "auto",
		StopTimeout: 30 * time.Second,
	}}
	if !reflect.DeepEqual(cli, want) {
		t.Errorf("got  %+v\nwant %+v", cli, want)
	}
}

func TestMain_Durations(t *testing.T) {
	for text, want := range map[string]time.Duration{"7d": 7 * 24 * time.Hour, "90m": 90 * time.Minute} {
		var cli testCLI
		a, _, stderr := app(&cli, func(context.Context, Env) error { return nil }, "--stop-timeout="+text)
		if code := a.Main(); code != ExitOK || cli.StopTimeout != want {
			t.Errorf("%s is %s, exit code %d: %s", text, cli.StopTimeout, code, stderr)
		}
	}
}

func TestMain_Numbers(t *testing.T) {
	for text, want := range map[string]int{"100": 100, "0100": 100, "08": 8, "-1": -1} {
		var cli testCLI
		a, _, stderr := app(&cli, func(context.Context, Env) error { return nil }, "--shots="+text, "--most="+text)
		if code := a.Main(); code != ExitOK || cli.Shots != want || cli.Most == nil || *cli.Most != int64(want) {
			t.Errorf("%s: %+v, exit code %d: %s", text, cli, code, stderr)
		}
	}
	for _, text := range []string{"0x10", "1_000", "1.5", "1e3", "many", "", "9223372036854775808"} {
		for _, flag := range []string{"--shots", "--most"} {
			a, _, stderr := app(&testCLI{}, func(context.Context, Env) error { return nil }, flag+"="+text)
			if code := a.Main(); code != ExitUsage || !strings.HasPrefix(stderr.String(), "ingest: "+flag+`: "`+text+`" is not a whole number`) {
				t.Errorf("%s=%s: exit code %d: %s", flag, text, code, stderr)
			}
		}
	}
}

func TestMain_UnknownVariables(t *testing.T) {
	for name, value := range map[string]string{
		"REJOIN_LOG_FORMAT": "text", "REJOIN_TOKEN": "of another command", "REJOIN_SHELL": "", // fine
		"REJOIN_TRAGET": "typo", "REJOIN_VERSION": "v1", "OTHER_TARGET": "not ours",
	} {
		t.Setenv(name, value)
	}
	a, _, stderr := app(&testCLI{}, func(context.Context, Env) error { return nil })
	a.WarnOfVariables, a.OtherVariables = true, []string{"REJOIN_TOKEN"}
	if code := a.Main(); code != ExitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		`level=WARN msg="unknown environment variable, ignored" name=REJOIN_TRAGET did_you_mean=REJOIN_TARGET` + "\n",
		`level=WARN msg="unknown environment variable, ignored" name=REJOIN_VERSION` + "\n",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("it does not print %s", want)
		}
	}
	if lines := strings.Count(stderr.String(), "\n"); lines != 2 {
		t.Errorf("it prints %s", stderr)
	}
}

func TestMain_Env(t *testing.T) {
	a, stdout, stderr := app(&commandCLI{}, func(_ context.Context, env Env) error {
		env.Log.Debug("too quiet")
		env.Log.Info("heard", "command", env.Command)
		families, err := env.Metrics.Gather()
		if err != nil || len(families) == 0 {
			return fmt.Errorf("%d metrics: %w", len(families), err)
		}
		ready := func() float64 {
			families, err := env.Metrics.Gather()
			for _, f := range families {
				if err == nil && f.GetName() == "rejoin_ready" {
					return f.GetMetric()[0].GetGauge().GetValue()
				}
			}
			return -1
		}
		_, err = fmt.Fprintln(env.Stdout, env.Health.Readiness().Ready, ready())
		env.Health.Drain()
		if ready() != 0 {
			t.Error("a program that drains is ready by its metrics")
		}
		return err
	}, "log", "set", "--max-age=2h")
	if code := a.Main(); code != ExitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if stdout.String() != "true 1\n" {
		t.Errorf("stdout is %q", stdout)
	}
	if !strings.Contains(stderr.String(), `"msg":"heard","command":"log set"`) || strings.Contains(stderr.String(), "quiet") {
		t.Errorf("log is %q", stderr)
	}
}

func TestMain_ErrorIsOneLine(t *testing.T) {
	failing := func(err error) func(context.Context, Env) error {
		return func(context.Context, Env) error { return err }
	}
	for name, tt := range map[string]struct {
		run    func(context.Context, Env) error
		args   []string
		code   int
		stderr string
	}{
		"error":         {failing(errBroken), nil, ExitError, "ingest: broken pipe\n"},
		"two errors":    {failing(errors.Join(errBroken, errBroken)), nil, ExitError, "ingest: broken pipe; broken pipe\n"},
		"its own name":  {failing(fmt.Errorf("ingest: %w", errBroken)), nil, ExitError, "ingest: broken pipe\n"},
		"not told":      {failing(context.Canceled), nil, ExitError, "ingest: context canceled\n"},
		"unknown flag":  {nil, []string{"--tarpit"}, ExitUsage, "ingest: unknown flag --tarpit, did you mean \"--target\"?; see ingest --help\n"},
		"bad value":     {nil, []string{"--log-level=loud"}, ExitUsage, "ingest: --log-level must be one of \"debug\",\"info\",\"warn\",\"error\" but got \"loud\"; see ingest --help\n"},
		"argument":      {nil, []string{"extra"}, ExitUsage, "ingest: unexpected argument extra; see ingest --help\n"},
		"no time-out":   {nil, []string{"--stop-timeout=-1s"}, ExitUsage, "ingest: --stop-timeout must not be negative, as -1s is; see ingest --help\n"},
		"bad time-out":  {nil, []string{"--stop-timeout=soon"}, ExitUsage, "ingest: --stop-timeout: \"soon\" is not a duration (examples: 90m, 24h, 7d); see ingest --help\n"},
		"nothing wrong": {failing(nil), nil, ExitOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, stderr := app(&testCLI{}, tt.run, tt.args...)
			if code := a.Main(); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if stderr.String() != tt.stderr {
				t.Errorf("got  %q\nwant %q", stderr, tt.stderr)
			}
		})
	}
}

func TestMain_HelpAndVersion(t *testing.T) {
	Version = "v1.2.3"
	t.Cleanup(func() { Version = "" })
	for flag, want := range map[string]string{"--help": "Takes messages in.", "--version": "ingest v1.2.3 (go"} {
		a, stdout, stderr := app(&testCLI{}, nil, flag, "--no-such-flag")
		a.Args = a.Args[:1]
		if code := a.Main(); code != ExitOK {
			t.Errorf("%s: exit code %d: %s", flag, code, stderr)
		}
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("%s prints %q", flag, stdout)
		}
	}
}

func TestMain_SecondSignal(t *testing.T) {
	signals := make(chan os.Signal, 2)
	exited := make(chan int, 2)
	a, _, _ := app(&testCLI{}, func(ctx context.Context, _ Env) error {
		signals <- os.Interrupt
		<-ctx.Done()
		signals <- syscall.SIGHUP // is no reason to exit at once
		signals <- os.Interrupt
		if code := <-exited; code != 130 {
			return fmt.Errorf("exit code %d", code)
		}
		return nil
	})
	a.Signals, a.Exit = signals, func(code int) { exited <- code }
	if code := a.Main(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestMain_ProcessSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(sig) {
			t.Logf("%s is ignored here", sig)
			continue
		}
		a, _, stderr := app(&testCLI{}, func(ctx context.Context, _ Env) error {
			if err := syscall.Kill(os.Getpid(), sig); err != nil {
				return err
			}
			<-ctx.Done()
			return fmt.Errorf("stopped: %w", ctx.Err())
		})
		if code := a.Main(); code != ExitOK {
			t.Errorf("%s: exit code %d: %s", sig, code, stderr)
		}
	}
}

func TestLogger_Format(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  Config
		want string
	}{
		"text":  {Config{LogFormat: "text"}, "level=INFO msg=hello\n"},
		"json":  {Config{LogFormat: "json"}, `"level":"INFO","msg":"hello"}` + "\n"},
		"auto":  {Config{}, `"level":"INFO","msg":"hello"}` + "\n"},
		"quiet": {Config{LogLevel: "warn"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			tt.cfg.Logger(&out).Info("hello")
			if !strings.HasSuffix(out.String(), tt.want) || (tt.want == "") != (out.Len() == 0) {
				t.Errorf("got %q, want %q", out.String(), tt.want)
			}
		})
	}
}

func TestHealth_Concurrent(t *testing.T) {
	var h Health
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			h.Add("check", func() error { return nil })
			h.Readiness()
			h.Drain()
		})
	}
	wg.Wait()
	if r := h.Readiness(); r.Ready || len(r.Failing) != 0 {
		t.Errorf("got %+v", r)
	}
}
