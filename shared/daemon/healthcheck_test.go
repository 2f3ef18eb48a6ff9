package daemon

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"rejoin/shared/must"
)

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

func TestEnvFile_EmptyVariable(t *testing.T) {
	t.Setenv("REJOIN_SECRET_FILE", "")
	t.Setenv("REJOIN_KEY_FILE", "/key")
	var cli struct {
		Config
		SecretFile string `type:"path"`
		KeyFile    string `type:"path"`
	}
	a, _, stderr := app(&cli, func(context.Context, Env) error { return nil })
	if code := a.Main(); code != ExitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if cli.SecretFile != "" || cli.KeyFile != "/key" {
		t.Errorf("the files are %q and %q", cli.SecretFile, cli.KeyFile)
	}
}
