package rejoinjs

import (
	"os/exec"
	"testing"
)

// The tests of what needs no server are in tests/, for Node's own test runner.
func TestClient_NodeTests(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("these tests need Node: %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), node, "--test").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
