package eventlog_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/eventlog"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) {
	// Tests wait for elections and restarts of servers, and use little of a processor.
	_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...))
}

func quiet(t testing.TB) *slog.Logger {
	t.Helper()
	return slog.New(listener(t))
}

// slowness is a logger that counts the messages that a log writes only on a slow machine.
type slowness struct {
	slog.Handler

	interruptions atomic.Int64 // of tails that received no message, or no answer, for seconds
}

// listeners are those of the tests, by name: tests run in parallel.
var listeners = struct {
	sync.Mutex
	of map[string]*slowness
}{of: map[string]*slowness{}}

// listener returns the logger of a test and its subtests.
func listener(t testing.TB) *slowness {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	listeners.Lock()
	defer listeners.Unlock()
	if listeners.of[test] == nil {
		listeners.of[test] = &slowness{Handler: slog.DiscardHandler}
	}
	return listeners.of[test]
}

func (*slowness) Enabled(context.Context, slog.Level) bool { return true }

func (s *slowness) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "a tail was interrupted" {
		return nil
	}
	r.Attrs(func(a slog.Attr) bool {
		err, _ := a.Value.Any().(error)
		if err != nil && (errors.Is(err, context.DeadlineExceeded) || strings.HasPrefix(err.Error(), "the consumer stalls at ")) {
			s.interruptions.Add(1)
		}
		return true
	})
	return nil
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// one is a log with a single partition and no limits, so that a test knows all sequences.
func one() eventlog.Settings {
	return eventlog.Settings{Partitions: 1, MaxAge: -1, MaxEventsPerStream: -1, MaxBytes: -1}
}

func connect(t *testing.T, srv *natstest.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	return connectTo(t, srv.URL(), append(opts, nats.ReconnectWait(10*time.Millisecond))...)
}

func connectTo(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc := must.Value(eventlog.Connect(url, t.Name(), quiet(t), append(opts, nats.ReconnectJitter(0, 0))...))(t)
	t.Cleanup(nc.Close)
	return nc
}

// single begins a parallel test of a log on a server of its own.
func single(t *testing.T) (*natstest.Server, *eventlog.Log) {
	t.Helper()
	srv := natstest.StartParallel(t)
	return srv, create(t, srv, one())
}

func create(t *testing.T, srv *natstest.Server, settings eventlog.Settings, opts ...nats.Option) *eventlog.Log {
	t.Helper()
	return createOn(t, connect(t, srv, opts...), settings)
}

func createOn(t testing.TB, nc *nats.Conn, settings eventlog.Settings) *eventlog.Log {
	t.Helper()
	l := must.Value(eventlog.Create(waittest.Context(t), nc, settings, quiet(t)))(t)
	t.Cleanup(l.Close)
	return l
}

func open(t *testing.T, srv *natstest.Server) *eventlog.Log {
	t.Helper()
	return openOn(t, connect(t, srv))
}

func openOn(t *testing.T, nc *nats.Conn) *eventlog.Log {
	t.Helper()
	l := must.Value(eventlog.Open(waittest.Context(t), nc, quiet(t)))(t)
	t.Cleanup(l.Close)
	return l
}

// deletePartition deletes the JetStream stream of a log's partition, while no creator of the log is there: a
// partition that is created again while NATS still removes the files loses the new ones (docs/upstream/0013).
func deletePartition(t *testing.T, srv *natstest.Server, l *eventlog.Log, name string) {
	t.Helper()
	must.NoError(t, newJetStream(t, l).DeleteStream(waittest.Context(t), name))
	files := filepath.Join(srv.Dir(), "jetstream", "$G", "streams", name)
	waittest.Until(t, "the files of the partition are removed", func() bool {
		_, err := os.Stat(files)
		return errors.Is(err, fs.ErrNotExist)
	})
}

func newJetStream(t *testing.T, l *eventlog.Log) jetstream.JetStream {
	t.Helper()
	return natstest.JetStream(t, l.Conn())
}

// streamOf returns a stream of JetStream.
func streamOf(t *testing.T, l *eventlog.Log, name string) jetstream.Stream {
	t.Helper()
	return must.Value(newJetStream(t, l).Stream(waittest.Context(t), name))(t)
}

// publish stores a numbered message and returns its sequence.
func publish(t *testing.T, l *eventlog.Log, session, stream string, n int) uint64 {
	t.Helper()
	return mustPublish(t, l, eventlog.Event{Session: session, Stream: stream, Data: numbered(n)}).Sequence
}

