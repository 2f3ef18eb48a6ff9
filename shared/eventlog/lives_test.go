package eventlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/racetest"
	"rejoin/shared/waittest"
)

// eachPair runs a test with two logs, as two processes open them, on one server and on three.
func eachPair(t *testing.T, test func(t *testing.T, l, other *eventlog.Log)) {
	t.Helper()
	t.Parallel()
	t.Run("one server", func(t *testing.T) {
		srv := natstest.StartParallel(t)
		test(t, create(t, srv, one()), open(t, srv))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := natstest.StartCluster(t)
		l := replicated(t, c)
		test(t, l, openAt(t, c.URL()))
	})
}

func openAt(t *testing.T, url string) *eventlog.Log {
	t.Helper()
	nc := connectTo(t, url)
	l := openOn(t, nc)
	natstest.WaitHeard(t, nc, "mcp.0.s.l.t")
	return l
}

// ways are all in which an event can be published.
var ways = map[string]func(context.Context, *eventlog.Log, eventlog.Event) (eventlog.Ack, error){
	"Publish": func(ctx context.Context, l *eventlog.Log, e eventlog.Event) (eventlog.Ack, error) {
		return l.Publish(ctx, e)
	},
	"PublishAsync": func(ctx context.Context, l *eventlog.Log, e eventlog.Event) (eventlog.Ack, error) {
		return finish(l.PublishAsync(ctx, e))(ctx)
	},
	"Series": func(ctx context.Context, l *eventlog.Log, e eventlog.Event) (eventlog.Ack, error) {
		return finish(l.Series().PublishAsync(ctx, e))(ctx)
	},
}

func finish(w *eventlog.Publishing, err error) func(context.Context) (eventlog.Ack, error) {
	return func(ctx context.Context) (eventlog.Ack, error) {
		if err != nil {
			return eventlog.Ack{}, err
		}
		return w.Wait(ctx)
	}
}

func of(session, stream string, n int) eventlog.Event {
	return eventlog.Event{Session: session, Life: "l", Stream: stream, Data: numbered(n)}
}

func mustPublish(t *testing.T, l *eventlog.Log, e eventlog.Event) eventlog.Ack {
	t.Helper()
	return must.Value(l.Publish(waittest.Context(t), e))(t)
}

// scan returns all entries, in order.
func scan(t *testing.T, l *eventlog.Log) (all []eventlog.Entry) {
	t.Helper()
	last := look(t, l).Last
	for through := uint64(0); through < last; {
		through = must.Value(l.Scan(waittest.Context(t), 0, through, last, func(e eventlog.Entry) bool {
			all = append(all, e)
			return true
		}))(t)
	}
	return all
}

// subjects returns the subjects of all entries, in order.
func subjects(t *testing.T, l *eventlog.Log) (all []string) {
	t.Helper()
	for _, e := range scan(t, l) {
		all = append(all, e.RawSubject)
	}
	return all
}

func wantSubjects(t *testing.T, l *eventlog.Log, want ...string) {
	t.Helper()
	if got := subjects(t, l); !slices.Equal(got, want) {
		t.Errorf("the log has %q, want %q", got, want)
	}
}

func TestSeries_StreamEndsInTheMiddle(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		const n = 2000
		mustPublish(t, l, of("s", "t", 0))
		events := make([]eventlog.Event, n)
		for i := range events {
			events[i] = of("s", "t", i+1)
		}
		unanswered := func(err error) bool { // by a cluster that is slow
			return l.Clustered() && (errors.Is(err, eventlog.ErrUnavailable) || errors.Is(err, eventlog.ErrUnknown))
		}
		all := runUpset(t, l, events, waittest.Timeout, n/2, func() {
			ctx := waittest.Context(t)
			err := other.EndStream(ctx, "s", "l", "t")
			for unanswered(err) && ctx.Err() == nil {
				err = other.EndStream(ctx, "s", "l", "t")
			}
			if err != nil {
				t.Error(err)
			}
		})
		var end uint64
		waittest.NoError(t, func() (err error) {
			end, err = l.NewestSequence(waittest.Context(t), event.Subject{Session: "s", Life: "l", Stream: "t", Kind: event.End})
			return err
		}, eventlog.ErrUnavailable)
		failed, last := false, uint64(0)
		for i, b := range all {
			switch {
			case b.err != nil:
				if !errors.Is(b.err, eventlog.ErrClosed) && !unanswered(b.err) && (!failed || !errors.Is(b.err, eventlog.ErrSeriesFailed)) {
					t.Fatalf("event %d: %v", i, b.err)
				}
				failed = true
			case failed:
				t.Fatalf("event %d is stored after one that is refused", i)
			case b.ack.Sequence >= end || b.ack.Sequence <= last:
				t.Fatalf("event %d is stored at %d, after %d; the end is at %d", i, b.ack.Sequence, last, end)
			default:
				last = b.ack.Sequence
			}
		}
		if got := look(t, l).Last; got > end {
			t.Errorf("the last entry is %d, after the end at %d", got, end)
		}
	})
}

