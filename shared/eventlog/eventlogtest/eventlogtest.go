// Package eventlogtest helps to test packages that use the log.
package eventlogtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// Begin begins a generation for every server that the log connects to, as an acting janitor
// does, until the test ends. In a cluster it does nothing: a janitor compares the servers there.
func Begin(t testing.TB, l *eventlog.Log) {
	t.Helper()
	if !l.Clustered() {
		l.AwaitJanitor(waittest.Timeout)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { stop(); wg.Wait() })
	for p := range l.Settings().Partitions {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, changed := l.State(p)
				var again <-chan time.Time
				if _, err := l.BeginGeneration(ctx, p); err != nil {
					again = time.After(10 * time.Millisecond)
				}
				select {
				case <-changed:
				case <-again:
				case <-ctx.Done():
				}
			}
		})
	}
}

// AddGeneration has partition 0 list a generation named next, as a janitor lists one that began at start.
func AddGeneration(t testing.TB, l *eventlog.Log, start uint64) {
	t.Helper()
	js := must.Value(jetstream.New(l.Conn()))(t)
	stream := must.Value(js.Stream(waittest.Context(t), "MCP_0"))(t)
	cfg := stream.CachedInfo().Config
	cfg.Metadata["rejoin.generations"] += fmt.Sprintf(",next:%d", start)
	must.Value(js.UpdateStream(waittest.Context(t), cfg))(t)
}

// Announce announces a trim after the newest one, if there is one.
func Announce(ctx context.Context, l *eventlog.Log, t eventlog.Trim) (eventlog.Ack, error) {
	p := l.Partition(t.Session)
	follows, err := l.NewestSequence(ctx, event.Subject{Partition: p, Session: t.Session, Life: t.Life, Stream: t.Stream, Kind: event.Trim})
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return eventlog.Ack{}, err
	}
	return l.Announce(ctx, t, follows)
}

// Forget deletes the opening of a session from the log, as the floor does with a session that
// ended long ago: its name is free then.
func Forget(ctx context.Context, l *eventlog.Log, session string) error {
	o, err := l.Opening(ctx, session)
	if err != nil {
		return err
	}
	return l.Delete(ctx, l.Partition(session), o.Sequence)
}
