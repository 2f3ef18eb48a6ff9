package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/config"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/leaktest"
	"rejoin/shared/metric/metrictest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == stdioMode {
		stdioServer()
		return
	}
	if len(os.Args) > 3 && os.Args[1] == bridgeMode {
		if err := bridgeProgram(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...))
}

// system is a NATS server with a log, and a connection that stands in for an edge.
type system struct {
	srv *natstest.Server
	b   *backend.Backend
	log *slog.Logger // of the bridges; nil for none
	// options are those of the bridges' connections, beside fast.
	options []nats.Option
}

func fast() []nats.Option {
	return []nats.Option{nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0)}
}

func newSystem(t testing.TB, settings eventlog.Settings) *system {
	t.Helper()
	srv := natstest.Start(t)
	settings.Partitions = 2
	b := must.Value(backend.Create(waittest.Context(t), backend.Config{NATSURL: srv.URL()}, "creator", settings, daemon.NewEnv(nil).Log, fast()...))(t)
	t.Cleanup(b.Close)
	return &system{srv: srv, b: b}
}

// sending has f called with the bytes that the bridges that are started next send to NATS: f may change them.
func (s *system) sending(f func(data []byte)) {
	s.options = []nats.Option{nats.SetCustomDialer(&natstest.Link{Before: f})}
}

// replace overwrites the first occurrence of a text, and reports whether there is one.
func replace(data []byte, text, by string) bool {
	i := bytes.Index(data, []byte(text))
	if i >= 0 {
		copy(data[i:], by)
	}
	return i >= 0
}

func testConfig(server string) config.Config {
	return config.Config{
		Upstream: server, BridgeName: "test", AcceptAfter: 30 * time.Second, CallTimeout: flagtype.Duration(waittest.Timeout), OpenTimeout: 30 * time.Second,
		MaxCalls: 100, AckTimeout: time.Second, CancelGrace: time.Minute, InputWait: time.Minute, TaskTTL: time.Hour,
		ForwardHeader: []string{"Accept-Language", "traceparent"},
	}
}

// instance is a bridge that runs.
type instance struct {
	*Service
	env  daemon.Env
	b    *backend.Backend
	stop func()
	// ended receives the result of Run.
	ended chan error
	// confirm is called in place of [standby.Name.Confirm], unless it is nil.
	confirm atomic.Pointer[func(context.Context) error]
}

// start runs a bridge, and waits until it has taken over the sessions of the previous one.
func (s *system) start(t testing.TB, cfg config.Config, set ...func(*Service)) *instance {
	t.Helper()
	in := s.launch(t, cfg, set...)
	waittest.Until(t, "the bridge is open", in.taken.Load)
	return in
}

// restart stops a bridge, and starts the next one.
func (s *system) restart(t testing.TB, in *instance) *instance {
	t.Helper()
	in.stop()
	return s.start(t, in.host.Config)
}

// launch runs a bridge that may have to wait for another. It is set up before it runs.
func (s *system) launch(t testing.TB, cfg config.Config, set ...func(*Service)) *instance {
	t.Helper()
	env := daemon.NewEnv(s.log)
	b := must.Value(backend.Open(waittest.Context(t), backend.Config{NATSURL: s.srv.URL()}, "bridge", env.Log, append(fast(), s.options...)...))(t)
	service := must.Value(New(cfg, b, env))(t)
	service.host.Times.Answer = waittest.Timeout // however slow the machine is, a quick answer needs no log
	service.host.Times.Alive = waittest.Timeout  // and a running bridge answers
	service.host.Pauses.For = time.Hour          // and no pause is one of the machine's
	ended := make(chan error, 1)
	in := &instance{Service: service, env: env, b: b, ended: ended}
	service.host.Confirm = func(ctx context.Context) error {
		if confirm := in.confirm.Load(); confirm != nil {
			return (*confirm)(ctx)
		}
		return service.name.Confirm(ctx)
	}
	for _, f := range set {
		f(service)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- service.Run(ctx) }()
	in.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		b.Close()
	})
	t.Cleanup(in.stop)
	return in
}

// metric returns the sum of a metric over the label values that hold all of labels.
func (in *instance) metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	return metrictest.Value(t, in.env.Metrics, "rejoin_bridge_"+name, labels...)
}

