package delivery

import (
	"container/heap"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/eventlog"
	"rejoin/shared/waittest"
)

func TestToken_Warning(t *testing.T) {
	now := time.Now()
	st := &Stream{beatAt: now.Add(time.Hour), endAt: now.Add(time.Hour), warnAt: now.Add(59 * time.Minute)}
	if due := st.due(); !due.Equal(st.warnAt) {
		t.Errorf("due at %s", due)
	}
	st.warnAt = time.Time{}
	if due := st.due(); !due.Equal(st.endAt) {
		t.Errorf("due at %s", due)
	}
	if expiryWarning != time.Minute {
		t.Errorf("warned %s before", expiryWarning)
	}
}

// A client that cannot resume has the whole drain for its call.
func TestDrain_StreamsThatStayEndLast(t *testing.T) {
	now := time.Now()
	w := newWorker(&Streams{cfg: Config{Drain: time.Hour}})
	st := &Stream{Stays: true, beatAt: now, endAt: now.Add(forever)}
	heap.Push(&w.timers, st)
	w.drainOne(st, now)
	if left := st.endAt.Sub(now); left != time.Hour || st.cause != "drain" {
		t.Errorf("ends after %v because of %q", left, st.cause)
	}
}

func TestHeartbeat_GapIsOwed(t *testing.T) {
	st := NewSSE(&Streams{}, cursor.InMemory(emptyWindow(1<<10), window.Place{Session: "s", Stream: "a"}, 1), Request{}, false)
	st.Reader.Pending = []cursor.Gap{{Reason: cursor.ReasonCleared}}
	if b := string(st.Format.Heartbeat()); b != ":\n\n" {
		t.Errorf("the heartbeat is %q", b)
	}
	st.Reader.Pending = nil
	if b := string(st.Format.Heartbeat()); b == ":\n\n" {
		t.Error("the heartbeat has no cursor")
	}
}

// During an outage every stream tries again twice a second.
func TestStreams_WaitForTheLogInOneLine(t *testing.T) {
	var out waittest.Buffer
	s := New(Config{Logger: slog.New(slog.NewTextHandler(&out, nil)), Metrics: prometheus.NewRegistry()})
	w := s.workers[0]
	for range 10 {
		st := NewSSE(s, cursor.InMemory(emptyWindow(1<<10), window.Place{Session: "s", Stream: "a"}, 1), Request{Ctx: t.Context()}, false)
		heap.Push(&w.timers, st)
		for range 2 {
			st.phase, st.err = reading, eventlog.ErrUnavailable
			w.back(st)
			if st.retryAt.IsZero() {
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

// The next request of a client goes to another edge once proxies know that this one stops.
func TestDrain_HandsOverLate(t *testing.T) {
	w := newWorker(&Streams{cfg: Config{Drain: time.Minute}})
	now := time.Now()
	for range 100 {
		st := &Stream{HandsOver: true, endAt: now.Add(forever)}
		heap.Push(&w.timers, st)
		w.drainOne(st, now)
		if at := st.endAt.Sub(now); at < 30*time.Second || at > time.Minute || st.cause != causeDrain {
			t.Fatalf("it ends after %s, for %s", at, st.cause)
		}
	}
}
