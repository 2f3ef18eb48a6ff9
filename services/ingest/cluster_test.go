package ingest_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
)

// The leader of a partition changes while the messages of a request are stored, and what
// is on its way to the old one is lost. Who repeats the request under its key finds every
// message stored once, in the request's order.
func TestABatchInAClusterKeepsItsOrder(t *testing.T) {
	const n, every = 3000, 200
	c := natstest.StartCluster(t)
	s := newSystemAt(t, c.URL(), eventlog.Settings{Partitions: 1, Replicas: 3})
	cfg := testConfig()
	cfg.AckTimeout = 500 * time.Millisecond
	in := s.start(t, cfg)
	lines, want := pings(n)

	var upsetting sync.WaitGroup
	defer upsetting.Wait()
	upsetting.Go(func() {
		for round := range n/every - 1 {
			s.waitStored(t, uint64(round*every+every/2)) //nolint:gosec // small
			if t.Failed() {
				return
			}
			s.upset(t, c, round == 6)
		}
	})
	eventually(t, "all of it is stored", func() bool {
		got := in.postBatch(t, asNDJSON, batchPath, strings.Join(lines, "\n"), "Idempotency-Key", "k")
		return got.Accepted == n // duplicates too
	})
	upsetting.Wait()
	c.WaitCurrent()
	if diff := cmp.Diff(want, s.messages(t)); diff != "" {
		t.Error(diff)
	}
}

// waitStored waits until so many events are stored in partition 0.
func (s *system) waitStored(t *testing.T, n uint64) {
	t.Helper()
	for t.Context().Err() == nil && !t.Failed() {
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
