package pause

import (
	"sync"
	"time"
)

// Timer is one of [Watch.AfterFunc]. It is safe for concurrent use.
type Timer struct {
	watch *Watch

	mu    sync.Mutex
	timer *time.Timer // nil once it is stopped
	seen  int         // how many pauses and outages had ended when the time began
}

// AfterFunc is [time.AfterFunc] for a timer that a message of a client or of the MCP server can stop. After a pause of
// the process or an outage of NATS such a message may wait to be read, so the time runs once more.
func (w *Watch) AfterFunc(d time.Duration, f func()) *Timer {
	t := &Timer{watch: w}
	t.seen, _ = w.missed()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(d, func() {
		if t.isOver(d) {
			f()
		}
	})
	return t
}

// isOver reports whether the time is over. In an outage, and after a pause or an outage, it begins again.
func (t *Timer) isOver(d time.Duration) bool {
	seen, lasts := t.watch.missed()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer == nil {
		return false
	}
	if lasts || seen > t.seen {
		t.seen = seen
		t.timer.Reset(d)
		return false
	}
	return true
}

// Stop keeps the function from being called, unless it is called already.
func (t *Timer) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}
