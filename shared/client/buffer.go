package client

import (
	"context"
	"sync"
)

// buffer counts messages and their bytes, and makes publishers wait while there is
// no room. They get room in the order in which they came, so that a large message
// is not overtaken without end by small ones.
type buffer struct {
	mu       sync.Mutex
	messages int // free
	bytes    int // free
	size     int // of the whole buffer, in bytes
	waiting  []*claim
	closed   bool
}

// claim is a publisher that waits for room. granted is closed when it has it, or
// when the buffer is closed.
type claim struct {
	bytes   int
	granted chan struct{}
	refused bool // guarded by the buffer's mu
}

func newBuffer(messages, bytes int) *buffer {
	return &buffer{messages: messages, bytes: bytes, size: bytes}
}

// take waits for room for one message. It returns [ErrTooLarge], [ErrClosed] or the
// cause of ctx's end when there will be none.
func (b *buffer) take(ctx context.Context, bytes int) error {
	if bytes > b.size {
		return ErrTooLarge
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return ErrClosed
	}
	c := &claim{bytes: bytes, granted: make(chan struct{})}
	b.waiting = append(b.waiting, c)
	b.grant()
	b.mu.Unlock()
	select {
	case <-c.granted:
	case <-ctx.Done():
		if b.withdraw(c) {
			return context.Cause(ctx)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.refused {
		return ErrClosed
	}
	return nil
}

// free gives room back.
func (b *buffer) free(messages, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages += messages
	b.bytes += bytes
	b.grant()
}

// close refuses all that wait, and all later ones.
func (b *buffer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, c := range b.waiting {
		c.refused = true
		close(c.granted)
	}
	b.waiting = nil
}

// grant gives room to those who have waited longest. The lock is held.
func (b *buffer) grant() {
	for len(b.waiting) > 0 && b.messages > 0 && b.waiting[0].bytes <= b.bytes {
		c := b.waiting[0]
		b.messages--
		b.bytes -= c.bytes
		b.waiting[0] = nil
		b.waiting = b.waiting[1:]
		close(c.granted)
	}
}

// withdraw ends a wait. It returns false when it had ended already.
func (b *buffer) withdraw(c *claim) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.waiting {
		if b.waiting[i] == c {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.grant() // it may have stood before somebody smaller
			return true
		}
	}
	return false
}