// do asks the bridge as an edge does, again while no bridge listens.
func (s *system) do(t testing.TB, c rpc.Ask) rpc.Answer {
	t.Helper()
	var a rpc.Answer
	waittest.Until(t, "a bridge answers", func() (ok bool) {
		var err error
		a, err = c.Do(waittest.Context(t), s.b.Conn)
		return err == nil
	})
	return a
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

// opening asks for a session.
func (s *system) opening(t testing.TB) rpc.Answer {
	t.Helper()
	return s.do(t, rpc.Ask{Action: rpc.Open, Session: uuid.NewString(), Data: []byte(initialize)})
}

// open makes a session.
func (s *system) open(t testing.TB) string {
	t.Helper()
	name := uuid.NewString()
	wantStatus(t, s.do(t, rpc.Ask{Action: rpc.Open, Session: name, Data: []byte(initialize)}), http.StatusOK, `"result"`)
	return name
}

// ready is open with the notification that the client is ready.
func (s *system) ready(t testing.TB) string {
	t.Helper()
	name := s.open(t)
	wantStatus(t, s.post(t, name, "", `{"jsonrpc":"2.0","method":"notifications/initialized"}`), http.StatusAccepted)
	return name
}

// begun is a bridge before a server, with a session that is ready.
func begun(t *testing.T) (s *system, up *server, in *instance, name string) {
	t.Helper()
	s, up, in = bridged(t, newServer(t))
	name = s.ready(t)
	return s, up, in, name
}

// bridged is a bridge before a server.
func bridged(t testing.TB, before *server) (s *system, up *server, in *instance) {
	t.Helper()
	s = newSystem(t, eventlog.Settings{})
	in = s.start(t, testConfig(before.URL))
	return s, before, in
}

// end ends a session.
func (s *system) end(t testing.TB, name string) {
	t.Helper()
	wantStatus(t, s.do(t, rpc.Ask{Action: rpc.End, Session: name}), http.StatusNoContent)
}

func (s *system) post(t testing.TB, name, stream, data string) rpc.Answer {
	t.Helper()
	return s.do(t, rpc.Ask{Action: rpc.Post, Session: name, Stream: stream, Data: []byte(data)})
}

// request posts a request with an ID, a method and the members of params, if there are any, and returns its stream.
func (s *system) request(t testing.TB, name, id, method string, params ...string) (stream string, a rpc.Answer) {
	t.Helper()
	stream = newStream(t, id)
	more := ""
	if len(params) > 0 {
		more = `,"params":{` + strings.Join(params, ",") + `}`
	}
	return stream, s.post(t, name, stream, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q%s}`, id, method, more))
}

func newStream(t testing.TB, ids ...string) string {
	t.Helper()
	var raw []json.RawMessage
	for _, id := range ids {
		raw = append(raw, json.RawMessage(id))
	}
	return must.Value(rpc.NewStream(raw, len(ids) > 1))(t)
}

// read returns the messages of a stream in the log, and whether the last event is final.
func (s *system) read(t testing.TB, name, stream string) (all []string, final bool) {
	t.Helper()
	state, err := s.b.Log.Look(waittest.Context(t), s.b.Log.Partition(name))
	if err != nil {
		return nil, false
	}
	rec, err := s.b.Sessions.CopyOrGet(waittest.Context(t), name)
	if err != nil {
		return nil, false
	}
	page, err := s.b.Log.Read(waittest.Context(t), eventlog.Query{Session: name, Life: rec.Life, Stream: stream, UpTo: state.Last, MaxEvents: 100_000, MaxBytes: 1 << 30})
	if err != nil {
		return nil, false
	}
	for i, e := range page.Entries {
		if e.Subject.Kind != event.Message {
			continue
		}
		all = append(all, string(e.Data))
		if e.Final && i < len(page.Entries)-1 {
			t.Errorf("event %d of %s is final, and there are more", i, stream)
		}
		final = e.Final
	}
	return all, final
}

// finished waits for the last event of a stream, and returns all.
func (s *system) finished(t testing.TB, name, stream string) []string {
	t.Helper()
	var all []string
	waittest.Until(t, "the stream "+stream+" is finished", func() (final bool) {
		all, final = s.read(t, name, stream)
		return final
	})
	return all
}

// lifeOf returns the life of a session.
func (s *system) lifeOf(t testing.TB, name string) string {
	t.Helper()
	rec := must.Value(s.b.Sessions.Get(waittest.Context(t), name))(t)
	return rec.Life
}

// ended waits for the end of a stream in the log.
func (s *system) ended(t testing.TB, name, stream string) {
	t.Helper()
	end := event.Subject{Partition: s.b.Log.Partition(name), Session: name, Life: s.lifeOf(t, name), Stream: stream, Kind: event.End}
	waittest.Until(t, "the stream has ended", func() bool { _, err := s.b.Log.NewestSequence(waittest.Context(t), end); return err == nil })
}
