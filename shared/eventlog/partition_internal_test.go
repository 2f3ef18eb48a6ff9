package eventlog

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/clocks"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/eventlog/metadata"
	"rejoin/shared/must"
	"rejoin/shared/natsconn"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// A janitor that has created a partition again, and then stands still, takes back no generation that the
// acting one has begun in it meanwhile.
func TestRewriteMetadata_GenerationBegunMeanwhile(t *testing.T) {
	l := createLog(t, natstest.StartParallel(t).Connect(), Settings{Partitions: 1})
	var created map[string]string
	must.NoError(t, l.change(t.Context(), 0, func(_ *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (bool, error) {
		created = maps.Clone(cfg.Metadata)
		cfg.Metadata[metadata.KeyGenerations] += ",next:1"
		return true, nil
	}))
	must.NoError(t, l.rewriteMetadata(t.Context(), 0, created, 10))
	if state, err := l.Look(t.Context(), 0); err != nil || state.Generation().ID != "next" || state.server == "" {
		t.Errorf("the partition is %+v, %v", state, err)
	}
}

// A janitor that stands still once reads the metadata again.
func TestRewriteMetadata_HeldUp(t *testing.T) {
	l := createLog(t, natstest.StartParallel(t).Connect(), Settings{Partitions: 1})
	info := must.Value(l.info(t.Context(), 0))(t)
	clock, looks := l.now, 0
	l.now = func() clocks.Instant {
		now := clock()
		if looks++; looks > 1 {
			now.Mono, now.Wall = now.Mono+2*lookWithin, now.Wall+2*lookWithin
		}
		return now
	}
	if err := l.rewriteMetadata(t.Context(), 0, metadata.Own(info.Config.Metadata), 10); err != nil || looks != 4 {
		t.Errorf("after %d looks at the clock: %v", looks, err)
	}
}

// In a cluster a partition that is created again is another one, also where no server answers: no look would
// then show that its sequences were given again.
func TestNewPartitionMetadata_UnknownCluster(t *testing.T) {
	t.Parallel()
	l := createLog(t, natstest.StartCluster(t).Servers[0].Connect(), Settings{Partitions: 1, Replicas: 3})
	gone, _ := l.State(0)
	over, end := context.WithCancel(t.Context())
	end()
	meta := newPartitionMetadata(l.Settings().streamConfig(0), "another server", l.seen(over, 3), gone)
	if meta[metadata.KeyOrigin] == gone.Origin || meta[metadata.KeyServer] == "" {
		t.Errorf("the partition %s gets the metadata %v", gone.Origin, meta)
	}
}

// unheard is the JetStream of a cluster in which the server that answers has not heard of a stream that was created.
type unheard struct{ jetstream.JetStream }

func (unheard) CreateStream(context.Context, jetstream.StreamConfig) (jetstream.Stream, error) {
	return nil, jetstream.ErrStreamNameAlreadyInUse
}

func (unheard) Stream(context.Context, string) (jetstream.Stream, error) {
	return nil, jetstream.ErrStreamNotFound
}

// The creator of a log tries again then: it is no error of the NATS server's.
func TestCreatePartition_UnheardOf(t *testing.T) {
	l := must.Value(newLog(natstest.StartParallel(t).Connect(), slog.New(slog.DiscardHandler)))(t)
	l.adopt(Settings{Partitions: 1}.withDefaults())
	l.js = unheard{l.js}
	if err := l.createPartition(t.Context(), 0, State{}, func() cluster.Servers { return nil }); !errors.Is(err, ErrUnavailable) || natsconn.Code(err) != 0 {
		t.Error(err)
	}
}

// A server that stops while a partition is created again answers no more: the log does not wait for it, since it
// looks at no other partition meanwhile.
func TestCreateAgain_ConnectionLost(t *testing.T) {
	srv := natstest.StartParallel(t)
	created, cut := false, make(chan struct{})
	var link natstest.Link
	lost := sync.OnceFunc(func() {
		link.Cut()
		close(cut)
	})
	link.Before = func(data []byte) {
		created = created || bytes.Contains(data, []byte("$JS.API.STREAM.CREATE.MCP_0"))
		if created && bytes.Contains(data, []byte("$JS.API.STREAM.UPDATE.MCP_0")) {
			lost()
		}
	}
	createLog(t, srv.Connect(), Settings{Partitions: 1}).Close()
	l := createLog(t, srv.Connect(nats.SetCustomDialer(&link)), Settings{Partitions: 1})
	js := natstest.JetStream(t, srv.Connect())
	must.NoError(t, js.DeleteStream(t.Context(), "MCP_0"))
	waittest.Receive(t, "the partition is created again", cut)
	ctx, end := context.WithTimeout(t.Context(), waittest.Timeout/2)
	defer end()
	if _, err := l.parts[0].own(ctx); err != nil {
		t.Errorf("it is still being created: %v", err)
	}
}

// A janitor that stands still between reading a configuration and storing it undoes no change
// that the next one has written meanwhile.
func TestChange_HeldUp(t *testing.T) {
	srv := natstest.StartParallel(t)
	l := createLog(t, srv.Connect(), Settings{Partitions: 1, MaxBytes: 1 << 20})
	next := must.Value(Open(t.Context(), srv.Connect(), slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(next.Close)
	clock, passed := l.now, clocks.Instant{}
	l.now = func() clocks.Instant {
		now := clock()
		return clocks.Instant{Mono: now.Mono + passed.Mono, Wall: now.Wall + passed.Wall}
	}
	for name, pause := range map[string]clocks.Instant{
		"suspended":      {Wall: 2 * lookWithin},
		"clock set back": {Mono: 2 * lookWithin, Wall: -time.Hour},
		"held up":        {Mono: 2 * lookWithin, Wall: 2 * lookWithin},
	} {
		before, err := next.Look(t.Context(), 0)
		must.NoError(t, err)
		passed = clocks.Instant{}
		err = l.change(t.Context(), 0, func(_ *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (bool, error) {
			if passed == (clocks.Instant{}) {
				passed = pause
				waittest.NoError(t, func() error { _, err := next.MakeRoom(t.Context(), 0); return err }, ErrUnavailable)
			}
			cfg.Metadata["rejoin.test"] = name
			return true, nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if state, err := next.Look(t.Context(), 0); err != nil || state.Limits.MaxBytes <= before.Limits.MaxBytes {
			t.Errorf("%s: %+v, %v", name, state, err)
		}
	}
}

// A server that waits for an election answers with its own state, and may have heard of the new leader since it
// was asked. Its last sequence is not the log's, nor its first one.
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

// A server reports that a stream is not found before it has deleted the files: a stream that is created at this moment
// has the entries of the old one, and loses its files (docs/upstream/0041).
func TestLookAt_CreatesOnceTheFilesAreDeleted(t *testing.T) {
	l := createLog(t, natstest.StartParallel(t).Connect(), Settings{Partitions: 1})
	for range 8 {
		must.Value(l.Publish(t.Context(), Event{Session: "s", Stream: "a", Data: []byte("{}")}))(t)
		deleted := make(chan error, 1)
		go func() { deleted <- l.js.DeleteStream(t.Context(), "MCP_0") }()
		for len(deleted) == 0 {
			_, _ = l.lookAt(t.Context(), 0) // the partition may not exist
		}
		must.NoError(t, <-deleted)
		waittest.NoError(t, func() error { _, err := l.lookAt(t.Context(), 0); return err })
		if state := must.Value(l.Look(t.Context(), 0))(t); state.Last != 0 {
			t.Fatalf("the partition that was created again has entries up to %d", state.Last)
		}
	}
}
