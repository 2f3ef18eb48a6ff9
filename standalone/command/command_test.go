package command

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"rejoin/shared/leaktest"
	"rejoin/shared/web/webtest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, webtest.IgnoreFasthttp()...)) }

func runs(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestHelp_EachCommandHasExamples(t *testing.T) {
	code, list, errs := runs(t, "--help")
	if code != 0 || errs != "" || !strings.Contains(list, "\nExamples:\n  rejoin\n") {
		t.Errorf("%d %q\n%s", code, errs, list)
	}
	for _, c := range commands() {
		if !strings.Contains(list, "\n  "+c.name+" ") || !strings.Contains(list, c.summary) {
			t.Errorf("the list has no %s", c.name)
		}
		code, help, _ := runs(t, c.name, "--help")
		if code != 0 || !strings.HasPrefix(help, "Usage: rejoin "+c.name) || !strings.Contains(help, "\n    rejoin ") && !strings.Contains(help, "\n    echo ") || strings.Contains(help, "--admin-addr") != (c.name == serveName) {
			t.Errorf("%s: %d\n%s", c.name, code, help)
		}
	}
	for _, sub := range []string{"log show", "log set", "sessions show", "sessions create", "sessions close", "token check", "config check"} {
		if code, help, _ := runs(t, append(strings.Fields(sub), "--help")...); code != 0 || !strings.Contains(help, "\n    rejoin "+strings.TrimSuffix(sub, " show")) {
			t.Errorf("%s: %d\n%s", sub, code, help)
		}
	}
}

func TestHelp_AsACommand(t *testing.T) {
	for _, command := range []string{"tail", "token check"} {
		args := strings.Fields(command)
		_, want, _ := runs(t, append(args, "--help")...)
		if code, got, errs := runs(t, append([]string{"help"}, args...)...); code != 0 || got != want || errs != "" {
			t.Errorf("%s: %d %q\n%s", command, code, errs, got)
		}
	}
}

func TestUnknownCommand_Suggestion(t *testing.T) {
	for word, want := range map[string]string{"pubish": "publish", "sess": "sessions", "tial": "tail", "complete": "completion", "Log": "log", "server": "serve"} {
		code, out, errs := runs(t, word, "--json")
		if sentence := `rejoin: there is no command "` + word + `", did you mean "` + want + `"?; see rejoin --help` + "\n"; code != 2 || out != "" || errs != sentence {
			t.Errorf("%d %q %q, want %q", code, out, errs, sentence)
		}
	}
	if _, _, errs := runs(t, "version", "--json"); !strings.Contains(errs, "unknown flag --json") {
		t.Errorf("%q", errs)
	}
	if _, _, errs := runs(t, "a\x1b[2J"); strings.Contains(errs, "\x1b") {
		t.Errorf("%q", errs)
	}
}

// Everything that was possible before there was a command of this name.
func TestServe_IsTheDefault(t *testing.T) {
	for _, args := range [][]string{{"--dta=x"}, {"--stop-timeout=-1s"}, {"--data="}, {"--version"}} {
		code, out, errs := runs(t, args...)
		code2, out2, errs2 := runs(t, append([]string{"serve"}, args...)...)
		if code != code2 || out != out2 || errs != errs2 || out+errs == "" {
			t.Errorf("%v: %d %q %q, and with serve %d %q %q", args, code, out, errs, code2, out2, errs2)
		}
	}
}

func TestCompletion_EachPlace(t *testing.T) {
	all := places()
	at := map[string]place{}
	for _, p := range all {
		at[p.path] = p
	}
	for path, want := range map[string]string{"": "--data", "serve": "--no-compression", "tail": "--token-file", "sessions": "--state", "sessions close": "--clear", "log set": "--max-age", "token": "--ttl"} {
		if !slices.ContainsFunc(at[path].flags, func(f flag) bool { return "--"+f.name == want }) {
			t.Errorf("%q has no %s", path, want)
		}
	}
	if flags := at["tail"].flags; slices.ContainsFunc(flags, func(f flag) bool { return f.name == "admin-addr" }) {
		t.Error("a hidden flag is completed")
	}
}

// Variables of other commands may be set where rejoin serves.
func TestServe_KnowsVariablesOfAllCommands(t *testing.T) {
	known := variables()
	for _, name := range []string{"REJOIN_TOKEN_FILE", "REJOIN_URL", "REJOIN_NATS_URL"} {
		if !slices.Contains(known, name) {
			t.Errorf("%s is unknown", name)
		}
	}
	for _, c := range commands() {
		if len(c.app(nil).Variables()) == 0 {
			t.Errorf("%s has no variables", c.name)
		}
	}
}
