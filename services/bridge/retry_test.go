package bridge

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
)

// pausing stands in for the clock: pauses are over at once, until they are as long as a test
// takes in all.
type pausing struct {
	mu    sync.Mutex
	left  time.Duration
	taken []time.Duration
	done  chan struct{} // closed when no time is left
}

func (p *pausing) after(d time.Duration) <-chan time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left <= 0 {
		return nil // without limit
	}
	p.taken = append(p.taken, d)
	if p.left -= d; p.left <= 0 {
		close(p.done)
	}
	over := make(chan time.Time, 1)
	over <- time.Time{}
	return over
}

// in11Seconds starts a bridge, has a request made, and returns the pauses of the 11 s that
// follow it.
func (s *system) in11Seconds(t *testing.T, url, method string) []time.Duration {
	t.Helper()
	p := &pausing{left: 11 * time.Second, done: make(chan struct{})}
	in := s.start(t, testConfig(url))
	in.host.Times.After = p.after
	name := s.ready(t)
	if method != "" {
		s.request(t, name, "1", method)
	}
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.taken)
}

// L5: a server that asks to be polled every millisecond, and ends each stream at once: its
// standalone stream and that of a call, with a message on each or without. The bridge asked
// 2,887 times in 11 s.
func TestAttackRetryAtOnce(t *testing.T) {
	for _, tt := range []struct {
		method, data string
	}{
		{"", ""}, {"call", ""}, {"", note(1)}, {"call", note(1)},
	} {
		s, up := newSystem(t, eventlog.Settings{}), newServer(t)
		once := func(w *writing) {
			w.stream()
			_, _ = fmt.Fprintf(w, "retry: 1\nid: %s\ndata: %s\n\n", uuid.NewString(), tt.data)
		}
		up.handle("call", func(w *writing, _ *http.Request, _ rpc.Message) { once(w) })
		up.onGet(func(w *writing, r *http.Request) {
			if tt.method != "" && r.Header.Get("Last-Event-ID") == "" {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			once(w)
		})
		if taken := s.in11Seconds(t, up.URL, tt.method); len(taken) > 22 {
			t.Errorf("%+v: the bridge asks %d times, after %v", tt, len(taken), taken[:22])
		}
	}
}

// A server that is polled as MCP has it gets the time that it asks for.
func TestRetry_IsRespected(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.onGet(func(w *writing, _ *http.Request) {
		w.stream()
		_, _ = fmt.Fprint(w, "retry: 10000\n\n")
	})
	if taken := s.in11Seconds(t, up.URL, ""); !slices.Equal(taken, []time.Duration{10 * time.Second, 10 * time.Second}) {
		t.Errorf("the pauses are %v", taken)
	}
}
