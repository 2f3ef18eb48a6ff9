// Package eventlogtest helps to test what uses the log.
package eventlogtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// Begin does what an acting janitor does: it begins a generation for every server that the
// log gets to see, until the test ends.
func Begin(t testing.TB, l *eventlog.Log) {
	t.Helper()
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

// Announce announces a trim after whichever there is.
func Announce(ctx context.Context, l *eventlog.Log, t eventlog.Trim) (eventlog.Ack, error) {
	p := l.Partition(t.Session)
	follows, err := l.Last(ctx, event.Subject{Partition: p, Session: t.Session, Life: t.Life, Stream: t.Stream, Kind: event.Trim})
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return eventlog.Ack{}, err
	}
	return l.Announce(ctx, t, follows)
}

// Forget takes the opening of a session out of the log, which the floor does with a session that
// ended long ago: its name is free then.
func Forget(ctx context.Context, l *eventlog.Log, session string) error {
	o, err := l.Opening(ctx, session)
	if err != nil {
		return err
	}
	return l.Delete(ctx, l.Partition(session), o.Sequence)
}
