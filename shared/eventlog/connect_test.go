package eventlog_test

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
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
	nc := must.Value(eventlog.Connect(natstest.Start(t).URL(), t.Name(), slog.New(slog.NewTextHandler(&log, nil)), nats.ClosedHandler(func(*nats.Conn) { close(closed) })))(t)
	waittest.Until(t, "it is connected", nc.IsConnected)
	nc.Close()
	waittest.Receive(t, "all handlers of the connection have run", closed)
	if strings.Contains(log.String(), "disconnected") {
		t.Errorf("it logs %s", log.String())
	}
}

// An error that repeats is logged once: without a connection it comes up to four times a second.
func TestConnect_RepeatedErrors(t *testing.T) {
	var log waittest.Buffer
	nc := must.Value(eventlog.Connect(natstest.Start(t).URL(), t.Name(), slog.New(slog.NewTextHandler(&log, nil))))(t)
	nc.Close()
	for range 2 {
		nc.Opts.AsyncErrorCB(nc, nil, nats.ErrMaxSubscriptionsExceeded)
	}
	if n := strings.Count(log.String(), "NATS reported an error"); n != 1 {
		t.Errorf("%d errors are logged", n)
	}
}

// A request in flight when the server stops is never answered. Found by the property test
// of e2e: a resume that waited for 5 s, and then sent outdated IDs.
func TestRequest_ConnectionIsLost(t *testing.T) {
	srv, l := single(t)
	var asking sync.WaitGroup
	for range 100 {
		asking.Go(func() {
			for {
				if _, err := l.Look(waittest.Context(t), 0); err != nil {
					return
				}
			}
		})
	}
	srv.Stop()
	stopped := time.Now()
	asking.Wait()
	if took := time.Since(stopped); took > waittest.Timeout/2 {
		t.Errorf("a request was waited for %s after its connection was lost", took)
	}
}

// A cluster that is being formed does not answer; a caller with a longer deadline asks again.
func TestCreate_NoAnswer(t *testing.T) {
	t.Parallel()
	srv := must.Value(server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true}))(t)
	srv.Start()
	defer srv.Shutdown()
	nc := must.Value(nats.Connect("", nats.InProcessServer(srv)))(t)
	defer nc.Close()
	create := func() error {
		_, err := eventlog.Create(waittest.Context(t), nc, one(), quiet(t))
		return err
	}
	if err := create(); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("without JetStream: %v", err)
	}
	must.Value(nc.SubscribeSync("$JS.API.STREAM.INFO.MCP_0"))(t)
	if err := create(); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("without an answer: %v", err)
	}
}
