package eventlog

import (
	"context"
	"errors"
	"fmt"
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
