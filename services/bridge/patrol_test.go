package bridge

import (
	"testing"
	"time"

	"rejoin/services/bridge/sessions"
)

// A process that was paused has not heard the edges meanwhile, and no call is cancelled for that.
func TestDeafness_AfterAPause(t *testing.T) {
	var g deafness
	now := time.Now()
	look := func(after time.Duration, connected bool) time.Time {
		now = now.Add(after)
		g.look(now, connected)
		return g.last
	}
	for range 3 {
		if deaf := look(patrolEvery, true); !deaf.IsZero() {
			t.Fatalf("the edges were not heard at %s", deaf)
		}
	}
	if deaf := look(patrolEvery, false); !deaf.Equal(now) {
		t.Error("without a connection the edges are heard")
	}
	if deaf := look(patrolEvery, true); deaf.Equal(now) {
		t.Error("with a connection the edges are not heard")
	}
	if deaf := look(sessions.OrphanedAfter, true); !deaf.Equal(now) {
		t.Error("a paused process hears the edges")
	}
}
