package client

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// buffer counts messages and their bytes, and makes publishers wait while there is
// no room. They get room in the order of their calls, so that a large message
// is not overtaken without end by small ones.
type buffer struct {
	size            int64 // in bytes
	messages, bytes *semaphore.Weighted
	closed          context.Context //nolint:containedctx // of the buffer
	close           context.CancelFunc
}

func newBuffer(messages, bytes int) *buffer {
	b := &buffer{size: int64(bytes), messages: semaphore.NewWeighted(int64(messages)), bytes: semaphore.NewWeighted(int64(bytes))}
	b.closed, b.close = context.WithCancel(context.Background())
	return b
}

// take waits for room for one message. It returns [ErrTooLarge], [ErrClosed] or the
// cause of ctx's end when the message gets no room.
func (b *buffer) take(ctx context.Context, bytes int) error {
	if int64(bytes) > b.size {
		return ErrTooLarge
	}
	if ctx.Err() == nil && b.messages.TryAcquire(1) {
		if b.bytes.TryAcquire(int64(bytes)) {
			return nil
		}
		b.messages.Release(1)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(b.closed, func() { cancel(ErrClosed) })()
	if b.messages.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}
	if b.bytes.Acquire(ctx, int64(bytes)) != nil {
		b.messages.Release(1)
		return context.Cause(ctx)
	}
	return nil
}

// free gives the room of a message back.
func (b *buffer) free(bytes int) {
	b.bytes.Release(int64(bytes))
	b.messages.Release(1)
}
