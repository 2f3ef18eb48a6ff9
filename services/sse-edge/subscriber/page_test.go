package subscriber

import (
	"slices"
	"testing"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// A page says what its first event would have been, hidden or not.
func TestSieve_HidesTheOld(t *testing.T) {
	w := window.New(1<<10, func(string) {})
	w.Begin(eventlog.State{Origin: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: 1}, 0, 1)
	r := cursor.InMemory(w, window.Place{Session: "s", Stream: "a"}, 0)
	for name, tt := range map[string]struct {
		since int64
		limit int
		ended bool
		more  bool
		got   []uint64
	}{
		"some":      {15, 10, false, false, []uint64{2, 3}},
		"all":       {99, 10, false, false, nil},
		"none":      {10, 10, false, false, []uint64{1, 2, 3}},
		"and full":  {15, 1, false, true, []uint64{2}},
		"and ended": {99, 10, true, false, nil},
	} {
		v := &sieve{filter: &delivery.Filter{Since: tt.since}, limit: tt.limit}
		found := cursor.Step{Ended: tt.ended}
		var items []window.Item
		for n := range uint64(3) {
			items = append(items, window.Item{Stream: "a", Sequence: n + 1, Time: int64(10 * (n + 1)), Frame: window.AppendFrame(nil, []byte("a_0000000_"), n+1, event.DefaultType, []byte("{}"))}) //nolint:gosec // small
		}
		found.Found(items)
		v.take(r, found)
		var got []uint64
		for _, it := range v.page.Items {
			got = append(got, it.Sequence)
		}
		if !slices.Equal(got, tt.got) || v.page.First != 1 || v.page.More != tt.more || v.page.Ended != tt.ended {
			t.Errorf("%s: %+v", name, v.page)
		}
	}
}
