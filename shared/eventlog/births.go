package eventlog

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"

	"rejoin/shared/event"
)

// maxBirths bounds the streams that are remembered of a partition: some 8 MB.
const maxBirths = 1 << 15

// births are the streams of a partition that are known to have a birth in the log, so that a publisher asks for it
// once for each stream and not for each event. What is forgotten is asked of the log, which costs two requests. A
// birth stays in the log as long as the life does, but a server that was restarted may have lost it, and the life
// may be over, and forgotten, when a connection has come back: so another epoch makes all of them forgotten.
// The zero births knows none. It is safe for concurrent use.
type births struct {
	storing singleflight.Group // by subject

	mu    sync.Mutex
	epoch epoch
	born  *simplelru.LRU[event.Subject, struct{}] // nil: none
}

// epoch is what births are remembered with: those of another one are forgotten.
type epoch struct {
	generation string // the ID of the partition's newest generation
	reconnects uint64 // how often the connection to NATS has come back
}

// has reports whether the birth at a subject is known to be stored.
func (b *births) has(birth event.Subject, now epoch) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.born == nil || b.epoch != now {
		return false
	}
	_, has := b.born.Get(birth)
	return has
}

// add notes a birth that was stored, or found, in an epoch.
func (b *births) add(birth event.Subject, of epoch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.born == nil || b.epoch != of {
		b.epoch = of
		b.born, _ = simplelru.NewLRU[event.Subject, struct{}](maxBirths, nil) // fails only without a size
	}
	b.born.Add(birth, struct{}{})
}
