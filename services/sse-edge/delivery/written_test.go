package delivery

import (
	"bytes"
	"container/heap"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/eventlog"
	"rejoin/shared/quota"
)

// leaving is a companion that notes the cursor that its stream leaves to the next connection.
type leaving struct {
	NoCompanion
	stream *Connection
	at     string
}

func (l *leaving) Ended(bool) { l.at = l.stream.At() }

// brokenSocket is a socket that takes so many bytes, and then fails, or is full.
type brokenSocket struct {
	syscall.RawConn
	room int
	err  error
}

func (s brokenSocket) WriteNow(buffers [][]byte) (int, error) {
	return min(total(buffers), s.room), s.err
}

// oneStep is a source that has five events after its cursor, and then no more.
type oneStep struct {
	*cursor.Reader
	items []window.Item
}

func (o *oneStep) Quick(memory []window.Item) (cursor.Step, []window.Item, bool) {
	s := cursor.Step{Items: o.items}
	if n := len(o.items); n > 0 {
		s.First, o.Cursor, o.items = o.items[0].Sequence, o.items[n-1].Sequence, nil
	}
	return s, memory, true
}

// withGap returns the events, after a gap.
func (o *oneStep) withGap() cursor.Step {
	s, _, _ := o.Quick(nil)
	s.Gaps = []cursor.Gap{{Reason: cursor.ReasonTrimmed, Stream: "a"}}
	return s
}

// back waits for the goroutine that a stream is away in, and takes the stream back after meanwhile.
func back(w *worker, meanwhile func()) {
	var posts []func()
	for len(posts) == 0 {
		<-w.wake
		w.mu.Lock()
		posts, w.posts = w.posts, nil
		w.mu.Unlock()
	}
	meanwhile()
	for _, p := range posts {
		p()
	}
}

// The next connection continues at the cursor that a stream leaves: the unsent events follow it.
func TestStream_LeavesWhatTheClientWasGiven(t *testing.T) {
	const size = 10 << 10 // of a frame: more than smallRest
	for name, tt := range map[string]struct {
		room  int
		err   error
		full  bool // the memory of all clients
		reads bool // the client, once its socket is full
		ends  func(*worker, *Connection, *oneStep)
		want  uint64 // the cursor is 5, and events are 11 to 15
	}{
		"all was written": {
			room: 10 * size, want: 15,
			ends: func(w *worker, c *Connection, _ *oneStep) { w.advance(c); w.end(c, "gone") },
		},
		"nothing was there": {
			room: 10 * size, want: 20,
			ends: func(w *worker, c *Connection, from *oneStep) {
				from.items, from.Cursor = nil, 20
				w.advance(c)
				w.end(c, "gone")
			},
		},
		"it continues after a gap": {
			room: 10 * size, want: 15,
			ends: func(w *worker, c *Connection, from *oneStep) { w.serveOwn(c, from.withGap()); w.end(c, "gone") },
		},
		"it ends at a gap": {
			room: 10 * size, want: 10,
			ends: func(w *worker, c *Connection, from *oneStep) {
				c.EndsAtGap = true
				w.serveOwn(c, from.withGap())
			},
		},
		"it ends at a gap, and its socket is full": {
			room: 3, reads: true, want: 10,
			ends: func(w *worker, c *Connection, from *oneStep) {
				c.EndsAtGap, c.Head = true, []byte("HTTP/1.1 200 OK\n\n")
				w.serveOwn(c, from.withGap())
				back(w, func() {})
			},
		},
		"the write fails": {
			err: syscall.EPIPE, want: 5,
			ends: func(w *worker, c *Connection, _ *oneStep) { w.advance(c) },
		},
		"the write fails after a roll-back": {
			err: syscall.EPIPE, want: 2,
			ends: func(w *worker, c *Connection, from *oneStep) {
				for i := range from.items {
					from.items[i].Sequence -= 8
				}
				w.serveOwn(c, from.withGap())
			},
		},
		"the client closes during the rest of a frame": {
			room: size * 5 / 2, want: 12,
			ends: func(w *worker, c *Connection, _ *oneStep) { w.advance(c); w.end(c, "gone"); back(w, func() {}) },
		},
		"the rest of a frame is written": {
			room: size * 5 / 2, reads: true, want: 13,
			ends: func(w *worker, c *Connection, _ *oneStep) { w.advance(c); back(w, func() { w.end(c, "gone") }) },
		},
		"the rest of a frame is not written": {
			room: size * 5 / 2, want: 12,
			ends: func(w *worker, c *Connection, _ *oneStep) { w.advance(c); _ = c.conn.Close(); back(w, func() {}) },
		},
		"there is no memory for the rest of a frame": {
			room: size * 5 / 2, full: true, want: 12,
			ends: func(w *worker, c *Connection, from *oneStep) {
				for i := range from.items {
					from.items[i].Segment = window.OfLog
				}
				w.advance(c)
			},
		},
		"the client closes while the log is read": {
			want: 5,
			ends: func(w *worker, c *Connection, from *oneStep) {
				c.phase, c.Step = reading, from.withGap()
				w.end(c, "gone")
				w.back(c)
			},
		},
		"the log cannot be read after a gap": {
			room: 10 * size, want: 5,
			ends: func(w *worker, c *Connection, from *oneStep) {
				from.Pending, from.Cursor = from.withGap().Gaps, 10
				c.phase, c.err = reading, eventlog.ErrUnavailable
				w.back(c)
				w.beat(c)
				w.end(c, "gone")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Config{
				Base: t.Context(), Admission: admission.New(1, 1, 1, func(string) bool { return false }), Logger: slog.New(slog.DiscardHandler),
				Metrics: prometheus.NewRegistry(), WriteTimeout: time.Hour,
			})
			if refused := s.cfg.Admission.Enter(admission.Visit{}); refused != "" {
				t.Fatal(refused)
			}
			s.cfg.Memory = quota.NewPool(1 << 20)
			if tt.full && !s.cfg.Memory.Take("", 1<<20) {
				t.Fatal("the memory is in use")
			}
			from := &oneStep{Reader: cursor.InMemory(emptyWindow(1<<10), window.Place{Session: "s", Stream: "a"}, 5)}
			for n := uint64(11); n <= 15; n++ {
				from.items = append(from.items, window.Item{Stream: "a", Sequence: n, Frame: bytes.Repeat([]byte("x"), size)})
			}
			c := NewSSE(s, from.Reader, Request{Ctx: t.Context()}, false)
			next := &leaving{stream: c}
			c.source, c.Companion = from, next
			here, client := net.Pipe()
			defer func() { _ = client.Close() }()
			if tt.reads {
				go func() { _, _ = io.Copy(io.Discard, client) }()
			}
			w := s.workers[0]
			c.conn, c.raw, c.worker, c.phase = here, brokenSocket{room: tt.room, err: tt.err}, w, live
			heap.Push(&w.timers, c)
			w.listen(c)
			tt.ends(w, c, from)
			if want := from.ID(tt.want); next.at != want {
				t.Errorf("the next connection continues at %q, want %q", next.at, want)
			}
		})
	}
}
