package eventlog_test

import (
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// Every question to other services has a subscription of its own, of many at a time.
func TestConnect_SubscriptionsAreSmall(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	const n, most = 32, 128 << 10
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		sub := must.Value(nc.SubscribeSync(nc.NewRespInbox()))(t)
		must.NoError(t, sub.Unsubscribe())
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / n; each > most {
		t.Errorf("a subscription takes %d bytes, more than %d", each, most)
	}
}

// A program that closes its connection does not warn that it was lost.
func TestConnect_ClosedByTheProgram(t *testing.T) {
	var log waittest.Buffer
	closed := make(chan struct{})
	nc, err := eventlog.Connect(natstest.Start(t).URL(), t.Name(), slog.New(slog.NewTextHandler(&log, nil)), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	must.NoError(t, err)
	waittest.Until(t, "it is connected", nc.IsConnected)
	nc.Close()
	waittest.Receive(t, "all handlers of the connection have run", closed)
	if strings.Contains(log.String(), "disconnected") {
		t.Errorf("it logs %s", log.String())
	}
}

// An error that repeats is logged once while there is no connection, which is tried often, and each time
// on one that works.
func TestConnect_RepeatedErrors(t *testing.T) {
	var log waittest.Buffer
	nc := must.Value(eventlog.Connect(natstest.Start(t).URL(), t.Name(), slog.New(slog.NewTextHandler(&log, nil))))(t)
	defer nc.Close()
	waittest.Until(t, "it is connected", func() bool { return strings.Contains(log.String(), "connected to NATS") })
	logged := func(want int) {
		t.Helper()
		for range 2 {
			nc.Opts.AsyncErrorCB(nc, nil, nats.ErrMaxSubscriptionsExceeded)
		}
		if n := strings.Count(log.String(), "NATS reported an error"); n != want {
			t.Errorf("%d errors are logged, want %d", n, want)
		}
	}
	logged(2)
	nc.Close()
	logged(2)
}
