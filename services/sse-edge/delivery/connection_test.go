package delivery

import (
	"bytes"
	"container/heap"
	"context"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/eventlog"
	"rejoin/shared/waittest"
)

// "36500d" is the largest number of days that a flag takes.
func TestWorker_LongestAge(t *testing.T) {
	for _, age := range []time.Duration{36500 * 24 * time.Hour, math.MaxInt64} {
		w, c, now := &worker{of: &Connections{cfg: Config{MaxAge: age}}}, &Connection{}, time.Now()
		for range 20 {
			if w.setTimes(c, now); c.endAt.Before(now.Add(age / 2)) {
				t.Fatalf("a stream that may last %s ends at %s", age, c.endAt)
			}
		}
	}
}

func TestToken_Warning(t *testing.T) {
	now := time.Now()
	c := &Connection{Companion: noCompanion{}, beatAt: now.Add(time.Hour), endAt: now.Add(time.Hour), warnAt: now.Add(59 * time.Minute)}
	if due := c.due(); !due.Equal(c.warnAt) {
		t.Errorf("due at %s", due)
	}
	c.warnAt = time.Time{}
	if due := c.due(); !due.Equal(c.endAt) {
		t.Errorf("due at %s", due)
	}
	if expiryWarning != time.Minute {
		t.Errorf("warned %s before", expiryWarning)
	}
}

// A client that cannot resume has the whole drain for its call.
func TestDrain_StreamsThatStayEndLast(t *testing.T) {
	now := time.Now()
	w := newWorker(&Connections{cfg: Config{Drain: time.Hour}})
	c := &Connection{Companion: noCompanion{}, Stays: true, beatAt: now, endAt: now.Add(forever)}
	heap.Push(&w.timers, c)
	w.drainOne(c, now)
	if left := c.endAt.Sub(now); left != time.Hour || c.endAtReason != "drain" {
		t.Errorf("ends after %v because of %q", left, c.endAtReason)
	}
}

func TestHeartbeat_GapIsOwed(t *testing.T) {
	c := NewSSE(&Connections{}, cursor.InMemory(emptyWindow(1<<10), window.Place{Session: "s", Stream: "a"}, 1), Request{}, false)
	c.Reader.Pending = []cursor.Gap{{Reason: cursor.ReasonCleared}}
	if b := string(c.Format.Heartbeat()); b != ":\n\n" {
		t.Errorf("the heartbeat is %q", b)
	}
	c.Reader.Pending = nil
	if b := string(c.Format.Heartbeat()); b == ":\n\n" {
		t.Error("the heartbeat has no cursor")
	}
}

// backlogSource is a reader below the window: each event takes a read of the log.
type backlogSource struct {
	*cursor.Reader
	takes   time.Duration
	message string
	err     error // of each read
}

func (b backlogSource) Quick(memory []window.Item) (cursor.Step, []window.Item, bool) {
	return cursor.Step{}, memory, false
}

func (b backlogSource) Next(ctx context.Context) (cursor.Step, error) {
	select {
	case <-time.After(b.takes):
	case <-ctx.Done():
		return cursor.Step{}, ctx.Err()
	}
	if b.err != nil {
		return cursor.Step{}, b.err
	}
	b.Cursor++
	frame := window.AppendFrame(nil, []byte("a_0000000_"), b.Cursor, "message", []byte(b.message))
	return cursor.Step{Items: []window.Item{{Stream: "a", Sequence: b.Cursor, Frame: frame, Segment: window.OfLog, FromLog: true}}, First: b.Cursor, More: true}, nil
}

// roomySocket is a socket that takes so many bytes, is full once, and then takes everything.
type roomySocket struct {
	syscall.RawConn
	room  int // 0: it is not full
	taken bytes.Buffer
}

func (s *roomySocket) WriteNow(buffers [][]byte) (int, error) {
	all := bytes.Join(buffers, nil)
	if s.room > 0 {
		all, s.room = all[:min(len(all), s.room)], 0
	}
	return s.taken.Write(all)
}

// socketConn is a connection that is such a socket.
type socketConn struct {
	net.Conn
	socket roomySocket
}