func TestEndSession_StreamsBornAtAnotherLog(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		const streams = 300
		for i := range streams {
			mustPublish(t, []*eventlog.Log{l, other}[i%2], of("s", fmt.Sprint(i), 0))
		}
		mustPublish(t, l, of("s2", "t", 0))
		for range 2 {
			must.NoError(t, l.EndSession(waittest.Context(t), "s", "l"))
		}
		must.NoError(t, other.EndSession(waittest.Context(t), "s", "l"))
		ended := look(t, l).Last
		for i := range streams {
			for name, publish := range ways {
				if _, err := publish(waittest.Context(t), []*eventlog.Log{other, l}[i%2], of("s", fmt.Sprint(i), 1)); !errors.Is(err, eventlog.ErrClosed) {
					t.Fatalf("%s to stream %d: %v", name, i, err)
				}
				if i > 3 {
					break
				}
			}
		}
		for name, publish := range ways {
			if _, err := publish(waittest.Context(t), other, of("s", "new", 1)); !errors.Is(err, eventlog.ErrClosed) {
				t.Errorf("%s to a new stream: %v", name, err)
			}
		}
		if got := look(t, l).Last; got != ended || ended != 2*streams+2+streams+2 {
			t.Errorf("the log has %d entries, and had %d", got, ended)
		}
		mustPublish(t, other, of("s2", "t", 1))
	})
}

// The process that began the end stopped right after the seal, or in the middle.
func TestEndSession_FinishesWhatAnotherProcessBegan(t *testing.T) {
	srv, l := single(t)
	other := open(t, srv)
	for _, stream := range []string{"a", "b"} {
		mustPublish(t, l, of("s", stream, 0))
	}
	js := newJetStream(t, l)
	must.Value(js.Publish(waittest.Context(t), "mcp.0.s.l.=seal", nil))(t)
	mustPublish(t, l, of("s", "a", 1))
	if _, err := l.Publish(waittest.Context(t), of("s", "c", 0)); !errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("a birth after the seal: %v", err)
	}
	must.NoError(t, l.EndStream(waittest.Context(t), "s", "l", "a"))
	must.NoError(t, other.EndSession(waittest.Context(t), "s", "l"))
	wantSubjects(t, l, "mcp.0.s.l.=birth.a", "mcp.0.s.l.a", "mcp.0.s.l.=birth.b", "mcp.0.s.l.b", "mcp.0.s.l.=seal", "mcp.0.s.l.a",
		"mcp.0.s.l.=end.a", "mcp.0.s.l.=end.b", "mcp.0.s.l.=end")
}

func TestPublish_SoleStream(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		e := of("s", "call", 0)
		e.Sole = true
		mustPublish(t, l, e)
		mustPublish(t, l, e)
		must.NoError(t, other.EndSession(waittest.Context(t), "s", "l"))
		for name, publish := range ways {
			if _, err := publish(waittest.Context(t), l, e); !errors.Is(err, eventlog.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
		wantSubjects(t, l, "mcp.0.s.l.call", "mcp.0.s.l.call", "mcp.0.s.l.=seal", "mcp.0.s.l.=end")
	})
}

