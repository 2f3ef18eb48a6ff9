// Package retry repeats a request to the log or the MCP server until it succeeds.
package retry

import (
	"context"
	"time"
)

// The pauses between two attempts: each is twice the one before.
const (
	FirstPause = 50 * time.Millisecond
	LastPause  = time.Second
)

// Do calls try until it succeeds, or ctx ends, and returns ctx's error then.
func Do(ctx context.Context, try func() error) error {
	for pause := FirstPause; try() != nil; pause = min(2*pause, LastPause) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return nil
}
