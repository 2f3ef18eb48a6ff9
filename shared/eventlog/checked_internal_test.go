package eventlog

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestChecked_RoundTrip(t *testing.T) {
	for text, want := range map[string]checked{
		"gen:0":                               {"gen", 0, ""},
		"gen:7":                               {"gen", 7, ""}, // of a log that had no leader, or of an earlier version
		"gen:7:nats-1@2026-01-02T03:04:05.6Z": {"gen", 7, "nats-1@2026-01-02T03:04:05.6Z"},
		"gen:18446744073709551615:nats:1":     {"gen", 1<<64 - 1, "nats:1"},
	} {
		if got := parseChecked(text); got != want || want.format() != text {
			t.Errorf("%q is read as %+v, and written as %q", text, got, want.format())
		}
	}
	for _, bad := range []string{"", ":", "gen", "gen:", "gen:-1", "gen:x:nats-1"} {
		if got := parseChecked(bad); got != (checked{}) {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

func TestLeaderOf(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	for want, c := range map[string]*jetstream.ClusterInfo{
		"nats-1@2026-01-02T03:04:05.6Z": {Name: "c", RaftGroup: "g", Leader: "nats-1", LeaderSince: &since},
		"nats-1":                        {Name: "c", Leader: "nats-1"}, // one replica
	} {
		if got := leaderOf(&jetstream.StreamInfo{Cluster: c}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for name, c := range map[string]*jetstream.ClusterInfo{
		"outside a cluster": {Leader: "nats-1"}, "an old server": nil,
		"no leader": {Name: "c", RaftGroup: "g"}, "not yet": {Name: "c", RaftGroup: "g", Leader: "nats-1"},
	} {
		if got := leaderOf(&jetstream.StreamInfo{Cluster: c}); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}