func TestOpenSession(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		for round := range 20 {
			session := fmt.Sprint("s", round)
			if _, err := l.Opening(waittest.Context(t), session); !errors.Is(err, eventlog.ErrNotFound) {
				t.Fatal(err)
			}
			if _, _, err := l.LifeOf(waittest.Context(t), session); !errors.Is(err, eventlog.ErrNotFound) {
				t.Fatal(err)
			}
			opened := make([]eventlog.Opening, 8)
			var opening sync.WaitGroup
			for i := range opened {
				opening.Go(func() {
					o, err := []*eventlog.Log{l, other}[i%2].OpenSession(waittest.Context(t), eventlog.Opening{
						Session: session, Life: fmt.Sprint("life", i), Owner: fmt.Sprint(i), Created: time.Unix(int64(i), 0).UTC(), Metadata: []byte(`{"a":1}`),
					})
					if err == nil {
						opened[i] = o
					} else if !errors.Is(err, eventlog.ErrExists) {
						t.Error(err)
					}
				})
			}
			opening.Wait()
			opened = slices.DeleteFunc(opened, func(o eventlog.Opening) bool { return o.Life == "" })
			if len(opened) != 1 {
				t.Fatalf("%d openings", len(opened))
			}
			for _, at := range []*eventlog.Log{l, other} {
				got, err := at.Opening(waittest.Context(t), session)
				if want := opened[0]; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%+v, %v; want %+v", got, err, want)
				}
				if life, sequence, err := at.LifeOf(waittest.Context(t), session); err != nil || life != opened[0].Life || sequence != opened[0].Sequence {
					t.Errorf("%s, %d, %v", life, sequence, err)
				}
			}
		}
	})
}

func TestSealed(t *testing.T) {
	_, l := single(t)
	before := time.Now().Add(-time.Minute)
	last := mustPublish(t, l, of("s", "t", 0)).Sequence
	if at, sealed, err := l.Sealed(waittest.Context(t), "s", "l"); sealed || err != nil {
		t.Errorf("%s, %v", at, err)
	}
	if life, sequence, err := l.LifeOf(waittest.Context(t), "s"); err != nil || life != "l" || sequence != last {
		t.Errorf("%s, %d, %v", life, sequence, err)
	}
	must.NoError(t, l.EndSession(waittest.Context(t), "s", "l"))
	if at, sealed, err := l.Sealed(waittest.Context(t), "s", "l"); !sealed || err != nil || at.Before(before) {
		t.Errorf("%s, %v, %v", at, sealed, err)
	}
	if _, sealed, err := l.Sealed(waittest.Context(t), "s", "l2"); sealed || err != nil {
		t.Errorf("another life: %v", err)
	}
}

func TestOpening_CannotBeRead(t *testing.T) {
	_, l := single(t)
	js := newJetStream(t, l)
	for i, data := range []string{"", "{", "{}", `{"life":"L"}`, `{"life":""}`, `[]`} {
		session := fmt.Sprint("s", i)
		must.Value(js.Publish(waittest.Context(t), "mcp.0."+session+".=open", []byte(data)))(t)
		if o, err := l.Opening(waittest.Context(t), session); !errors.Is(err, eventlog.ErrMismatch) {
			t.Errorf("%q: %+v, %v", data, o, err)
		}
		if life, _, err := l.LifeOf(waittest.Context(t), session); !errors.Is(err, eventlog.ErrMismatch) {
			t.Errorf("%q: %q, %v", data, life, err)
		}
	}
}

// A server that was restarted may have lost the births. One that is lost is written again.
func TestBirth_LostWithTheGeneration(t *testing.T) {
	srv, l := single(t)
	eventlogtest.Begin(t, l)
	birth, message := "mcp.0.s.l.=birth.t", "mcp.0.s.l.t"
	mustPublish(t, l, of("s", "t", 0))
	mustPublish(t, l, of("s", "t", 1))
	again := func() {
		t.Helper()
		restart(t, srv, l)
		mustPublish(t, l, of("s", "t", 2))
	}
	again()
	wantSubjects(t, l, birth, message, message, message)
	must.NoError(t, l.Delete(waittest.Context(t), 0, 1))
	again()
	wantSubjects(t, l, message, message, message, birth, message)
}

// Of a life that ended long ago the log has no seal any more, but an opening that followed.
func TestBirth_InALifeThatAnotherOneFollowed(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		o := must.Value(l.OpenSession(waittest.Context(t), eventlog.Opening{Session: "s", Life: "m"}))(t)
		if _, err := other.Publish(waittest.Context(t), of("s", "t", 0)); !errors.Is(err, eventlog.ErrClosed) {
			t.Errorf("an event of another life: %v", err)
		}
		wantSubjects(t, l, "mcp.0.s.=open")
		must.NoError(t, l.Delete(waittest.Context(t), 0, o.Sequence))
		mustPublish(t, other, of("s", "t", 0)) // no entry shows that it has ended
	})
}

