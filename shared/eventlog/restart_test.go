package eventlog_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/tracing"
	"rejoin/shared/waittest"
)

// Through restarts, every event that was acknowledged and not deleted is handled
// once, in order, and every sequence is either handled or counted as missed.
func TestTail_Restarts(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	srv := natstest.Start(t)
	l := create(t, srv, one())
	eventlogtest.Begin(t, l)
	f := follow(t, l, 0, 0)
	stored, deleted := map[uint64][]byte{}, map[uint64]bool{}
	var last uint64
	restarts := 0
	for restarts < 5 {
		switch n := rnd.IntN(40); {
		case n == 0:
			restarts++
			restart(t, srv, l)
		case n < 10 && last > 0:
			s := 1 + rnd.Uint64N(last)
			must.NoError(t, l.Delete(waittest.Context(t), 0, s))
			deleted[s] = true
		default:
			for range rnd.IntN(20) {
				data := numbered(rnd.Int())
				last = mustPublish(t, l, eventlog.Event{Session: "s", Stream: "t", Data: data}).Sequence
				stored[last] = data
			}
		}
	}
	last = publish(t, l, "s", "t", 0) // no deleted entry lies after it
	f.waitLast(t, last)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != "" {
		t.Fatal(f.broken)
	}
	handled := map[uint64]bool{}
	for _, e := range f.entries {
		if want := stored[e.Sequence]; e.Sequence != last && !bytes.Equal(e.Data, want) {
			t.Fatalf("sequence %d is %q, was %q", e.Sequence, e.Data, want)
		}
		handled[e.Sequence] = true
	}
	for s := range stored {
		if !handled[s] && !deleted[s] {
			t.Fatalf("sequence %d was lost", s)
		}
	}
	if uint64(len(f.entries))+f.missed != last {
		t.Errorf("%d handled and %d missed of %d", len(f.entries), f.missed, last)
	}
}

// copyTree copies a stopped server's store, or brings the copy back.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	must.NoError(t, os.RemoveAll(to))
	must.NoError(t, os.CopyFS(to, os.DirFS(from)))
}

func TestTail_PartitionIsRolledBack(t *testing.T) {
	srv, l := single(t)
	eventlogtest.Begin(t, l)
	publishAll(t, l, "t", 0, 10)
	f := follow(t, l, 0, 0)
	f.waitLast(t, 10)

	older := filepath.Join(t.TempDir(), "older")
	stop(t, srv, l)
	copyTree(t, srv.Dir(), older)
	start(t, srv, l)
	publishAll(t, l, "t", 10, 15)
	f.waitLast(t, 15)
	f.mu.Lock()
	before := len(f.starts)
	f.mu.Unlock()
	lost := look(t, l)
	stop(t, srv, l)
	copyTree(t, older, srv.Dir())
	start(t, srv, l)

	f.wait(t, "another start", func() bool { return len(f.starts) > before })
	back := f.starts[before]
	if back.Last != 10 || back.Origin != lost.Origin || !back.Created.Equal(lost.Created) {
		t.Errorf("it starts again with %+v", back)
	}
	if back.Generation().ID == lost.Generation().ID || back.Generation().Start != 11 || len(back.Generations) != 2 {
		t.Errorf("generations %+v, before %+v", back.Generations, lost.Generations)
	}
	if got := publish(t, l, "s", "t", 99); got != 11 {
		t.Errorf("the next sequence is %d", got)
	}
	f.wait(t, "the new event 11", func() bool {
		newest := f.entries[len(f.entries)-1]
		return newest.Sequence == 11 && bytes.Equal(newest.Data, numbered(99))
	})
}

func TestTail_PartitionIsRecreated(t *testing.T) {
	srv := natstest.StartParallel(t)
	creator := create(t, srv, one())
	l := open(t, srv)
	publishAll(t, l, "t", 0, 5)
	f := follow(t, l, 0, 0)
	f.waitLast(t, 5)
	creator.Close()
	deletePartition(t, srv, l, "MCP_0")
	create(t, srv, one())
	f.wait(t, "another start", func() bool { return len(f.starts) > 1 })
	before, after := f.starts[0], f.starts[len(f.starts)-1]
	if after.Last != 0 || after.First != 1 || after.Origin == before.Origin || after.Created.Equal(before.Created) {
		t.Errorf("it starts again with %+v", after)
	}
	publish(t, l, "s", "t", 7)
	f.wait(t, "the new event 1", func() bool { return bytes.Equal(f.entries[len(f.entries)-1].Data, numbered(7)) })
}

