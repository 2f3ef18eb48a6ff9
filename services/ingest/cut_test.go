package ingest_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
)

// What waits for a connection must not overtake what was lost with the one before.
func TestABatchKeepsItsOrderWhileItsConnectionIsCut(t *testing.T) {
	const n, every = 1000, 200
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	var l link
	in := s.start(t, testConfig(), nats.SetCustomDialer(&l))
	lines, want := pings(n)
	var cutting sync.WaitGroup
	defer cutting.Wait()
	cutting.Go(func() {
		for round := range n/every - 1 {
			s.waitStored(t, uint64(round*every+every/2)) //nolint:gosec // small
			l.set(true)
			l.set(false)
		}
	})
	eventually(t, "all of it is stored", func() bool {
		return in.postBatch(t, asNDJSON, batchPath, strings.Join(lines, "\n"), "Idempotency-Key", "k").Accepted == n
	})
	cutting.Wait()
	if diff := cmp.Diff(want, s.messages(t)); diff != "" {
		t.Error(diff)
	}
}