// publishAll stores the messages from one number to the one before another, and returns the last sequence.
func publishAll(t *testing.T, l *eventlog.Log, stream string, from, to int) (last uint64) {
	t.Helper()
	for n := from; n < to; n++ {
		last = publish(t, l, "s", stream, n)
	}
	return last
}

func numbered(n int) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"n","params":[%d]}`, n)
}

// stop ends the server and returns when the log's connection has noticed.
func stop(t *testing.T, srv *natstest.Server, l *eventlog.Log) {
	t.Helper()
	srv.Stop()
	waittest.Until(t, "the connection is lost", func() bool { return !l.Conn().IsConnected() })
}

// start starts the server again and returns when the log has reconnected.
func start(t *testing.T, srv *natstest.Server, l *eventlog.Log) {
	t.Helper()
	srv.Start()
	waittest.Until(t, "the connection is back", func() bool { return l.Conn().IsConnected() })
}

func restart(t *testing.T, srv *natstest.Server, l *eventlog.Log) {
	t.Helper()
	stop(t, srv, l)
	start(t, srv, l)
}

// follower is a tail and the calls that it has received.
type follower struct {
	mu      sync.Mutex
	changed chan struct{}
	starts  []eventlog.State
	entries []eventlog.Entry
	missed  uint64
	last    uint64
	through uint64
	broken  string
	slow    *slowness
	earlier int64 // how many tails a slow machine had interrupted before

	onEntry func(eventlog.Entry) // called without the lock
	stop    func()               // ends the tail and waits for it
}

// follow tails a partition until the test ends, beginning after a sequence, and
// continuing after the last sequence that it saw.
func follow(t *testing.T, l *eventlog.Log, p int, after uint64, set ...func(*follower, *eventlog.TailConfig)) *follower {
	t.Helper()
	slow := listener(t)
	f := &follower{changed: make(chan struct{}), last: after, slow: slow, earlier: slow.interruptions.Load()}
	cfg := eventlog.TailConfig{
		Start: func(_ context.Context, state eventlog.State) (uint64, error) {
			defer f.note()()
			f.starts = append(f.starts, state)
			f.last = min(f.last, state.Last)
			return f.last, nil
		},
		Handle: func(e eventlog.Entry, missed uint64) {
			if f.onEntry != nil {
				f.onEntry(e)
			}
			defer f.note()()
			if e.Sequence != f.last+missed+1 {
				f.broken = fmt.Sprintf("%d came after %d with %d missed", e.Sequence, f.last, missed)
			}
			f.entries, f.missed, f.last = append(f.entries, e), f.missed+missed, e.Sequence
		},
		CaughtUp: func(sequence, missed uint64) {
			defer f.note()()
			if sequence != f.last+missed {
				f.broken = fmt.Sprintf("through %d came after %d with %d missed", sequence, f.last, missed)
			}
			f.missed, f.last, f.through = f.missed+missed, sequence, sequence
		},
	}
	for _, s := range set {
		s(f, &cfg)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	f.stop = func() { stop(); wg.Wait() }
	t.Cleanup(f.stop)
	wg.Go(func() { _ = l.Tail(ctx, p, cfg) }) // it returns ctx's error and no other
	return f
}

// again is how often the tail has begun again without an interruption by a slow machine.
func (f *follower) again() int {
	return len(f.starts) - 1 - int(f.slow.interruptions.Load()-f.earlier)
}

func (f *follower) note() func() {
	f.mu.Lock()
	return func() {
		close(f.changed)
		f.changed = make(chan struct{})
		f.mu.Unlock()
	}
}

// wait returns once cond, which is called with the lock held, is true.
func (f *follower) wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx := waittest.Context(t)
	for {
		f.mu.Lock()
		ok, changed, broken := cond(), f.changed, f.broken
		f.mu.Unlock()
		if broken != "" {
			t.Fatal(broken)
		}
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			f.mu.Lock()
			seen := fmt.Sprintf("%d starts, %d entries, last %d, missed %d, through %d", len(f.starts), len(f.entries), f.last, f.missed, f.through)
			f.mu.Unlock()
			t.Fatalf("never: %s; %s", what, seen)
		}
	}
}

func (f *follower) waitLast(t *testing.T, sequence uint64) {
	t.Helper()
	f.wait(t, fmt.Sprintf("sequence %d", sequence), func() bool { return f.last >= sequence })
}