func TestTail_WithoutJanitor(t *testing.T) {
	srv, l := single(t)
	publish(t, l, "s", "t", 1)
	f := follow(t, l, 0, 0)
	f.waitLast(t, 1)
	restart(t, srv, l)
	last := publish(t, l, "s", "t", 2)
	f.waitLast(t, last)
	// The entry before the event begins a generation; a janitor lists it, and no other one.
	want := event.Generation{Start: last - 1}
	for _, s := range []eventlog.State{look(t, l), look(t, open(t, srv))} {
		want.ID = s.Generation().ID
		if len(s.Generations) != 2 || s.Generation() != want {
			t.Errorf("generations %+v, want one that begins at %d", s.Generations, want.Start)
		}
	}
	shown := must.Value(eventlog.OpenToShow(waittest.Context(t), connect(t, srv), quiet(t)))(t)
	t.Cleanup(shown.Close)
	if s := look(t, shown); len(s.Generations) != 1 || s.Last != last {
		t.Errorf("who may not read entries gets %+v", s)
	}
	for range 2 {
		begin(t, l)
		if got, entry := listed(t, l), fmt.Sprintf(",%s:%d", want.ID, want.Start); !strings.HasSuffix(got, entry) {
			t.Errorf("the janitor that comes back lists the generations %s, and not %s at the end", got, entry)
		}
	}
	if s := look(t, l); len(s.Generations) != 2 || s.Generation() != want {
		t.Errorf("the janitor makes generations %+v of it, want %+v at the end", s.Generations, want)
	}
}

// meanwhile is a tracer that calls a function whenever a span begins, in the middle of a publish.
type meanwhile struct {
	noop.Tracer

	do func()
}

func (m meanwhile) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	m.do()
	return m.Tracer.Start(ctx, name, opts...)
}

type provider struct {
	noop.TracerProvider

	tracer trace.Tracer
}

func (p provider) Tracer(string, ...trace.TracerOption) trace.Tracer { return p.tracer }

// An acknowledgement that is read once the server has lost the event names the generation in which that was stored.
func TestPublish_AcknowledgementIsReadLate(t *testing.T) {
	srv, l := single(t)
	eventlogtest.Begin(t, l)
	older := filepath.Join(t.TempDir(), "older")
	stop(t, srv, l)
	copyTree(t, srv.Dir(), older)
	start(t, srv, l)
	mustPublish(t, l, of("s", "t", 0))
	before := look(t, l).Generation().ID
	late := must.Value(l.PublishAsync(waittest.Context(t), of("s", "t", 1)))(t)
	mustPublish(t, l, of("s", "t", 2)) // so that the one before is acknowledged
	stop(t, srv, l)
	copyTree(t, older, srv.Dir())
	start(t, srv, l)
	mustPublish(t, l, of("s", "t", 3))
	ack, err := late.Wait(waittest.Context(t))
	if after := look(t, l).Generation().ID; err != nil || ack.Generation != before || after == before {
		t.Errorf("%+v, %v; it was stored in %s, and now it is %s", ack, err, before, after)
	}
}

// A program is paused right before it sends an event, or the birth of its stream, while the server is restarted
// and loses its entries: no entry is stored before the server's run has a generation, and no event without the
// birth of its stream.
func TestPublish_ServerLosesItsTailMeanwhile(t *testing.T) {
	t.Parallel()
	for name, publish := range ways {
		for _, before := range []string{"event", "birth"} {
			t.Run(name+", "+before, func(t *testing.T) {
				srv, l := single(t)
				l.AwaitJanitor(time.Millisecond)
				older := filepath.Join(t.TempDir(), "older")
				stop(t, srv, l)
				copyTree(t, srv.Dir(), older)
				start(t, srv, l)
				mustPublish(t, l, of("other", "t", 0))
				lose := sync.OnceFunc(func() {
					stop(t, srv, l)
					copyTree(t, older, srv.Dir())
					start(t, srv, l)
				})
				if before == "event" {
					l.TraceTo(tracing.New(provider{tracer: meanwhile{do: lose}}))
				} else {
					l.AskRegistry(func(context.Context, string) (string, error) { lose(); return "l", nil })
				}
				must.Value(publish(waittest.Context(t), l, of("s", "t", 0)))(t)
				wantSubjects(t, l, event.GenerationSubject(0, look(t, l).Generation().ID), "mcp.0.s.l.=birth.t", "mcp.0.s.l.t")
			})
		}
	}
}

// nextGenerations looks until the partition exists and has so many generations more than at a look before.
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
// janitor creates it again, with its entries, and it is the same partition in a new generation.
func TestCreator_PartitionWithTornMetadata(t *testing.T) {
	srv, l := single(t)
	eventlogtest.Begin(t, l)
	publishAll(t, l, "t", 0, 10)
	before := look(t, l)
	for restart := range 3 { // metadata that were torn once must not be torn for good
		stop(t, srv, l)
		if restart == 0 {
			srv.TearMetadata("MCP_0")
		}
		start(t, srv, l)
		must.NoError(t, l.AwaitGeneration(waittest.Context(t), "s")) // until it is listed, a look may show one that is torn, too
		after := nextGenerations(t, l, before, 1)
		earlier, more := after.Generations[:len(before.Generations)], after.Generations[len(before.Generations):]
		other := slices.ContainsFunc(more, func(g event.Generation) bool { return g.Start != 11 })
		if after.Origin != before.Origin || after.Last != 10 || after.Entries != 10 || !slices.Equal(earlier, before.Generations) || other {
			t.Fatalf("restart %d: the partition is %+v, was %+v", restart, after, before)
		}
		before = after
	}
}

// A janitor that has just started knows nothing of the partition: it is another one, once.
func TestCreate_PartitionWithTornMetadata(t *testing.T) {
	srv, l := single(t)
	publishAll(t, l, "t", 0, 10)
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
		if after.Origin != before.Origin || after.Entries != before.Entries {
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
