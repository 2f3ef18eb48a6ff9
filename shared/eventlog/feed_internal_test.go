package eventlog

import (
	"context"
	"errors"
	"testing"

	"rejoin/shared/must"
)

func TestInbox_Full(t *testing.T) {
	b := newInbox()
	for s := range uint64(2 * maxBehind) {
		b.put(Entry{Sequence: s, Data: []byte("x")})
	}
	entries, closed := b.take()
	if !closed || len(entries) != maxBehind {
		t.Fatalf("%d entries, closed %v", len(entries), closed)
	}
	for i, e := range entries {
		if e.Sequence != uint64(i) || e.Data != nil {
			t.Fatalf("entry %d is %+v", i, e)
		}
	}
	select {
	case <-b.filled:
	default:
		t.Error("no rider is told")
	}
}

// Riders returns how many tails ride on the one of a partition.
func (f *Feed) Riders(p int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	host := f.hosts[p]
	if host == nil {
		return 0
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	return len(host.riders)
}

// A tail that has yet to catch up would hold up its rider, and fill its queue with entries that the rider has.
func TestFeed_NoRideOnABackfill(t *testing.T) {
	t.Parallel()
	f := NewFeed()
	host := &attempt{last: 1, inbox: newInbox()}
	rider := &attempt{last: 9, caughtUp: true, cfg: TailConfig{HeadersOnly: true}, inbox: newInbox()}
	f.offer(host)
	if f.join(rider) {
		t.Error("it rides on a tail that is eight entries behind")
	}
	host.last, host.caughtUp = 9, true
	if !f.join(rider) {
		t.Error("it does not ride on a tail that has caught up")
	}
}

func TestBackfillSlot_OfAnInterruptedTail(t *testing.T) {
	slots := NewBackfillSlots(1)
	first, second := &backfillSlot{of: slots}, &backfillSlot{of: slots}
	must.NoError(t, first.take(t.Context()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := second.take(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("a second one began before the first had ended: %v", err)
	}
	first.end()
	first.end()
	must.NoError(t, second.take(t.Context()))
	first.end() // the slot is not its own any more
	if err := first.take(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("it began again before the second had ended: %v", err)
	}
	second.end()
	if len(slots) != 0 {
		t.Errorf("%d slots are still taken", len(slots))
	}
}
