package cursor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
)

var ten = window.Limits{Events: 10, Bytes: 1 << 20}

// opens opens a reader, which the caller closes.
func opens(t *testing.T, ps *Partitions, session string, from Start) *Reader {
	t.Helper()
	return must.Value(ps.Open(waittest.Context(t), window.Place{Session: session, Stream: "a"}, from, ten))(t)
}

// opensAt opens a reader of a place, until the test ends.
func opensAt(t *testing.T, ps *Partitions, at window.Place, from Start, limit window.Limits) *Reader {
	t.Helper()
	r := must.Value(ps.Open(waittest.Context(t), at, from, limit))(t)
	t.Cleanup(r.Close)
	return r
}

// reads expects that a reader's next events are exactly those from first to last.
func reads(t *testing.T, r *Reader, first, last uint64) {
	t.Helper()
	for next := first; next <= last; {
		changed := r.Changed()
		s, err := r.Next(waittest.Context(t))
		if err != nil || len(s.Gaps) > 0 {
			t.Fatalf("%v, gaps %v", err, s.Gaps)
		}
		for _, it := range s.Items {
			if it.Sequence != next {
				t.Fatalf("%d came, want %d", it.Sequence, next)
			}
			next++
		}
		if len(s.Items) == 0 {
			<-changed
		}
	}
}

func TestPartitions_FollowedWhileRead(t *testing.T) {
	f := edgetest.NewLogOf(t, 8)
	ps := lingers(t, f, 0, 0)
	f.Publish("a", 3)
	if n := len(ps.each()); n != 0 || ps.Ready() != nil {
		t.Fatalf("%d partitions are followed before anybody reads", n)
	}
	one, two := opens(t, ps, "s", Start{}), opens(t, ps, "s", Start{})
	reads(t, one, 1, 3)
	p := ps.Of("s")
	one.Close()
	if all := ps.each(); len(all) != 1 || all[0] != p {
		t.Fatalf("followed: %v", all)
	}
	reads(t, two, 1, 3)
	two.Close()
	waittest.Until(t, "the partition is not followed", func() bool { return ps.Of("s") == nil })
	<-p.ctx.Done()

	again := opens(t, ps, "s", Start{})
	defer again.Close()
	if ps.Of("s") == p {
		t.Error("the window of before is used again")
	}
	reads(t, again, 1, 3)
}

func TestPartitions_Linger(t *testing.T) {
	f := edgetest.NewLog(t)
	ps := lingers(t, f, 0, time.Hour)
	f.Publish("a", 3)
	r := opens(t, ps, "s", Start{})
	p := ps.Of("s")
	r.Close()
	r = opens(t, ps, "s", Start{})
	defer r.Close()
	if ps.Of("s") != p {
		t.Error("the partition was followed again")
	}
	ps.unfollow(p) // the timer of the first reader may have been late
	if ps.Of("s") != p {
		t.Error("a partition with a reader is forgotten")
	}
}

// A partition that is followed again uses no earlier state: meanwhile it lost events, has another
// generation, and a name has another life.
func TestPartitions_FollowedAgain(t *testing.T) {
	f := edgetest.NewLog(t)
	ps := lingers(t, f, -1, 0)
	f.Publish("a", 10)
	r := opens(t, ps, "s", Start{})
	reads(t, r, 1, 10)
	five, ten := r.ID(5), r.ID(10)
	r.Close()
	waittest.Until(t, "the partition is not followed", func() bool { return ps.Of("s") == nil })

	f.Restart()
	f.Check(0)
	f.Server.AwaitConn(ps.log.Conn())
	f.Purge(8)
	last := f.Publish("a", 2)
	r = opens(t, ps, "s", Start{After: five})
	if s, err := r.Next(waittest.Context(t)); err != nil || len(s.Gaps) != 1 || s.First != 8 {
		t.Errorf("%v, gaps %v, first %d", err, s.Gaps, s.First)
	}
	r.Close()
	waittest.Until(t, "the partition is not followed", func() bool { return ps.Of("s") == nil })
	r = opens(t, ps, "s", Start{After: ten})
	defer r.Close()
	reads(t, r, last-1, last)
}

// A life can be asked for before a reader is opened, also in a partition that was not followed.
func TestPartitions_LifeOfWhatWasNotFollowed(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	f.Reuse("s", "")
	ps := lingers(t, f, 0, 0)
	if life, ok, err := ps.Life(waittest.Context(t), "s"); err != nil || !ok || life != f.Life("s") {
		t.Errorf("the life is %q, %t, want %q; %v", life, ok, f.Life("s"), err)
	}
	if life, ok, err := ps.Life(waittest.Context(t), "nothing"); err != nil || ok {
		t.Errorf("a session that is not there has the life %q; %v", life, err)
	}
	waittest.Until(t, "the partition is not followed", func() bool { return ps.Of("s") == nil })
}

