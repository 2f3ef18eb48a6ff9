package client

import (
	"context"
	"sync"
)

// buffer counts messages and their bytes, and makes publishers wait while there is
// no room. They get room in the order in which they came, so that a large message
// is not overtaken without end by small ones.
type buffer struct {
	size   int           // of the whole buffer, in bytes
	turn   chan struct{} // holds a token of the publisher that gets room next; a channel lets the others in in their order
	freed  chan struct{} // holds a token when there may be more room
	closed chan struct{}

	mu              sync.Mutex
	messages, bytes int // free
}

func newBuffer(messages, bytes int) *buffer {
	return &buffer{
		size: bytes, turn: make(chan struct{}, 1), freed: make(chan struct{}, 1), closed: make(chan struct{}),
		messages: messages, bytes: bytes,
	}
}

// take waits for room for one message. It returns [ErrTooLarge], [ErrClosed] or the
// cause of ctx's end when there will be none.
func (b *buffer) take(ctx context.Context, bytes int) error {
	if bytes > b.size {
		return ErrTooLarge
	}
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-b.closed:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for ctx.Err() == nil {
		if b.grant(bytes) {
			return nil
		}
		select {
		case <-b.freed:
		case <-b.closed:
			return ErrClosed
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// grant takes room for a message, if there is.
func (b *buffer) grant(bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.messages < 1 || b.bytes < bytes {
		return false
	}
	b.messages--
	b.bytes -= bytes
	return true
}

// free gives room back.
func (b *buffer) free(messages, bytes int) {
	b.mu.Lock()
	b.messages += messages
	b.bytes += bytes
	b.mu.Unlock()
	select {
	case b.freed <- struct{}{}:
	default:
	}
}
