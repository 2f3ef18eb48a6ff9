// Package pause notes the pauses of the process (SIGSTOP, a frozen container, a machine that sleeps): after one the
// bridge's name may be another one's, and what came meanwhile is not read yet.
package pause

import (
	"context"
	"sync"
	"time"
)

const (
	// beatEvery is the time between two beats.
	beatEvery = 200 * time.Millisecond
	// pausedFor is the time without a beat that shows a pause of the process: less than the second that a bridge
	// has to answer before another one takes its name.
	pausedFor = 750 * time.Millisecond
)

// Watch counts the pauses of the process from Start on. It is safe for concurrent use.
type Watch struct {
	mu        sync.Mutex
	last      time.Time // the last beat; zero before Start
	seen      int
	confirmed int // after so many the name was this bridge's
}

// Start begins to count. Run has to follow.
func (w *Watch) Start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = time.Now()
}

// Run beats until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.Seen()
		}
	}
}

// Seen returns how many pauses the process has had. Who asks beats: a timer that ran out in a pause may be ahead
// of Run.
func (w *Watch) Seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.IsZero() {
		return 0
	}
	if Since(w.last) > pausedFor {
		w.seen++
	}
	w.last = time.Now()
	return w.seen
}

// Since is [time.Since] with the time that the machine slept: then only the wall clock continues.
func Since(t time.Time) time.Duration {
	return max(time.Since(t), time.Since(t.Round(0)))
}

// Confirm notes that the name was this bridge's after so many pauses.
func (w *Watch) Confirm(seen int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.confirmed = max(w.confirmed, seen)
}

// IsConfirmed reports whether the name was this bridge's after the last pause.
func (w *Watch) IsConfirmed() bool {
	seen := w.Seen()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.confirmed >= seen
}
