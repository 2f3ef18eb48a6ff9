package client

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// buffer counts messages and their bytes, and makes publishers wait while there is
// no room. They get room in the order in which they came, so that a large message
// is not overtaken without end by small ones.
type buffer struct {
	messages, bytes *semaphore.Weighted
	size            int // of the whole buffer, in bytes
	ctx             context.Context
	close           context.CancelFunc // refuses all that wait, and all later ones
}

func newBuffer(messages, bytes int) *buffer {
	b := &buffer{messages: semaphore.NewWeighted(int64(messages)), bytes: semaphore.NewWeighted(int64(bytes)), size: bytes}
	b.ctx, b.close = context.WithCancel(context.Background())
	return b
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
	if b.ctx.Err() != nil {
		return ErrClosed
	}
	if b.messages.TryAcquire(1) {
		if b.bytes.TryAcquire(int64(bytes)) {
			return nil // the common case: no context of its own, no allocation
		}
		b.messages.Release(1)
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	err := b.messages.Acquire(waiting, 1)
	if err == nil {
		if err = b.bytes.Acquire(waiting, int64(bytes)); err == nil {
			return nil
		}
		b.messages.Release(1)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return ErrClosed
}

// free gives room back.
func (b *buffer) free(messages, bytes int) {
	b.messages.Release(int64(messages))
	b.bytes.Release(int64(bytes))
}
