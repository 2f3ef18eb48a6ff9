// Package metadata is the codec of the values that a log writes into the metadata of its JetStream streams. It does
// no I/O.
package metadata

import (
	"maps"
	"strconv"
	"strings"
	"time"
)

// prefix begins the keys of all entries that are ours.
const prefix = "rejoin."

// The keys of a partition's metadata. Those of the log's settings, in partition 0, are in the
// package eventlog.
const (
	// KeyVersion has the version of the log's layout.
	KeyVersion = prefix + "version"
	// KeyOrigin has the ID of the partition's first generation.
	KeyOrigin = prefix + "birth"
	// KeyGenerations has its generations: see [FormatGenerations].
	KeyGenerations = prefix + "generations"
	// KeyMade has the time at which the JetStream stream of the generations was made: see [Made].
	KeyMade = prefix + "made"
	// KeyServer has the ID of the server that the newest generation was begun for; none in a cluster.
	KeyServer = prefix + "server"
	// KeyServers has the servers of a cluster, as [cluster.Servers.Format] writes them.
	KeyServers = prefix + "servers"
	// KeyChecked has the damage that a janitor found: see [Checked].
	KeyChecked = prefix + "checked"
)

// Own returns the entries that are ours: the server adds entries of its own, which an
// update must not send back.
func Own(meta map[string]string) map[string]string {
	own := make(map[string]string, len(meta)) // never nil: callers add to it
	maps.Copy(own, meta)
	maps.DeleteFunc(own, func(key, _ string) bool { return !strings.HasPrefix(key, prefix) })
	return own
}

// Foreign is [Own] of a stream that is not a partition: all but the server's.
func Foreign(meta map[string]string) map[string]string {
	foreign := maps.Clone(meta)
	maps.DeleteFunc(foreign, func(key, _ string) bool { return strings.HasPrefix(key, "_nats.") })
	return foreign
}

// Made formats the time at which a JetStream stream was made.
func Made(created time.Time) string { return strconv.FormatInt(created.UnixNano(), 10) }

// Checked is the result of a janitor's check of a partition for damage. Damaged files are
// found when their server starts, so the result for a generation, and for the server that led
// the partition then, stays true. A damaged replica does not repair itself
// (docs/upstream/0012).
type Checked struct {
	Generation string
	// Damaged is the newest missing sequence; 0 for none.
	Damaged uint64
	// Leader is the server that led, as [cluster.Leader] names it.
	Leader string
}

// Format writes "generation:damaged", and ":leader" in a cluster.
func (c Checked) Format() string {
	s := c.Generation + ":" + strconv.FormatUint(c.Damaged, 10)
	if c.Leader != "" {
		s += ":" + c.Leader
	}
	return s
}

// ParseChecked reads the text of Format. It returns the zero Checked for a text that cannot be read.
func ParseChecked(s string) Checked {
	generation, rest, _ := strings.Cut(s, ":")
	number, leader, _ := strings.Cut(rest, ":")
	damaged, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return Checked{}
	}
	return Checked{generation, damaged, leader}
}
