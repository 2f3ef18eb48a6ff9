package eventlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// begun is an event of a series, with its outcome.
type begun struct {
	event eventlog.Event
	on    *eventlog.Publishing
	err   error
	ack   eventlog.Ack
}

// runSeries gives events to one series, as fast as it takes them, and waits for all.
func runSeries(t *testing.T, l *eventlog.Log, events []eventlog.Event, within time.Duration) []begun {
	t.Helper()
	return runUpset(t, l, events, within, 0, func() {})
}

// runUpset is runSeries with a call of upset beside it when event at is begun. No event is waited for before
// upset has returned.
func runUpset(t *testing.T, l *eventlog.Log, events []eventlog.Event, within time.Duration, at int, upset func()) []begun {
	t.Helper()
	s := l.Series()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	all := make([]begun, len(events))
	under := make(chan *begun, len(events))
	reached := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		<-reached
		upset()
		for b := range under {
			b.ack, b.err = b.on.Wait(ctx)
		}
	})
	for i, e := range events {
		if i == at {
			close(reached)
		}
		on, err := s.PublishAsync(ctx, e)
		all[i] = begun{event: e, on: on, err: err}
		if on != nil {
			under <- &all[i]
		}
	}
	close(under)
	waiting.Wait()
	return all
}

// The stored events of a series are its beginning, though its connection is lost meanwhile.
func TestSeries_OrderOverConnections(t *testing.T) {
	t.Parallel()
	const rounds, n = 50, 300
	srv := natstest.Start(t)
	var link natstest.Link
	var left atomic.Int64 // events until the connection is lost, with the data that is about to be sent
	link.Before = func(data []byte) {
		sent := int64(bytes.Count(data, []byte("HPUB mcp.0.s.")))
		if before := left.Add(-sent) + sent; before > 0 && before <= sent {
			link.Cut()
			link.Heal()
		}
	}
	l := create(t, srv, one(), nats.SetCustomDialer(&link))
	reader := open(t, srv)
	eventlogtest.Begin(t, reader)
	for round := range rounds {
		stream := fmt.Sprint(round)
		again := l.Conn().StatusChanged(nats.CONNECTED)
		left.Store(1 + rand.Int64N(n))
		all := runUpset(t, l, seriesOf(stream, n), 10*time.Second, 0, func() {
			select {
			case <-again: // events that are sent now may overtake lost ones
			case <-t.Context().Done():
			}
			_ = l.Conn().Flush() // fails without a connection
		})
		l.Conn().RemoveStatusListener(again)
		wantBeginning(t, round, all, entriesIn(t, reader, "s", "", stream))
	}
}

// wantBeginning fails the test unless the stored events of a series are its beginning, as acknowledged.
func wantBeginning(t *testing.T, round int, all []begun, entries []eventlog.Entry) {
	t.Helper()
	for i, e := range entries {
		if !bytes.Equal(e.Data, numbered(i)) {
			t.Fatalf("round %d: event %d is %s", round, i, e.Data)
		}
	}
	for i, b := range all {
		stored := i < len(entries)
		switch {
		case b.err == nil && (!stored || entries[i].Sequence != b.ack.Sequence):
			t.Fatalf("round %d: event %d of %d is acknowledged at %d", round, i, len(entries), b.ack.Sequence)
		case b.err != nil && stored && !errors.Is(b.err, eventlog.ErrUnknown):
			t.Fatalf("round %d: event %d is stored: %v", round, i, b.err)
		}
	}
}

func seriesOf(stream string, n int) []eventlog.Event {
	events := make([]eventlog.Event, n)
	for i := range events {
		events[i] = eventlog.Event{Session: "s", Stream: stream, Data: numbered(i), Key: "k", KeyIndex: uint64(i)} //nolint:gosec // counts up from 0
	}
	return events
}