func (c *socketConn) SyscallConn() (syscall.RawConn, error) { return &c.socket, nil }

// A client that receives no bytes for long gives its connection up. A client whose filter hides all of a backlog
// would begin again at the same cursor each time.
func TestHeartbeat_ReadsBelowTheWindow(t *testing.T) {
	const hidden = `{"method":"hidden"}`
	for name, tt := range map[string]struct {
		source  backlogSource
		expires time.Duration
		opens   bool          // with a read
		limit   time.Duration // of a proxy
		room    int
		want    []string
	}{
		"the filter hides all": {
			source: backlogSource{message: hidden, takes: 700 * time.Millisecond},
			want:   []string{"cursor 22", "cursor 43", "cursor 65", "cursor 86"},
		},
		"the log cannot be read": {
			source: backlogSource{err: eventlog.ErrUnavailable, takes: 700 * time.Millisecond},
			want:   []string{"cursor 0", "cursor 0", "cursor 0", "cursor 0"},
		},
		"a read takes long": {
			source: backlogSource{message: hidden, takes: 50 * time.Second},
			want:   []string{":", ":", "cursor 1"},
		},
		"the first read takes long": {
			source: backlogSource{message: hidden, takes: 50 * time.Second}, opens: true,
			want: []string{":", ":", ":", "connect 0"},
		},
		"a heartbeat is cut": {
			source: backlogSource{message: hidden, takes: 50 * time.Second}, opens: true, room: 7,
			want: []string{":", ":", ":", "connect 0"},
		},
		"the first read fails": {
			source: backlogSource{err: eventlog.ErrUnavailable, takes: 20 * time.Second}, opens: true,
			want: []string{":", "retry: 0"},
		},
		"the first read takes longer than a proxy's limit": {
			source: backlogSource{message: hidden, takes: 20 * time.Second}, opens: true, limit: 12 * time.Second,
			want: []string{":", "connect 0", "retry: 0"},
		},
		"the token expires": {
			source: backlogSource{message: hidden, takes: 700 * time.Millisecond}, expires: 80 * time.Second,
			want: []string{"cursor 22", "expiring 29", "cursor 43", "cursor 65", "cursor 86"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{
					Base: t.Context(), Admission: admission.New(1, 1, 1, func(string) bool { return false }), Logger: slog.New(slog.DiscardHandler),
					Metrics: prometheus.NewRegistry(), Heartbeat: 15 * time.Second, MaxAge: time.Hour, RequestLimit: tt.limit,
					SentAway: func(Request, window.Place, error) {}, Retention: func() time.Duration { return 0 },
				})
				at := window.Place{Session: "s", Stream: "a"}
				by := Request{Ctx: t.Context(), Begun: time.Now()}
				if refused := s.cfg.Admission.Enter(by.Visit); refused != "" {
					t.Fatal(refused)
				}
				w := emptyWindow(1 << 10)
				w.Reach(1<<10, 0) // the source reads below it
				tt.source.Reader = cursor.InMemory(w, at, 0)
				c := NewSSE(s, tt.source.Reader, by, false)
				c.source, c.Filter, c.Head = tt.source, &Filter{Methods: []string{"shown"}}, []byte("HTTP/1.1 200 OK\n\n")
				if tt.expires > 0 {
					c.Expires = time.Now().Add(tt.expires)
				}
				here, client := net.Pipe()
				conn := &socketConn{Conn: here, socket: roomySocket{room: tt.room}}
				stop, stopped := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(stopped)
					s.Run(stop)
				}()
				c.Hand(conn, Beginning{Resumes: tt.opens})
				time.Sleep(65 * time.Second)
				_ = client.Close()
				synctest.Wait()
				close(stop)
				<-stopped
				var got []string
				for block := range strings.SplitSeq(strings.TrimSuffix(conn.socket.taken.String(), "\n\n"), "\n\n") {
					if name, value, _ := strings.Cut(block, ": "); name == "retry" && !strings.Contains(value, "\n") {
						block = "event: " + block
					}
					_, id, _ := strings.Cut(block, "id: ")
					id, _, _ = strings.Cut(id, "\n")
					if _, what, ok := strings.Cut(block, "event: "); ok {
						what, _, _ = strings.Cut(what, "\n")
						block = strings.TrimSpace(what + " " + id[strings.LastIndexByte(id, '_')+1:])
					}
					got = append(got, block)
				}
				want := tt.want
				if !tt.opens {
					want = append([]string{"connect 0"}, want...)
				}
				want = append([]string{"HTTP/1.1 200 OK"}, want...)
				if !slices.Equal(got, want) {
					t.Errorf("in 65 s the client receives %q, want %q", got, want)
				}
			})
		})
	}
}

