// Package pause notes the pauses of the process (SIGSTOP, a frozen container, a machine that sleeps): after one
// another bridge may have the name, and the messages of that time are not read yet. It also notes the outages
// of NATS, during which no message of a client arrives, and none of the MCP server is stored.
package pause

import (
	"cmp"
	"context"
	"sync"
	"time"

	"rejoin/shared/clocks"
)

const (
	// beatEvery is the time between two beats.
	beatEvery = 200 * time.Millisecond
	// pausedFor is the time without a beat that shows a pause of the process: less than the second that a bridge
	// has to answer before another one takes its name.
	pausedFor = 750 * time.Millisecond
)

// Watch counts the pauses of the process from Start on, and the outages of NATS. It is safe for concurrent use.
type Watch struct {
	// For is the time without a beat that shows a pause; 0 for 750 ms. It is set before Start.
	For time.Duration

	mu        sync.Mutex
	now       func() clocks.Instant // nil before Start
	last      clocks.Instant        // the last beat
	seen      int
	confirmed int // after so many the name was this bridge's
	outages   int // that have ended
	lasting   int // outages that have not
}

// Start begins to count. Run has to follow.
func (w *Watch) Start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = clocks.New(time.Now)
	w.last = w.now()
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

// Seen returns how many pauses the process has had. Each call is a beat: a timer that ran out in a pause may fire
// before the next beat of Run.
func (w *Watch) Seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now == nil {
		return 0
	}
	now := w.now()
	if w.last.Until(now) > cmp.Or(w.For, pausedFor) {
		w.seen++
	}
	w.last = now
	return w.seen
}

// Outage is a time in which NATS does not answer, or does not store an event, as one part of the bridge sees it. It
// belongs to one goroutine.
type Outage struct {
	watch *Watch
	lasts bool
}

// Outage returns one that has not begun.
func (w *Watch) Outage() *Outage { return &Outage{watch: w} }

// Set notes whether the outage lasts. One that has ended may begin again.
func (o *Outage) Set(lasts bool) {
	if lasts == o.lasts {
		return
	}
	w := o.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.lasts = lasts; lasts {
		w.lasting++
		return
	}
	w.lasting--
	w.outages++
}

// missed returns how many pauses and outages have ended, and whether an outage lasts.
func (w *Watch) missed() (ended int, lasts bool) {
	seen := w.Seen()
	w.mu.Lock()
	defer w.mu.Unlock()
	return seen + w.outages, w.lasting > 0
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
