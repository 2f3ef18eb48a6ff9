package eventlog_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// nextGenerations looks until the partition is there and has so many generations more than at a look before.
func nextGenerations(t *testing.T, l *eventlog.Log, before eventlog.State, more int) (after eventlog.State) {
	t.Helper()
	waittest.Until(t, "the partition with its generations", func() bool {
		var err error
		after, err = l.Look(waittest.Context(t), 0)
		return err == nil && len(after.Generations) >= len(before.Generations)+more
	})
	return after
}

// A server that is killed while it replaces the metadata of a stream does not find the stream again: a
// janitor creates it anew, with its entries, and it is the same partition in a new generation.
func TestCreator_PartitionWithTornMetadata(t *testing.T) {
	srv, l := single(t)
	eventlogtest.Begin(t, l)
	for n := range 10 {
		publish(t, l, "s", "t", n)
	}
	before := look(t, l)
	for restart := range 3 { // what was torn once must not be torn for good
		stop(t, srv, l)
		if restart == 0 {
			srv.TearMetadata("MCP_0")
		}
		start(t, srv, l)
		after := nextGenerations(t, l, before, 1)
		want := slices.Concat(before.Generations, []event.Generation{{ID: after.Generation().ID, Start: 11}})
		if after.Origin != before.Origin || after.Last != 10 || after.Events != 10 || !slices.Equal(after.Generations, want) {
			t.Fatalf("restart %d: the partition is %+v, was %+v", restart, after, before)
		}
		before = after
	}
}

// A janitor that has just started knows nothing of the partition: it is another one, once.
func TestCreate_PartitionWithTornMetadata(t *testing.T) {
	srv, l := single(t)
	for n := range 10 {
		publish(t, l, "s", "t", n)
	}
	before := look(t, l)
	l.Close()
	srv.Stop()
	srv.TearMetadata("MCP_0")
	srv.Start()
	l = create(t, srv, one())
	created := look(t, l)
	eventlogtest.Begin(t, l)
	next := nextGenerations(t, l, created, 1)
	if next.Origin == before.Origin || next.Last != 10 || next.Generation().Start != 11 {
		t.Errorf("the partition is %+v, was %+v", next, before)
	}
	restart(t, srv, l)
	if again := nextGenerations(t, l, next, 1); again.Origin != next.Origin {
		t.Errorf("the partition is %+v, was %+v", again, next)
	}
}

// Nor does it become another one when the server is killed again before a janitor has begun a generation.
func TestCreator_PartitionTornTwice(t *testing.T) {
	srv, l := single(t)
	publish(t, l, "s", "t", 1)
	before := look(t, l)
	for range 2 {
		stop(t, srv, l)
		srv.TearMetadata("MCP_0")
		start(t, srv, l)
		after := nextGenerations(t, l, before, 0)
		if after.Origin != before.Origin || after.Events != before.Events {
			t.Fatalf("the partition is %+v, was %+v", after, before)
		}
	}
}

// A server that cannot write a generation that is begun, as on a full disk, shows it nevertheless, and loses it
// at its next start: it is stored again until it is written.
func TestBeginGeneration_MetadataNotWritten(t *testing.T) {
	srv, l := single(t)
	publish(t, l, "s", "t", 1)
	stop(t, srv, l)
	blocked := filepath.Join(srv.Dir(), "jetstream", "$G", "streams", "MCP_0", "meta.inf.tmp")
	must.NoError(t, os.Mkdir(blocked, 0o700))
	start(t, srv, l)
	if _, err := l.BeginGeneration(waittest.Context(t), 0); err == nil {
		t.Fatal("the generation is begun")
	}
	must.NoError(t, os.Remove(blocked))
	begin(t, l)
	before := look(t, l)
	restart(t, srv, l)
	if after := look(t, l); !slices.Equal(after.Generations, before.Generations) {
		t.Errorf("the generations are %v, were %v", after.Generations, before.Generations)
	}
}
