package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rejoin/services/bridge"
	"rejoin/services/ingest"
	"rejoin/services/janitor"
	edge "rejoin/services/sse-edge"
	"rejoin/shared/daemon"
	"rejoin/shared/must"
)

func TestConfigCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rejoin.yaml")
	write := func(text string) {
		must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("data: /nonexistent/data\nmax-age: 7d\nforward-header: [Accept-Language, traceparent]\nheartbeat: 20s\n")
	for _, args := range [][]string{{"config", "check", "--config", file}, {"serve", "config", "check", "--config=" + file}, {"config", "check"}} {
		if code, out, errs := runs(t, args...); code != 0 || out != "configuration is valid\n" || errs != "" {
			t.Errorf("%v: %d %q %q", args, code, out, errs)
		}
	}

	t.Setenv("REJOIN_MAX_AG", "3")
	if code, out, _ := runs(t, "config", "check"); code != 0 || out != "unknown environment variable REJOIN_MAX_AG, ignored; did you mean REJOIN_MAX_AGE?\nconfiguration is valid\n" {
		t.Errorf("%d %q", code, out)
	}
	t.Setenv("REJOIN_MAX_AG", "")

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

// A malformed address is a wrong flag: the data folder is not created.
func TestServe_WrongAddresses(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, arg := range []string{"--edge-addr=8080", "--ingest-addr=foo", "--janitor-addr=a:b:c", "--nats-addr=4222", "--admin-addr=:99999"} {
		flag, _, _ := strings.Cut(arg, "=")
		if code, _, errs := runs(t, arg); code != daemon.ExitUsage || !strings.Contains(errs, flag+" must be HOST:PORT") {
			t.Errorf("%s: %d %q", arg, code, errs)
		}
	}
	if entries, err := os.ReadDir("."); err != nil || len(entries) > 0 {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
}

// An empty address is a wrong setting for the start and for "config check", in a flag and in the environment.
func TestServe_EmptyAddresses(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, flag := range []string{"--edge-addr", "--ingest-addr", "--janitor-addr"} {
		if code, _, errs := runs(t, flag+"="); code != daemon.ExitUsage || errs != "rejoin: "+flag+" is empty; see rejoin serve --help\n" {
			t.Errorf("%s=: %d %q", flag, code, errs)
		}
		t.Run(flag, func(t *testing.T) {
			t.Setenv("REJOIN_"+strings.ToUpper(strings.ReplaceAll(flag[2:], "-", "_")), "")
			if code, out, _ := runs(t, "config", "check"); code != daemon.ExitError || out != flag+" is empty\n" {
				t.Errorf("%d %q", code, out)
			}
		})
	}
}

// The start and "config check" refuse settings that cannot work with one program.
func TestServe_SettingsThatCannotWork(t *testing.T) {
	t.Chdir(t.TempDir())
	for arg, want := range map[string]string{
		"--edge-addr=127.0.0.1:8081":       "--edge-addr and --ingest-addr are the same",
		"--admin-addr=127.0.0.1:8080":      "--edge-addr and --admin-addr are the same",
		"--replicas=3":                     "--replicas=3 needs a NATS cluster, and one program has one NATS server",
		"--max-bytes=20":                   "--max-bytes must be at least 1048576, 64 KiB for each partition",
		"--memory-budget=64":               "--memory-budget must be at least 1MiB, or 0 or -1, not 64",
		"--edge-hosts=https://foo.example": `--edge-hosts takes host names such as foo.example, not "https://foo.example"`,
		"--ingest-hosts=foo.example/mcp":   "--ingest-hosts takes host names",
		"--janitor-hosts=*.example":        "--janitor-hosts takes host names",
		"--admin-hosts=a b":                "--admin-hosts takes host names",
		"--task-tools=x=foo":               "--task-tools has the policies",
		"--upstream-header=foo":            "--upstream-header must be",
		"--forward-header=Authorization":   "--forward-header cannot be",
		"--upstream-env=FOO=bar":           "--upstream-env must be",
	} {
		if code, _, errs := runs(t, arg); code != daemon.ExitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %q", arg, code, errs)
		}
	}
	if code, out, errs := runs(t, "config", "check"); code != 0 {
		t.Errorf("the defaults: %d %q %q", code, out, errs)
	}
}

// A limit of 0 was the default of one flag and no limit of another.
func TestServe_LimitOfZero(t *testing.T) {
	t.Chdir(t.TempDir())
	const limit, positive = "must be positive, or -1 for no limit", "must be at least 1"
	for name, want := range map[string]string{
		"max-age": limit, "max-events-per-stream": limit, "max-bytes": limit, "max-events-per-session": limit, "max-bytes-per-session": limit,
		"max-streams-per-session": limit, "max-sessions": limit, "max-metadata-bytes": limit, "partitions": positive, "replicas": positive, "max-message-bytes": positive,
	} {
		t.Run(name, func(t *testing.T) {
			want := "--" + name + ": " + want
			if code, _, errs := runs(t, "--"+name+"=0"); code != daemon.ExitUsage || errs != "rejoin: "+want+"; see rejoin serve --help\n" {
				t.Errorf("%d %q", code, errs)
			}
			must.NoError(t, os.WriteFile("rejoin.yaml", []byte(name+": 0\n"), 0o600))
			if code, out, _ := runs(t, "config", "check", "--config=rejoin.yaml"); code != daemon.ExitError || !strings.HasSuffix(out, "rejoin.yaml:1: "+want+"\n") {
				t.Errorf("in a file: %d %q", code, out)
			}
			t.Setenv("REJOIN_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_")), "0")
			if code, out, _ := runs(t, "config", "check"); code != daemon.ExitError || !strings.HasPrefix(out, want+" (") {
				t.Errorf("in the environment: %d %q", code, out)
			}
		})
	}
	if code, out, _ := runs(t, "config", "check", "--max-age=-1", "--max-bytes=-1", "--max-sessions=-1", "--max-metadata-bytes=-1", "--max-events-per-stream=5", "--partitions=2"); code != 0 {
		t.Errorf("%d %q", code, out)
	}
}

