package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rejoin.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("data: /nonexistent/data\nmax-age: 7d\nforward-header: [Accept-Language, traceparent]\nheartbeat: 20s\n")
	for _, args := range [][]string{{"config", "check", "--config", file}, {"serve", "config", "check", "--config=" + file}, {"config", "check"}} {
		if code, out, errs := runs(t, args...); code != 0 || out != "configuration is valid\n" || errs != "" {
			t.Errorf("%v: %d %q %q", args, code, out, errs)
		}
	}

	t.Setenv("REJOIN_CONFIG", file)
	t.Setenv("REJOIN_LOG_LEVEL", "loud")
	t.Setenv("REJOIN_ACK_TIMEOUT", "soon")
	write("daata: x\nedge-addr: 0.0.0.0:8080\nmax-sessions: -5\nupstream: nowhere\nmax-age: -2\nmin-free-bytes: -1\ntls-cert: /nonexistent/cert\ntls-key: /nonexistent/key\ntrusted-proxies: [10.0.0.0/99]\n")
	code, out, errs := runs(t, "config", "check")
	for _, want := range []string{`there is no setting "daata", did you mean "data"?`, "--edge-addr 0.0.0.0:8080 can be reached", "--upstream must be", "--max-age", "--min-free-bytes", "--tls-cert", "--trusted-proxies", "--log-level", "--ack-timeout", "--max-sessions"} {
		if strings.Count(out, want) == 0 {
			t.Errorf("it does not print %q", want)
		}
	}
	if code != 1 || strings.Count(out, "\n") != 10 || errs != "rejoin config: problems: 10\n" {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
}
