package eventlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestTail_StoredAndNewEvents(t *testing.T) {
	_, l := single(t)
	for n := range 10 {
		publish(t, l, "s", fmt.Sprint(n%2), n)
	}
	tails := map[uint64]*follower{0: follow(t, l, 0, 0), 4: follow(t, l, 0, 4), 10: follow(t, l, 0, 10), 99: follow(t, l, 0, 99)}
	for after, f := range tails {
		f.wait(t, fmt.Sprintf("caught up from %d", after), func() bool { return f.through == 10 })
	}
	for n := 10; n < 20; n++ {
		publish(t, l, "s", fmt.Sprint(n%2), n)
	}
	for after, f := range tails {
		f.waitLast(t, 20)
		from := min(after, 10)
		if len(f.entries) != int(20-from) || f.missed != 0 || f.again() > 0 {
			t.Errorf("from %d: %d entries, %d missed, %d starts", after, len(f.entries), f.missed, len(f.starts))
		}
		for i, e := range f.entries {
			n := int(from) + i
			if e.Sequence != uint64(n+1) || !e.Valid || e.Subject.Stream != fmt.Sprint(n%2) || !bytes.Equal(e.Data, numbered(n)) || e.Size != len(e.Data) {
				t.Fatalf("from %d: entry %d is %+v", after, i, e)
			}
		}
	}
}

// All entries after those that the client holds are removed while these are handled:
// no message comes that could show that the tail has caught up.
func TestTail_RestIsRemovedMeanwhile(t *testing.T) {
	_, l := single(t)
	const n = 4000
	js := newJetStream(t, l)
	for i := range n {
		must.Value(js.PublishAsync("mcp.0.s.=.t", numbered(i)))(t)
	}
	<-js.PublishAsyncComplete()
	removed := make(chan struct{})
	f := follow(t, l, 0, 0, func(f *follower, _ *eventlog.TailConfig) {
		f.onEntry = func(eventlog.Entry) { <-removed }
	})
	f.wait(t, "a start", func() bool { return len(f.starts) > 0 })
	stream := streamOf(t, l, "MCP_0")
	var held uint64
	for held == 0 { // until the client holds the messages that it gets in advance
		for c := range stream.ListConsumers(waittest.Context(t)).Info() {
			held = c.Delivered.Stream
		}
	}
	for s := uint64(n); s > held+1; s-- {
		must.NoError(t, l.Delete(waittest.Context(t), 0, s))
	}
	must.NoError(t, l.Delete(waittest.Context(t), 0, held+1))
	close(removed)
	f.wait(t, "caught up", func() bool { return f.through >= n })
	if got := uint64(len(f.entries)) + f.missed; got != f.last {
		t.Errorf("%d handled or missed of %d", got, f.last)
	}
	last := publish(t, l, "s", "t", n)
	f.waitLast(t, last)
	if got := uint64(len(f.entries)) + f.missed; got != last {
		t.Errorf("%d handled or missed of %d", got, last)
	}
}

// All stored entries are removed before they can be sent, as by an operator's purge: a tail that has caught up
// before reaches the end of the partition all the same.
func TestTail_NewestIsRemovedUnseen(t *testing.T) {
	_, l := single(t)
	last := publish(t, l, "s", "t", 0)
	f := follow(t, l, 0, 0)
	f.wait(t, "caught up", func() bool { return f.through == last })
	must.NoError(t, l.Purge(waittest.Context(t), 0, last+4)) // as if three entries had been stored and removed
	if state := look(t, l); state.Last != last+3 {
		t.Fatalf("the partition ends at %d", state.Last)
	}
	f.wait(t, "caught up again", func() bool { return f.through == last+3 })
	if f.missed != 3 || f.broken != "" {
		t.Errorf("%d missed, %s", f.missed, f.broken)
	}
	f.waitLast(t, publish(t, l, "s", "t", 1))
	if f.missed != 3 || f.broken != "" {
		t.Errorf("%d missed after another event, %s", f.missed, f.broken)
	}
}

// A look at the partition that was in flight while events came in is older than the
// tail; that is no reason to begin again.
func TestTail_LooksDoNotInterrupt(t *testing.T) {
	_, l := single(t)
	f := follow(t, l, 0, 0)
	ctx, stop := context.WithCancel(t.Context())
	var published sync.WaitGroup
	for n := range 4 {
		published.Go(func() {
			for ctx.Err() == nil {
				publish(t, l, "s", fmt.Sprint(n), 0)
			}
		})
	}
	for range 500 { // the tail hears of every look
		look(t, l)
	}
	stop()
	published.Wait()
	state := look(t, l)
	f.waitLast(t, state.Last)
	if f.again() > 0 || f.missed != 0 || uint64(len(f.entries)) != state.Last {
		t.Errorf("%d starts, %d missed, %d entries of %d", len(f.starts), f.missed, len(f.entries), state.Last)
	}
}

