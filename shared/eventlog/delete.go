package eventlog

import (
	"context"
	"errors"
)

// Delete removes the entry at a sequence. An entry that is not there any more is
// no error. Errors wrap [ErrUnavailable].
func (l *Log) Delete(ctx context.Context, p int, sequence uint64) error {
	err := apiError(l.stream(p).DeleteMsg(ctx, sequence))
	if errors.Is(err, ErrNotFound) || gone(err) {
		return nil
	}
	return err
}