// Series of several streams and single events come to one partition at once. The acknowledgements
// of a series match the log, also those of events that it had before, and an event that the log
// does not take fails alone.
func TestSeries_OrderInACluster(t *testing.T) {
	t.Parallel()
	const large = 9                 // which event of each stream, from its end, is too large
	const from, to = 20, 40         // of stream 0, stored before: JetStream refuses all events that come together with them, which follow one by one
	sizes := [...]int{60, 700, 700} // the others are more than are stored at once
	c := natstest.StartCluster(t)
	l := replicated(t, c)
	before := runSeries(t, l, seriesOf("0", sizes[0])[from:to], waittest.Timeout)
	var running sync.WaitGroup
	results := make([][]begun, len(sizes))
	for i, n := range sizes {
		events := seriesOf(fmt.Sprint(i), n)
		events[len(events)-large].Data = make([]byte, l.Settings().MaxMessageBytes+1)
		running.Go(func() { results[i] = runSeries(t, l, events, waittest.Timeout) })
	}
	running.Go(func() {
		for i := range 40 {
			publish(t, l, "s", "single", i)
		}
	})
	running.Wait()
	for i, all := range results {
		entries := map[uint64]eventlog.Entry{}
		for _, e := range entriesIn(t, l, "s", "", fmt.Sprint(i)) {
			entries[e.Sequence] = e
		}
		if len(entries) != len(all)-1 {
			t.Errorf("stream %d has %d events", i, len(entries))
		}
		last := uint64(0)
		for at, b := range all {
			if at == len(all)-large {
				if !errors.Is(b.err, eventlog.ErrTooLarge) {
					t.Errorf("the event that is too large: %v", b.err)
				}
				continue
			}
			known := i == 0 && at >= from && at < to
			if b.err != nil || b.ack.Duplicate != known || !bytes.Equal(entries[b.ack.Sequence].Data, b.event.Data) {
				t.Fatalf("event %d of stream %d: %+v, %v; there is %s", at, i, b.ack, b.err, entries[b.ack.Sequence].Data)
			}
			if known {
				if b.ack.Sequence != before[at-from].ack.Sequence {
					t.Errorf("event %d is said to be at %d", at, b.ack.Sequence)
				}
				continue
			}
			if b.ack.Sequence <= last {
				t.Fatalf("event %d of stream %d is at %d, one before it at %d", at, i, b.ack.Sequence, last)
			}
			last = b.ack.Sequence
		}
	}
	if n := together(t, l); n == 0 {
		t.Error("no events were stored together")
	}
}

// Where JetStream refuses events together, each is answered when it is stored, not when those after it are.
func TestSeries_RefusedTogether(t *testing.T) {
	t.Parallel()
	queued, answered := make(chan struct{}), make(chan struct{})
	l := clustered(t, natstest.StartCluster(t), 3, nats.SetCustomDialer(&natstest.Link{After: func(data []byte) {
		switch { // the acknowledgements of the first event and of the last one
		case bytes.Contains(data, []byte(`"seq":2}`)):
			<-queued
		case bytes.Contains(data, []byte(`"seq":3}`)):
			<-answered
		}
	}}))
	events := seriesOf("t", 3)
	mustPublish(t, l, events[1])
	s, all := l.Series(), make([]*eventlog.Publishing, len(events))
	for i, e := range events {
		all[i] = must.Value(s.PublishAsync(waittest.Context(t), e))(t)
	}
	close(queued)
	for i, w := range all {
		if i == len(all)-1 {
			close(answered)
		}
		must.Value(w.Wait(waittest.Context(t)))(t)
	}
}

// together counts the events that were stored in an atomic batch.
func together(t *testing.T, l *eventlog.Log) (n int) {
	t.Helper()
	stream := streamOf(t, l, "MCP_0")
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq += 7 {
		msg := must.Value(stream.GetMsg(waittest.Context(t), seq))(t)
		if msg.Header.Get("Nats-Batch-Id") != "" {
			n++
		}
	}
	return n
}