func TestTail_HeadersOnly(t *testing.T) {
	_, l := single(t)
	js := newJetStream(t, l)
	sizes := []int{0, 1, 700, 12}
	for i, size := range sizes {
		msg := nats.NewMsg("mcp.0.s.=.t")
		msg.Data = bytes.Repeat([]byte("x"), size)
		if i == 1 || i == 2 {
			msg.Header.Add("Nats-Msg-Size", "999999")
			msg.Header.Add("Nats-Msg-Size", "-1")
		}
		if i == 2 {
			msg.Header.Set(eventlog.HeaderType, "tick")
			msg.Header.Set(eventlog.HeaderFinal, "1")
		}
		must.Value(js.PublishMsg(waittest.Context(t), msg))(t)
	}
	f := follow(t, l, 0, 0, headersOnly)
	f.waitLast(t, 4)
	for i, e := range f.entries {
		if e.Size != sizes[i] || e.Data != nil || e.Final != (i == 2) || e.Type != []string{"message", "message", "tick", "message"}[i] {
			t.Errorf("entry %d is %+v", i, e)
		}
	}
}

func TestTail_InvalidEntries(t *testing.T) {
	l := create(t, natstest.StartParallel(t), eventlog.Settings{Partitions: 4})
	js := newJetStream(t, l)
	home := l.Partition("s")
	away := (home + 1) % 4
	subjects := map[int][]string{
		home: {
			event.Subject{Partition: home, Session: "s", Stream: "t"}.String(),
			fmt.Sprintf("mcp.%d.s.l.=end", home), fmt.Sprintf("mcp.%d.s.=.=clear.t", home),
			fmt.Sprintf("mcp.%d.s.=.a=zz", home), fmt.Sprintf("mcp.%d.s.=.=2e", home), fmt.Sprintf("mcp.%d.=2A.=.t", home),
			fmt.Sprintf("mcp.%d.s.=.caf\u00e9", home), fmt.Sprintf("mcp.%d.s.=.t=open", home), fmt.Sprintf("mcp.%d.s.t", home),
		},
		away: {
			fmt.Sprintf("mcp.%d.s.=.t", away),
		},
	}
	for p, all := range subjects {
		for _, subject := range all {
			must.Value(js.Publish(waittest.Context(t), subject, numbered(1)))(t)
		}
		f := follow(t, l, p, 0)
		f.waitLast(t, uint64(len(all)))
		for i, e := range f.entries {
			if want := p == home && i < 3; e.Valid != want || e.RawSubject != all[i] {
				t.Errorf("%s is valid: %v", e.RawSubject, e.Valid)
			}
		}
	}
	types := []string{"tick", "close", "", "a\tb", "gap", "message"}
	for _, typ := range types {
		msg := nats.NewMsg(subjects[home][0])
		msg.Header.Set(eventlog.HeaderType, typ)
		must.Value(js.PublishMsg(waittest.Context(t), msg))(t)
	}
	state := must.Value(l.Look(waittest.Context(t), home))(t)
	f := follow(t, l, home, state.Last-uint64(len(types)))
	f.waitLast(t, state.Last)
	var got []string
	for _, e := range f.entries {
		got = append(got, e.Type)
	}
	if want := []string{"tick", "message", "message", "message", "message", "message"}; !slices.Equal(got, want) {
		t.Errorf("types %q, want %q", got, want)
	}
}

func TestTail_StartFails(t *testing.T) {
	_, l := single(t)
	last := publish(t, l, "s", "t", 1)
	attempts := 0
	f := follow(t, l, 0, 0, func(_ *follower, cfg *eventlog.TailConfig) {
		start := cfg.Start
		cfg.Start = func(ctx context.Context, state eventlog.State) (uint64, error) {
			if attempts++; attempts < 3 {
				return 0, errors.New("not yet")
			}
			return start(ctx, state)
		}
	})
	f.waitLast(t, last)
}

