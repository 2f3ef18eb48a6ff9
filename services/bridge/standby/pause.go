package standby

import (
	"sync"
	"time"
)

const (
	// beatEvery is the time between two beats.
	beatEvery = 200 * time.Millisecond
	// pausedFor is the time without a beat that shows a pause of the process (SIGSTOP, a frozen container or
	// machine): less than the second that a bridge has to answer before another one takes its name.
	pausedFor = 750 * time.Millisecond
)

// pauses counts the pauses of the process. The zero value has seen none. It is safe for concurrent use.
type pauses struct {
	mu        sync.Mutex
	last      time.Time // the last beat
	seen      int
	confirmed int // after so many the name was this bridge's
}

// beat notes that the process runs. It returns how many pauses the process has had, and whether the name was
// this bridge's after the last.
func (p *pauses) beat() (seen int, confirmed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	// While a machine sleeps, only the wall clock continues.
	if gap := max(now.Sub(p.last), now.Round(0).Sub(p.last.Round(0))); !p.last.IsZero() && gap > pausedFor {
		p.seen++
	}
	p.last = now
	return p.seen, p.confirmed == p.seen
}

// confirm notes that the name was this bridge's after so many pauses.
func (p *pauses) confirm(seen int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.confirmed = max(p.confirmed, seen)
}
