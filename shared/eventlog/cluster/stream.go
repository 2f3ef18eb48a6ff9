package cluster

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Holders returns the names of the servers that hold a stream; none while it has no leader.
func Holders(info *jetstream.StreamInfo) []string {
	if info.Cluster == nil || info.Cluster.Leader == "" {
		return nil
	}
	names := []string{info.Cluster.Leader}
	for _, r := range info.Cluster.Replicas {
		names = append(names, r.Name)
	}
	return names
}

// FromLeader reports whether an answer about a stream is from its leader. Until an election is over,
// any server that holds the stream answers, with its own state so far, and the answer may name the
// leader that it has just heard of (docs/upstream/0038). Only the leader reports since when it leads.
func FromLeader(info *jetstream.StreamInfo) bool {
	c := info.Cluster
	return c == nil || c.Leader != "" && (c.RaftGroup == "" || c.LeaderSince != nil) // no group: one replica
}

// Leader names the server that leads a stream, and since when it does. It is empty outside a cluster,
// and while no server leads.
func Leader(info *jetstream.StreamInfo) string {
	c := info.Cluster
	switch {
	case c == nil || c.Name == "" || !FromLeader(info):
		return ""
	case c.RaftGroup == "": // one replica, which needs no election
		return c.Leader
	default:
		return c.Leader + "@" + c.LeaderSince.UTC().Format(time.RFC3339Nano)
	}
}

// quorumWithin is how long ago a leader must have heard from most others to lead certainly: those elect
// another one no sooner than 4 s after they have heard from it (nats-server's minElectionTimeout).
const quorumWithin = 3 * time.Second

// HasQuorum reports whether the leader of a stream has lately heard from most of the servers that hold
// it, so that no other one leads.
func HasQuorum(info *jetstream.StreamInfo) bool {
	c := info.Cluster
	if c == nil || c.RaftGroup == "" { // one replica
		return true
	}
	heard := 1
	for _, r := range c.Replicas {
		if !r.Offline && 0 < r.Active && r.Active < quorumWithin {
			heard++
		}
	}
	return 2*heard > 1+len(c.Replicas)
}

// Current returns how many of the servers that hold a stream have all of it, the leader
// included, and whether they are as many as the stream should have.
func Current(info *jetstream.StreamInfo) (n int, whole bool) {
	if info.Cluster == nil {
		return 1, info.Config.Replicas == 1
	}
	held := 1 + len(info.Cluster.Replicas)
	for _, r := range info.Cluster.Replicas {
		if r.Current && !r.Offline {
			n++
		}
	}
	if info.Cluster.Leader != "" {
		n++
	}
	return n, n == held && held == max(info.Config.Replicas, 1)
}
