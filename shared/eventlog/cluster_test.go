package eventlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// inCluster begins a parallel test of a log with three replicas.
func inCluster(t *testing.T) (*natstest.Cluster, *eventlog.Log) {
	t.Helper()
	t.Parallel()
	c := natstest.StartCluster(t)
	return c, replicated(t, c)
}

func replicated(t testing.TB, c *natstest.Cluster) *eventlog.Log {
	t.Helper()
	return clustered(t, c, 3)
}

// clustered is a log of one partition on some servers of a cluster, opened by way of all
// of them.
func clustered(t testing.TB, c *natstest.Cluster, replicas int, opts ...nats.Option) *eventlog.Log {
	t.Helper()
	settings := one()
	settings.Replicas = replicas
	nc := connectTo(t, c.URL(), opts...)
	l := createOn(t, nc, settings)
	natstest.WaitHeard(t, nc, "mcp.0.s.l.t")
	waittest.NoError(t, func() error { // the cluster's leader may learn of a stream after the server that holds it
		_, err := l.Look(waittest.Context(t), 0)
		return err
	}, eventlog.ErrUnavailable, eventlog.ErrNotFound)
	return l
}

// A server without most of the others answers with its own state, whose end is not the log's end.
func TestLook_ClusterWithoutALeader(t *testing.T) {
	c, l := inCluster(t)
	publish(t, l, "s", "t", 1)
	before := look(t, l)
	for _, srv := range c.Servers {
		if srv.Name() != l.Conn().ConnectedServerName() {
			srv.Stop()
		}
	}
	js := newJetStream(t, l)
	waittest.Until(t, "the last server knows that it leads nothing", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stream, err := js.Stream(ctx, "MCP_0")
		return err == nil && stream.CachedInfo().Cluster.Leader == ""
	})
	if state, err := l.Look(waittest.Context(t), 0); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("the log ends at %d, %v", state.Last, err)
	}
	if _, _, err := l.Absent(waittest.Context(t), 0); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("what is absent: %v", err)
	}
	if state, _ := l.State(0); state.Last != before.Last {
		t.Errorf("the log was last seen at %d, and is now at %d", before.Last, state.Last)
	}
}

// Of a partition that never had an entry, JetStream may list sequence 0, which is none.
func TestAbsent_ClusterWithoutAnEntry(t *testing.T) {
	_, l := inCluster(t)
	if state, absent, err := l.Absent(waittest.Context(t), 0); err != nil || len(absent) > 0 || state.Absent() != 0 {
		t.Errorf("absent are %v, %d, %v", absent, state.Absent(), err)
	}
}

// A program that starts while one partition has no leader serves the others, and that one once it has.
func TestOpen_PartitionWithoutALeader(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	settings := one()
	settings.Partitions, settings.Replicas = 6, 1
	takes := func(l *eventlog.Log, session string, n int) { // once all servers have heard of the partition
		t.Helper()
		waittest.NoError(t, func() error {
			_, err := l.Publish(waittest.Context(t), eventlog.Event{Session: session, Stream: "t", Data: numbered(n)})
			return err
		})
	}
	l := createOn(t, connectTo(t, c.URL()), settings)
	eventlogtest.Begin(t, l)
	sessions := make([]string, settings.Partitions)
	for i := 0; slices.Contains(sessions, ""); i++ {
		name := fmt.Sprint("s", i)
		sessions[l.Partition(name)] = name
	}
	for _, session := range sessions {
		takes(l, session, 1)
	}
	js := newJetStream(t, l)
	leaders := make([]string, settings.Partitions)
	for p := range leaders {
		leaders[p] = streamOf(t, l, fmt.Sprint("MCP_", p)).CachedInfo().Cluster.Leader
	}
	gone := slices.IndexFunc(leaders, func(name string) bool { return name != leaders[0] })
	if gone < 0 {
		t.Fatalf("all partitions are on one server: %v", leaders)
	}
	there := slices.IndexFunc(leaders, func(name string) bool { return name != leaders[gone] })
	c.Named(leaders[gone]).Stop()
	waittest.NoError(t, func() error { // JetStream has a leader
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.Stream(ctx, fmt.Sprint("MCP_", there))
		return err
	})
	logs := map[string]*eventlog.Log{
		"opened": openOn(t, connectTo(t, c.URL())), "created": createOn(t, connectTo(t, c.URL()), settings),
	}
	for name, open := range logs {
		takes(open, sessions[there], 2)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := open.Publish(ctx, eventlog.Event{Session: sessions[gone], Stream: "t", Data: numbered(2)})
		cancel()
		if !errors.Is(err, eventlog.ErrUnavailable) && !errors.Is(err, eventlog.ErrUnknown) { // unknown: no server answers in time
			t.Errorf("%s: publishing to the partition that is gone: %v", name, err)
		}
		if _, err := open.Newest(waittest.Context(t), event.Subject{Partition: gone, Session: sessions[gone], Life: "l", Stream: "t"}); !errors.Is(err, eventlog.ErrUnavailable) {
			t.Errorf("%s: reading there: %v", name, err)
		}
	}
	c.Named(leaders[gone]).Start()
	for _, open := range logs {
		takes(open, sessions[gone], 3)
	}
}

