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

	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
)

// replica returns a partition of which some entries are lost, and what its state and files say.
func replica(m *model, lost []uint64) (r *model, state eventlog.State, absent []uint64) {
	damaged := *m
	for _, seq := range lost {
		damaged.delete(seq)
	}
	for seq := damaged.first; seq <= damaged.last; seq++ {
		if _, there := damaged.find(seq); !there {
			absent = append(absent, seq)
		}
	}
	return &damaged, damaged.state(), absent
}

// lose draws up to three entries that a replica has lost: not the newest, and no trim, without
// which more is not explained.
func lose(t *rapid.T, m *model, label string) (lost []uint64) {
	for i := range rapid.IntRange(0, 3).Draw(t, label) {
		if e := rapid.SampledFrom(m.entries).Draw(t, fmt.Sprint(label, i)); e.Sequence < m.last && e.Subject.Kind != event.Trim && !slices.Contains(lost, e.Sequence) {
			lost = append(lost, e.Sequence)
		}
	}
	return lost
}

// A leader has everything that the ledger has, or lacks some of it that nothing explains, whatever
// is stored, announced and deleted while it is asked.
func TestLedger_ComparedWithItsLeader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := newModel()
		lim := limits{maxPerStream: 2, maxEvents: -1, maxBytes: -1, maxStreams: -1}
		m := newMachine(t, log, lim, rules{maxAge: -1, maxBytes: -1})
		stream, some := rapid.SampledFrom([]string{"x", "y"}), rapid.Uint64Range(1, 3)
		same := true // nothing is removed meanwhile
		steps := func(label string) {
			for range rapid.IntRange(0, 9).Draw(t, label) {
				switch rapid.IntRange(0, 9).Draw(t, "step") {
				case 0:
					log.open("s")
				case 1:
					log.endStream("s", stream.Draw(t, "stream"))
				case 2:
					m.catchUp()
					m.sweep(9)
				case 3:
					m.delete(t, 3, rapid.Bool().Draw(t, "heard"))
					same = false
				case 4:
					log.purge(min(log.first+some.Draw(t, "entries"), log.last))
					same = false
				case 5:
					m.catchUp()
				case 6: // of somebody who did not know of those events
					if all := log.history[place{"s", "", "x"}]; len(all) > 0 {
						log.store(eventlog.Entry{Subject: event.Subject{Session: "s", Stream: "x", Kind: event.Trim}, Trim: &eventlog.Trim{Session: "s", Stream: "x", UpTo: all[len(all)-1]}})
					}
				default:
					log.publish("s", stream.Draw(t, "stream"), false)
				}
			}
		}
		log.publish("s", "x", false)
		for range 3 {
			steps("before")
		}
		m.catchUp()
		m.delete(t, 1000, true) // what was not heard of before, too
		m.catchUp()
		m.sweep(9)
		m.catchUp()
		if same = rapid.IntRange(0, 3).Draw(t, "headless") > 0; !same { // an earlier leader lacked some of the first
			m.ledger.advance(min(log.first+some.Draw(t, "entries"), log.last), 0)
		}
		read := lose(t, log, "lost by the server that the ledger has read")
		if len(read) > 0 {
			other, _, _ := replica(log, read)
			m = newMachine(t, other, lim, m.rules)
			m.catchUp()
			m.catchUp()
			m.log, same = log, false
		}
		before, asOf := m.ledger.balance(), m.ledger.through
		steps("while it is asked")
		lost := lose(t, log, "lost")
		_, state, absent := replica(log, lost)
		steps("while it answers")
		m.ledger.looked(asOf, state)
		whole := m.ledger.has(state, before)
		named := func(seq uint64) bool {
			return slices.ContainsFunc(log.trims, func(t eventlog.Trim) bool { return contains(t.Removed, seq) })
		}
		// What is announced and both lack at different places the number does not tell: for that there is the list.
		if whole && !slices.ContainsFunc(read, named) && slices.ContainsFunc(lost, func(seq uint64) bool { return seq >= m.ledger.first && !slices.Contains(read, seq) }) {
			t.Fatalf("the leader has lost %v, the ledger lacks %v, and the leader has everything", lost, read)
		}
		if !whole && len(lost) == 0 && same {
			t.Fatal("the leader has lost nothing, and lacks something")
		}
		steps("until the ledger is behind the look")
		m.catchUp()
		var want damage
		for _, seq := range lost {
			if seq >= m.ledger.first && !named(seq) && !slices.Contains(read, seq) {
				want.include(seq)
			}
		}
		if got := m.ledger.lacking(absent); got != want {
			t.Fatalf("the leader has lost %v, and lacks %+v, want %+v", lost, got, want)
		}
	})
}

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
	if err != nil {
		t.Fatal(err)
	}
}

// lead has a server of a cluster lead partition 0, and returns what its files lack.
func (r *running) lead(t *testing.T, name string) (absent []uint64) {
	t.Helper()
	request, err := json.Marshal(map[string]any{"placement": map[string]string{"preferred": name}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // who is asked during an election may not answer
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
	eventually(t, func() error {
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
		ack, err := r.b.Log.Publish(t.Context(), eventlog.Event{Session: "s", Stream: "t", Data: fmt.Appendf(nil, "%q", strings.Repeat("x", 1000))})
		if err != nil {
			t.Fatal(err)
		}
		r.followed(t, ack)
	}
	js, err := jetstream.New(r.b.Conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "MCP_0")
	if err != nil {
		t.Fatal(err)
	}
	replicas := stream.CachedInfo().Cluster.Replicas
	whole, damaged := replicas[0].Name, c.Named(replicas[1].Name)
	r.wantChecked(t, stream.CachedInfo().Cluster.Leader, 0)

	if absent := r.lead(t, whole); len(absent) > 0 {
		t.Fatalf("%s lacks %v", whole, absent)
	}
	r.wantChecked(t, whole, 0)
	if _, _, err := r.partitions[0].countLeader(t.Context()); err != nil {
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
	if _, _, err := r.partitions[0].countLeader(t.Context()); err == nil {
		t.Errorf("%s has as many entries as the ledger", damaged.Name())
	}
	if !strings.Contains(r.log.String(), "lacks entries that others have") {
		t.Error("it is not logged")
	}

	r.lead(t, whole)
	r.wantChecked(t, whole, last) // clients that read while the other one led may have missed it
}
