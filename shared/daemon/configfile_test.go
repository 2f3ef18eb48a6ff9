package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rejoin/shared/flagtype"
	"rejoin/shared/must"
)

// fileCLI is a program with flags of the kinds that a file sets.
type fileCLI struct {
	Config
	Target string        `help:"What to aim at."`
	Hosts  []string      `help:"Names."`
	Key    string        `type:"path" help:"A file."`
	Wait   time.Duration `default:"1s" help:"A time."`
	Pack   *bool         `negatable:"" help:"A switch."`
}

func (c *fileCLI) Check() error {
	file := fmt.Errorf("--target: %w", &flagtype.FileError{Err: errors.New("it is empty")})
	switch c.Target {
	case "moon":
		return errors.Join(errors.New("--target is too far"), errors.New("nobody is left for --hosts"))
	case "file":
		return file
	case "files":
		return errors.Join(file, nil, errors.Join(file))
	case "file on the moon":
		return errors.Join(file, errors.New("--target is too far"))
	}
	return nil
}

// A setting that is wrong for good has the exit code that keeps a supervisor from another start;
// a missing file may exist at the next one.
func TestMain_Check(t *testing.T) {
	for target, want := range map[string]struct {
		code  int
		error string
	}{
		"moon": {ExitUsage, "ingest: --target is too far; nobody is left for --hosts; see ingest --help\n"},
		"file": {ExitError, "ingest: --target: it is empty\n"},

		"files":            {ExitError, "ingest: --target: it is empty; --target: it is empty\n"},
		"file on the moon": {ExitUsage, "ingest: --target: it is empty; --target is too far; see ingest --help\n"},
	} {
		a, _, stderr := app(&fileCLI{}, func(context.Context, Env) error {
			t.Error("the program runs")
			return nil
		}, "--target="+target)
		if code := a.Main(); code != want.code || stderr.String() != want.error {
			t.Errorf("%s: %d %q", target, code, stderr)
		}
	}
}

// configured returns the flag for a file with this text.
func configured(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rejoin.yaml")
	must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return "--config=" + file
}

func TestConfigFile_Precedence(t *testing.T) {
	const text = `
# comments are fine
target: text
log-level: warn
wait: 2m
hosts:
  - a.example
  - b.example
pack: false
key: ""
memory-budget: -1
`
	for name, setup := range map[string]func(t *testing.T) []string{
		"flag": func(t *testing.T) []string { return []string{configured(t, text), "--log-level=error"} },
		"variable": func(t *testing.T) []string {
			file := configured(t, text)
			t.Setenv("REJOIN_CONFIG", strings.TrimPrefix(file, "--config="))
			return []string{"--log-level=error"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("REJOIN_TARGET", "environment")
			t.Setenv("REJOIN_LOG_LEVEL", "info")
			var cli fileCLI
			a, _, stderr := app(&cli, func(context.Context, Env) error { return nil }, setup(t)...)
			if code := a.Main(); code != ExitOK {
				t.Fatalf("%d %s", code, stderr)
			}
			if cli.Target != "environment" || cli.LogLevel != "error" || cli.Wait != 2*time.Minute || strings.Join(cli.Hosts, " ") != "a.example b.example" ||
				cli.Pack == nil || *cli.Pack || cli.Key != "" || cli.MemoryBudget != -1 || cli.LogFormat != "auto" {
				t.Errorf("%+v", cli)
			}
		})
	}
}

func TestConfigFile_Empty(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "{}", "---\ntarget: x\n...\n"} {
		a, _, stderr := app(&fileCLI{}, func(context.Context, Env) error { return nil }, configured(t, text))
		if code := a.Main(); code != ExitOK {
			t.Errorf("%q: %d %s", text, code, stderr)
		}
	}
}

