package ingest_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
)

// Messages that wait for a connection must not overtake those that were lost with the previous one.
func TestBatch_OrderWhileConnectionsAreCut(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	var l natstest.Link
	cfg := testConfig()
	cfg.AckTimeout = 2 * time.Second // acknowledgements are lost
	in := s.start(t, cfg, nats.SetCustomDialer(&l))
	lines, want := pings(1000)
	stored := make(chan struct{})
	go func() { // repeats the batch under its key until all of it is stored
		defer close(stored)
		for !t.Failed() {
			a := in.send(t, http.MethodPost, batchPath, []byte(strings.Join(lines, "\n")), "Content-Type", asNDJSON, "Idempotency-Key", "k")
			if a.status == http.StatusServiceUnavailable { // not even the first could be begun
				continue
			}
			var got batchAnswer
			if err := json.Unmarshal(a.body, &got); err != nil || a.status != http.StatusOK {
				t.Errorf("%d %s, %v", a.status, a.body, err)
			}
			if got.Accepted == len(lines) { // duplicates too
				return
			}
		}
	}()
	defer func() { <-stored }()
	for n := uint64(100); n < 900; n += 200 {
		s.awaitEntries(t, n)
		l.Cut()
		l.Heal()
	}
	<-stored
	if diff := cmp.Diff(want, s.messages(t)); diff != "" {
		t.Error(diff)
	}
}
