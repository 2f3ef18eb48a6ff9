package subscriber

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// A page has the sequence of its first event, hidden or not.
func TestPollFiltered_HidesTheOld(t *testing.T) {
	at := event.Subject{Session: "s", Stream: "a", Kind: event.Message}
	s := &Service{Connections: delivery.New(delivery.Config{Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})}
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
		w := window.New(1<<20, func(string) {})
		w.Begin(eventlog.State{Origin: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: 1}, 0, 1)
		for n := range uint64(3) {
			w.Append(eventlog.Entry{Sequence: n + 1, Time: time.Unix(0, int64(10*(n+1))), Valid: true, Subject: at, Type: event.DefaultType, Data: []byte("{}"), Final: tt.ended && n == 2}, 0) //nolint:gosec // small
		}
		page, err := s.pollFiltered(t.Context(), cursor.InMemory(w, window.Place{Session: "s", Stream: "a"}, 0), Request{Filter: &delivery.Filter{Since: tt.since}, Limit: tt.limit})
		var got []uint64
		for _, it := range page.Items {
			got = append(got, it.Sequence)
		}
		if err != nil || !slices.Equal(got, tt.got) || page.First != 1 || page.More != tt.more || page.Ended != tt.ended {
			t.Errorf("%s: %+v, %v", name, page, err)
		}
	}
}
