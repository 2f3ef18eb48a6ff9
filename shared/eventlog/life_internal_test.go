package eventlog

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// Alive reports whether the log has heard that there is a connection, and not that it is
// lost.
func (l *Log) Alive() bool { return l.life.Load().ctx.Err() == nil }

// Between a reconnect and the moment that the log hears of it, a request has no
// life whose end it could hear of. If the server goes again, nothing answers it.
func TestRequest_WithoutALifeIsBounded(t *testing.T) {
	ended := newLife()
	ended.end()
	for name, now := range map[string]*life{"before the first": nil, "between two": ended} {
		l := &Log{}
		l.life.Store(now)
		ctx, cancel := l.request(t.Context())
		until, ok := ctx.Deadline()
		cancel()
		if !ok || time.Until(until) > lookWithin {
			t.Errorf("%s: the request ends at %v", name, until)
		}
	}
}

// A connection that is lost before the log listens to it announces that too early.
func TestLive_ConnectionLostBeforeListening(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	l := &Log{nc: srv.Connect()}
	first := newLife()
	l.life.Store(first)
	lost := l.nc.StatusChanged(nats.RECONNECTING)
	defer l.nc.RemoveStatusListener(lost)
	srv.Stop()
	<-lost

	ctx, stop := context.WithCancel(t.Context())
	var living sync.WaitGroup
	defer living.Wait()
	defer stop()
	living.Go(func() { l.live(ctx) })
	waittest.Receive(t, "the life ends without a connection", first.ctx.Done())
}
