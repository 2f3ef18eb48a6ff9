package e2e

import (
	"os/exec"
	"testing"
)

// The types of the JavaScript client hold in a page, and in Node without the browser's types.
func TestJavaScriptClient_Types(t *testing.T) {
	t.Parallel()
	packages, node := installed(t, "types"), npm(t).node()
	for _, lib := range []string{"es2022,dom", "es2024"} {
		cmd := exec.CommandContext(t.Context(), node, packages.path("typescript", "bin", "tsc"), "--strict", "--exactOptionalPropertyTypes",
			"--noEmit", "--skipDefaultLibCheck", "--target", "es2022", "--module", "nodenext", "--lib", lib, "--typeRoots", packages.path("@types"), "--types", "node", "testdata/types/page.mts")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("--lib %s: %v\n%s", lib, err, out)
		}
	}
}
