package leaktest

import (
	"os"
	"testing"

	"rejoin/shared/must"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

func TestRun_GoroutineEndsLate(t *testing.T) {
	left := make(chan struct{})
	go func() { <-left }()
	if wait(0) == nil {
		t.Error("a goroutine that is there is not told")
	}
	go func() {
		for range 2 { // longer than one look of goleak takes
			_ = wait(0)
		}
		close(left)
	}()
	must.NoError(t, wait(patience))
}
