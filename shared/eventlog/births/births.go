// Package births remembers which streams of a partition have a birth in the log, so that a publisher
// asks for it once for each stream and not for each event. It does no I/O.
package births

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxStreams bounds the streams that are remembered of a partition: some 8 MB.
const maxStreams = 1 << 15

// Births are the streams of a partition that are known to have a birth. What is forgotten is
// asked of the log, which costs two requests. A birth stays in the log as long as the life does, but a
// server that was restarted may have lost it, and the life may be over, and forgotten, when a connection
// has come back: so another [Epoch] makes all of them forgotten.
// The zero Births knows none. It is safe for concurrent use.
type Births struct {
	mu      sync.Mutex
	epoch   Epoch
	born    *simplelru.LRU[Stream, struct{}] // nil: none
	pending map[Stream]*Pending
}

// Stream names a stream.
type Stream struct{ Session, Life, Name string }

// Epoch is what births are remembered with: those of another one are forgotten.
type Epoch struct {
	// Generation is the ID of the partition's newest generation.
	Generation string
	// Unconfirmed is how often publishing went on without the janitor's word.
	Unconfirmed uint64
	// Reconnects is how often the connection to NATS has come back.
	Reconnects uint64
}

// Pending is a birth on its way.
type Pending struct {
	done chan struct{} // closed when err is set
	err  error
}

// Done is closed when the birth is stored or has failed.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Err returns why the birth failed. It may be called when Done is closed.
func (p *Pending) Err() error { return p.err }

// Begin reports whether a stream has a birth. If not, the caller publishes one and then calls
// the function that it gets, unless somebody else does already, for whom it may wait.
func (b *Births) Begin(of Stream, epoch Epoch) (has bool, wait *Pending, finish func(error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.born != nil && b.epoch == epoch {
		if _, has := b.born.Get(of); has {
			return true, nil, nil
		}
	}
	if wait := b.pending[of]; wait != nil {
		return false, wait, nil
	}
	if b.pending == nil {
		b.pending = map[Stream]*Pending{}
	}
	pending := &Pending{done: make(chan struct{})}
	b.pending[of] = pending
	return false, nil, func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.pending, of)
		if err == nil {
			if b.born == nil || b.epoch != epoch {
				b.epoch = epoch
				b.born, _ = simplelru.NewLRU[Stream, struct{}](maxStreams, nil) // fails only without a size
			}
			b.born.Add(of, struct{}{})
		}
		pending.err = err
		close(pending.done)
	}
}