// During an outage every stream tries again twice a second.
func TestStreams_WaitForTheLogInOneLine(t *testing.T) {
	var out waittest.Buffer
	s := New(Config{Logger: slog.New(slog.NewTextHandler(&out, nil)), Metrics: prometheus.NewRegistry()})
	w := s.workers[0]
	for range 10 {
		c := NewSSE(s, cursor.InMemory(emptyWindow(1<<10), window.Place{Session: "s", Stream: "a"}, 1), Request{Ctx: t.Context()}, false)
		heap.Push(&w.timers, c)
		for range 2 {
			c.phase, c.err = reading, eventlog.ErrUnavailable
			w.back(c)
			if c.retryAt.IsZero() {
				t.Fatal("it does not try again")
			}
		}
	}
	if n := strings.Count(out.String(), "an event stream waits for the log"); n != 1 {
		t.Errorf("%d lines: %s", n, out.String())
	}
}

func TestFilter_Shows(t *testing.T) {
	const (
		progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}`
		warning  = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"warning","data":"x"}}`
		odd      = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"WARNING"}}`
		call     = `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}`
		result   = `{"jsonrpc":"2.0","id":1,"result":{"method":"notifications/progress"}}`
		lines    = "{\n\"method\":\r\n\"notifications/progress\"}"
	)
	for _, tt := range []struct {
		filter Filter
		shown  []string
	}{
		{Filter{}, []string{progress, warning, odd, call, result, lines}},
		{Filter{Methods: []string{"notifications/progress"}}, []string{progress, lines}},
		{Filter{Methods: []string{"notifications/*"}}, []string{progress, warning, odd, lines}},
		{Filter{Methods: []string{"notifications/mess*", "sampling/createMessage"}}, []string{warning, odd, call}},
		{Filter{Methods: []string{"*"}}, []string{progress, warning, odd, call, lines}},
		{Filter{Methods: []string{"notifications", "Notifications/*", "x"}}, nil},
		{Filter{Level: 3}, []string{progress, warning, odd, call, result, lines}},
		{Filter{Level: 4}, []string{progress, odd, call, result, lines}},
		{Filter{Level: 4, Methods: []string{"notifications/*"}}, []string{progress, odd, lines}},
		{Filter{Level: 3, Methods: []string{"notifications/message"}}, []string{warning, odd}},
	} {
		var shown []string
		for _, message := range []string{progress, warning, odd, call, result, lines} {
			if tt.filter.Shows(&window.Item{Frame: window.AppendFrame(nil, []byte("a_0000000_"), 7, "tick", []byte(message))}) {
				shown = append(shown, message)
			}
		}
		if !slices.Equal(shown, tt.shown) {
			t.Errorf("%+v shows %q, want %q", tt.filter, shown, tt.shown)
		}
	}
}

// Proxies send the next request of a client to another edge once they know that this one stops.
func TestDrain_HandsOverLate(t *testing.T) {
	w := newWorker(&Connections{cfg: Config{Drain: time.Minute}})
	now := time.Now()
	for range 100 {
		c := &Connection{Companion: noCompanion{}, HandsOver: true, endAt: now.Add(forever)}
		heap.Push(&w.timers, c)
		w.drainOne(c, now)
		if at := c.endAt.Sub(now); at < 30*time.Second || at > time.Minute || c.endAtReason != reasonDrain {
			t.Fatalf("it ends after %s, for %s", at, c.endAtReason)
		}
	}
}
