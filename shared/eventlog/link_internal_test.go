package eventlog

import (
	"errors"
	"log/slog"
	"net"
	"testing"

	"github.com/nats-io/nats.go"

	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// No connection is made during a publish.
func TestDialGuard(t *testing.T) {
	made := 0
	g := dialGuard{dial: func(_, _ string) (net.Conn, error) { made++; return nil, nil }} //nolint:nilnil // it is not used
	dial := func() error {
		_, err := g.Dial("", "")
		return err
	}
	g.publishing.RLock()
	g.publishing.RLock() // two at a time
	if err := dial(); !errors.Is(err, errPublishing) || made != 0 {
		t.Errorf("%v, %d connections", err, made)
	}
	g.publishing.RUnlock()
	if err := dial(); !errors.Is(err, errPublishing) {
		t.Error(err)
	}
	g.publishing.RUnlock()
	if err := dial(); err != nil || made != 1 {
		t.Errorf("%v, %d connections", err, made)
	}
}

// Who is held up between two events finds no other connection
// when it continues: what it sends there would overtake what was lost.
func TestHold_NoReconnect(t *testing.T) {
	srv := natstest.StartParallel(t)
	var link natstest.Link
	connected, failed := make(chan struct{}, 1), make(chan error, 100)
	nc, err := Connect(srv.URL(), t.Name(), slog.New(slog.DiscardHandler), nats.SetCustomDialer(&link), nats.ReconnectJitter(0, 0),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { failed <- err }),
		nats.ReconnectHandler(func(*nats.Conn) { connected <- struct{}{} }))
	must.NoError(t, err)
	t.Cleanup(nc.Close)
	l := createLog(t, nc, Settings{Partitions: 1})
	release := must.Value(l.hold(t.Context(), 0))(t)
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
	release()
	waittest.Receive(t, "there is another connection", connected)
}

// createLog creates a log, which the test closes at its end.
func createLog(t *testing.T, nc *nats.Conn, settings Settings) *Log {
	t.Helper()
	l := must.Value(Create(t.Context(), nc, settings, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(l.Close)
	return l
}