// While leaders change and servers stop, the stored events of a series are its beginning, without
// a hole and in order, with all acknowledged ones.
func TestSeries_FailureKeepsItsBeginning(t *testing.T) {
	t.Parallel()
	const rounds, n = 8, 3000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	c := natstest.StartCluster(t)
	l := replicated(t, c)
	failed := 0
	for round := range rounds {
		stream := fmt.Sprint(round)
		all := runUpset(t, l, seriesOf(stream, n), 3*time.Second, rnd.IntN(n), func() {
			if round%4 == 3 {
				srv := c.Servers[rnd.IntN(len(c.Servers))]
				srv.Stop()
				srv.Start()
				return
			}
			// It gets no answer when there is no leader at the moment, which does as well.
			_, _ = newJetStream(t, l).Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN.MCP_0", nil, time.Second)
		})
		c.WaitCurrent()
		wantBeginning(t, round, all, entriesIn(t, l, "s", "", stream))
		if all[n-1].err != nil {
			failed++
		}
	}
	t.Logf("%d of %d series failed", failed, rounds)
}

// A publisher that gives up while an event waits finds it not stored, then and later.
func TestSeries_ContextEndsWhileWaiting(t *testing.T) {
	c, l := inCluster(t)
	publish(t, l, "s", "t", 0)
	c.Servers[1].Stop()
	c.Servers[2].Stop() // a majority is down
	events := seriesOf("t", 100)
	for i := range events {
		// Not all of them fit into one batch.
		events[i].Data = append(events[i].Data, bytes.Repeat([]byte(" "), 64<<10)...)
	}
	all := runSeries(t, l, events, time.Second)
	for i, b := range all {
		if b.err == nil {
			t.Errorf("event %d is acknowledged", i)
		}
	}
	if err := all[len(all)-1].err; !errors.Is(err, eventlog.ErrUnavailable) || errors.Is(err, eventlog.ErrUnknown) {
		t.Errorf("the last event: %v", err)
	}
	c.Servers[1].Start()
	c.Servers[2].Start()
	c.WaitCurrent()
	publishOnce(t, l, 1000)
	for _, e := range entriesIn(t, l, "s", "", "t") {
		for i, b := range all {
			if bytes.Equal(e.Data, b.event.Data) && !errors.Is(b.err, eventlog.ErrUnknown) {
				t.Errorf("event %d is stored: %v", i, b.err)
			}
		}
	}
}

// No event overtakes one that the partition has no room for, so that its publisher can store
// it, and those after it, later.
func TestSeries_OrderWhenFull(t *testing.T) {
	t.Parallel()
	const chunk = 200 << 10
	large := eventlog.Event{Session: "s", Stream: "t", Data: make([]byte, 2*chunk)}
	try := func(t *testing.T, l *eventlog.Log, stream string) []begun {
		t.Helper()
		events := append([]eventlog.Event{large}, seriesOf(stream, 20)...)
		all := runSeries(t, l, events, waittest.Timeout)
		if err := all[0].err; !errors.Is(err, eventlog.ErrFull) {
			t.Fatalf("the large one: %v", err)
		}
		return all
	}
	for name, fill := range map[string]func(t *testing.T, l, other *eventlog.Log){
		"its own events filled it": func(t *testing.T, l, _ *eventlog.Log) {
			fillWith(t, l, chunk)
		},
		"a look found it full": func(t *testing.T, l, other *eventlog.Log) {
			fillWith(t, other, chunk)
			look(t, l)
		},
		"a refusal found it full": func(t *testing.T, l, other *eventlog.Log) {
			l.Close() // it looks no more
			fillWith(t, other, chunk)
			try(t, l, "before")
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := natstest.StartParallel(t)
			l := create(t, srv, eventlog.Settings{Partitions: 1, MaxBytes: 2 << 20})
			publish(t, l, "s", "first", 1)
			fill(t, l, open(t, srv))
			for i, b := range try(t, l, "t")[1:] {
				if b.err == nil || !errors.Is(b.err, eventlog.ErrSeriesFailed) {
					t.Errorf("event %d after the large one: %v", i, b.err)
				}
			}
		})
	}
}

// fillWith publishes events of a size until less than two of them fit into a partition of 2 MiB.
func fillWith(t *testing.T, l *eventlog.Log, size int) {
	t.Helper()
	for range 9 {
		must.NoError(t, put(t, l, size, ""))
	}
}