// A tail has caught up with the entries that the partition held when it began, though more are stored all the time.
func TestTail_CatchesUpWhileMoreIsStored(t *testing.T) {
	_, l := single(t)
	js := newJetStream(t, l)
	store := func(n int) {
		for range n {
			must.Value(js.Publish(waittest.Context(t), "mcp.0.s.=.t", make([]byte, 100_000)))(t)
		}
	}
	store(50) // which takes several requests
	first, goOn := make(chan struct{}), make(chan struct{})
	began := sync.OnceFunc(func() { close(first) })
	through := make(chan uint64, 1)
	f := follow(t, l, 0, 0, func(f *follower, cfg *eventlog.TailConfig) {
		f.onEntry = func(eventlog.Entry) {
			began()
			<-goOn
		}
		caughtUp := cfg.CaughtUp
		cfg.CaughtUp = func(sequence, missed uint64) {
			caughtUp(sequence, missed)
			through <- sequence
		}
	})
	waittest.Receive(t, "it reads", first)
	store(5)
	close(goOn)
	if got := waittest.Receive(t, "it has caught up", through); got != 50 {
		t.Errorf("it has caught up at %d, not at 50", got)
	}
	f.waitLast(t, 55)
}

// An attempt that fails gives its slot back: else the next one would wait for it.
func TestTail_FailedAttemptGivesItsSlotBack(t *testing.T) {
	_, l := single(t)
	slots := eventlog.NewBackfillSlots(1)
	ctx, end := context.WithCancel(t.Context())
	failed := errors.New("it cannot begin")
	err := l.Tail(ctx, 0, eventlog.TailConfig{
		Slots: slots,
		Start: func(context.Context, eventlog.State) (uint64, error) {
			if len(slots) != 1 {
				t.Error("it begins without a slot")
			}
			end()
			return 0, failed
		},
		Handle:   func(eventlog.Entry, uint64) {},
		CaughtUp: func(uint64, uint64) {},
	})
	if !errors.Is(err, context.Canceled) || len(slots) != 0 {
		t.Errorf("%v; %d slots are still taken", err, len(slots))
	}
}

// A tail that begins waits until one that shares its slots has caught up.
func TestTail_BackfillSlots(t *testing.T) {
	t.Parallel()
	settings := one()
	settings.Partitions = 2
	l := create(t, natstest.Start(t), settings)
	for n := range 8 {
		publish(t, l, fmt.Sprint("s", n), "t", n)
	}
	slots, hold, reads := eventlog.NewBackfillSlots(1), make(chan struct{}), make(chan struct{})
	began := sync.OnceFunc(func() { close(reads) })
	one := follow(t, l, 0, 0, func(f *follower, cfg *eventlog.TailConfig) {
		cfg.Slots = slots
		f.onEntry = func(eventlog.Entry) {
			began()
			<-hold
		}
	})
	waittest.Receive(t, "the first one reads", reads)
	var held atomic.Bool
	held.Store(true)
	two := follow(t, l, 1, 0, func(_ *follower, cfg *eventlog.TailConfig) {
		cfg.Slots = slots
		start := cfg.Start
		cfg.Start = func(ctx context.Context, state eventlog.State) (uint64, error) {
			if held.Load() {
				t.Error("the second one has begun")
			}
			return start(ctx, state)
		}
	})
	for range 20 { // it has the time
		must.Value(l.Look(waittest.Context(t), 1))(t)
	}
	held.Store(false)
	close(hold)
	for p, f := range []*follower{one, two} {
		state := must.Value(l.Look(waittest.Context(t), p))(t)
		f.wait(t, fmt.Sprintf("caught up in partition %d", p), func() bool { return f.through == state.Last })
	}
	if len(slots) != 0 {
		t.Errorf("%d slots are taken", len(slots))
	}
}

// A tail that has received no entry for long does not count as stalled at the first event
// that is in flight.
func TestTail_StandsStill(t *testing.T) {
	begin := time.Now()
	var s eventlog.Standing
	for i, step := range []struct {
		after    time.Duration
		at, end  uint64
		standing time.Duration
	}{
		{0, 0, 0, 0},
		{time.Minute, 0, 1, 0},
		{time.Minute + time.Second, 0, 2, time.Second},
		{time.Minute + 2*time.Second, 1, 2, 0},
		{time.Minute + 5*time.Second, 1, 3, 3 * time.Second},
		{time.Minute + 6*time.Second, 3, 3, 0},
		{2 * time.Minute, 3, 3, 0},
		{3 * time.Minute, 3, 4, 0},
		{3*time.Minute + time.Second, 3, 4, time.Second},
	} {
		if got := s.Since(step.at, step.end, begin.Add(step.after)); got != step.standing {
			t.Errorf("step %d: it stands still for %v, want %v", i, got, step.standing)
		}
	}
}
