package janitor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// tear damages the oldest block of partition 0 in the folder of a server that is stopped.
func tear(t *testing.T, srv *natstest.Server) {
	t.Helper()
	messages := filepath.Join(srv.Dir(), "jetstream", "$G", "streams", "MCP_0", "msgs")
	blocks, err := filepath.Glob(filepath.Join(messages, "*.blk"))
	if err != nil || len(blocks) < 2 {
		t.Fatalf("there are the blocks %v, %v", blocks, err)
	}
	slices.SortFunc(blocks, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	info, err := os.Stat(blocks[0])
	if err == nil {
		err = os.Truncate(blocks[0], info.Size()/2)
	}
	if err == nil { // as a power cut leaves it: the server reads the blocks
		err = os.Remove(filepath.Join(messages, "index.db"))
	}
	must.NoError(t, err)
}

// lead has a server of a cluster lead partition 0, and returns the sequences that its files lack.
func (r *running) lead(t *testing.T, name string) (absent []uint64) {
	t.Helper()
	request := must.Value(json.Marshal(map[string]any{"placement": map[string]string{"preferred": name}}))(t)
	waittest.NoError(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // during an election there may be no answer
		defer cancel()
		state, all, err := r.b.Log.Absent(ctx, 0)
		if err != nil {
			return err
		}
		if absent = all; strings.HasPrefix(state.Leader, name+"@") {
			return nil
		}
		answer, err := r.b.Conn.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN.MCP_0", request)
		if err != nil {
			return err
		}
		return fmt.Errorf("%s leads, and not %s: %s", state.Leader, name, answer.Data)
	})
	return absent
}

// wantChecked waits until the log says up to where partition 0 is damaged, with the present leader.
func (r *running) wantChecked(t *testing.T, leader string, damaged uint64) {
	t.Helper()
	waittest.NoError(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		state, err := r.b.Log.Look(ctx, 0)
		if err == nil && (!state.Checked() || state.Damaged != damaged || !strings.HasPrefix(state.Leader, leader+"@")) {
			err = fmt.Errorf("%s leads, checked %t, damaged %d", state.Leader, state.Checked(), state.Damaged)
		}
		return err
	})
}

// Each replica has files of its own. The damage of one that does not lead is known as soon as it
// does.
func TestChecked_DamagedReplicaLeads(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	r := beginAt(t, c.URL(), eventlog.Settings{Partitions: 1, Replicas: 3, MaxBytes: 120_000}, idle()) // blocks of 32 KB
	for range 80 {
		ack := must.Value(r.b.Log.Publish(t.Context(), eventlog.Event{Session: "s", Stream: "t", Data: fmt.Appendf(nil, "%q", strings.Repeat("x", 1000))}))(t)
		r.followed(t, ack)
	}
	js := natstest.JetStream(t, r.b.Conn)
	stream := must.Value(js.Stream(t.Context(), "MCP_0"))(t)
	replicas := stream.CachedInfo().Cluster.Replicas
	whole, damaged := replicas[0].Name, c.Named(replicas[1].Name)
	r.wantChecked(t, stream.CachedInfo().Cluster.Leader, 0)

	if absent := r.lead(t, whole); len(absent) > 0 {
		t.Fatalf("%s lacks %v", whole, absent)
	}
	r.wantChecked(t, whole, 0)
	if _, _, err := r.partitions[0].CountLeader(t.Context()); err != nil {
		t.Errorf("of %s: %v", whole, err)
	}

	damaged.Stop()
	tear(t, damaged)
	damaged.Start()
	c.WaitCurrent()
	absent := r.lead(t, damaged.Name())
	if len(absent) == 0 {
		t.Fatal("nothing is damaged")
	}
	last := absent[len(absent)-1]
	r.wantChecked(t, damaged.Name(), last)
	if state, may, err := r.partitions[0].CountLeader(t.Context()); err != nil || may != state.Last {
		t.Errorf("%s may lack entries up to %d of %d, %v", damaged.Name(), may, state.Last, err)
	}
	if !strings.Contains(r.log.String(), "lacks entries that others have") {
		t.Error("it is not logged")
	}

	r.lead(t, whole)
	r.wantChecked(t, whole, last) // clients that read while the other one led may have missed it
}
