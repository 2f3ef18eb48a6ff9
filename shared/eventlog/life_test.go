package eventlog_test

import (
	"sync"
	"testing"
	"time"

	"rejoin/shared/waittest"
)

// What was asked when the server went is never answered. Found by the property test
// of e2e: a resume that waited for 5 s, and then told IDs of a time gone by.
func TestRequest_ConnectionIsLost(t *testing.T) {
	srv, l := single(t)
	var asking sync.WaitGroup
	for range 100 {
		asking.Go(func() {
			for {
				if _, err := l.Look(waittest.Context(t), 0); err != nil {
					return
				}
			}
		})
	}
	srv.Stop()
	stopped := time.Now()
	asking.Wait()
	if took := time.Since(stopped); took > waittest.Timeout/2 {
		t.Errorf("a request was waited for %s after its connection was lost", took)
	}
}