// A publisher that gives up ends the requests that it has begun: no goroutine runs after [Log.Close].
func TestBirth_PublisherGivesUp(t *testing.T) {
	_, l := single(t)
	ctx, giveUp := context.WithCancel(t.Context())
	var asking atomic.Bool
	l.AskRegistry(func(context.Context, string) (string, error) {
		asking.Store(true)
		giveUp()
		for range 1000 {
			runtime.Gosched()
		}
		asking.Store(false)
		return "l", nil
	})
	if _, err := l.Publish(ctx, of("s", "t", 0)); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Error(err)
	}
	l.Close()
	if asking.Load() {
		t.Error("the birth is still being stored")
	}
}

// Publishers of a new stream wait for one birth. A log that does not know the birth stores no other.
func TestBirth_OnceForAllPublishers(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		const publishers = 50
		var publishing sync.WaitGroup
		for i := range publishers {
			publishing.Go(func() {
				if _, err := l.Publish(waittest.Context(t), of("s", "t", i)); err != nil {
					t.Error(err)
				}
			})
		}
		publishing.Wait()
		mustPublish(t, other, of("s", "t", publishers))
		all := subjects(t, l)
		if births := len(all) - publishers - 1; births != 1 || all[0] != "mcp.0.s.l.=birth.t" {
			t.Errorf("%d births, the first entry is %s", births, all[0])
		}
	})
}

// In a cluster, messages with one fence exclude each other: those that are refused are sent
// again, and all publishers make progress.
func TestPublish_TwoLogsToOneStreamInACluster(t *testing.T) {
	t.Parallel()
	const each, under = 200, 8
	c := natstest.StartCluster(t)
	logs := []*eventlog.Log{replicated(t, c), openAt(t, c.URL())}
	var publishing sync.WaitGroup
	acks := make([]uint64, 2*each)
	for i, l := range logs {
		next := make(chan int)
		publishing.Go(func() {
			defer close(next)
			for n := range each {
				next <- i*each + n
			}
		})
		for w := range under {
			publishing.Go(func() {
				for n := range next {
					name := []string{"Publish", "PublishAsync", "Series"}[w%3]
					e, ctx := of("s", "t", n), waittest.Context(t)
					e.Key = fmt.Sprint(n)
					ack, err := ways[name](ctx, l, e)
					wrong := ack.Duplicate
					for errors.Is(err, eventlog.ErrUnknown) && ctx.Err() == nil { // a slow cluster may not answer in time
						ack, err = ways[name](ctx, l, e)
					}
					if err != nil || wrong {
						t.Errorf("%s: %+v, %v", name, ack, err)
					}
					acks[n] = ack.Sequence
				}
			})
		}
	}
	publishing.Wait()
	stored := map[uint64]string{}
	for _, e := range entriesIn(t, logs[0], "s", "l", "t") {
		stored[e.Sequence] = string(e.Data)
	}
	if len(stored) != len(acks) {
		t.Errorf("%d events are stored", len(stored))
	}
	for n, sequence := range acks {
		if stored[sequence] != string(numbered(n)) {
			t.Errorf("event %d is acknowledged at %d, where there is %q", n, sequence, stored[sequence])
		}
	}
}

// entriesIn reads a stream of a life.
func entriesIn(t *testing.T, l *eventlog.Log, session, life, stream string) (all []eventlog.Entry) {
	t.Helper()
	ctx, last := waittest.Context(t), look(t, l).Last
	var err error
	for q := (eventlog.Query{Session: session, Life: life, Stream: stream, UpTo: last, MaxEvents: 1000, MaxBytes: 1 << 20}); q.After < q.UpTo && ctx.Err() == nil; {
		var page eventlog.Page
		if page, err = l.Read(ctx, q); err == nil {
			all = append(all, page.Entries...)
			q.After = page.Through
		} else if !errors.Is(err, eventlog.ErrUnavailable) {
			break // a server of a cluster that was silent for too long is asked again
		}
	}
	must.NoError(t, err)
	return all
}

