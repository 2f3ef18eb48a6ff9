package follow

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// create makes a log of one partition, whose generations are begun.
func create(t *testing.T) *eventlog.Log {
	t.Helper()
	l := must.Value(eventlog.Create(waittest.Context(t), natstest.Start(t).Connect(), eventlog.Settings{Partitions: 1}, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(l.Close)
	eventlogtest.Begin(t, l)
	return l
}

// In a cluster the server of a partition may lose entries while the janitor is connected to another one:
// they do not stay in the ledger. A generation that is only heard of late changes nothing.
func TestPartition_GenerationBeforeTheEnd(t *testing.T) {
	for name, lost := range map[string]bool{"rolled back": true, "heard of late": false} {
		t.Run(name, func(t *testing.T) {
			l := create(t)
			var last uint64
			publish := func(n int) {
				t.Helper()
				for range n {
					ack := must.Value(l.Publish(waittest.Context(t), eventlog.Event{Session: "s", Stream: "t", Data: []byte("1")}))(t)
					last = ack.Sequence
				}
			}
			publish(6)
			p := New(0, l, nil, slog.New(slog.DiscardHandler))
			ctx, stop := context.WithCancel(t.Context())
			var run sync.WaitGroup
			run.Go(func() { p.Keep(ctx) })
			t.Cleanup(func() { stop(); run.Wait() })
			events, restarts := 0, 0
			follows := func() {
				t.Helper()
				waittest.Until(t, "the ledger has all", func() (whole bool) {
					p.With(func(l *ledger.Ledger) {
						events, restarts, whole = l.Totals.Events, l.Restarts, l.Complete && l.Through == last
					})
					return whole
				})
			}
			follows()
			before := restarts

			if lost {
				for _, sequence := range []uint64{last - 1, last} {
					must.NoError(t, l.Delete(waittest.Context(t), 0, sequence))
				}
			}
			eventlogtest.AddGeneration(t, l, last-1)
			must.Value(l.Look(waittest.Context(t), 0))(t)
			waittest.Until(t, "the ledger has heard of the generation", func() (heard bool) {
				p.With(func(l *ledger.Ledger) { heard = l.HeardOf("next") })
				return heard
			})
			publish(1)
			follows()
			want := 7
			if lost {
				want = 5
			}
			if events != want || (restarts != before) != lost {
				t.Errorf("the ledger has %d events, and began again: %t", events, restarts != before)
			}
		})
	}
}

// A partition counts as checked once the ledger has read the entries that were stored while its tail was interrupted.
func TestPartition_CheckedWhenAllIsRead(t *testing.T) {
	l := create(t)
	ctx, p := waittest.Context(t), New(0, l, nil, slog.New(slog.DiscardHandler))
	look := func() eventlog.State {
		t.Helper()
		return must.Value(l.Look(ctx, 0))(t)
	}
	publish := func() eventlog.Entry {
		t.Helper()
		ack, err := l.Publish(ctx, eventlog.Event{Session: "s", Stream: "t", Data: []byte("1")})
		e, atErr := l.At(ctx, 0, ack.Sequence)
		err = errors.Join(err, atErr)
		must.NoError(t, err)
		return e
	}
	begin := func() {
		t.Helper()
		must.Value(p.start(ctx, look()))(t)
	}
	first := publish()
	begin()
	p.handle(first, 0)
	p.caughtUp(first.Sequence, 0)
	second := publish()
	eventlogtest.AddGeneration(t, l, second.Sequence+1)
	begin()
	for _, want := range []bool{false, true} {
		if err := p.noteChecked(ctx); err != nil || look().Checked() != want {
			t.Errorf("the partition is checked: %t, %v", !want, err)
		}
		p.handle(second, 0)
	}
}

// The server of a partition loses entries while the janitor is connected to another one, and publishers, which
// wait for nothing there, have given their sequences to others before a generation begins.
func TestPartition_ReplacedBehindAConnectionThatStays(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	var l *eventlog.Log
	var holder *natstest.Server
	for _, srv := range c.Servers[:2] { // one of them does not hold the partition
		nc := must.Value(nats.Connect(srv.URL(), nats.IgnoreDiscoveredServers()))(t)
		t.Cleanup(nc.Close)
		log := must.Value(eventlog.Create(waittest.Context(t), nc, eventlog.Settings{Partitions: 1}, slog.New(slog.DiscardHandler)))(t)
		t.Cleanup(log.Close)
		stream := must.Value(natstest.JetStream(t, nc).Stream(t.Context(), "MCP_0"))(t)
		if holder = c.Named(stream.CachedInfo().Cluster.Leader); holder != srv {
			l = log
			break
		}
	}
	natstest.WaitHeard(t, l.Conn(), "mcp.0.s.l.t")
	publish := func(n int) (last uint64) {
		t.Helper()
		for range n {
			waittest.NoError(t, func() error {
				ack, err := l.Publish(waittest.Context(t), eventlog.Event{Session: "s", Stream: "t", Data: []byte("1")})
				last = ack.Sequence
				return err
			}, eventlog.ErrUnavailable)
		}
		return last
	}
	p := New(0, l, nil, slog.New(slog.DiscardHandler))
	follows := func(last uint64) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { p.Tail(ctx) })
		defer run.Wait()
		defer stop()
		waittest.Until(t, "the ledger has all", func() (whole bool) {
			p.With(func(l *ledger.Ledger) { whole = l.Complete && l.Through == last })
			return whole
		})
	}
	publish(3)
	older := filepath.Join(t.TempDir(), "older")
	holder.Stop()
	must.NoError(t, os.CopyFS(older, os.DirFS(holder.Dir())))
	holder.Start()
	lost := publish(3)
	follows(lost)
	before := 0
	p.With(func(l *ledger.Ledger) { before = l.Restarts })
	holder.Stop()
	must.NoError(t, errors.Join(os.RemoveAll(holder.Dir()), os.Rename(older, holder.Dir())))
	holder.Start()
	last := publish(5)
	if last <= lost {
		t.Fatalf("the newest event is %d, and %d is to be another one", last, lost)
	}
	follows(last)
	p.With(func(l *ledger.Ledger) {
		if l.Restarts == before {
			t.Errorf("the ledger continues after entry %d, which is another one by now", lost)
		}
	})
}
