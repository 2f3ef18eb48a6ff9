package eventlog

import (
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/must"
	"rejoin/shared/natstest"
)

// No connection is made during a publish, and no publish begins while one is
// waited for.
func TestDialGuard(t *testing.T) {
	made := 0
	g := dialGuard{dial: func(_, _ string) (net.Conn, error) { made++; return nil, nil }} //nolint:nilnil // it is not used
	dial := func() error {
		_, err := g.Dial("", "")
		return err
	}
	first := g.dialed.Load()
	for range 2 { // at a time
		if !g.enter(first) {
			t.Fatal("nobody may begin")
		}
	}
	if err := dial(); !errors.Is(err, errPublishing) || made != 0 {
		t.Errorf("%v, %d connections", err, made)
	}
	if g.enter(first) {
		t.Error("somebody begins though the next connection is to be made")
	}
	g.leave()
	if err := dial(); !errors.Is(err, errPublishing) {
		t.Error(err)
	}
	g.leave()
	if err := dial(); err != nil || made != 1 {
		t.Errorf("%v, %d connections", err, made)
	}
	if g.enter(first) {
		t.Error("somebody begins on the connection before")
	}
	if !g.enter(g.dialed.Load()) {
		t.Error("nobody may begin on the next connection")
	}
	g.leave()
}

// A publisher that is held up between a look at the connection and the publish finds no other
// connection when it continues: its message there would overtake the lost ones.
func TestHold_NoReconnect(t *testing.T) {
	srv := natstest.StartParallel(t)
	var link natstest.Link
	connected, failed := make(chan struct{}, 1), make(chan error, 100)
	nc, err := Connect(srv.URL(), t.Name(), slog.New(slog.DiscardHandler), nats.SetCustomDialer(&link), nats.ReconnectJitter(0, 0),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { failed <- err }),
		nats.ReconnectHandler(func(*nats.Conn) { connected <- struct{}{} }))
	must.NoError(t, err)
	t.Cleanup(nc.Close)
	g, _ := nc.Opts.CustomDialer.(*dialGuard)
	if !g.enter(g.dialed.Load()) {
		t.Fatal("it is not connected")
	}
	link.Cut()
	link.Heal()
	for range 3 {
		select {
		case err := <-failed:
			if !errors.Is(err, errPublishing) {
				t.Error(err)
			}
		case <-connected:
			t.Fatal("there is another connection")
		}
	}
	g.leave()
	<-connected
}

// createLog creates a log, which the test closes at its end.
func createLog(t *testing.T, nc *nats.Conn, settings Settings) *Log {
	t.Helper()
	l := must.Value(Create(t.Context(), nc, settings, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(l.Close)
	return l
}

// BeginWithin sets the bound of BeginGeneration.
func (l *Log) BeginWithin(within time.Duration) { l.beginWithin = within }
