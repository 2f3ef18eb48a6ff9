// Package clocks measures how much time has passed by two clocks: the monotonic one stands still while
// the machine is suspended, and the wall clock may be set.
package clocks

import "time"

// Instant is a moment by both clocks.
type Instant struct{ Mono, Wall time.Duration }

// New returns a function that reads both clocks, given the wall clock.
func New(wall func() time.Time) func() Instant {
	start := time.Now()
	return func() Instant { return Instant{time.Since(start), time.Duration(wall().UnixNano())} }
}

// Until returns how much time has passed, by the clock that shows more.
func (a Instant) Until(b Instant) time.Duration { return max(b.Mono-a.Mono, b.Wall-a.Wall) }
