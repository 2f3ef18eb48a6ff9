package janitor

import (
	"context"
	"errors"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
)

// The due entries of a partition are deleted in one round, though another partition has no leader.
func TestDelete_OtherPartitionFails(t *testing.T) {
	t.Parallel()
	tries := 0
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 2, MaxEventsPerSession: 2}, idle(), deletesNothing, func(s *Service) {
		s.deleter.do = func(p int, f func(context.Context) error) (bool, error) {
			if p == 0 {
				tries++
				return true, eventlog.ErrUnavailable
			}
			return s.leases.Do(p, f)
		}
	})
	name := inPartitions(r.b.Log, "s")[1]
	all := r.publish(t, name, "a", batchSize+3)
	r.announce(t, 1)
	if err := r.deleter.round(); !errors.Is(err, eventlog.ErrUnavailable) || tries != 1 {
		t.Errorf("partition 0 was tried %d times: %v", tries, err)
	}
	must.NoError(t, wantSequences(r.stored(t, name, "a"), all[batchSize+1:]))
}

func TestDelete_LeavesTimeForPublishers(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name string
		took time.Duration
		left int
		want time.Duration
	}{
		{"little is left", 10 * ms, 0, 40 * ms},
		{"a fifth of the time is enough", 10 * ms, 1000, 40 * ms},
		{"as long as it takes to be done in a minute", 10 * ms, 32_000, 20 * ms},
		{"half of the time at most", 10 * ms, 1_000_000, 10 * ms},
		{"a slow server", 2 * time.Second, 100, 8*time.Second - 400*ms},
	} {
		if got := pauseAfter(test.took, test.left); got != test.want {
			t.Errorf("%s: it waits for %s, want %s", test.name, got, test.want)
		}
	}
	for settled, want := range map[time.Duration]time.Duration{0: 10 * ms, 20 * ms: 10 * ms, 1600 * ms: 100 * ms, 4 * time.Minute: time.Second} {
		if got := everyOf(settled); got != want {
			t.Errorf("what is due after %s is looked for every %s, want %s", settled, got, want)
		}
	}
}
