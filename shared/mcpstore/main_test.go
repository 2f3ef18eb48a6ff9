package mcpstore

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"

	"rejoin/shared/backend"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// world is a log of two partitions, and stores on it as processes of their own would
// have them. The test plays the janitor.
type world struct {
	t       *testing.T
	server  *natstest.Server
	creator *backend.Backend
}

var quick = []nats.Option{nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0)}

// newWorld begins a parallel test.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, server: natstest.StartParallel(t)}
	b, err := backend.Create(t.Context(), backend.Config{NATSURL: w.server.URL()}, "creator",
		eventlog.Settings{Partitions: 2, MaxAge: -1, MaxEventsPerStream: -1, MaxBytes: -1}, quiet(), quick...)
	must.NoError(t, err)
	t.Cleanup(b.Close)
	w.creator = b
	return w
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// store starts a process with a store.
func (w *world) store(cfg Config) *Store {
	w.t.Helper()
	s, end := w.process(cfg)
	w.t.Cleanup(end)
	return s
}

func (w *world) process(cfg Config) (s *Store, end func()) {
	w.t.Helper()
	b, err := backend.Open(w.t.Context(), backend.Config{NATSURL: w.server.URL()}, "store", quiet(), quick...)
	must.NoError(w.t, err)
	s = New(b, cfg)
	return s, func() {
		s.Close()
		b.Close()
	}
}

// restart starts NATS again, with a new generation, as the janitor would begin it.
func (w *world) restart() {
	w.t.Helper()
	w.server.Stop()
	w.start()
}

func (w *world) start() {
	w.t.Helper()
	w.server.Start()
	w.server.AwaitConn(w.creator.Log.Conn())
	for p := range w.creator.Log.Settings().Partitions {
		waittest.NoError(w.t, func() error {
			_, err := w.creator.Log.BeginGeneration(w.t.Context(), p)
			return err
		})
	}
}

// answered repeats a request while the log is unavailable: a request right after a restart
// fails when the log notices the restart.
func (w *world) answered(ask func() error) {
	w.t.Helper()
	waittest.NoError(w.t, ask, eventlog.ErrUnavailable)
}

// entries returns the entries of a stream in the log.
func (w *world) entries(session, stream string) (all []eventlog.Entry) {
	w.t.Helper()
	w.answered(func() error {
		state, err := w.creator.Log.Look(w.t.Context(), w.creator.Log.Partition(session))
		if err != nil {
			return err
		}
		page, err := w.creator.Log.Read(w.t.Context(), eventlog.Query{Session: session, Life: w.life(session), Stream: stream, UpTo: state.Last, MaxEvents: 10_000, MaxBytes: 1 << 30})
		all = page.Entries
		return err
	})
	return all
}

// trim removes the oldest n events of a stream, as the janitor does.
func (w *world) trim(session, stream string, n int) {
	w.t.Helper()
	gone := w.entries(session, stream)[:n]
	w.answered(func() error {
		t := eventlog.Trim{Session: session, Life: w.life(session), Stream: stream, UpTo: gone[n-1].Sequence, Reason: eventlog.Trimmed}
		_, err := eventlogtest.Announce(w.t.Context(), w.creator.Log, t)
		return err
	})
	for _, e := range gone {
		w.answered(func() error { return w.creator.Log.Delete(w.t.Context(), e.Subject.Partition, e.Sequence) })
	}
}

// expire moves the floor of a session's partition after all events, as the janitor does: entries
// that must stay are written again before.
func (w *world) expire(session string) {
	w.t.Helper()
	l := w.creator.Log
	p := l.Partition(session)
	w.answered(func() error {
		state, err := l.Look(w.t.Context(), p)
		if err != nil {
			return err
		}
		var controls []eventlog.Entry
		if _, err := l.Scan(w.t.Context(), p, 0, state.Last, func(e eventlog.Entry) bool {
			if e.Subject.Kind == event.Open || e.Subject.Kind == event.Birth {
				controls = append(controls, e)
			}
			return true
		}); err != nil {
			return err
		}
		for _, e := range controls {
			if _, err := l.Rewrite(w.t.Context(), e.Subject, e.Sequence, nil); err != nil && !errors.Is(err, eventlog.ErrConflict) {
				return err
			}
		}
		return l.Purge(w.t.Context(), p, state.Last+1)
	})
}

// mustOpen opens a stream, and appends to it.
func mustOpen(t *testing.T, s mcp.EventStore, session, stream string, all ...string) {
	t.Helper()
	if err := s.Open(t.Context(), session, stream); err != nil {
		t.Error(err)
	}
	mustAppend(t, s, session, stream, all...)
}

func mustAppend(t *testing.T, s mcp.EventStore, session, stream string, all ...string) {
	t.Helper()
	for _, data := range all {
		if err := s.Append(t.Context(), session, stream, []byte(data)); err != nil {
			t.Error(err)
		}
	}
}

// after returns the events that a store yields, and checks that an error is the only result.
func after(t *testing.T, s mcp.EventStore, session, stream string, index int) ([]string, error) {
	t.Helper()
	var all []string
	for data, err := range s.After(t.Context(), session, stream, index) {
		if err != nil {
			if len(all) > 0 {
				t.Errorf("after %d of %s/%s: %q and then %v", index, session, stream, all, err)
			}
			return nil, err
		}
		all = append(all, string(data))
	}
	return all, nil
}

func wantAfter(t *testing.T, s mcp.EventStore, session, stream string, index int, want ...string) {
	t.Helper()
	if got, err := after(t, s, session, stream, index); err != nil || !slices.Equal(got, want) {
		t.Errorf("after %d of %s/%s: %q, %v; want %q", index, session, stream, got, err, want)
	}
}

func wantLost(t *testing.T, s mcp.EventStore, session, stream string, index int, want error) {
	t.Helper()
	if got, err := after(t, s, session, stream, index); !errors.Is(err, want) || !errors.Is(err, mcp.ErrEventsPurged) {
		t.Errorf("after %d of %s/%s: %q, %v; want %v", index, session, stream, got, err, want)
	}
}

// message is a notification, numbered.
func message(n int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d}}`, n)
}

// clear clears a stream; an empty one means the whole session.
func (w *world) clear(session, stream string) {
	w.t.Helper()
	must.NoError(w.t, w.creator.Log.ClearStream(w.t.Context(), session, w.life(session), stream))
}

// life returns the life of an open session.
func (w *world) life(session string) string {
	w.t.Helper()
	rec := must.Value(w.creator.Sessions.CopyOrGet(w.t.Context(), session))(w.t)
	return rec.Life
}
