package leaktest

import (
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

func TestRun_GoroutineEndsLate(t *testing.T) {
	left := make(chan struct{})
	go func() { <-left }()
	if wait(0) == nil {
		t.Error("a goroutine that is there is not told")
	}
	go func() {
		time.Sleep(2 * time.Second) // longer than goleak waits
		close(left)
	}()
	if err := wait(patience); err != nil {
		t.Error(err)
	}
}
