package command

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestComplete(t *testing.T) {
	for line, want := range map[string]string{
		"rejoin pu":                       "publish",
		"rejoin s":                        "serve sessions status",
		"rejoin --da":                     "--data=",
		"rejoin serve --no-com":           "--no-compression",
		"rejoin sessions cl":              "close",
		"rejoin sessions close demo --cl": "--clear",
		"rejoin sessions --state = c":     "closed",
		"rejoin sessions --state=c":       "--state=closed",
		"rejoin sessions --sort b":        "bytes",
		"rejoin --config =":               "", // files
		"rejoin --config=":                "",
		"rejoin --auth =":                 "none jwt",
		"rejoin log set --max-ev":         "--max-events-per-session= --max-events-per-stream=",
		"rejoin tail log --fr":            "--from=",
		"rejoin completion z":             "zsh",
		"rejoin token c":                  "check",
		"rejoin token check --jwt-s":      "--jwt-secret-file=",
		"rejoin config c":                 "check",
		"rejoin config check --":          "--config= --help --version",
		"rejoin publish demo main m":      "",
		"rejoin":                          "",
	} {
		code, out, errs := runs(t, append([]string{"__complete"}, strings.Fields(line)[1:]...)...)
		var got []string
		for line := range strings.Lines(out) {
			text, help, ok := strings.Cut(line, "\t")
			if got = append(got, text); !ok || help == "\n" && strings.HasPrefix(text, "--") && !strings.Contains(line, "closed") {
				t.Errorf("%s has no help", text)
			}
		}
		if text := strings.Join(got, " "); code != 0 || text != want || errs != "" {
			t.Errorf("%s: %d %q, want %q", line, code, text, want)
		}
	}
}

// bash passes the command as it was typed.
func TestCompletion_Bash(t *testing.T) {
	home := filepath.Join(t.TempDir(), "a home&")
	if err := errors.Join(os.Mkdir(home, 0o700), os.WriteFile(filepath.Join(home, "rejoin"), []byte("#!/bin/sh\nprintf '%s\\thelp\\n' \"$@\" 'two words'\n"), 0o700)); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	_, script, _ := runs(t, "completion", "bash")
	for _, typed := range []string{"~/rejoin", `"$HOME"/rejoin`} {
		cmd := exec.CommandContext(t.Context(), "bash", "--norc", "-uc", script+`
			compopt() { :; } # outside of a completion there are no options
			COMP_WORDS=("$1" log 's t' rest) COMP_CWORD=2
			$(complete -p rejoin | sed 's/.*-F \([a-z_]*\).*/\1/') "$1"
			printf '%s,' "${COMPREPLY[@]}"`, "bash", typed)
		cmd.Env = append(os.Environ(), "HOME="+home)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "__complete,log,s t,two words," {
			t.Errorf("%s: %s %v", typed, out, err)
		}
	}
}

func TestCompletion_UnknownShell(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, out, errs := runs(t, "completion", shell); code != 0 || !strings.Contains(out, completeName) || errs != "" {
			t.Errorf("%s: %d %q", shell, code, errs)
		}
	}
	if code, _, errs := runs(t, "completion", "tcsh"); code != 2 || !strings.Contains(errs, `"bash","zsh","fish"`) {
		t.Errorf("%d %q", code, errs)
	}
}