// Without NATS a partition that is not followed cannot be read, and no client waits for it; a followed
// one can be read.
func TestPartitions_WithoutNATS(t *testing.T) {
	f := edgetest.NewLogOf(t, 2)
	ps := lingers(t, f, 0, time.Hour)
	first, second := inTwoPartitions(f)
	f.PublishTo(first, "a", 2)
	opens(t, ps, first, Start{}).Close()
	f.Server.Stop()
	waittest.Until(t, "the connection is lost", func() bool { return !ps.log.Conn().IsConnected() })
	r := opens(t, ps, first, Start{})
	defer r.Close()
	reads(t, r, 1, 2)
	if _, err := ps.Open(waittest.Context(t), window.Place{Session: second, Stream: "a"}, Start{}, ten); !Transient(err) {
		t.Errorf("the other partition: %v", err)
	}
	if life, ok, err := ps.Life(waittest.Context(t), second); !Transient(err) {
		t.Errorf("the newest life is known without it: %q, %t, %v", life, ok, err)
	}
}

// A partition that NATS does not serve is no reason to send clients to another edge, which cannot read
// it either: this edge serves all other partitions.
func TestPartitions_ReadyWithoutOnePartition(t *testing.T) {
	f := edgetest.NewLogOf(t, 2)
	ps := lingers(t, f, 0, time.Hour)
	js := natstest.JetStream(t, ps.log.Conn())
	lost := ps.log.Partition("s")
	f.Backend.Close() // it has created the log, and would create the partition again
	must.NoError(t, js.DeleteStream(waittest.Context(t), fmt.Sprint("MCP_", lost)))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := ps.Open(ctx, window.Place{Session: "s", Stream: "a"}, Start{}, ten); !Transient(err) {
		t.Fatalf("the partition is read: %v", err)
	}
	if err := ps.Ready(); err != nil || ps.Of("s").begun.Load() != nil {
		t.Errorf("a backfill has begun, or %v", err)
	}
	long := time.Now().Add(-time.Hour)
	ps.Of("s").begun.Store(&long)
	if ps.Ready() == nil {
		t.Error("a backfill that takes an hour is not told of")
	}
}

func TestPartitions_Near(t *testing.T) {
	f := edgetest.NewLogOf(t, 16)
	ps := lingers(t, f, -1, 0)
	n := 0
	next := func() string { n++; return fmt.Sprint("name-", n) }
	if name := ps.Near(next); n != 1 || name != "name-1" {
		t.Errorf("with nothing followed it is %s", name)
	}
	for number := range fewPartitions {
		p := ps.acquire(number)
		t.Cleanup(func() { p.release() })
		must.NoError(t, p.untilReady(waittest.Context(t)))
	}
	js := natstest.JetStream(t, ps.log.Conn())
	f.Backend.Close() // it has created the log, and would create the partition again
	must.NoError(t, js.DeleteStream(waittest.Context(t), fmt.Sprint("MCP_", fewPartitions)))
	lost := ps.acquire(fewPartitions) // readers wait for it
	t.Cleanup(func() { lost.release() })
	used := map[int]bool{}
	for range 100 {
		used[ps.log.Partition(ps.Near(next))] = true
	}
	if len(used) != fewPartitions {
		t.Errorf("100 names lie in %d partitions", len(used))
	}
	for number := range used {
		if ps.followed[number] == nil {
			t.Errorf("partition %d is not followed", number)
		}
	}
}

// Readers are opened and closed, and the partitions with them, while events are published: each reader
// gets all events, in order, also when it resumes.
func TestPartitions_ReadersComeAndGo(t *testing.T) {
	const sessions, readers, events = 6, 12, 80
	f := edgetest.NewLogOf(t, 3)
	for _, backfill := range []int{0, -1} {
		ps := lingers(t, f, backfill, time.Millisecond)
		name := func(n int) string { return fmt.Sprint("s", backfill, "-", n%sessions) }
		var all sync.WaitGroup
		for n := range sessions {
			all.Go(func() {
				for range events {
					f.PublishTo(name(n), "a", 1)
				}
			})
		}
		for n := range readers {
			all.Go(func() {
				random := rand.New(rand.NewPCG(uint64(n), 1)) //nolint:gosec // no secret
				at, got := Start{}, 0
				for got < events {
					r, err := ps.Open(waittest.Context(t), window.Place{Session: name(n), Stream: "a"}, at, ten)
					if err != nil {
						t.Error(err)
						return
					}
					for until := min(got+1+random.IntN(40), events); got < until; {
						changed := r.Changed()
						s, err := r.Next(waittest.Context(t))
						if err != nil || len(s.Gaps) > 0 {
							t.Errorf("%v, gaps %v", err, s.Gaps)
							return
						}
						got += len(s.Items)
						if s.Empty() {
							<-changed
						}
					}
					at = Start{After: r.ID(r.Cursor)}
					r.Close()
				}
				if got != events {
					t.Errorf("%d events, want %d", got, events)
				}
			})
		}
		all.Wait()
	}
}

// One client does not have all requests that are answered with whole events, and others do not wait
// for it.
func TestPartitions_WholeEventsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ps := &Partitions{wholeEvents: quota.NewPool(wholeAtOnce)}
		release := make(chan struct{})
		var greedy sync.WaitGroup
		for range 2 * wholeAtOnce {
			greedy.Go(func() {
				give, err := takeOne(WithClient(t.Context(), "greedy"), ps.wholeEvents)
				if err != nil {
					t.Error(err)
					return
				}
				<-release
				give()
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // of the bubble
		defer cancel()
		give, err := takeOne(WithClient(ctx, "modest"), ps.wholeEvents)
		close(release)
		greedy.Wait()
		must.NoError(t, err)
		give()
		if n := ps.wholeEvents.Used(); n != 0 {
			t.Errorf("%d are still taken", n)
		}
	})
}