// An event whose acknowledgement was lost is repeated after its stream has ended. It is
// stored, and the publisher receives its acknowledgement.
func TestPublish_RepeatedAfterTheEnd(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		for _, whole := range []bool{false, true} {
			session := fmt.Sprint("whole-", whole)
			keyed := func(key string) eventlog.Event {
				e := of(session, "t", 1)
				e.Key, e.KeyIndex = key, 3
				return e
			}
			first := mustPublish(t, l, keyed("key"))
			if whole {
				must.NoError(t, other.EndSession(waittest.Context(t), session, "l"))
			} else {
				must.NoError(t, other.EndStream(waittest.Context(t), session, "l", "t"))
				mustPublish(t, l, of(session, "t2", 3))
				another := of(session, "t", 4)
				another.Life = "l2"
				mustPublish(t, l, another)
			}
			late := openAt(t, l.Conn().ConnectedUrl()) // it has cached no births
			for name, publish := range ways {
				for i, at := range []*eventlog.Log{l, other, late} {
					if ack, err := publish(waittest.Context(t), at, keyed("key")); err != nil || !ack.Duplicate || ack.Sequence != first.Sequence {
						t.Errorf("%s, log %d, whole session %t: %+v, %v; first %+v", name, i, whole, ack, err, first)
					}
					if ack, err := publish(waittest.Context(t), at, keyed("another key")); !errors.Is(err, eventlog.ErrClosed) || errors.Is(err, eventlog.ErrUnavailable) {
						t.Errorf("%s, log %d, whole session %t: another key: %+v, %v", name, i, whole, ack, err)
					}
				}
			}
			if n := len(entriesIn(t, l, session, "l", "t")); n != 1 {
				t.Errorf("%d events are stored", n)
			}
		}
	})
}

// A request that is repeated after the end has events that were stored and others that were not.
func TestSeries_RepeatedAfterTheEnd(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		const stored, n = 5, 8
		keyed := func(i int) eventlog.Event {
			e := of("s", "t", i)
			e.Key, e.KeyIndex = "key", uint64(i) //nolint:gosec // counts up from 0
			return e
		}
		var first [stored]uint64
		for i := range stored {
			first[i] = mustPublish(t, l, keyed(i)).Sequence
		}
		must.NoError(t, l.EndSession(waittest.Context(t), "s", "l"))
		for _, at := range []*eventlog.Log{l, other} {
			series, all := at.Series(), make([]begun, n)
			for i := range n {
				all[i].on, all[i].err = series.PublishAsync(waittest.Context(t), keyed(i))
			}
			for i, b := range all {
				if b.on != nil {
					b.ack, b.err = b.on.Wait(waittest.Context(t))
				}
				switch {
				case i < stored && (b.err != nil || !b.ack.Duplicate || b.ack.Sequence != first[i]):
					t.Errorf("event %d: %+v, %v", i, b.ack, b.err)
				case i == stored && !errors.Is(b.err, eventlog.ErrClosed):
					t.Errorf("event %d: %v", i, b.err)
				case i > stored && !errors.Is(b.err, eventlog.ErrClosed) && !errors.Is(b.err, eventlog.ErrSeriesFailed):
					t.Errorf("event %d: %v", i, b.err)
				}
			}
		}
	})
}

// Two processes publish and end at once, in any order: no event lies after the end of its stream,
// none after the seal that needs a birth there, every acknowledged event is stored, and no
// refused one is.
func TestLives_AnyOrder(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		run := 0
		rapid.Check(t, func(rt *rapid.T) {
			run++
			session := fmt.Sprint("s", run)
			ops := rapid.SliceOfN(rapid.Custom(drawOp), 1, 60).Draw(rt, "ops")
			check(t, rt, l, session, ops, runOps(t, []*eventlog.Log{l, other}, session, ops))
		})
	})
}

// op is one call: a publish in one of the ways, or an end.
type op struct {
	Call   string
	Log    int
	Stream string
	Worker int
}

func drawOp(rt *rapid.T) op {
	call := rapid.SampledFrom([]string{"Publish", "Publish", "Publish", "Publish", "PublishAsync", "PublishAsync", "Series", "Series", "sole", "end stream", "end session"}).Draw(rt, "call")
	stream := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "stream")
	if call == "sole" {
		stream = "sole"
	}
	return op{call, rapid.IntRange(0, 1).Draw(rt, "log"), stream, rapid.IntRange(0, 3).Draw(rt, "worker")}
}

type result struct {
	ack eventlog.Ack
	err error
}

