package e2e

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// systemd starts the program again after a crash: a Go program that crashes ends with exit code 2, as this
// one does when a setting is wrong.
func TestSystemd_CrashIsNoWrongSetting(t *testing.T) {
	t.Parallel()
	unit := must.Value(os.ReadFile("../deploy/systemd/rejoin.service"))(t)
	var environment, final []string
	for line := range strings.Lines(string(unit)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name {
		case "Environment":
			environment = append(environment, value)
		case "RestartPreventExitStatus":
			final = append(final, value)
		}
	}
	p := newProc(t, t.TempDir())
	p.prepare = func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, environment...) }
	p.start()
	must.NoError(t, p.cmd.Process.Signal(syscall.SIGQUIT))
	waittest.Receive(t, "the program ends", p.done)
	if code := strconv.Itoa(p.cmd.ProcessState.ExitCode()); len(final) != 1 || slices.Contains(final, code) {
		t.Errorf("it ends with %s (exit code %s), and systemd starts it again but for %v", p.cmd.ProcessState, code, final)
	}
}
