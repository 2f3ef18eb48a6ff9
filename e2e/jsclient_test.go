package e2e

import (
	"os"
	"os/exec"
	"testing"

	"rejoin/shared/waittest"
)

// The test is in jsclient.test.mjs, for Node's own test runner.
func TestJavaScriptClient_Node(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--retry=100ms", "--heartbeat=100ms", "--ack-timeout=9s")
	cmd := exec.CommandContext(waittest.Context(t), "node", "jsclient.test.mjs")
	cmd.Env = append(os.Environ(), "EDGE="+p.api())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The types of the JavaScript client hold in a page, and in Node without the browser's types.
func TestJavaScriptClient_Types(t *testing.T) {
	t.Parallel()
	packages, node := installed(t, "types"), npm(t).node()
	for lib, types := range map[string][]string{
		"es2022,dom": {"--typeRoots", t.TempDir()}, "es2024": {"--typeRoots", packages.path("@types"), "--types", "node"},
	} {
		cmd := exec.CommandContext(t.Context(), node, append([]string{
			packages.path("typescript", "bin", "tsc"), "--strict", "--exactOptionalPropertyTypes",
			"--noEmit", "--skipDefaultLibCheck", "--target", "es2022", "--module", "nodenext", "--lib", lib, "testdata/types/page.mts",
		}, types...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("--lib %s: %v\n%s", lib, err, out)
		}
	}
}
