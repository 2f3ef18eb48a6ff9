package command

import (
	"os/exec"
	"strings"
	"testing"
)

// bashed returns what a real bash completes the last of some words to.
func bashed(t *testing.T, line ...string) []string {
	t.Helper()
	code, script, errs := runs(t, "completion", "bash")
	if code != 0 {
		t.Fatal(errs)
	}
	const call = `
		compopt() { :; } # outside of a completion there are no options
		COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
		$(complete -p rejoin | sed 's/.*-F \([a-z_]*\).*/\1/')
		printf '%s\n' "${COMPREPLY[@]}"`
	out, err := exec.CommandContext(t.Context(), "bash", append([]string{"--norc", "-uc", script + call, "bash"}, line...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.Fields(string(out))
}

func TestCompletion_Bash(t *testing.T) {
	for line, want := range map[string]string{
		"rejoin pu":                       "publish",
		"rejoin s":                        "serve sessions status",
		"rejoin --da":                     "--data=",
		"rejoin serve --no-com":           "--no-compression",
		"rejoin sessions cl":              "close",
		"rejoin sessions close demo --cl": "--clear",
		"rejoin sessions --state = c":     "closed",
		"rejoin sessions --sort = b":      "bytes",
		"rejoin --auth =":                 "none jwt",
		"rejoin log set --max-ev":         "--max-events-per-session= --max-events-per-stream=",
		"rejoin tail log --fr":            "--from=",
		"rejoin completion z":             "zsh",
		"rejoin token c":                  "check",
		"rejoin token check --jwt-s":      "--jwt-secret-file=",
		"rejoin config c":                 "check",
		"rejoin config check --":          "--config= --help --version",
		"rejoin gaps --format = j":        "json",
		"rejoin publish demo main m":      "",
	} {
		if got := strings.Join(bashed(t, strings.Fields(line)...), " "); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

func TestCompletion_UnknownShell(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, out, errs := runs(t, "completion", shell); code != 0 || !strings.Contains(out, "sessions") || errs != "" {
			t.Errorf("%s: %d %q", shell, code, errs)
		}
	}
	if code, _, errs := runs(t, "completion", "tcsh"); code != 2 || !strings.Contains(errs, `"bash","zsh","fish"`) {
		t.Errorf("%d %q", code, errs)
	}
}
