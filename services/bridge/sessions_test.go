package bridge

import (
	"testing"
	"time"

	"rejoin/services/bridge/call"
)

// aCall is a call that is no task, and does not wait for its client.
type aCall struct{ call.Server }

func (aCall) held() bool            { return false }
func (aCall) IsTask() bool          { return false }
func (aCall) refreshTask(time.Time) {}

// A call that no edge asks about for long has no client: its edge was killed.
func TestIsOrphaned(t *testing.T) {
	h := &clientSession{demand: takenOver("", nil), up: aCall{}}
	now := time.Now()
	for _, tt := range []struct {
		asked, away time.Duration // before now
		orphaned    bool
	}{
		{time.Second, time.Hour, false},
		{orphanedAfter + time.Second, time.Hour, true},
		{time.Hour, time.Second, false}, // edges could not be heard
	} {
		h.demand.setOpened(now.Add(-tt.asked))
		if got := h.isOrphaned(now, now.Add(-tt.away)); got != tt.orphaned {
			t.Errorf("asked before %s, NATS was away before %s: %t", tt.asked, tt.away, got)
		}
	}
}