func TestConfigFile_Errors(t *testing.T) {
	for text, want := range map[string]string{
		"tagret: x":                "1: there is no setting \"tagret\", did you mean \"target\"?",
		"a: 1\nLOG_LEVEL: x":       "1: there is no setting \"a\"; ",
		"\nlog_level: debug":       "2: there is no setting \"log_level\", did you mean \"log-level\"?",
		"version: true":            "1: there is no setting \"version\"",
		"config: x":                "1: there is no setting \"config\"",
		"target: a\ntarget: b":     "2: target is set twice",
		"wait: soon":               `1: --wait: "soon" is not a duration`,
		"wait:":                    "1: wait must be a value or a list",
		"target: {a: b}":           "1: target must be a value or a list",
		"target: [a, b]":           "1: target takes one value",
		"hosts: [[a]]":             "1: hosts must be a value or a list",
		"log-level: loud":          "--log-level must be one of",
		"- target":                 "must hold lines such as",
		"target: [":                "yaml: ",
		"stop-timeout: -1s":        "--stop-timeout must not be negative",
		"target: x\nnot a setting": "yaml: ",
		"target: x\n---\nwait: 2m": "must hold one YAML document",
		"---\ntarget: x\n---\n":    "must hold one YAML document",
		"target: x\n---\nwait: [":  "must hold one YAML document",
	} {
		a, _, stderr := app(&fileCLI{}, func(context.Context, Env) error { return nil }, configured(t, text))
		if code := a.Main(); code != ExitUsage || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: %d %s", text, code, stderr)
		}
	}
	a, _, stderr := app(&fileCLI{}, func(context.Context, Env) error { return nil }, "--config=/nonexistent/rejoin.yaml")
	if code := a.Main(); code != ExitUsage || !strings.Contains(stderr.String(), "--config: open /nonexistent/rejoin.yaml: no such file") {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestConfigCheck(t *testing.T) {
	check := func(args ...string) (int, string, string) {
		a, stdout, stderr := app(&fileCLI{}, func(context.Context, Env) error {
			t.Error("the program runs")
			return nil
		}, append([]string{"config", "check"}, args...)...)
		a.WarnOfVariables = true
		return a.Main(), stdout.String(), stderr.String()
	}
	if code, out, errs := check(configured(t, "target: mars")); code != ExitOK || out != "configuration is valid\n" || errs != "" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if code, out, errs := check(); code != ExitOK || out != "configuration is valid\n" || errs != "" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	t.Setenv("REJOIN_LOG_FORMAT", "xml")
	t.Setenv("REJOIN_MEMORY_BUDGET", "much")
	file := configured(t, "tagret: x\ntarget: moon\nwait: soon\nlog-level: loud\nstop-timeout: -1s\n")
	code, out, errs := check(file)
	for _, want := range []string{
		`:1: there is no setting "tagret", did you mean "target"?`, ":3: --wait: ", "--log-level must be one of", "--log-format must be one of",
		"--stop-timeout must not be negative", "--memory-budget: ", "--target is too far", "nobody is left",
	} {
		if strings.Count(out, want) != 1 {
			t.Errorf("it does not print %q once", want)
		}
	}
	if code != ExitError || strings.Count(out, "\n") != 8 || errs != "ingest: problems: 8\n" {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
	if code, out, errs := check("--wait=never"); code != ExitError || !strings.Contains(out, "--wait: ") || errs == "" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if code, out, _ := check("--help"); code != ExitOK || !strings.Contains(out, "Usage: ") || strings.Contains(out, "valid") {
		t.Errorf("%d %s", code, out)
	}
}

func TestCommand_NoConfigFile(t *testing.T) {
	a, _, stderr := app(&testCLI{}, func(context.Context, Env) error { return nil }, configured(t, ""))
	a.Options = Command("", "", nil, nil, nil).Options
	if code := a.Main(); code != ExitUsage || !strings.Contains(stderr.String(), "unknown flag --config") {
		t.Errorf("%d %s", code, stderr)
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
