package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rejoin/shared/must"
)

// On a system without apt-get, all missing programs are named at once.
func TestPrograms_NoPackageManager(t *testing.T) {
	path := t.TempDir()
	bash := must.Value(exec.LookPath("bash"))(t)
	for _, name := range []string{"git", "curl"} {
		must.NoError(t, os.WriteFile(filepath.Join(path, name), []byte("#!/bin/false"), 0o700)) //nolint:gosec // a program
	}
	script := must.Value(filepath.Abs("programs.sh"))(t)
	cmd := exec.CommandContext(t.Context(), bash, script, "gcc")
	cmd.Env = []string{"PATH=" + path}
	out, err := cmd.CombinedOutput()
	// Debian's folder for proxies is looked into in any case, and may have some.
	first, second, _ := strings.Cut(string(out), "\n")
	if err == nil || !strings.HasPrefix(first, "The tests need programs that are not installed: ") || !strings.Contains(second, "brew install ") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, name := range []string{"node", "npm", "python3", "gcc", "chromium"} {
		if !strings.Contains(first, " "+name) {
			t.Errorf("%s is not named: %s", name, first)
		}
	}
	if strings.Contains(first, " git") || strings.Contains(first, " curl") {
		t.Errorf("what is there is named: %s", first)
	}
}
