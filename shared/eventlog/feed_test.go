package eventlog_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func headersOnly(_ *follower, cfg *eventlog.TailConfig) { cfg.HeadersOnly = true }

// feeding returns two logs of one server that share their entries.
func feeding(t *testing.T) (whole, headers *eventlog.Log, feed *eventlog.Feed) {
	t.Helper()
	srv := natstest.Start(t)
	whole, headers = create(t, srv, one()), open(t, srv)
	feed = eventlog.NewFeed()
	whole.Share(feed)
	headers.Share(feed)
	return whole, headers, feed
}

// waitRiders waits until n tails ride. It looks at the log, since a tail joins another at
// a look.
func waitRiders(t *testing.T, l *eventlog.Log, feed *eventlog.Feed, n int) {
	t.Helper()
	waittest.Value(t, fmt.Sprintf("%d tails ride", n), func() int {
		look(t, l)
		return feed.Riders(0)
	}, func(riders int) bool { return riders == n })
}

// wantConsumers waits until there are n consumers, for less time than the server keeps an
// unused one.
func wantConsumers(t *testing.T, l *eventlog.Log, n int) {
	t.Helper()
	began := time.Now()
	waittest.Value(t, fmt.Sprintf("%d consumers", n), func() int {
		return streamOf(t, l, "MCP_0").CachedInfo().State.Consumers
	}, func(got int) bool { return got == n })
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestFeed_HeadersRideOnMessages(t *testing.T) {
	t.Parallel()
	whole, headers, feed := feeding(t)
	publish(t, whole, "s", "t", 0)
	f := follow(t, headers, 0, 0, headersOnly)
	f.waitLast(t, 1)
	host := follow(t, whole, 0, 0)
	host.waitLast(t, 1)
	waitRiders(t, headers, feed, 1)
	publishAll(t, whole, "t", 1, 100)
	f.waitLast(t, 100)
	if f.again() > 0 || f.missed != 0 {
		t.Errorf("%d starts, %d missed", len(f.starts), f.missed)
	}
	wantConsumers(t, headers, 1)
	// It continues by itself when the other one has ended.
	host.stop()
	publish(t, whole, "s", "t", 100)
	f.waitLast(t, 101)
	if f.again() > 1 || len(f.starts) < 2 || f.starts[len(f.starts)-1].Last < 100 {
		t.Errorf("it began with %+v", f.starts)
	}
	for i, e := range f.entries {
		if e.Sequence != uint64(i+1) || !e.Valid || e.Data != nil || e.Size != len(numbered(i)) {
			t.Fatalf("entry %d is %+v", i, e)
		}
	}
	f.stop()
	wantConsumers(t, headers, 0)
}

// In whatever order tails end and begin again, each entry comes once, in order, or is missed
// because it was deleted.
func TestFeed_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		whole, headers, feed := feeding(t)
		host := follow(t, whole, 0, 0)
		var slow sync.RWMutex
		begin := func(after uint64) *follower {
			return follow(t, headers, 0, after, headersOnly, func(f *follower, _ *eventlog.TailConfig) {
				f.onEntry = func(eventlog.Entry) { slow.RLock(); defer slow.RUnlock() }
			})
		}
		rider := begin(0)
		last, deleted := uint64(0), map[uint64]bool{}
		var seen []uint64
		restart := func() {
			rider.stop()
			seen = append(seen, sequences(rider)...)
			rider = begin(rider.last)
		}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0, 1:
				for range rapid.IntRange(1, 30).Draw(rt, "events") {
					last = publish(t, whole, "s", "t", int(last))
				}
			case 2:
				if last > 0 {
					s := rapid.Uint64Range(1, last).Draw(rt, "delete")
					if !deleted[s] {
						must.NoError(rt, whole.Delete(waittest.Context(t), 0, s))
					}
					deleted[s] = true
				}
			case 3:
				host.stop()
				host = follow(t, whole, 0, host.last)
			case 4:
				if rapid.Bool().Draw(rt, "the rider starts again") {
					restart()
				} else {
					// If the last entries were deleted, the two may have handled different
					// last sequences.
					last = publish(t, whole, "s", "t", int(last))
					waitRiders(t, headers, feed, 1)
				}
			case 5:
				slow.Lock()
				for range 20 {
					last = publish(t, whole, "s", "t", int(last))
				}
				host.waitLast(t, last)
				must.Value(headers.Look(waittest.Context(t), 0))(rt)
				slow.Unlock()
			}
		}
		last = publish(t, whole, "s", "end", int(last))
		rider.waitLast(t, last)
		host.stop()
		restart()
		rider.stop()
		times := map[uint64]int{}
		for _, s := range seen {
			times[s]++
		}
		for s := uint64(1); s <= last; s++ {
			if n := times[s]; n > 1 || n == 0 && !deleted[s] {
				rt.Errorf("%d came %d times in %v", s, n, seen)
			}
		}
		if !slices.IsSorted(seen) {
			rt.Errorf("the order is %v", seen)
		}
	})
}

func sequences(f *follower) (all []uint64) {
	for _, e := range f.entries {
		all = append(all, e.Sequence)
	}
	return all
}
