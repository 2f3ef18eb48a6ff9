package rejoinjs

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// The tests that need no server are in tests/, for Node's own test runner.
func TestClient_NodeTests(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("these tests need Node: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // they take seconds
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "--test")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // with which the runner ends its processes
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
