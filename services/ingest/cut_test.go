package ingest_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
)

// What waits for a connection must not overtake what was lost with the one before.
func TestBatch_OrderWhileConnectionsAreCut(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	var l natstest.Link
	in := s.start(t, brief(testConfig()), nats.SetCustomDialer(&l))
	lines, want := pings(1000)
	s.storeAll(t, in, lines, 200, func(int) {
		l.Cut()
		l.Heal()
	})
	if diff := cmp.Diff(want, s.messages(t)); diff != "" {
		t.Error(diff)
	}
}
