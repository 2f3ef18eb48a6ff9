package bridge

import (
	"context"
	"time"
)

// The pauses between two attempts.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// retry calls try until it succeeds, or ctx ends, and returns ctx's error then.
func retry(ctx context.Context, try func() error) error {
	for pause := firstPause; try() != nil; pause = min(2*pause, lastPause) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return nil
}
