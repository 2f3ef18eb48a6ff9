package upstream

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"rejoin/services/bridge/pause"
)

// A request that its client cancels ends soon, also while it waits for that client's answer.
func TestIdleTimer_Hurry(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"limited": time.Hour, "unlimited": 0} {
		for _, came := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				ctx, p := NewIdleTimer(t.Context(), timeout, &pause.Watch{})
				defer p.End()
				if came {
					p.Came()
				}
				p.Hurry()
				time.Sleep(cancelGrace)
				synctest.Wait()
				if !errors.Is(context.Cause(ctx), ErrCancelled) {
					t.Errorf("%s, paused %t: it ends with %v", name, came, context.Cause(ctx))
				}
			})
		}
	}
}
