package janitor

import (
	"fmt"
	"testing"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// wantShares waits until janitors that run at the same time hold so many partitions each, and keep no
// other ledgers.
func wantShares(t *testing.T, all []*running, shares ...int) {
	t.Helper()
	waittest.NoError(t, func() (err error) {
		left := map[int]int{}
		for _, n := range shares {
			left[n]++
		}
		for i, r := range all {
			held := 0
			for p := range r.partitions {
				kept, complete := false, false
				r.partitions[p].With(func(l *ledger.Ledger) { kept, complete = l.Through > 0 || len(l.Accounts) > 0, l.Complete })
				switch acts := r.leases.Acts(p); {
				case acts && !complete:
					return fmt.Errorf("janitor %d has no ledger of partition %d", i, p)
				case !acts && kept:
					return fmt.Errorf("janitor %d keeps a ledger of partition %d", i, p)
				case acts:
					held++
				}
			}
			if left[held]--; left[held] < 0 {
				return fmt.Errorf("janitor %d holds %d partitions, want %v in all", i, held, shares)
			}
		}
		return nil
	})
}

// inPartitions returns the name of a session in each partition, which begins with prefix.
func inPartitions(log *eventlog.Log, prefix string) []string {
	names := make([]string, log.Settings().Partitions)
	for i, found := 0, 0; found < len(names); i++ {
		name := fmt.Sprint(prefix, i)
		if p := log.Partition(name); names[p] == "" {
			names[p] = name
			found++
		}
	}
	return names
}

// Janitors that start and stop share the partitions, and each keeps its own ledgers only. One that has
// a partition trims it.
func TestShares_JanitorsComeAndGo(t *testing.T) {
	srv, settings := natstest.StartParallel(t), eventlog.Settings{Partitions: 5, MaxEventsPerSession: 3}
	cfg := short(quick())
	all := []*running{begin(t, srv, settings, cfg)}
	wantShares(t, all, 5)
	names := inPartitions(all[0].b.Log, "s")
	published := 0
	check := func() {
		t.Helper()
		published++
		for p, name := range names {
			stream := fmt.Sprint("a", published)
			var events []uint64
			for i := range 5 {
				ack := must.Value(all[0].b.Log.Publish(t.Context(), eventlog.Event{Session: name, Stream: stream, Data: fmt.Appendf(nil, `{"i":%d}`, i)}))(t)
				events = append(events, ack.Sequence)
			}
			waittest.NoError(t, func() error { return wantSequences(all[0].stored(t, name, stream), events[2:]) })
			all[0].wantTrimmed(t, name, stream, events[1], eventlog.Trimmed)
			waittest.NoError(t, func() error { // on a slow machine another one may hold it by now
				for _, r := range all {
					if r.leases.Acts(p) {
						return r.compare(t, r.partitions[p])
					}
				}
				return fmt.Errorf("no janitor holds partition %d", p)
			})
		}
		for _, r := range all {
			seen(t, r, "/v1/sessions", func(l sessionList) bool { return l.Total == len(names) })
		}
	}
	check()
	all = append(all, begin(t, srv, settings, cfg))
	wantShares(t, all, 3, 2)
	check()
	all = append(all, begin(t, srv, settings, cfg))
	wantShares(t, all, 2, 2, 1)
	check()
	all[0].kill()
	all = all[1:]
	wantShares(t, all, 3, 2)
	check()
	all[1].stop()
	all = all[:1]
	wantShares(t, all, 5)
	check()
}
