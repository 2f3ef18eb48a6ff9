package eventlog

import (
	"errors"
	"slices"
	"sync"
)

// Feed lets the tails of several logs in one process share the messages of one consumer:
// a headers-only tail that has caught up rides on a tail of whole messages, its host, and
// needs no consumer any more. Unless both are the same log on the same server, nothing is shared.
//
// It rides until either of the two ends, and then starts again, as after any interruption.
// A rider never holds up its host: it has a queue, and is dropped when it does not keep up.
// A Feed is safe for concurrent use.
type Feed struct {
	mu    sync.Mutex
	hosts map[int]*attempt // the tail of whole messages of each partition
}

// NewFeed returns a feed for [Log.Share].
func NewFeed() *Feed { return &Feed{hosts: map[int]*attempt{}} }

// errRides ends the wait of a tail that rides on another from then on.
var errRides = errors.New("it rides on another tail")

// errLeft ends an attempt that rode.
var errLeft = errors.New("the tail that it rode on has ended, or was too fast")

// offer lets others ride on a tail, if it is one of whole messages.
func (f *Feed) offer(a *attempt) {
	if f == nil || a.cfg.HeadersOnly {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hosts[a.p] = a
}

func (f *Feed) withdraw(a *attempt) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if host := f.hosts[a.p]; host == a {
		delete(f.hosts, a.p)
	} else if a.cfg.HeadersOnly && host != nil {
		host.drop(a)
	}
}

// join makes a ride on the partition's tail of whole messages if both have caught up and that one is
// not ahead of a: the entries that it receives next are all that a has yet to receive.
func (f *Feed) join(a *attempt) bool {
	if f == nil || !a.cfg.HeadersOnly {
		return false
	}
	// Lock order: rider, feed, host.
	a.mu.Lock()
	defer a.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	host := f.hosts[a.p]
	if host == nil {
		return false
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	if host.ended || !host.caughtUp || a.ended || !a.caughtUp || host.last > a.last || host.server != a.server || !host.state.Created.Equal(a.state.Created) {
		return false
	}
	host.riders = append(host.riders, a)
	a.inbox.riding = true
	return true
}

// drop removes a rider.
func (a *attempt) drop(rider *attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.riders = slices.DeleteFunc(a.riders, func(r *attempt) bool { return r == rider })
}

// leaveRiders closes the inboxes of the riders. The caller holds the lock.
func (a *attempt) leaveRiders() {
	for _, r := range a.riders {
		r.inbox.close()
	}
	a.riders = nil
}

// maxBehind is how many entries a rider may be behind: those of a busy partition in
// some tenths of a second. Without messages they take some 300 B each.
const maxBehind = 1 << 14

// inbox is the queue between a tail and one that rides on it.
type inbox struct {
	riding bool // guarded by the attempt's lock
	filled chan struct{}

	mu      sync.Mutex
	entries []Entry
	taken   []Entry // the entries that take returned last, whose array is used again
	closed  bool
}

func newInbox() inbox { return inbox{filled: make(chan struct{}, 1)} }

// put queues an entry without its message, or closes a queue that is full.
func (b *inbox) put(e Entry) {
	e.Data = nil
	b.mu.Lock()
	if len(b.entries) < maxBehind {
		b.entries = append(b.entries, e)
	} else {
		b.closed = true
	}
	b.mu.Unlock()
	ring(b.filled)
}

func (b *inbox) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	ring(b.filled)
}

// ring puts a token into a channel that has room for one, unless it holds one.
func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// take returns the queued entries, valid until the next call, and whether the queue is closed.
func (b *inbox) take() ([]Entry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken, b.entries = b.entries, b.taken[:0]
	return b.taken, b.closed
}