// "config check" of a service's own program reports the errors of Run.
func TestConfigCheck_Services(t *testing.T) {
	for name, tt := range map[string]struct {
		cli   func() daemon.CLI
		args  []string
		wrong map[string]string // values of flags
	}{
		"bridge":   {func() daemon.CLI { return new(bridge.ProgramConfig) }, []string{"--upstream=http://127.0.0.1:1/mcp"}, map[string]string{"upstream": "nowhere"}},
		"ingest":   {func() daemon.CLI { return new(ingest.ProgramConfig) }, nil, map[string]string{"ack-timeout": "-1s", "trusted-proxies": "nowhere", "cors-origins": "*", "ingest-addr": "0.0.0.0:1"}},
		"janitor":  {func() daemon.CLI { return new(janitor.ProgramConfig) }, nil, map[string]string{"interval": "-1s", "cors-origins": "*", "janitor-addr": "0.0.0.0:1"}},
		"sse-edge": {func() daemon.CLI { return new(edge.ProgramConfig) }, nil, map[string]string{"heartbeat": "-1s", "trusted-proxies": "nowhere", "cors-origins": "*", "edge-addr": "0.0.0.0:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(args ...string) (int, string) {
				var out, errs bytes.Buffer
				code := daemon.App{Name: name, CLI: tt.cli(), WarnOfVariables: true, Args: append([]string{"config", "check"}, args...), Stdout: &out, Stderr: &errs}.Main()
				return code, out.String()
			}
			if code, out := check(tt.args...); code != 0 || out != "configuration is valid\n" {
				t.Errorf("%d %s", code, out)
			}
			for flag, value := range tt.wrong {
				t.Setenv("REJOIN_"+strings.ToUpper(strings.ReplaceAll(flag, "-", "_")), value)
			}
			code, out := check()
			for flag := range tt.wrong {
				if !strings.Contains(out, "--"+flag) {
					t.Errorf("it does not print --%s", flag)
				}
			}
			if code != 1 || strings.Count(out, "\n") != len(tt.wrong) {
				t.Errorf("%d %s", code, out)
			}
		})
	}
}
