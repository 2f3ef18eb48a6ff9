package logcli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"rejoin/services/janitor/lease"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

// A log that was made on one server of a cluster, and the buckets beside it, are on all
// of them after the command, while events are stored.
func TestReplicas_WhilePublishing(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	s := beginAt(t, c.URL(), eventlog.Settings{Partitions: 2, MaxEventsPerStream: -1, MaxEventsPerSession: -1, MaxBytesPerSession: -1}) // nothing is trimmed
	js := natstest.JetStream(t, s.b.Conn)
	ctx, stop := context.WithCancel(t.Context())
	var stored uint64
	var publishing sync.WaitGroup
	defer publishing.Wait()
	defer stop()
	publishing.Go(func() {
		for ctx.Err() == nil {
			stored += s.publishOnce(stored)
		}
	})
	s.want(0, "replicas: 1 → 3\nNATS copies 2 partitions to their new servers, which may take minutes for each; all of them have to be up.\nAll 2 partitions are set.\n", "", "set", "--replicas=3")
	stop()
	publishing.Wait()
	state, err := s.b.Log.Look(t.Context(), s.b.Log.Partition("s"))
	if err != nil || stored == 0 || state.Last != stored {
		t.Errorf("%d events are acknowledged, %d are stored, %v", stored, state.Last, err)
	}
	for _, name := range []string{"MCP_0", "MCP_1", "KV_" + session.Bucket, "KV_" + lease.Bucket} {
		stream := must.Value(js.Stream(t.Context(), name))(t)
		if info := stream.CachedInfo(); info.Config.Replicas != 3 || len(info.Cluster.Replicas) != 2 {
			t.Errorf("%s has %d replicas, and %d servers beside its leader", name, info.Config.Replicas, len(info.Cluster.Replicas))
		}
	}
	s.want(0, "The log already has these settings.\n", "", "set", "--replicas=3")
}

// publishOnce stores event n, under its key until that is acknowledged, and returns 1; 0
// at the test's end.
func (s *system) publishOnce(n uint64) uint64 {
	for s.t.Context().Err() == nil {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		_, err := s.b.Log.Publish(ctx, eventlog.Event{Session: "s", Stream: "t", Key: fmt.Sprint(n), Data: []byte(`{"jsonrpc":"2.0","method":"n"}`)})
		cancel()
		if err == nil {
			return 1
		}
		if !errors.Is(err, eventlog.ErrUnavailable) && !errors.Is(err, eventlog.ErrUnknown) {
			s.t.Error(err)
			return 0
		}
	}
	return 0
}
