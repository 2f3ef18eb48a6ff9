package ingest_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
	"rejoin/shared/natstest"
)

// The leader of a partition changes while the messages of a request are stored, and what
// is on its way to the old one is lost. Who repeats the request under its key finds every
// message stored once, in the request's order.
func TestBatch_OrderInACluster(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	s := newSystemAt(t, c.URL(), eventlog.Settings{Partitions: 1, Replicas: 3})
	in := s.start(t, brief(testConfig()))
	lines, want := pings(1000)
	s.storeAll(t, in, lines, 200, func(round int) { s.upset(t, c, round == 2) })
	c.WaitCurrent()
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
	eventually(t, "all of it is stored", func() bool {
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

// upset makes another server of a cluster lead partition 0, by a stop of the one that does
// if it is to be hard on it.
func (s *system) upset(t *testing.T, c *natstest.Cluster, stop bool) {
	t.Helper()
	if !stop {
		// Not answered when there is no leader at the moment, which does as well.
		_, _ = s.b.Conn.Request("$JS.API.STREAM.LEADER.STEPDOWN.MCP_0", nil, time.Second)
		return
	}
	js, err := jetstream.New(s.b.Conn)
	if err != nil {
		t.Error(err)
		return
	}
	for t.Context().Err() == nil {
		stream, err := js.Stream(t.Context(), "MCP_0")
		if err != nil || stream.CachedInfo().Cluster.Leader == "" {
			continue
		}
		srv := c.Named(stream.CachedInfo().Cluster.Leader)
		srv.Stop()
		srv.Start()
		return
	}
}
