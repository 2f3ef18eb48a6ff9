package eventlog_test

import (
	"testing"
	"time"

	"rejoin/shared/eventlog"
)

// A tail that has had nothing to do for long does not stand still at the first event that
// is on its way.
func TestTail_StandsStill(t *testing.T) {
	begin := time.Now()
	var s eventlog.Standing
	for i, step := range []struct {
		after    time.Duration
		at, end  uint64
		standing time.Duration
	}{
		{0, 0, 0, 0},
		{time.Minute, 0, 1, 0},
		{time.Minute + time.Second, 0, 2, time.Second},
		{time.Minute + 2*time.Second, 1, 2, 0},
		{time.Minute + 5*time.Second, 1, 3, 3 * time.Second},
		{time.Minute + 6*time.Second, 3, 3, 0},
		{2 * time.Minute, 3, 3, 0},
		{3 * time.Minute, 3, 4, 0},
		{3*time.Minute + time.Second, 3, 4, time.Second},
	} {
		if got := s.Since(step.at, step.end, begin.Add(step.after)); got != step.standing {
			t.Errorf("step %d: it stands still for %v, want %v", i, got, step.standing)
		}
	}
}
