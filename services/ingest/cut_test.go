package ingest_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// What waits for a connection must not overtake what was lost with the one before.
func TestBatch_OrderWhileConnectionsAreCut(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	var l natstest.Link
	in := s.start(t, brief(testConfig()), nats.SetCustomDialer(&l))
	lines, want := pings(1000)
	s.storeAll(t, in, lines, 200, func(int) {
		l.Cut()
		l.Heal()
	})
	if diff := cmp.Diff(want, s.messages(t)); diff != "" {
		t.Error(diff)
	}
}

// storeAll repeats a batch under its key until all of its messages are stored. Meanwhile it
// calls trouble whenever another so many of them are, but for the last.
func (s *system) storeAll(t *testing.T, in *instance, lines []string, every int, trouble func(round int)) {
	t.Helper()
	var troubled sync.WaitGroup
	defer troubled.Wait()
	troubled.Go(func() {
		for round := range len(lines)/every - 1 {
			s.waitStored(t, uint64(round*every+every/2)) //nolint:gosec // small
			if t.Failed() {
				return
			}
			trouble(round)
		}
	})
	waittest.Until(t, "all of it is stored", func() bool {
		a := in.send(t, http.MethodPost, batchPath, []byte(strings.Join(lines, "\n")), "Content-Type", asNDJSON, "Idempotency-Key", "k")
		if a.status == http.StatusServiceUnavailable { // not even the first could be begun
			return false
		}
		var got batchAnswer
		if err := json.Unmarshal(a.body, &got); err != nil || a.status != http.StatusOK {
			t.Fatalf("%d %s, %v", a.status, a.body, err)
		}
		return got.Accepted == len(lines) // duplicates too
	})
}

// waitStored waits until so many events are stored in partition 0.
func (s *system) waitStored(t *testing.T, n uint64) {
	t.Helper()
	for natsconn.Pause(t.Context(), 5*time.Millisecond) && !t.Failed() { // a look is a request to the server under test
		if state, err := s.b.Log.Look(t.Context(), 0); err == nil && state.Last >= n {
			return
		}
	}
}
