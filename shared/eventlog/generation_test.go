package eventlog_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// beginOnce reports whether a generation began, which the log shows when an answer was late.
func beginOnce(t *testing.T, l *eventlog.Log) (began bool) {
	t.Helper()
	before := look(t, l).Generation()
	attempts := 0
	waittest.NoError(t, func() (err error) {
		attempts++
		began, err = l.BeginGeneration(within(t, time.Second), 0)
		return err
	}, eventlog.ErrUnavailable)
	return began || attempts > 1 && look(t, l).Generation() != before
}

// begin makes sure that partition 0 has a generation. Whether it had to begin one is not known when an attempt
// was carried out and its answer came late.
func begin(t *testing.T, l *eventlog.Log, looks ...cluster.Servers) {
	t.Helper()
	waittest.NoError(t, func() error {
		_, err := l.BeginGeneration(waittest.Context(t), 0, looks...)
		return err
	}, eventlog.ErrUnavailable)
}

// listed returns the generations that the metadata of partition 0 lists.
func listed(t *testing.T, l *eventlog.Log) string {
	t.Helper()
	return streamOf(t, l, "MCP_0").CachedInfo().Config.Metadata["rejoin.generations"]
}

func look(t testing.TB, l *eventlog.Log) (state eventlog.State) {
	t.Helper()
	waittest.NoError(t, func() (err error) {
		state, err = l.Look(waittest.Context(t), 0)
		return err
	}, eventlog.ErrUnavailable) // it may not have a connection again yet
	return state
}

func TestBeginGeneration_OncePerServerStart(t *testing.T) {
	srv, l := single(t)
	other := open(t, srv)
	first := look(t, l)
	if len(first.Generations) != 1 || first.Generation() != (event.Generation{ID: first.Origin, Start: 1}) {
		t.Fatalf("a new partition has %+v", first.Generations)
	}
	for range 3 {
		if beginOnce(t, l) || beginOnce(t, other) {
			t.Fatal("a generation began on the server that the partition was made on")
		}
	}
	want := first.Generations
	for life := range 3 {
		publishAll(t, l, "t", 0, 5)
		restart(t, srv, l)
		if !beginOnce(t, l) {
			t.Fatal("no generation began on a new server")
		}
		if beginOnce(t, l) || beginOnce(t, other) {
			t.Fatal("a second one began")
		}
		got := look(t, other)
		if got.Origin != first.Origin || len(got.Generations) != len(want)+1 || fmt.Sprint(got.Generations[:len(want)]) != fmt.Sprint(want) {
			t.Fatalf("generations %+v after %+v", got.Generations, want)
		}
		if got.Generation().Start != uint64(5*life+6) {
			t.Errorf("it starts at %d", got.Generation().Start)
		}
		want = got.Generations
	}
	if l.Settings() != open(t, srv).Settings() {
		t.Error("the settings have changed")
	}
}

func TestBeginGeneration_ListIsFull(t *testing.T) {
	srv, l := single(t)
	publish(t, l, "s", "t", 1)
	origin := look(t, l).Origin
	cfg := streamOf(t, l, "MCP_0").CachedInfo().Config
	list := []string{origin + ":1"}
	for n := 1; n < event.MaxGenerations; n++ {
		list = append(list, fmt.Sprintf("g%d:2", n))
	}
	cfg.Metadata["rejoin.generations"] = strings.Join(list, ",")
	update(t, l, cfg)
	restart(t, srv, l)
	if !beginOnce(t, l) {
		t.Fatal("no generation began")
	}
	state := look(t, l)
	if len(state.Generations) != event.MaxGenerations || state.Generations[0].ID != origin || state.Generations[1].ID != "g2" || state.Generation().Start != 2 || state.Origin != origin {
		t.Errorf("%d generations from %+v to %+v", len(state.Generations), state.Generations[0], state.Generation())
	}
	for generation, want := range map[string][2]event.Verdict{
		origin: {event.Good, event.RolledBack}, "g1": {event.MaybeRolledBack, event.MaybeRolledBack}, "g2": {event.Good, event.RolledBack},
	} {
		place := event.TagParts{Origin: origin, Generation: generation, Session: "s", Stream: "t"}
		for i, sequence := range []uint64{1, 2} {
			if got, _ := event.Resolve(event.ID{Stream: "t", Tag: place.Tag(), Sequence: sequence}, place, state.Generations); got != want[i] {
				t.Errorf("an ID of generation %s, sequence %d: verdict %d", generation, sequence, got)
			}
		}
	}
}

// update changes a stream behind the log's back; the server's own metadata stays with it.
func update(t *testing.T, l *eventlog.Log, cfg jetstream.StreamConfig) {
	t.Helper()
	for k := range cfg.Metadata {
		if !strings.HasPrefix(k, "rejoin.") {
			delete(cfg.Metadata, k)
		}
	}
	must.Value(newJetStream(t, l).UpdateStream(waittest.Context(t), cfg))(t)
}

// A janitor is so far from NATS that it cannot find where the entries begin that were stored since a restore.
func TestBeginGeneration_RestoredFarAway(t *testing.T) {
	srv, l := single(t)
	begin(t, l)
	publishAll(t, l, "t", 0, 1000)
	before, info := look(t, l).Generation(), streamOf(t, l, "MCP_0").CachedInfo()
	info.Config.Metadata["rejoin.made"] = "1"
	update(t, l, info.Config)
	janitor := openOn(t, connect(t, srv, nats.SetCustomDialer(&natstest.Link{After: func([]byte) { <-time.After(100 * time.Millisecond) }})))
	begin(t, janitor)
	if g := look(t, l).Generation(); g.ID == before.ID || g.Start != 1 {
		t.Errorf("%+v follows %+v", g, before)
	}
}
