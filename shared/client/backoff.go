package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is how long to wait before the next attempt: first, twice that, and so
// on up to most, and up to a half more at random, so that clients that lost their
// server together do not reconnect together.
type backoff struct {
	first, most time.Duration
	failures    int // in a row
}

// next returns the next wait: at least least, when most allows it.
func (b *backoff) next(least time.Duration) time.Duration {
	top := b.most - b.most/3 // leaves room for the random part
	wait := top
	if b.failures < 32 && b.first <= top>>b.failures {
		wait = b.first << b.failures
	}
	b.failures++
	wait = min(max(wait, least), top)
	return wait + rand.N(wait/2+1) //nolint:gosec // no secret
}

// reset is called when an attempt has made progress.
func (b *backoff) reset() { b.failures = 0 }

// sleep waits, or returns the cause of ctx's end.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
