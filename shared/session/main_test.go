package session_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/leaktest"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// patience is how long a test waits for what must happen.
const patience = 60 * time.Second

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually returns once cond is true. What it waits for shows itself nowhere else.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

func connect(t *testing.T, srv *natstest.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := eventlog.Connect(srv.URL(), t.Name(), quiet(),
		append(opts, nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func create(t *testing.T, nc *nats.Conn) *session.Registry {
	t.Helper()
	r, err := session.Create(patient(t), nc, 1, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func open(t *testing.T, nc *nats.Conn) *session.Registry {
	t.Helper()
	r, err := session.OpenRegistry(patient(t), nc, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func newLog(t *testing.T, nc *nats.Conn) *eventlog.Log {
	t.Helper()
	l, err := eventlog.Create(patient(t), nc, eventlog.Settings{Partitions: 1}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func mustCreate(t *testing.T, r *session.Registry, name string) session.Record {
	t.Helper()
	rec, err := r.Create(patient(t), session.New(name, "owner", nil, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}
