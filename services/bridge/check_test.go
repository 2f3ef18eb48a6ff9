package bridge

import (
	"bytes"
	"strings"
	"testing"

	"rejoin/shared/daemon"
)

// "config check" reports what Run would.
func TestProgram_ConfigCheck(t *testing.T) {
	check := func(args ...string) (int, string) {
		var out, errs bytes.Buffer
		code := daemon.App{
			Name: "bridge", CLI: new(ProgramConfig), WarnOfVariables: true,
			Args: append([]string{"config", "check"}, args...), Stdout: &out, Stderr: &errs,
		}.Main()
		return code, out.String()
	}
	if code, out := check("--upstream=http://127.0.0.1:1/mcp"); code != 0 || out != "configuration is valid\n" {
		t.Errorf("%d %s", code, out)
	}
	wrong := map[string]string{"upstream": "nowhere"}
	for flag, value := range wrong {
		t.Setenv("REJOIN_"+strings.ToUpper(strings.ReplaceAll(flag, "-", "_")), value)
	}
	code, out := check()
	for flag := range wrong {
		if !strings.Contains(out, "--"+flag) {
			t.Errorf("it does not print --%s", flag)
		}
	}
	if code != 1 || strings.Count(out, "\n") != len(wrong) {
		t.Errorf("%d %s", code, out)
	}
}
