package eventlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// readAll pages through a query and checks the invariants of every page.
func readAll(t *testing.T, l *eventlog.Log, q eventlog.Query) (all []eventlog.Entry, pages int) {
	t.Helper()
	for q.After < q.UpTo {
		page := must.Value(l.Read(waittest.Context(t), q))(t)
		pages++
		if len(page.Entries) > q.MaxEvents || page.Through <= q.After || page.Through > q.UpTo {
			t.Fatalf("page of %+v: %d entries, through %d", q, len(page.Entries), page.Through)
		}
		for _, e := range page.Entries {
			if e.Sequence <= q.After || e.Sequence > page.Through {
				t.Fatalf("sequence %d in a page from %d through %d", e.Sequence, q.After, page.Through)
			}
		}
		all, q.After = append(all, page.Entries...), page.Through
	}
	return all, pages
}

func TestRead_Pages(t *testing.T) {
	_, l := single(t)
	want := map[string][]uint64{}
	for n := range 300 {
		name := fmt.Sprint(n % 3)
		want[name] = append(want[name], publish(t, l, "s", name, n))
		publish(t, l, "other", name, n)
	}
	for _, limits := range [][2]int{{1, 1 << 20}, {7, 1 << 20}, {100, 1 << 20}, {1000, 1 << 20}, {1000, 1}, {1000, 500}} {
		for _, bounds := range [][2]uint64{{0, 600}, {0, math.MaxUint64}, {100, 400}, {599, 600}, {600, 601}, {5, 6}} {
			for stream, sequences := range want {
				q := eventlog.Query{Session: "s", Stream: stream, After: bounds[0], UpTo: bounds[1], MaxEvents: limits[0], MaxBytes: limits[1]}
				entries, pages := readAll(t, l, q)
				var expected []uint64
				for _, s := range sequences {
					if s > q.After && s <= q.UpTo {
						expected = append(expected, s)
					}
				}
				if len(entries) != len(expected) {
					t.Fatalf("%+v: %d entries, want %d", q, len(entries), len(expected))
				}
				if most := len(expected)/min(limits[0], max(1, limits[1]/60)) + 2; pages > most {
					t.Errorf("%+v: %d pages", q, pages)
				}
				for i, e := range entries {
					if e.Sequence != expected[i] || !bytes.Equal(e.Data, numbered((int(e.Sequence)-1)/2)) || e.Subject.Stream != stream || e.Subject.Session != "s" {
						t.Fatalf("%+v: entry %d is %+v", q, i, e)
					}
				}
			}
		}
	}
}

func TestRead_SessionWithoutControlEntries(t *testing.T) {
	_, l := single(t)
	js := newJetStream(t, l)
	publish(t, l, "s", "a", 1)
	publish(t, l, "s", "=", 2)
	publish(t, l, "s2", "a", 3)
	must.NoError(t, l.EndStream(waittest.Context(t), "s", "", "a"))
	must.NoError(t, l.ClearStream(waittest.Context(t), "s", "", ""))
	must.Value(js.Publish(waittest.Context(t), "mcp.0.s.=.b=ad", nil))(t)
	publish(t, l, "s", "z", 7)
	entries, _ := readAll(t, l, eventlog.Query{Session: "s", UpTo: 7, MaxEvents: 2, MaxBytes: 1 << 20})
	var got []string
	for _, e := range entries {
		got = append(got, e.RawSubject)
	}
	if want := "[mcp.0.s.=.a mcp.0.s.=.=3D mcp.0.s.=.z]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
	only, _ := readAll(t, l, eventlog.Query{Session: "s", Stream: "a", UpTo: 7, MaxEvents: 9, MaxBytes: 1 << 20})
	if len(only) != 1 || only[0].Sequence != 1 {
		t.Errorf("a stream's own events are %+v", only)
	}
}

