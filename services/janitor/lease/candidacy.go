package lease

import (
	"time"

	"rejoin/shared/clocks"
)

// The shares of a lease. A server forgets it a whole lease after the last write; its
// holder has stepped down a third of a lease before, by its own clocks.
const (
	renewShare    = 3  // it is renewed every third of it,
	waitShare     = 4  // looked at by others every quarter,
	retryShare    = 12 // tried again after an attempt without an answer,
	takeoverShare = 96 // and after a lost compare-and-set on a lease that is free, or one's own
)

// tenable returns how long a lease is good without another write, for its holder.
func tenable(lease time.Duration) time.Duration { return lease * 2 / 3 }

// Instant is a moment by two clocks: a term ends by the one by which more time has passed.
type Instant = clocks.Instant

// candidacy is the state of one janitor towards the lease: a state machine without clock or
// network. Its driver calls next, does the write that next returns, one at a time,
// and enters the outcome with learn.
//
//	candidate ── written ──▶ acting ── taken, over ──▶ candidate
type candidacy struct {
	id    string
	lease time.Duration

	acting bool
	begun  Instant // when the newest write that succeeded was begun
	// revision is the one that the next write replaces; 0: none, the key must not exist. A
	// restarted server counts from 1 again, so it is good for one connection.
	revision uint64
	link     uint64        // the connection
	tried    Instant       // when the last write was begun
	pause    time.Duration // until the next one
}

// write is an attempt at the lease's record, by compare-and-set.
type write struct {
	revision uint64
	begun    Instant
	link     uint64
}

type result uint8

const (
	written result = iota
	taken          // there is another revision than the one to be replaced
	unknown        // no answer, or one that leaves open whether it was written
)

// outcome is the result of a write, and the state of the lease after it.
type outcome struct {
	result   result
	revision uint64 // the one written, or the existing one
	holder   string // taken: the holder; empty: there is none any more
	gone     bool   // taken: the holder is known to have lost its connection
}

// over reports whether an acting janitor has to step down.
func (c *candidacy) over(now Instant, link uint64) bool {
	return link != c.link || c.begun.Until(now) >= tenable(c.lease)
}

// left returns how long the janitor may continue to act without another write.
func (c *candidacy) left(now Instant) time.Duration {
	return tenable(c.lease) - c.begun.Until(now)
}

// stepDown makes a candidate of an acting janitor. Its record may still exist.
func (c *candidacy) stepDown() {
	c.acting, c.revision, c.pause = false, 0, 0
}

// due returns how long to wait until next.
func (c *candidacy) due(now Instant) time.Duration { return c.pause - c.tried.Until(now) }

// next returns the write that is to be done now.
func (c *candidacy) next(now Instant, link uint64) write {
	if c.acting && c.over(now, link) {
		c.stepDown()
	}
	if link != c.link {
		c.revision = 0
	}
	c.tried = now
	return write{revision: c.revision, begun: now, link: link}
}

// shortRetry is how long a candidate waits at most after an attempt without an answer.
const shortRetry = 50 * time.Millisecond

// learn enters the outcome of a write.
func (c *candidacy) learn(w write, o outcome, now Instant, link uint64) {
	if link != w.link {
		o.result = unknown
	}
	switch o.result {
	case written:
		c.acting, c.begun, c.link, c.revision = true, w.begun, w.link, o.revision
		c.pause = c.lease / renewShare
		if c.over(now, link) {
			c.stepDown()
		}
	case taken:
		c.stepDown()
		switch {
		case o.holder == c.id || o.gone || o.holder == "":
			c.revision, c.link = o.revision, link
			// A server that lags, or whose clock is ahead, lacks the leader's record.
			if w.revision != 0 || o.revision == 0 {
				c.pause = c.lease / takeoverShare
			}
		default:
			c.pause = c.lease / waitShare
		}
	case unknown:
		if !c.acting {
			c.revision = 0
		}
		c.pause = min(c.lease/retryShare, shortRetry)
	}
}
