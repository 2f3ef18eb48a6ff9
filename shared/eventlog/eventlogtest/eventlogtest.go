// Package eventlogtest helps to test what uses the log.
package eventlogtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"rejoin/shared/eventlog"
)

// Begin does what an acting janitor does: it begins a generation for every server that the
// log gets to see, until the test ends.
func Begin(t testing.TB, l *eventlog.Log) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { stop(); wg.Wait() })
	for p := range l.Settings().Partitions {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, changed := l.State(p)
				var again <-chan time.Time
				if _, err := l.BeginGeneration(ctx, p); err != nil {
					again = time.After(10 * time.Millisecond)
				}
				select {
				case <-changed:
				case <-again:
				case <-ctx.Done():
				}
			}
		})
	}
}