// A consumer lies on any of the servers, which may be behind the leader that has
// acknowledged an event: a tail and a read that begin then have it nevertheless.
func TestTailAndRead_ClusterHasAllAcknowledged(t *testing.T) {
	_, l := inCluster(t)
	for n := range 300 {
		last := publishOnce(t, l, n)
		f := follow(t, l, 0, last-1)
		ctx := waittest.Context(t)
		var page eventlog.Page
		var err error
		for {
			page, err = l.Read(ctx, eventlog.Query{Session: "s", Stream: "t", UpTo: last, MaxEvents: 1000, MaxBytes: 1 << 20})
			if !errors.Is(err, eventlog.ErrUnavailable) || ctx.Err() != nil {
				break
			}
		}
		must.NoError(t, err)
		if len(page.Entries) != n+1 || page.Through != last {
			t.Fatalf("%d of %d events are read, up to %d", len(page.Entries), n+1, page.Through)
		}
		f.waitLast(t, last)
		f.mu.Lock()
		if f.broken != "" || f.missed != 0 {
			t.Fatalf("of %d events %d are missed; %s", n+1, f.missed, f.broken)
		}
		f.mu.Unlock()
		f.stop()
	}
}

// Leaders change and servers stop and start while events are stored. A publisher that repeats
// an unacknowledged event, under its key, finds it stored once, where a tail has seen it.
func TestTail_ClusterRestarts(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	c := natstest.StartCluster(t)
	l := replicated(t, c)
	js := newJetStream(t, l)
	followers := []*follower{follow(t, l, 0, 0), follow(t, l, 0, 0), follow(t, l, 0, 0)}
	var stored []uint64
	for round := range 6 {
		for range 50 {
			stored = append(stored, publishOnce(t, l, len(stored)))
		}
		if round%2 == 0 {
			srv := c.Servers[rnd.IntN(len(c.Servers))]
			srv.Stop()
			for range 50 {
				stored = append(stored, publishOnce(t, l, len(stored)))
			}
			srv.Start()
			c.WaitCurrent()
			continue
		}
		must.Value(js.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN.MCP_0", nil, waittest.Timeout))(t)
	}
	for i, f := range followers {
		f.waitLast(t, stored[len(stored)-1])
		f.mu.Lock()
		if f.missed != 0 || len(f.entries) != len(stored) {
			t.Errorf("tail %d has %d of %d events and missed %d", i, len(f.entries), len(stored), f.missed)
		}
		for n, e := range f.entries {
			if n < len(stored) && (e.Sequence != stored[n] || !bytes.Equal(e.Data, numbered(n))) {
				t.Fatalf("tail %d: event %d at %d is %s at %d", i, n, stored[n], e.Data, e.Sequence)
			}
		}
		f.mu.Unlock()
	}
}

// publishOnce publishes under a key until that is acknowledged, and returns the sequence.
func publishOnce(t *testing.T, l *eventlog.Log, n int) uint64 {
	t.Helper()
	for t.Context().Err() == nil {
		ctx, cancel := context.WithTimeout(waittest.Context(t), 2*time.Second)
		ack, err := l.Publish(ctx, eventlog.Event{Session: "s", Stream: "t", Data: numbered(n), Key: fmt.Sprint(n)})
		cancel()
		if err == nil {
			return ack.Sequence
		}
		if !errors.Is(err, eventlog.ErrUnavailable) && !errors.Is(err, eventlog.ErrUnknown) {
			t.Fatal(err)
		}
	}
	return 0
}

// A log that was made on one server of a cluster gets replicas on the others, and gives
// them up again, while events are stored and tailed. Nothing is lost or counted as missed.
func TestSetLimits_ReplicasUnderLoad(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	l := clustered(t, c, 1)
	f := follow(t, l, 0, 0)
	var stored atomic.Pointer[[]uint64]
	var publishing sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer publishing.Wait()
	defer stop()
	publishing.Go(func() {
		var all []uint64
		for ctx.Err() == nil {
			all = append(all, publishOnce(t, l, len(all)))
		}
		stored.Store(&all)
	})
	for _, n := range []int{3, 1, 3} {
		settings := l.Settings()
		settings.Replicas = n
		// A leader may be elected at any moment.
		waittest.NoError(t, func() error {
			err := l.SetLimits(waittest.Context(t), 0, settings)
			if err != nil && !errors.Is(err, eventlog.ErrUnavailable) {
				t.Fatal(err)
			}
			return err
		})
		var state eventlog.State
		look := func() (err error) {
			state, err = l.Look(waittest.Context(t), 0)
			if err != nil && !errors.Is(err, eventlog.ErrUnavailable) {
				t.Fatal(err)
			}
			return err
		}
		waittest.Until(t, "a leader answers", func() bool { return look() == nil })
		if state.Limits.Replicas != n || l.Settings().Replicas != n {
			t.Errorf("there are %d replicas, the settings say %d, want %d", state.Limits.Replicas, l.Settings().Replicas, n)
		}
		// They were all current when SetLimits returned; while events are stored, one may be
		// an event behind at any moment.
		waittest.Until(t, fmt.Sprintf("%d replicas are current", n), func() bool { return look() == nil && state.Current == n })
		if len(state.Generations) != 1 {
			t.Errorf("there are %d generations", len(state.Generations))
		}
	}
	stop()
	publishing.Wait()
	want := *stored.Load()
	f.waitLast(t, want[len(want)-1])
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.missed != 0 || len(f.entries) != len(want) {
		t.Fatalf("the tail has %d of %d events and missed %d", len(f.entries), len(want), f.missed)
	}
	for n, e := range f.entries {
		if e.Sequence != want[n] {
			t.Fatalf("event %d is at %d, stored at %d", n, e.Sequence, want[n])
		}
	}
	if err := l.SetLimits(waittest.Context(t), 0, func() eventlog.Settings { s := l.Settings(); s.Replicas = 5; return s }()); err == nil {
		t.Error("five replicas on three servers are accepted")
	}
}

// silent is a log with three replicas, of whose requests of one kind some get no answer.
func silent(t *testing.T, request string) (*eventlog.Log, *natstest.Silence) {
	t.Helper()
	srv := natstest.StartCluster(t).Servers[0]
	silence := natstest.NewSilence(t, srv, request)
	settings := one()
	settings.Replicas = 3
	return create(t, srv, settings, nats.SetCustomDialer(&silence.Link)), silence
}

// A request while a partition changes its leader gets no answer. It is made again.
func TestLook_Unanswered(t *testing.T) {
	t.Parallel()
	l, silence := silent(t, "STREAM.INFO.MCP_0 ")
	silence.Next(2) // the log may look by itself at the same time
	must.Value(l.Look(waittest.Context(t), 0))(t)
}

func TestEntries_Unanswered(t *testing.T) {
	t.Parallel()
	l, silence := silent(t, "STREAM.MSG.GET.MCP_0 ")
	sequence := publish(t, l, "s", "t", 1)
	silence.Next(1)
	if last, err := l.NewestSequence(waittest.Context(t), event.Subject{Session: "s", Stream: "t"}); err != nil || last != sequence {
		t.Errorf("the last one is %d, %v", last, err)
	}
	silence.Next(1)
	if e, err := l.At(waittest.Context(t), 0, sequence); err != nil || e.Sequence != sequence {
		t.Errorf("it is %+v, %v", e, err)
	}
}

// The answer to a change of a partition comes from its leader, and is lost with it. The change is made again.
func TestSetLimits_Unanswered(t *testing.T) {
	t.Parallel()
	l, silence := silent(t, "STREAM.UPDATE.MCP_0 ")
	settings := l.Settings()
	settings.MaxBytes = 1 << 30
	silence.Next(1)
	must.NoError(t, l.SetLimits(waittest.Context(t), 0, settings))
	if now := look(t, l).Limits.MaxBytes; now != 1<<30 {
		t.Errorf("the limit is %d", now)
	}
}

func TestSetReplicas_Unanswered(t *testing.T) {
	t.Parallel()
	l, silence := silent(t, "STREAM.INFO.KV_B ")
	must.Value(newJetStream(t, l).CreateKeyValue(waittest.Context(t), jetstream.KeyValueConfig{Bucket: "B"}))(t)
	silence.Next(1)
	must.NoError(t, l.SetReplicas(waittest.Context(t), "B", 3))
}
