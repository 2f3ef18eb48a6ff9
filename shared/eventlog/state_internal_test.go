package eventlog

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/eventlog/metadata"
)

// A server that waits for an election answers with what it holds, and may have heard of the new leader since it
// was asked. What it holds is not the log's end, nor its beginning.
func TestState_AnsweredByTheLeaderAlone(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	replicas := []*jetstream.PeerInfo{{Name: "nats-1", Active: time.Millisecond}, {Name: "nats-2", Active: time.Millisecond}}
	for name, tt := range map[string]struct {
		cluster *jetstream.ClusterInfo
		answers bool
	}{
		"outside a cluster":               {nil, true},
		"one replica":                     {&jetstream.ClusterInfo{Name: "c", Leader: "nats-0"}, true},
		"the leader":                      {&jetstream.ClusterInfo{Name: "c", RaftGroup: "g", Leader: "nats-0", LeaderSince: &since, Replicas: replicas}, true},
		"without a leader":                {&jetstream.ClusterInfo{Name: "c", RaftGroup: "g", Replicas: replicas}, false},
		"another one, of a leader's name": {&jetstream.ClusterInfo{Name: "c", RaftGroup: "g", Leader: "nats-2", Replicas: replicas}, false},
	} {
		info := &jetstream.StreamInfo{Cluster: tt.cluster, State: jetstream.StreamState{FirstSeq: 1, LastSeq: 9, Msgs: 9}}
		info.Config.Metadata = map[string]string{metadata.KeyGenerations: "a:1"}
		state, err := stateOf(info, "ID")
		if answers := err == nil && state.Last == 9; answers != tt.answers || err != nil && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: the log ends at %d, %v", name, state.Last, err)
		}
	}
}
