package cluster

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestLeader(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	for want, c := range map[string]*jetstream.ClusterInfo{
		"nats-1@2026-01-02T03:04:05.6Z": {Name: "c", RaftGroup: "g", Leader: "nats-1", LeaderSince: &since},
		"nats-1":                        {Name: "c", Leader: "nats-1"}, // one replica
	} {
		if got := Leader(&jetstream.StreamInfo{Cluster: c}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for name, c := range map[string]*jetstream.ClusterInfo{
		"outside a cluster": {Leader: "nats-1"}, "an old server": nil,
		"no leader": {Name: "c", RaftGroup: "g"}, "not yet": {Name: "c", RaftGroup: "g", Leader: "nats-1"},
	} {
		if got := Leader(&jetstream.StreamInfo{Cluster: c}); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestHasQuorum_MostHeardLately(t *testing.T) {
	heard := func(ago ...time.Duration) *jetstream.StreamInfo {
		c := &jetstream.ClusterInfo{Name: "c", RaftGroup: "g", Leader: "a"}
		for _, d := range ago {
			c.Replicas = append(c.Replicas, &jetstream.PeerInfo{Active: d, Offline: d == time.Hour})
		}
		return &jetstream.StreamInfo{Cluster: c}
	}
	for name, tt := range map[string]struct {
		info *jetstream.StreamInfo
		want bool
	}{
		"alone":                       {&jetstream.StreamInfo{}, true},
		"one replica":                 {&jetstream.StreamInfo{Cluster: &jetstream.ClusterInfo{Name: "c", Leader: "a"}}, true},
		"both others":                 {heard(time.Millisecond, time.Second), true},
		"one of two":                  {heard(time.Hour, time.Second), true},
		"none lately":                 {heard(quorumWithin, time.Hour), false},
		"none since it leads":         {heard(0, 0), false},
		"two of four":                 {heard(time.Second, time.Second, time.Hour, 5*time.Second), true},
		"one of four":                 {heard(time.Second, 4*time.Second, time.Hour, 5*time.Second), false},
		"one that is said to be gone": {&jetstream.StreamInfo{Cluster: &jetstream.ClusterInfo{RaftGroup: "g", Replicas: []*jetstream.PeerInfo{{Active: time.Second, Offline: true}, {Active: time.Minute}}}}, false},
	} {
		if got := HasQuorum(tt.info); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
