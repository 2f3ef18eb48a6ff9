package eventlog

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// Alive reports whether the log has heard that there is a connection, and not that it is
// lost.
func (l *Log) Alive() bool { return l.link.Load().ctx.Err() == nil }

// Between a reconnect and the moment that the log hears of it, a request has no
// context whose end it could hear of. If the server goes again, nothing answers it.
func TestRequest_WithoutALinkIsBounded(t *testing.T) {
	ended := newLinkContext()
	ended.end()
	for name, now := range map[string]*linkContext{"before the first": nil, "between two": ended} {
		l := &Log{}
		l.link.Store(now)
		ctx, cancel := l.request(t.Context())
		until, ok := ctx.Deadline()
		cancel()
		if !ok || time.Until(until) > lookWithin {
			t.Errorf("%s: the request ends at %v", name, until)
		}
	}
}

// A connection that is lost before the log listens to it announces that too early.
func TestFollowLink_ConnectionLostBeforeListening(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	l := &Log{nc: srv.Connect()}
	first := newLinkContext()
	l.link.Store(first)
	lost := l.nc.StatusChanged(nats.RECONNECTING)
	defer l.nc.RemoveStatusListener(lost)
	srv.Stop()
	<-lost

	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	following.Go(func() { l.followLink(ctx) })
	waittest.Receive(t, "the context ends without a connection", first.ctx.Done())
}

// createLog creates a log, which the test closes at its end.
func createLog(t *testing.T, nc *nats.Conn, settings Settings) *Log {
	t.Helper()
	l := must.Value(Create(t.Context(), nc, settings, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(l.Close)
	return l
}
