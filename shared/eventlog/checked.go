package eventlog

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// checked says that a janitor has found out what is missing of a partition. Files that were
// damaged are found when their server starts, so what was true of a generation, and of the
// server that led the partition then, stays true. A damaged replica does not repair itself
// (docs/upstream/0012).
type checked struct {
	generation string
	damaged    uint64 // as [State.Damaged]
	leader     string // as [State.Leader]
}

// format writes "generation:damaged", and ":leader" in a cluster.
func (c checked) format() string {
	s := c.generation + ":" + strconv.FormatUint(c.damaged, 10)
	if c.leader != "" {
		s += ":" + c.leader
	}
	return s
}

// parseChecked reads what format has written; what cannot be read says nothing.
func parseChecked(s string) checked {
	generation, rest, _ := strings.Cut(s, ":")
	number, leader, _ := strings.Cut(rest, ":")
	damaged, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return checked{}
	}
	return checked{generation, damaged, leader}
}

// leaderOf returns what [State.Leader] is.
func leaderOf(info *jetstream.StreamInfo) string {
	c := info.Cluster
	switch {
	case c == nil || c.Name == "":
		return ""
	case c.RaftGroup == "": // one replica, which needs no election
		return c.Leader
	case c.Leader == "" || c.LeaderSince == nil: // an election is not over
		return ""
	default:
		return c.Leader + "@" + c.LeaderSince.UTC().Format(time.RFC3339Nano)
	}
}

// SetChecked notes that a janitor has found out what is missing of a partition without an
// explanation, in the generation of a look and in the files of the server that led the
// partition then: nothing behind damaged; 0 for nothing at all. Nothing is noted when another
// server leads by now, or in another generation. What was damaged once stays so, also when the
// floor has passed it: a birth that was written again since may say of its stream less than there
// was. Only the acting janitor may call it. Errors are those of [Log.BeginGeneration].
func (l *Log) SetChecked(ctx context.Context, p int, state State, damaged uint64) error {
	_, err := l.changeServers(ctx, p, func(info *jetstream.StreamInfo, meta map[string]string) (bool, error) {
		gens, err := parseGenerations(meta[metaGenerations])
		if id := state.Generation().ID; err == nil && gens[len(gens)-1].ID == id && leaderOf(info) == state.Leader {
			meta[metaChecked] = checked{id, max(damaged, parseChecked(meta[metaChecked]).damaged), state.Leader}.format()
		}
		return false, err
	})
	return err
}

// Absent returns how many sequences from First to Last have no entry.
func (s State) Absent() uint64 { return s.Last + 1 - s.First - s.Events }

// Absent asks the partition's leader for its state and for the sequences from First to Last of
// which its files have no entry, in order. The answer is one message with about eight bytes for
// each of them, and a server ends a connection for which 64 MiB wait: so a caller does not ask before a
// look has shown that there are not too many ([State.Absent]). Errors are those of [Log.Look].
func (l *Log) Absent(ctx context.Context, p int) (State, []uint64, error) {
	server := l.nc.ConnectedServerId()
	ctx, cancel := l.request(ctx)
	defer cancel()
	info, err := l.stream(p).Info(ctx, jetstream.WithDeletedDetails(true))
	if err != nil {
		return State{}, nil, apiError(err)
	}
	if err := checkPartition(info.Config, p); err != nil {
		return State{}, nil, err
	}
	state, err := stateOf(info, server)
	if n := len(info.State.Deleted); err == nil && uint64(n) != state.Absent() {
		err = fmt.Errorf("%w: the leader of partition %d lacks %d entries and lists %d", ErrUnavailable, p, state.Absent(), n)
	}
	return state, info.State.Deleted, err
}