// runOps has four workers do the calls, each its own in their order.
func runOps(t *testing.T, logs []*eventlog.Log, session string, ops []op) []result {
	results := make([]result, len(ops))
	var working sync.WaitGroup
	for worker := range 4 {
		working.Go(func() {
			for i, o := range ops {
				if o.Worker != worker {
					continue
				}
				l, r, ctx := logs[o.Log], &results[i], waittest.Context(t)
				e := of(session, o.Stream, i)
				switch o.Call {
				case "end stream":
					r.err = l.EndStream(ctx, session, "l", o.Stream)
				case "end session":
					r.err = l.EndSession(ctx, session, "l")
				case "sole":
					e.Sole = true
					r.ack, r.err = l.Publish(ctx, e)
				default:
					r.ack, r.err = ways[o.Call](ctx, l, e)
				}
			}
		})
	}
	working.Wait()
	return results
}

func check(t *testing.T, rt *rapid.T, l *eventlog.Log, session string, ops []op, results []result) {
	ends, births, events := map[string]uint64{}, map[string]uint64{}, map[uint64]eventlog.Entry{}
	seal, end := uint64(math.MaxUint64), uint64(math.MaxUint64)
	for _, e := range scan(t, l) {
		switch s := e.Subject; {
		case s.Session != session:
		case s.Kind == event.Message:
			events[e.Sequence] = e
			if at, ended := ends[s.Stream]; ended {
				rt.Fatalf("an event of %s is at %d, after the end at %d", s.Stream, e.Sequence, at)
			}
			if e.Sequence > end || s.Stream == "sole" && e.Sequence > seal {
				rt.Fatalf("an event of %s is at %d, the seal at %d and the end at %d", s.Stream, e.Sequence, seal, end)
			}
			if births[s.Stream] == 0 && s.Stream != "sole" {
				rt.Fatalf("an event of %s is at %d without a birth", s.Stream, e.Sequence)
			}
		case s.Kind == event.Birth && e.Sequence > seal:
			rt.Fatalf("a birth of %s is at %d, the seal at %d", s.Stream, e.Sequence, seal)
		case s.Kind == event.Birth:
			births[s.Stream] = e.Sequence
		case s.Kind == event.Seal:
			seal = e.Sequence
		case s.Kind == event.End && s.Stream == "":
			end = e.Sequence
		case s.Kind == event.End:
			ends[s.Stream] = e.Sequence
		}
	}
	acknowledged := 0
	for i, o := range ops {
		r := results[i]
		switch {
		case o.Call == "end stream" || o.Call == "end session":
			if r.err != nil || o.Call == "end stream" && ends[o.Stream] == 0 || o.Call == "end session" && end == math.MaxUint64 {
				rt.Fatalf("%+v: %v", o, r.err)
			}
		case r.err == nil:
			acknowledged++
			if e := events[r.ack.Sequence]; !bytes.Equal(e.Data, numbered(i)) || e.Subject.Stream != o.Stream {
				rt.Fatalf("%+v is acknowledged at %d, where there is %q", o, r.ack.Sequence, e.Data)
			}
		case !errors.Is(r.err, eventlog.ErrClosed):
			rt.Fatalf("%+v: %v", o, r.err)
		}
	}
	if acknowledged != len(events) {
		rt.Fatalf("%d events are acknowledged and %d stored", acknowledged, len(events))
	}
	for stream := range births {
		if end < math.MaxUint64 && ends[stream] == 0 {
			rt.Fatalf("the session has ended, and %s has not", stream)
		}
	}
}

// In a cluster, events of several publishers to one stream wait together for its fence, and are
// stored in the order in which they were begun.
func TestBegin_ManyToOneStreamInACluster(t *testing.T) {
	_, l := inCluster(t)
	const n = 600 / racetest.Slowdown
	under := make([]*eventlog.Publishing, n)
	for i := range under {
		e := of("s", "t", i)
		e.Key = fmt.Sprint(i / 2) // every other one is a repeat
		w := must.Value(l.PublishAsync(waittest.Context(t), e))(t)
		under[i] = w
	}
	var last uint64
	for i, w := range under {
		ack := must.Value(w.Wait(waittest.Context(t)))(t)
		if i%2 == 0 && ack.Sequence <= last || i%2 == 1 && (ack.Sequence != last || !ack.Duplicate) {
			t.Fatalf("event %d: %+v after %d", i, ack, last)
		}
		last = ack.Sequence
	}
	must.NoError(t, l.EndStream(waittest.Context(t), "s", "l", "t"))
	w, err := l.PublishAsync(waittest.Context(t), of("s", "t", n))
	if err == nil {
		_, err = w.Wait(waittest.Context(t))
	}
	if !errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("an event after the end: %v", err)
	}
}
