package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// A log that was made on one server of a cluster gets replicas on the others, and gives
// them up again, while events are stored and tailed. Nothing is lost or counted as missed.
func TestSetLimits_ReplicasUnderLoad(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	l := clustered(t, c, 1)
	f := follow(t, l, 0, 0)
	var stored atomic.Pointer[[]uint64]
	var publishing sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer publishing.Wait()
	defer stop()
	publishing.Go(func() {
		var all []uint64
		for ctx.Err() == nil {
			all = append(all, publishOnce(t, l, len(all)))
		}
		stored.Store(&all)
	})
	for _, n := range []int{3, 1, 3} {
		settings := l.Settings()
		settings.Replicas = n
		// A leader may be elected at any moment.
		waittest.NoError(t, func() error {
			err := l.SetLimits(waittest.Context(t), 0, settings)
			if err != nil && !errors.Is(err, eventlog.ErrUnavailable) {
				t.Fatal(err)
			}
			return err
		})
		var state eventlog.State
		look := func() (err error) {
			state, err = l.Look(waittest.Context(t), 0)
			if err != nil && !errors.Is(err, eventlog.ErrUnavailable) {
				t.Fatal(err)
			}
			return err
		}
		waittest.Until(t, "a leader answers", func() bool { return look() == nil })
		if state.Limits.Replicas != n || l.Settings().Replicas != n {
			t.Errorf("there are %d replicas, the settings say %d, want %d", state.Limits.Replicas, l.Settings().Replicas, n)
		}
		// They were all current when SetLimits returned; while events are stored, one may be
		// an event behind at any moment.
		waittest.Until(t, fmt.Sprintf("%d replicas are current", n), func() bool { return look() == nil && state.Current == n })
		if len(state.Generations) != 1 {
			t.Errorf("there are %d generations", len(state.Generations))
		}
	}
	stop()
	publishing.Wait()
	want := *stored.Load()
	f.waitLast(t, want[len(want)-1])
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.missed != 0 || len(f.entries) != len(want) {
		t.Fatalf("the tail has %d of %d events and missed %d", len(f.entries), len(want), f.missed)
	}
	for n, e := range f.entries {
		if e.Sequence != want[n] {
			t.Fatalf("event %d is at %d, stored at %d", n, e.Sequence, want[n])
		}
	}
	if err := l.SetLimits(waittest.Context(t), 0, func() eventlog.Settings { s := l.Settings(); s.Replicas = 5; return s }()); err == nil {
		t.Error("five replicas on three servers are accepted")
	}
}
