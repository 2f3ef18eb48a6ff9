package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Delete removes the entry at a sequence. An entry that is not there any more is
// no error. Errors wrap [ErrUnavailable].
func (l *Log) Delete(ctx context.Context, p int, sequence uint64) error {
	err := l.stream(p).DeleteMsg(ctx, sequence)
	if err == nil {
		return nil
	}
	// The client keeps no more of the server's answer than its text, which differs
	// with what was there before. So ask.
	if _, getErr := l.get(ctx, p, sequence); errors.Is(getErr, ErrNotFound) {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// Purge removes everything before a sequence. Errors wrap [ErrUnavailable] or [ErrNotFound].
// Only the acting janitor calls it.
func (l *Log) Purge(ctx context.Context, p int, before uint64) error {
	ctx, cancel := l.request(ctx)
	defer cancel()
	return apiError(l.stream(p).Purge(ctx, jetstream.WithPurgeSequence(before)))
}
