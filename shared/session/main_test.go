package session_test

import (
	"context"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func connect(t *testing.T, srv *natstest.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := eventlog.Connect(srv.URL(), t.Name(), quiet(),
		append(opts, nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))...)
	must.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// single begins a parallel test of a log of one partition, and its registry, on a server of its own.
func single(t *testing.T) (*natstest.Server, *session.Registry, *eventlog.Log) {
	t.Helper()
	srv := natstest.StartParallel(t)
	r, l := create(t, connect(t, srv))
	return srv, r, l
}

// create makes a log of one partition, and its registry.
func create(t *testing.T, nc *nats.Conn) (*session.Registry, *eventlog.Log) {
	t.Helper()
	return createWith(t, nc, one())
}

func createWith(t *testing.T, nc *nats.Conn, settings eventlog.Settings) (*session.Registry, *eventlog.Log) {
	t.Helper()
	l := newLog(t, nc, settings)
	r := must.Value(session.Create(waittest.Context(t), l, quiet()))(t)
	t.Cleanup(r.Close)
	return r, l
}

// open opens the log and its registry, as another process does.
func open(t *testing.T, nc *nats.Conn) (*session.Registry, *eventlog.Log) {
	t.Helper()
	l := must.Value(eventlog.Open(waittest.Context(t), nc, quiet()))(t)
	t.Cleanup(l.Close)
	r := must.Value(session.OpenRegistry(waittest.Context(t), l, quiet()))(t)
	t.Cleanup(r.Close)
	return r, l
}

// one is a log with a single partition.
func one() eventlog.Settings { return eventlog.Settings{Partitions: 1} }

func newLog(t *testing.T, nc *nats.Conn, settings eventlog.Settings) *eventlog.Log {
	t.Helper()
	l := must.Value(eventlog.Create(waittest.Context(t), nc, settings, quiet()))(t)
	t.Cleanup(l.Close)
	return l
}

func mustCreate(t *testing.T, r *session.Registry, name string) session.Record {
	t.Helper()
	return must.Value(r.Create(waittest.Context(t), session.New(name, "owner", nil, time.Now())))(t)
}

// publish publishes to stream t of a life.
func publish(t *testing.T, l *eventlog.Log, rec session.Record) error {
	t.Helper()
	_, err := l.Publish(waittest.Context(t), eventlog.Event{Session: rec.Session, Life: rec.Life, Stream: "t", Data: []byte("{}")})
	return err
}

// subjects returns the subjects of a log's entries, in order, with "L" for the life of rec.
func subjects(t *testing.T, l *eventlog.Log, rec session.Record) (all []string) {
	t.Helper()
	must.Value(l.Scan(waittest.Context(t), 0, 0, math.MaxUint64, func(e eventlog.Entry) bool {
		all = append(all, strings.Replace(e.RawSubject, "."+rec.Life+".", ".L.", 1))
		return true
	}))(t)
	return all
}

func mustEnd(t *testing.T, r *session.Registry, name, stream string) {
	t.Helper()
	must.NoError(t, r.End(waittest.Context(t), name, stream, false))
}

// seal writes the seal of a life and nothing after it.
func seal(t *testing.T, nc *nats.Conn, rec session.Record) {
	t.Helper()
	js := natstest.JetStream(t, nc)
	must.Value(js.Publish(waittest.Context(t), event.Subject{Session: rec.Session, Life: rec.Life, Kind: event.Seal}.String(), nil))(t)
}

// forget removes a session from the registry.
func forget(t *testing.T, nc *nats.Conn, name string) {
	t.Helper()
	kv := must.Value(natstest.JetStream(t, nc).KeyValue(waittest.Context(t), session.Bucket))(t)
	must.NoError(t, kv.Delete(waittest.Context(t), event.Token(name)))
}

// forgetOpening removes a session's opening from the log, as its maximum age does.
func forgetOpening(t *testing.T, l *eventlog.Log, name string) {
	t.Helper()
	must.NoError(t, eventlogtest.Forget(waittest.Context(t), l, name))
}

// putRaw writes a record without the registry and returns its revision.
func putRaw(t *testing.T, nc *nats.Conn, key, value string) uint64 {
	t.Helper()
	js := natstest.JetStream(t, nc)
	ack := must.Value(js.Publish(waittest.Context(t), "$KV."+session.Bucket+"."+key, []byte(value)))(t)
	return ack.Sequence
}

// answered repeats a request while NATS restarts: an answer that is lost with a connection never
// arrives.
func answered(t *testing.T, ask func(context.Context) error) {
	t.Helper()
	waittest.NoError(t, func() error {
		ctx, cancel := context.WithTimeout(waittest.Context(t), 10*time.Second)
		defer cancel()
		return ask(ctx)
	}, session.ErrUnavailable, eventlog.ErrUnavailable, eventlog.ErrUnknown)
}

// ownedBy is for [session.Registry.Visible]: whether a session belongs to an owner.
func ownedBy(owner string) func(session.Record) bool {
	return func(rec session.Record) bool { return rec.Owner == owner }
}

// register returns the record of an open session, which it opens if it does not exist.
func register(ctx context.Context, r *session.Registry, name, owner string) (session.Record, error) {
	return r.Ensure(ctx, name, func() (session.Record, error) { return r.Create(ctx, session.New(name, owner, nil, time.Now())) })
}
