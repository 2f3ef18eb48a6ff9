package janitor

import (
	"fmt"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
)

// A standby reads the same log, and so has the same ledger; it changes nothing.
func TestStandby_LedgerIsEqual(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	settings := eventlog.Settings{Partitions: 1, MaxEventsPerSession: 5, MaxEventsPerStream: 3, MaxAge: 2 * time.Second}
	acting := begin(t, srv, settings, quick())
	acting.acts(t)
	standby := begin(t, srv, settings, quick())
	acting.opened(t, "open", 3)
	first := acting.publish(t, "s", "a", 1)
	busy := acting.publish(t, "s", "b", 9)
	acting.wantTrimmed(t, "s", "b", busy[5], eventlog.Trimmed)
	eventually(t, func() error { return wantSequences(acting.stored(t, "s", "b"), busy[6:]) })
	standby.wantTrimmed(t, "s", "b", busy[5], eventlog.Trimmed)
	eventually(t, func() error { // it does not wait until it is time to ask
		standby.partitions[0].AskDeleted(t.Context())
		if n := standby.metric(t, "pending_entries", ""); n != 0 {
			return fmt.Errorf("%v entries are to be deleted", n)
		}
		return nil
	})
	standby.wantCounts(t)
	eventually(t, func() error {
		if state, err := standby.b.Log.Look(t.Context(), 0); err != nil || state.First <= first[0] {
			return fmt.Errorf("the floor is at %d, %w", state.First, err)
		}
		return nil
	})
	for _, name := range []string{"retained_events", "retained_bytes", "sessions", "streams"} {
		eventually(t, func() error {
			if one, other := acting.metric(t, name, ""), standby.metric(t, name, ""); one != other {
				return fmt.Errorf("%s is %v, and %v at the standby", name, one, other)
			}
			return nil
		})
	}
	standby.wantCounts(t)
	for _, name := range []string{"trims_total", "deleted_entries_total", "copies_total", "floor_moves_total"} {
		if n := standby.metric(t, name, ""); n != 0 {
			t.Errorf("%s of the standby is %v", name, n)
		}
	}
	if standby.lease.Held() {
		t.Error("the standby acts")
	}
}
