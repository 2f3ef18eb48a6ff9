package eventlog

import "testing"

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
