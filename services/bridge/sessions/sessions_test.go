package sessions

import (
	"os"
	"testing"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/records"
	"rejoin/shared/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// aCall is a call that is no task, and does not wait for its client.
type aCall struct{ call.Server }

func (aCall) Held() bool            { return false }
func (aCall) IsTask() bool          { return false }
func (aCall) RefreshTask(time.Time) {}

// A call that no edge asks about for long has no client: its edge was killed.
func TestIsOrphaned(t *testing.T) {
	var meta records.Metadata
	meta.MCP.Call = &records.OneCall{}
	h := &Session{Demand: TakenOver("", meta, nil), Up: aCall{}}
	now := time.Now()
	for _, tt := range []struct {
		asked, away time.Duration // before now
		orphaned    bool
	}{
		{time.Second, time.Hour, false},
		{OrphanedAfter + time.Second, time.Hour, true},
		{time.Hour, time.Second, false}, // edges could not be heard
	} {
		h.Demand.SetOpened(now.Add(-tt.asked))
		if got := h.IsOrphaned(now, now.Add(-tt.away)); got != tt.orphaned {
			t.Errorf("asked before %s, NATS was away before %s: %t", tt.asked, tt.away, got)
		}
	}
}