func TestRead_HeadersOnly(t *testing.T) {
	_, l := single(t)
	publishAll(t, l, "t", 0, 3)
	entries, _ := readAll(t, l, eventlog.Query{Session: "s", Stream: "t", After: 1, UpTo: 3, MaxEvents: 10, MaxBytes: 1 << 20, HeadersOnly: true})
	if len(entries) != 2 {
		t.Fatalf("%d entries", len(entries))
	}
	for i, e := range entries {
		if e.Data != nil || e.Size != len(numbered(i+1)) || e.Type != event.DefaultType || e.Time.IsZero() {
			t.Errorf("%+v", e)
		}
	}
}

func TestRead_RemovesItsConsumer(t *testing.T) {
	_, l := single(t)
	publishAll(t, l, "t", 0, 100)
	before := streamOf(t, l, "MCP_0").CachedInfo().State.Consumers
	ended := gone(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 25 {
				ctx := t.Context()
				if j == 7 {
					ctx = ended
				}
				_, err := l.Read(ctx, eventlog.Query{Session: "s", Stream: "t", After: uint64(i * j), UpTo: 1000, MaxEvents: 10, MaxBytes: 1 << 20})
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	wantConsumers(t, l, before)
}

func TestRead_Nothing(t *testing.T) {
	_, l := single(t)
	for name, q := range map[string]eventlog.Query{
		"empty log":      {Session: "s", Stream: "t", UpTo: 100},
		"beyond the end": {Session: "s", Stream: "t", After: 1000, UpTo: 2000},
		"nothing asked":  {Session: "s", Stream: "t", After: 10, UpTo: 10},
		"backwards":      {Session: "s", Stream: "t", After: 11, UpTo: 10},
	} {
		q.MaxEvents, q.MaxBytes = 10, 1000
		page, err := l.Read(waittest.Context(t), q)
		if err != nil || len(page.Entries) != 0 || page.Through != q.UpTo {
			t.Errorf("%s: %+v, %v", name, page, err)
		}
	}
}

// An event that is about to be sent can be removed at that moment, and then no message comes.
func TestRead_EventsAreRemovedMeanwhile(t *testing.T) {
	_, l := single(t)
	stream := streamOf(t, l, "MCP_0")
	var last uint64
	for round := 0; round < 60; round += 4 {
		last = publishAll(t, l, "t", 0, 60)
		keep := last - 60 + uint64(round) //nolint:gosec // not negative
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				page, err := l.Read(waittest.Context(t), eventlog.Query{Session: "s", Stream: "t", UpTo: last, MaxEvents: 1000, MaxBytes: 1 << 20})
				if err != nil || page.Through != last {
					t.Errorf("through %d of %d, %v", page.Through, last, err)
				}
			})
		}
		for s := last; s > keep; s-- {
			must.NoError(t, l.Delete(waittest.Context(t), 0, s))
		}
		wg.Wait()
		must.NoError(t, stream.Purge(waittest.Context(t)))
		if t.Failed() {
			return
		}
	}
}

// A consumer that is made while a message is removed counts the removal twice: with the message before the last it
// reports that none is pending.
func TestRead_ConsumerCountsTooFew(t *testing.T) {
	t.Parallel()
	counts := regexp.MustCompile(`(\$JS\.ACK\.\S+\.)1 `)
	srv := natstest.Start(t)
	l := create(t, srv, one(), nats.SetCustomDialer(&natstest.Link{After: func(data []byte) {
		for _, at := range counts.FindAllSubmatchIndex(data, -1) {
			data[at[3]] = '0'
		}
	}}))
	last := publishAll(t, l, "t", 0, 3)
	page, err := l.Read(waittest.Context(t), eventlog.Query{Session: "s", Stream: "t", UpTo: last, MaxEvents: 10, MaxBytes: 1 << 20})
	if err != nil || len(page.Entries) != 3 || page.Through != last {
		t.Errorf("%d entries through %d of %d, %v", len(page.Entries), page.Through, last, err)
	}
}

