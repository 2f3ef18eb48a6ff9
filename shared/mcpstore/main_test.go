package mcpstore

import (
	"encoding/json"
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
	"rejoin/shared/leaktest"
	"rejoin/shared/marks"
	"rejoin/shared/natstest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// world is a log of two partitions, and stores on it as processes of their own would
// have them. The janitor is played by the test.
type world struct {
	t       *testing.T
	server  *natstest.Server
	creator *backend.Backend
	removed func(marks.Place) marks.Mark
}

var quick = []nats.Option{nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0)}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, server: natstest.Start(t), removed: func(marks.Place) marks.Mark { return marks.Mark{} }}
	b, err := backend.Create(t.Context(), backend.Config{NATSURL: w.server.URL()}, "creator",
		eventlog.Settings{Partitions: 2, MaxAge: -1, MaxEventsPerStream: -1, MaxBytes: -1}, quiet(), quick...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	w.creator = b
	_, err = b.Conn.QueueSubscribe(marks.Subject, marks.Queue, func(m *nats.Msg) {
		var req marks.Request
		if err := json.Unmarshal(m.Data, &req); err != nil {
			t.Error(err)
		}
		var reply marks.Reply
		for _, p := range req.Places {
			reply.Places = append(reply.Places, marks.PlaceMark{Mark: w.removed(p)})
		}
		data, err := json.Marshal(reply)
		if err != nil {
			t.Error(err)
		}
		_ = m.Respond(data) // or the connection has gone, and the asker asks again
	})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		w.t.Fatal(err)
	}
	s = New(b, cfg)
	return s, func() {
		s.Close()
		b.Close()
	}
}

// restart starts NATS anew, with a new generation, as the janitor would begin it.
func (w *world) restart() {
	w.t.Helper()
	w.server.Stop()
	w.start()
}

func (w *world) start() {
	w.t.Helper()
	w.server.Start()
	for p := range w.creator.Log.Settings().Partitions {
		eventually(w.t, "a generation is begun", func() bool {
			_, err := w.creator.Log.BeginGeneration(w.t.Context(), p)
			return err == nil
		})
	}
}

// answered asks the log again while it is unavailable: what is asked right after a restart
// ends when the log hears of it.
func (w *world) answered(ask func() error) {
	w.t.Helper()
	eventually(w.t, "the log answers", func() bool {
		err := ask()
		if err != nil && !errors.Is(err, eventlog.ErrUnavailable) {
			w.t.Fatal(err)
		}
		return err == nil
	})
}

// entries returns what the log holds of a stream.
func (w *world) entries(session, stream string) (all []eventlog.Entry) {
	w.t.Helper()
	w.answered(func() error {
		state, err := w.creator.Log.Look(w.t.Context(), w.creator.Log.Partition(session))
		if err != nil {
			return err
		}
		page, err := w.creator.Log.Read(w.t.Context(), eventlog.Query{Session: session, Stream: stream, UpTo: state.Last, MaxEvents: 10_000, MaxBytes: 1 << 30})
		all = page.Entries
		return err
	})
	return all
}

// trim removes the oldest n events of a stream, as the janitor does.
func (w *world) trim(session, stream string, n int) {
	w.t.Helper()
	for _, e := range w.entries(session, stream)[:n] {
		w.answered(func() error { return w.creator.Log.Delete(w.t.Context(), e.Subject.Partition, e.Sequence) })
	}
}

func mustOpen(t *testing.T, s mcp.EventStore, session, stream string) {
	t.Helper()
	if err := s.Open(t.Context(), session, stream); err != nil {
		t.Error(err)
	}
}

func mustAppend(t *testing.T, s mcp.EventStore, session, stream string, all ...string) {
	t.Helper()
	for _, data := range all {
		if err := s.Append(t.Context(), session, stream, []byte(data)); err != nil {
			t.Error(err)
		}
	}
}

// after returns what a store yields, and checks that an error stands alone.
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

// eventually waits for a condition, with a deadline.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// message is a notification, numbered.
func message(n int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d}}`, n)
}

// clear writes a =clear marker; an empty stream means the whole session.
func (w *world) clear(session, stream string) {
	w.t.Helper()
	if _, err := w.creator.Log.Mark(w.t.Context(), event.Clear, session, stream); err != nil {
		w.t.Fatal(err)
	}
}
