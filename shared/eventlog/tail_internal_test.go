package eventlog

import (
	"context"
	"errors"
	"testing"

	"rejoin/shared/must"
)

func TestTurn_OfAnInterruptedTail(t *testing.T) {
	turns := NewTurns(1)
	first, second := &turn{of: turns}, &turn{of: turns}
	must.NoError(t, first.take(t.Context()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := second.take(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("a second one began before the first had ended: %v", err)
	}
	first.end()
	first.end()
	must.NoError(t, second.take(t.Context()))
	first.end() // which is not its own any more
	if err := first.take(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("it began again before the second had ended: %v", err)
	}
	second.end()
	if len(turns) != 0 {
		t.Errorf("%d turns are still taken", len(turns))
	}
}