func TestLookups(t *testing.T) {
	_, l := single(t)
	for n := range 6 {
		publish(t, l, "s", fmt.Sprint(n%2), n)
	}
	odd := event.Subject{Session: "s", Stream: "1"}
	first := func(from uint64) func() (uint64, error) {
		return func() (uint64, error) { return l.First(waittest.Context(t), odd, from) }
	}
	for name, tt := range map[string]struct {
		look func() (uint64, error)
		want uint64 // zero: not found
	}{
		"first":        {first(1), 2},
		"first at":     {first(4), 4},
		"first after":  {first(5), 6},
		"first beyond": {first(7), 0},
		"last":         {func() (uint64, error) { return l.NewestSequence(waittest.Context(t), odd) }, 6},
		"last of nothing": {func() (uint64, error) {
			return l.NewestSequence(waittest.Context(t), event.Subject{Session: "s", Stream: "x"})
		}, 0},
		"end that is not there": {func() (uint64, error) {
			return l.NewestSequence(waittest.Context(t), event.Subject{Session: "s", Kind: event.End})
		}, 0},
		"at":        {func() (uint64, error) { e, err := l.At(waittest.Context(t), 0, 3); return e.Sequence, err }, 3},
		"at beyond": {func() (uint64, error) { e, err := l.At(waittest.Context(t), 0, 7); return e.Sequence, err }, 0},
	} {
		if got, err := tt.look(); got != tt.want || (tt.want == 0) != errors.Is(err, eventlog.ErrNotFound) || tt.want != 0 && err != nil {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
}

func TestDelete_Repeated(t *testing.T) {
	_, l := single(t)
	publishAll(t, l, "t", 0, 3)
	for _, sequence := range []uint64{2, 2, 1, 1, 1000} {
		if err := l.Delete(waittest.Context(t), 0, sequence); err != nil {
			t.Errorf("%d: %v", sequence, err)
		}
	}
	if state := look(t, l); state.Entries != 1 || state.First != 3 || state.Last != 3 {
		t.Errorf("left: %+v", state)
	}
	must.NoError(t, l.Delete(waittest.Context(t), 0, 3))
	if state := look(t, l); state.Entries != 0 || state.First != 4 || state.Last != 3 {
		t.Errorf("empty: %+v", state)
	}
	if err := l.Delete(gone(t), 0, 3); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("with a context that has ended: %v", err)
	}
	l.Close() // or it would create the partition again
	must.NoError(t, newJetStream(t, l).DeleteStream(waittest.Context(t), "MCP_0"))
	if err := l.Delete(waittest.Context(t), 0, 1); err != nil {
		t.Errorf("without a partition: %v", err)
	}
	if _, err := l.Read(waittest.Context(t), eventlog.Query{Session: "s", Stream: "t", UpTo: 9, MaxEvents: 1, MaxBytes: 1}); err != nil && !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("read without a partition: %v", err)
	}
	if _, err := newJetStream(t, l).Stream(waittest.Context(t), "MCP_1"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Error(err)
	}
}

func gone(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// Readers of large events do not take the connection from all others, though events are small on the
// average: a server ends a connection for which 64 MiB wait.
func TestRead_LargeEventsAmongSmallOnes(t *testing.T) {
	_, l := single(t)
	for n := range 500 {
		publish(t, l, "small", "a", n)
	}
	const readers, events = 8, 16
	large := fmt.Appendf(nil, `"%s"`, bytes.Repeat([]byte("x"), 900<<10))
	for s := range readers {
		for range events {
			must.Value(l.Publish(waittest.Context(t), eventlog.Event{Session: fmt.Sprint("large", s), Stream: "a", Data: large}))(t)
		}
	}
	last := look(t, l).Last
	var wg sync.WaitGroup
	for s := range readers {
		wg.Go(func() {
			page, err := l.Read(waittest.Context(t), eventlog.Query{Session: fmt.Sprint("large", s), Stream: "a", UpTo: last, MaxEvents: 500, MaxBytes: 4 << 20})
			if err != nil || len(page.Entries) != 5 {
				t.Errorf("%d events, %v", len(page.Entries), err)
			}
		})
	}
	wg.Wait()
	if n := l.Conn().Stats().Reconnects; n > 0 {
		t.Errorf("the connection was lost %d times", n)
	}
}
