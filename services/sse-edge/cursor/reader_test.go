package cursor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) {
	os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...))
}

// followLog follows the partitions of a log until the test ends.
func followLog(t *testing.T, f *edgetest.Log, backfill int) *Partitions {
	t.Helper()
	ps := lingers(t, f, backfill, -1)
	waittest.Until(t, "the windows are ready", func() bool { return ps.Ready() == nil })
	return ps
}

// followThrough follows a log, without backfill, over connections that a link makes.
func followThrough(t *testing.T, f *edgetest.Log, link *natstest.Link) *Partitions {
	t.Helper()
	env := daemon.NewEnv(nil)
	l := must.Value(eventlog.Open(waittest.Context(t), f.Server.Connect(nats.SetCustomDialer(link)), env.Log))(t)
	t.Cleanup(l.Close)
	ps := followed(t, l, env, -1, -1)
	waittest.Until(t, "the windows are ready", func() bool { return ps.Ready() == nil })
	return ps
}

// lingers follows the partitions of a log that are read, until the test ends.
func lingers(t *testing.T, f *edgetest.Log, backfill int, linger time.Duration) *Partitions {
	t.Helper()
	env := daemon.NewEnv(nil)
	b := must.Value(backend.Open(waittest.Context(t), backend.Config{NATSURL: f.Server.URL()}, "edge", env.Log))(t)
	t.Cleanup(b.Close)
	return followed(t, b.Log, env, backfill, linger)
}

func followed(t *testing.T, log *eventlog.Log, env daemon.Env, backfill int, linger time.Duration) *Partitions {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ps := New(Config{
		Base: ctx, Log: log, Logger: env.Log, Metrics: env.Metrics, WindowBytes: 1 << 20, Backfill: backfill, Linger: linger, LogReads: 2, Patience: time.Minute,
	})
	var run sync.WaitGroup
	run.Go(func() { ps.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		run.Wait()
	})
	return ps
}

// caughtUp is a window that has caught up with an empty partition.
func caughtUp(budget int) *window.Window {
	w := window.New(budget, func(string) {})
	w.Begin(eventlog.State{Origin: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: 1}, 0, 1)
	w.Reach(0, 0)
	return w
}

// withoutTails returns the partitions of a log without their tails, and one of its partitions, whose window has
// reached a sequence.
func withoutTails(t *testing.T, f *edgetest.Log, end uint64) (*Partitions, *Partition) {
	t.Helper()
	state := must.Value(f.Backend.Log.Look(waittest.Context(t), 0))(t)
	env := daemon.NewEnv(nil)
	ps := New(Config{Base: t.Context(), Log: f.Backend.Log, Logger: env.Log, Metrics: env.Metrics, WindowBytes: 1 << 20, Linger: time.Hour, LogReads: 2, Patience: time.Minute})
	ps.ended = true // no tail begins
	p := ps.acquire(0)
	t.Cleanup(p.release)
	p.window.Begin(state, 0, 1)
	advance(t, p, end)
	return ps, p
}

// advance moves the window of a partition without a tail to a sequence.
func advance(t *testing.T, p *Partition, end uint64) {
	t.Helper()
	must.Value(p.log.Scan(waittest.Context(t), p.number, p.Stats().End, end, func(e eventlog.Entry) bool { p.handle(e, 0); return true }))(t)
	p.window.Reach(end, 0)
}

func streamOf(stream string) window.Place { return window.Place{Session: "s", Stream: stream} }

// After a roll-back the log is of the new generation at once, and the window when its tail
// has started again. Reads of both in between must not be taken for one.
func TestRead_WindowLagsAGeneration(t *testing.T) {
	f := edgetest.NewLog(t)
	s := followLog(t, f, 0)
	last := f.Publish("a", 5)
	p, at := s.Of("s"), streamOf("a")
	waittest.Until(t, "the window has it", func() bool { return p.Stats().End >= last })
	r := opensAt(t, p.of, at, Start{}, ten)

	t.Run("in a read of the log", func(t *testing.T) {
		v := p.window.Read(&r.ChainCursor, r.limit, nil)
		v.Inside, v.Start = false, 4
		var s Step
		if err := r.below(waittest.Context(t), v, &s); err != nil || len(s.Items) != 3 {
			t.Fatalf("below: %v, %d events", err, len(s.Items))
		}
		v.Generation = "an earlier one"
		if err := r.below(waittest.Context(t), v, &s); !errors.Is(err, errOtherGeneration) {
			t.Errorf("below: %v, want that the window is of another generation", err)
		}
	})

	t.Run("in a resume ahead of the window", func(t *testing.T) {
		a := p.window.Attach(at, false, 0)
		defer p.window.Detach(a.Chain)
		a.Gens, a.Generation, a.End = append(a.Gens[:len(a.Gens):len(a.Gens)], event.Generation{ID: "lost", Start: 3}), "lost", 3
		of := r.tagParts()
		of.Generation = "lost"
		id := event.ID{Stream: "a", Tag: of.Tag(), Sequence: 5}
		if err := r.resume(waittest.Context(t), Start{After: id.String()}, a); !errors.Is(err, errOtherGeneration) {
			t.Errorf("resume: %v, want that the window is of another generation", err)
		}
	})
}

// The log's floor may pass a clear while the log is asked for it: then the floor shows that the events
// are removed.
func TestReader_FloorPassesAClear(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 5)
	must.NoError(t, f.Backend.Log.ClearStream(t.Context(), "s", f.Life("s"), "a"))
	last := f.Publish("b", 1)
	var asks sync.Once
	link := natstest.Link{Before: func(data []byte) {
		if bytes.Contains(data, []byte(".=clear")) {
			asks.Do(func() { f.Purge(last) })
		}
	}}
	ps := followThrough(t, f, &link)
	comesTo(t, ps, "s", last)
	p := ps.Of("s")
	r := opensAt(t, p.of, streamOf("a"), Start{}, ten)
	var s Step
	if err := r.below(waittest.Context(t), p.window.Read(&r.ChainCursor, r.limit, nil), &s); err != nil && !errors.Is(err, errReadAgain) || len(s.Items) > 0 {
		t.Errorf("%d cleared events are sent, %v", len(s.Items), err)
	}
}

// A page of a cluster's log may lack the entries below the floor before the leader shows that: the announcement does.
func TestReader_FloorIsAnnounced(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	env := daemon.NewEnv(nil)
	b := must.Value(backend.Create(waittest.Context(t), backend.Config{NATSURL: c.URL()}, "test", eventlog.Settings{Partitions: 1, Replicas: 3}, env.Log))(t)
	t.Cleanup(b.Close)
	var at []uint64
	for n := range 4 {
		waittest.NoError(t, func() error {
			ack, err := b.Log.Publish(waittest.Context(t), eventlog.Event{Session: "s", Stream: "a", Data: []byte(`1`), Key: fmt.Sprint(n)})
			if err == nil {
				at = append(at, ack.Sequence)
			}
			return err
		}, eventlog.ErrUnavailable, eventlog.ErrUnknown)
	}
	ps := followed(t, b.Log, env, -1, -1)
	waittest.Until(t, "the windows are ready", func() bool { return ps.Ready() == nil })
	for _, removed := range at[1:3] { // the first one stays, so that the leader shows no floor
		must.NoError(t, b.Log.Delete(waittest.Context(t), 0, removed))
	}
	floor := nats.NewMsg(event.FloorSubject(0))
	floor.Header.Set("Rejoin-Up-To", fmt.Sprint(at[2]))
	must.Value(b.Conn.RequestMsgWithContext(waittest.Context(t), floor))(t)
	for _, asked := range []uint64{0, at[3] + 1} { // the first page, and one that follows it
		r := opensAt(t, ps, streamOf("a"), Start{}, ten)
		r.Fresh, r.Cursor, r.asked, r.askedFirst, r.doubted = false, at[0], asked, 1, true
		s, err := r.Next(waittest.Context(t))
		if err != nil || len(s.Items) != 1 || s.Items[0].Sequence != at[3] {
			t.Fatalf("the events are %+v, %v", s.Items, err)
		}
		if len(s.Gaps) == 0 || s.Gaps[0].Reason != ReasonExpired {
			t.Errorf("with trims asked for up to %d the gaps are %+v", asked, s.Gaps)
		}
	}
	if n := testutil.ToFloat64(ps.metrics.skipped.WithLabelValues("subject")); n != 0 {
		t.Errorf("%v entries count as ones of no known subject", n)
	}
}

// The log holds all events, and the window none of them.
func TestReader_AboutBelowTheWindow(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 1)
	ps := followLog(t, f, -1)
	for stream, stored := range map[string]bool{"a": true, "b": false} {
		r := opensAt(t, ps, streamOf(stream), Start{}, ten)
		if exists, oldest := r.About(waittest.Context(t)); exists != stored || (oldest != nil) != stored {
			t.Errorf("%s: exists is %t, with an oldest event %t", stream, exists, oldest != nil)
		}
		unanswered, cancel := context.WithCancel(t.Context())
		cancel()
		if exists, oldest := r.About(unanswered); !exists || oldest != nil {
			t.Errorf("%s: when the log does not answer exists is %t, with an oldest event %t", stream, exists, oldest != nil)
		}
	}
}

// The client has an event of the stream that the window has yet to reach.
func TestReader_AboutAheadOfTheWindow(t *testing.T) {
	f := edgetest.NewLog(t)
	first := f.Publish("a", 2) - 1
	_, p := withoutTails(t, f, first-1)
	origin, gens := p.window.Generations()
	for stream, stored := range map[string]bool{"a": true, "b": false} {
		tag := event.TagParts{Origin: origin, Generation: gens[0].ID, Session: "s", Stream: stream}.Tag()
		r := opensAt(t, p.of, streamOf(stream), Start{After: event.ID{Stream: stream, Tag: tag, Sequence: first}.String()}, ten)
		exists, oldest := r.About(waittest.Context(t))
		if exists != stored || (oldest != nil) != stored || stored && *oldest != r.ID(first) {
			t.Errorf("%s: exists is %t, with an oldest event %t", stream, exists, oldest != nil)
		}
	}
}

// A leader that has lost its quorum, and that the other servers replace, shows an end of the log that may not
// be its end: a client that is ahead of it receives no gap.
func TestReader_AheadOfALeaderWithoutAQuorum(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	env := daemon.NewEnv(nil)
	b := must.Value(backend.Create(waittest.Context(t), backend.Config{NATSURL: c.URL()}, "test", eventlog.Settings{Partitions: 1, Replicas: 3}, env.Log))(t)
	t.Cleanup(b.Close)
	before := waittest.Value(t, "the partition has a leader with a quorum", func() eventlog.State {
		state, err := b.Log.Look(waittest.Context(t), 0)
		if err != nil && !errors.Is(err, eventlog.ErrUnavailable) {
			t.Fatal(err)
		}
		return state
	}, func(state eventlog.State) bool { return state.Quorum })
	leader, _, _ := strings.Cut(before.Leader, "@")
	l, err := backend.Open(waittest.Context(t), backend.Config{NATSURL: c.Named(leader).URL()}, "edge", env.Log)
	must.NoError(t, err)
	t.Cleanup(l.Close)
	p := followed(t, l.Log, env, 0, time.Hour).acquire(0)
	defer p.release()
	must.NoError(t, p.untilReady(waittest.Context(t)))
	const beyond = 1000
	place := event.TagParts{Origin: before.Origin, Generation: before.Generation().ID, Session: "s", Stream: "a"}
	id := event.ID{Stream: "a", Tag: place.Tag(), Sequence: beyond}.String()
	a := p.window.Attach(streamOf("a"), false, 0)
	defer p.window.Detach(a.Chain)
	resume := func() (Reader, error) {
		r := Reader{part: p, Place: streamOf("a"), bound: true, Tags: NewTagger(place)}
		err := r.resume(waittest.Context(t), Start{After: id}, a)
		return r, err
	}
	var r Reader
	waittest.NoError(t, func() (err error) {
		r, err = resume()
		return err
	}, eventlog.ErrUnavailable) // on a machine that pauses the leader has heard from no replica for a moment
	if len(r.Pending) != 1 || r.Pending[0].Reason != ReasonRolledBack {
		t.Errorf("with a quorum the gaps are %+v", r.Pending)
	}
	if common, same, err := p.compare(waittest.Context(t), before, before, beyond); err != nil || same || common != before.Last {
		t.Errorf("with a quorum the window and the log have %d in common, %t, %v", common, same, err)
	}

	for _, srv := range c.Servers {
		if srv.Name() != leader {
			srv.Stop()
		}
	}
	waittest.Until(t, "the leader has no quorum", func() bool {
		state, err := l.Log.Look(waittest.Context(t), 0)
		return err != nil || !state.Quorum
	})
	r, err = resume()
	want := errNoQuorum
	if _, err := l.Log.Look(waittest.Context(t), 0); err != nil {
		want = eventlog.ErrUnavailable // the leader has stepped down by now, perhaps before
	}
	if !errors.Is(err, want) || !Transient(err) {
		t.Errorf("without a quorum the gaps are %+v, %v", r.Pending, err)
	}
	alone := before
	alone.Quorum = false
	if _, _, err := p.compare(waittest.Context(t), before, alone, beyond); !errors.Is(err, errNoQuorum) {
		t.Errorf("without a quorum the window is compared: %v", err)
	}
	alone.Generations = slices.Concat(alone.Generations, []event.Generation{{ID: "next", Start: before.Last + 1}})
	if _, same, err := p.compare(waittest.Context(t), before, alone, beyond); same || err != nil {
		t.Errorf("with a new generation: %t, %v", same, err)
	}
}

// A page of such a leader lacks entries that the window has had and evicted since: it is no whole page.
func TestReader_LeaderEndsBelowTheWindow(t *testing.T) {
	f := edgetest.NewLog(t)
	last := f.Publish("a", 3)
	_, p := withoutTails(t, f, last)
	r := must.Value(p.open(waittest.Context(t), streamOf("a"), Start{At: 1, Continues: true}, window.Limits{Events: 10, Bytes: 1 << 20}))(t)
	defer r.Close()
	p.window.Begin(must.Value(p.askLeader(waittest.Context(t)))(t), last+5, last+6)
	p.window.Reach(last+5, 0)
	if s, err := r.Next(waittest.Context(t)); !errors.Is(err, errNoQuorum) || r.Cursor != 1 {
		t.Errorf("it is at %d with %d events and the gaps %v, %v", r.Cursor, len(s.Items), s.Gaps, err)
	}
}

// While the tail may have to empty the window, the window takes over no generation that begins before its end.
func TestPartition_LossAfterALeaderWithoutAQuorum(t *testing.T) {
	f := edgetest.NewLog(t)
	ps := followLog(t, f, 0)
	last := comesTo(t, ps, "s", f.Publish("a", 5))
	p := ps.Of("s")
	state := must.Value(ps.log.Look(waittest.Context(t), 0))(t)
	short := state
	short.Last, short.Quorum = last-2, false
	if _, err := p.start(waittest.Context(t), short); !errors.Is(err, errNoQuorum) {
		t.Fatalf("the tail begins: %v", err)
	}
	if n := p.Stats().Events; n != 5 {
		t.Errorf("the window has %d events, not what it had", n)
	}
	lost := short
	lost.Quorum = true
	lost.Generations = slices.Concat(state.Generations, []event.Generation{{ID: "next", Start: last - 1}})
	p.extend(lost)
	if _, gens := p.window.Generations(); len(gens) != 1 {
		t.Errorf("the window has the generations %v before it was compared", gens)
	}
	if after, err := p.start(waittest.Context(t), lost); err != nil || after != 0 {
		t.Fatalf("the tail begins after %d, %v", after, err)
	}
	if now := p.Stats(); now.Events != 0 || now.End != 0 || len(p.window.Newest()) != 0 {
		t.Errorf("the window has %+v", now)
	}
	if _, gens := p.window.Generations(); len(gens) != 2 {
		t.Errorf("the window has the generations %v", gens)
	}
}

// A leader that stores entries of the quorum later than the server of the edge's consumer has lost none.
func TestPartition_LeaderBehindTheWindow(t *testing.T) {
	t.Parallel()
	f := edgetest.NewLog(t)
	ps := followLog(t, f, 0)
	last := comesTo(t, ps, "s", f.Publish("a", 5))
	p := ps.Of("s")
	state := must.Value(ps.log.Look(waittest.Context(t), 0))(t)
	short := state
	short.Leader, short.Last = "nats-0@2026-01-02T03:04:05Z", last-2
	if after, err := p.start(waittest.Context(t), short); err != nil || after != last {
		t.Errorf("the tail begins after %d, %v", after, err)
	}
	if now := p.Stats(); now.Events != 5 {
		t.Errorf("the window has %+v", now)
	}
}

func TestLookUpTo(t *testing.T) {
	t.Parallel()
	state := eventlog.State{Leader: "nats-0", Last: 7, Quorum: true, Generations: []event.Generation{{ID: "a", Start: 1}}}
	is := func(change func(*eventlog.State)) eventlog.State {
		s := state
		change(&s)
		return s
	}
	whole := is(func(s *eventlog.State) { s.Last = 9 })
	for name, tt := range map[string]struct {
		first eventlog.State
		next  []eventlog.State
		want  eventlog.State
	}{
		"it has all":             {whole, nil, whole},
		"it comes":               {state, []eventlog.State{state, whole}, whole},
		"it does not come":       {state, slices.Repeat([]eventlog.State{state}, lagLooks), state},
		"outside a cluster":      {is(func(s *eventlog.State) { s.Leader = "" }), nil, is(func(s *eventlog.State) { s.Leader = "" })},
		"it leads no more":       {is(func(s *eventlog.State) { s.Quorum = false }), nil, is(func(s *eventlog.State) { s.Quorum = false })},
		"a generation has begun": {state, []eventlog.State{is(func(s *eventlog.State) { s.Generations = []event.Generation{{ID: "b", Start: 8}} })}, is(func(s *eventlog.State) { s.Generations = []event.Generation{{ID: "b", Start: 8}} })},
	} {
		next := tt.next
		got, err := lookUntil(waittest.Context(t), tt.first, 9, func(context.Context) (eventlog.State, error) {
			s := next[0]
			next = next[1:]
			return s, nil
		})
		if err != nil || got.Last != tt.want.Last || got.Generation() != tt.want.Generation() || len(next) > 0 {
			t.Errorf("%s: the log ends at %d in %+v, %v; %d looks are left", name, got.Last, got.Generation(), err, len(next))
		}
	}
	if _, err := lookUntil(waittest.Context(t), state, 9, func(context.Context) (eventlog.State, error) {
		return eventlog.State{}, eventlog.ErrUnavailable
	}); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("a look fails: %v", err)
	}
}

// In a cluster the server of a partition may lose entries while the edge is connected to another one. The
// window does not send them again, as events of the next generation.
func TestPartition_RolledBackWhileTheTailGoesOn(t *testing.T) {
	for name, lost := range map[string]bool{"lost": true, "heard of late": false} {
		t.Run(name, func(t *testing.T) { beginsBeforeTheEnd(t, lost) })
	}
}

func beginsBeforeTheEnd(t *testing.T, lost bool) {
	t.Helper()
	f := edgetest.NewLog(t)
	ps := followLog(t, f, 0)
	common := f.Publish("a", 4)
	last := comesTo(t, ps, "s", f.Publish("a", 2))
	r := opens(t, ps, "s", Start{})
	defer r.Close()
	reads(t, r, 1, last)

	if lost {
		f.Remove(common+1, last)
	}
	eventlogtest.AddGeneration(t, f.Backend.Log, common+1)
	f.Check(0)
	p := ps.Of("s")
	waittest.Until(t, "the window has the generation", func() bool {
		_, gens := p.window.Generations()
		return len(gens) == 2 && p.hasCaughtUp()
	})
	if !lost {
		if n := testutil.ToFloat64(ps.metrics.rollbacks); n != 0 || p.Stats().Events != int(last) {
			t.Errorf("%g roll-backs, and the window has %d events", n, p.Stats().Events)
		}
		next := f.Publish("a", 1)
		reads(t, r, next, next)
		return
	}
	if n := testutil.ToFloat64(ps.metrics.rollbacks); n != 1 || p.Stats().Events != int(common) {
		t.Errorf("%g roll-backs, and the window has %d events", n, p.Stats().Events)
	}
	step, err := r.Next(waittest.Context(t))
	if err != nil || len(step.Gaps) != 1 || step.Gaps[0].Reason != ReasonRolledBack || len(step.Items) != 0 {
		t.Errorf("gaps %+v, and %d events that were sent before, %v", step.Gaps, len(step.Items), err)
	}
	next := f.Publish("a", 1)
	reads(t, r, next, next)
}

// Control entries that were lost and replaced count like events when the window is compared with the log.
func TestPartition_ComparesControlEntries(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 2)
	f.Create("other", "")
	log := f.Backend.Log
	state := must.Value(log.Look(waittest.Context(t), 0))(t)
	for name, want := range map[string]bool{"as it is": true, "replaced": false} {
		p := &Partition{of: &Partitions{compares: quota.NewPool(1)}, log: log, window: caughtUp(1 << 20)}
		p.window.GoOn(state)
		for sequence := range state.Last {
			e := must.Value(log.At(waittest.Context(t), 0, sequence+1))(t)
			if sequence+1 == state.Last && !want {
				e.Time = e.Time.Add(-time.Minute)
			}
			p.window.Append(e, 0)
		}
		if common, same, err := p.compare(waittest.Context(t), state, state, state.Last); err != nil || same != want {
			t.Errorf("%s: the log has what the window has: %t, up to %d; %v", name, same, common, err)
		}
	}
}

// The server loses its newest event, starts again without a janitor, and gives the sequence to
// another event: a reader that had the lost one gets a gap, and the other event.
func TestReader_RolledBackWithoutJanitor(t *testing.T) {
	t.Parallel()
	f := edgetest.NewLog(t)
	common := f.Publish("a", 5)
	stayed := followLog(t, f, 0)
	older := filepath.Join(t.TempDir(), "older")
	must.NoError(t, os.CopyFS(older, os.DirFS(f.Server.Dir()))) // a power cut leaves this
	lost := comesTo(t, stayed, "s", f.Publish("a", 3))
	f.Server.Stop()
	must.NoError(t, errors.Join(os.RemoveAll(f.Server.Dir()), os.Rename(older, f.Server.Dir())))
	place := event.TagParts{Session: "s", Stream: "a"}
	state, _ := f.Backend.Log.State(0)
	place.Origin, place.Generation = state.Origin, state.Generation().ID
	had := event.ID{Stream: "a", Tag: place.Tag(), Sequence: lost}.String()

	f.Server.Start()
	f.Server.AwaitConn(f.Backend.Log.Conn())
	running := followLog(t, f, 0)
	last := f.Publish("a", 4)
	if last < lost {
		t.Fatalf("the newest event is %d, and %d is to have another one", last, lost)
	}
	for _, ps := range []*Partitions{running, stayed} {
		comesTo(t, ps, "s", last)
	}
	check := func(edge string, ps *Partitions, want event.Generation) {
		t.Helper()
		r := opensAt(t, ps, streamOf("a"), Start{After: had}, window.Limits{Events: 100, Bytes: 1 << 20})
		step := must.Value(r.Next(waittest.Context(t)))(t)
		if len(step.Gaps) != 1 || step.Gaps[0].Reason != ReasonRolledBack || len(step.Items) != 4 || step.Items[0].Sequence <= common {
			t.Errorf("%s: %+v, then %d events", edge, step.Gaps, len(step.Items))
		}
		if _, gens := ps.Of("s").window.Generations(); len(gens) != 2 || gens[1] != want {
			t.Errorf("%s: generations %+v, want %+v", edge, gens, want)
		}
	}
	begun := must.Value(f.Backend.Log.Look(waittest.Context(t), 0))(t)
	check("an edge that was there when it happened", stayed, begun.Generation())
	check("an edge that ran", running, begun.Generation())
	check("an edge that starts later", followLog(t, f, 0), begun.Generation())
	f.Begin()
	now, err := f.Backend.Log.Look(waittest.Context(t), 0)
	if err != nil || !slices.Equal(now.Generations, begun.Generations) {
		t.Errorf("a janitor that comes back makes %+v of %+v, %v", now.Generations, begun.Generations, err)
	}
	check("an edge after the janitor", followLog(t, f, 0), begun.Generation())
}

// readThroughRestarts has a client read before and after each restart of the server: without a gap, and
// without a roll-back.
func readThroughRestarts(t *testing.T, restarts int, restart func(*edgetest.Log, *Partitions)) *Partitions {
	t.Helper()
	f := edgetest.NewLog(t)
	ps := followLog(t, f, 0)
	comesTo(t, ps, "s", f.Publish("a", 5))
	r := opensAt(t, ps, streamOf("a"), Start{}, window.Limits{Events: 100, Bytes: 1 << 20})
	for run := range restarts + 1 {
		step, err := r.Next(waittest.Context(t))
		if err != nil || len(step.Gaps) > 0 || len(step.Items) != 5 {
			t.Fatalf("run %d: gaps %+v, %d events, %v", run, step.Gaps, len(step.Items), err)
		}
		if run < restarts {
			restart(f, ps)
			comesTo(t, ps, "s", f.Publish("a", 5))
		}
	}
	if rollbacks := testutil.ToFloat64(ps.metrics.rollbacks); rollbacks > 0 {
		t.Errorf("%g roll-backs", rollbacks)
	}
	return ps
}

// A generation that began while the tail ran is no roll-back when the tail begins again.
func TestReader_RestartedWithoutJanitor(t *testing.T) {
	t.Parallel()
	ps := readThroughRestarts(t, 3, func(f *edgetest.Log, ps *Partitions) {
		before := *ps.Of("s").tailed.Load()
		f.Server.Stop()
		f.Server.Start()
		waittest.Until(t, "the tail has begun before anything is stored", func() bool {
			state, _ := f.Backend.Log.State(0)
			return !ps.Of("s").tailed.Load().SameServer(before) && !state.SameServer(before)
		})
	})
	if skipped := testutil.ToFloat64(ps.metrics.skipped.WithLabelValues("subject")); skipped > 0 {
		t.Errorf("%g entries are strange", skipped)
	}
}

// A roll-back concerns a reader also if it takes another life since.
func TestReader_RolledBackWhileItResumes(t *testing.T) {
	t.Parallel()
	f := edgetest.NewLog(t)
	f.Create("s", "")
	last := f.Publish("a", 5)
	ps := followLog(t, f, 0)
	p := ps.Of("s")
	r := &Reader{part: ps.acquire(p.number), Place: streamOf("a"), limit: window.Limits{Events: 100, Bytes: 1 << 20}}
	t.Cleanup(r.Close)
	a := r.attach(life{token: "before"})
	state, _ := f.Backend.Log.State(0)
	p.window.Rollback(state, last, last+1, last-2)
	id, err := event.ParseID(r.ID(last))
	if err == nil {
		_, _, _, err = r.resolveAgain(waittest.Context(t), id, nil, a)
	}
	must.NoError(t, err)
	if r.Place.Life != f.Life("s") {
		t.Fatalf("it reads life %q", r.Place.Life)
	}
	r.Cursor = last
	step, err := r.Next(waittest.Context(t))
	if err != nil || len(step.Gaps) != 1 || step.Gaps[0].Reason != ReasonRolledBack {
		t.Errorf("gaps %+v, %v", step.Gaps, err)
	}
}

// A partition that is created again with its entries is the same one: no reader receives a gap.
func TestReader_PartitionCreatedAgain(t *testing.T) {
	t.Parallel()
	readThroughRestarts(t, 2, func(f *edgetest.Log, _ *Partitions) {
		f.Server.Stop()
		f.Server.TearMetadata("MCP_0")
		f.Restart()
	})
}

// A subscriber gets the newest events of its place, in the window or the log, or all when there are fewer.
func TestReader_Last(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 5)
	f.PublishTo("x", "a", 1000)
	f.Publish("b", 1)
	f.Publish("a", 2)
	s := followLog(t, f, -1)
	f.Publish("a", 2)
	comesTo(t, s, "s", f.Publish("b", 1))
	for name, tt := range map[string]struct {
		stream string
		last   int
		want   []uint64
	}{
		"of the window":     {"a", 2, edgetest.Sequences(1009, 1010)},
		"one below it":      {"a", 3, edgetest.Sequences(1008, 1010)},
		"far below it":      {"a", 6, append(edgetest.Sequences(4, 5), edgetest.Sequences(1007, 1010)...)},
		"fewer than asked":  {"a", 100, append(edgetest.Sequences(1, 5), edgetest.Sequences(1007, 1010)...)},
		"of the flow":       {"", 2, edgetest.Sequences(1010, 1011)},
		"of the flow's log": {"", 7, append(edgetest.Sequences(5, 5), edgetest.Sequences(1006, 1011)...)},
		"none":              {"c", 3, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := newest(t, s, tt.stream, tt.last)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// The newest events may be ones that the window has yet to reach.
func TestReader_LastAheadOfTheWindow(t *testing.T) {
	f := edgetest.NewLog(t)
	last := f.Publish("a", 5)
	_, p := withoutTails(t, f, last-3)
	opened := make(chan *Reader, 1)
	go func() {
		r, err := p.open(waittest.Context(t), streamOf("a"), Start{Last: 2}, ten)
		if err != nil {
			t.Error(err)
		}
		opened <- r
	}()
	waittest.Until(t, "the log is looked at", func() bool {
		p.looks.mu.Lock()
		defer p.looks.mu.Unlock()
		return p.looks.busy
	})
	advance(t, p, last)
	r := waittest.Receive(t, "the reader is opened", opened)
	defer r.Close()
	if r.Cursor != last-2 {
		t.Errorf("it begins after %d of %d", r.Cursor, last)
	}
}

// Each page of a flow below the window takes a consumer of its own for the trims: there are never more
// than reads of the log.
func TestReader_FlowsReadTrimsInTurns(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 5)
	ps := followLog(t, f, -1)
	all := int64(ps.cfg.LogReads)
	ps.scans.Take("", all)
	next := func(stream string) error {
		r, err := ps.Open(waittest.Context(t), streamOf(stream), Start{}, ten)
		if err != nil {
			return err
		}
		defer r.Close()
		for r.Cursor < 5 {
			if _, err := r.Next(waittest.Context(t)); err != nil {
				return err
			}
		}
		return nil
	}
	flow := make(chan error, 1)
	go func() { flow <- next("") }()
	if err := next("a"); err != nil {
		t.Errorf("a stream waits for flows: %v", err)
	}
	select {
	case err := <-flow:
		t.Errorf("a flow does not wait for others: %v", err)
		return
	default:
	}
	ps.scans.Give("", all)
	must.NoError(t, waittest.Receive(t, "the flow has read", flow))
}

// A read of trims counts in its client's share, so that one client's reads do not delay those of others.
func TestReader_TrimsAreSharedOut(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 5)
	trims := quota.NewPool(8)
	var reading, probed, more atomic.Bool
	link := natstest.Link{Before: func(data []byte) {
		if reading.Load() && bytes.Contains(data, []byte("=trim")) && !probed.Swap(true) {
			more.Store(trims.Take("mallory", 2)) // with the one of the read more than a quarter
		}
	}}
	ps := followThrough(t, f, &link)
	ctx := WithClient(waittest.Context(t), "mallory")
	r := must.Value(ps.Open(ctx, streamOf(""), Start{}, ten))(t)
	defer r.Close()
	ps.scans = trims
	trims.Take("bob", 5)
	reading.Store(true)
	for r.Cursor < 5 {
		must.Value(r.Next(ctx))(t)
	}
	if !probed.Load() || more.Load() {
		t.Errorf("trims are read: %t, and the client gets more than a quarter besides: %t", probed.Load(), more.Load())
	}
}

// A search for the newest events of a stream with few events reads all of the log below the window: one
// client's searches leave slots for others' reads.
func TestReader_LooksForTheNewestAreSharedOut(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 5)
	ps, check := scansOfMallory(t, f, `"headers_only":true`)
	r := must.Value(ps.Open(WithClient(waittest.Context(t), "mallory"), streamOf("a"), Start{Last: 3}, ten))(t)
	defer r.Close()
	check("newest")
}

// scansOfMallory returns the partitions of a log, of whose slots for scans bob has most. check expects that each
// request with one of some texts, since the last check, held a slot of mallory's.
func scansOfMallory(t *testing.T, f *edgetest.Log, texts ...string) (ps *Partitions, check func(name string)) {
	t.Helper()
	scans := quota.NewPool(8)
	scans.Take("bob", 5)
	var reads, counted atomic.Int64
	link := natstest.Link{Before: func(data []byte) {
		if !slices.ContainsFunc(texts, func(text string) bool { return bytes.Contains(data, []byte(text)) }) {
			return
		}
		reads.Add(1)
		if scans.Take("mallory", 2) {
			scans.Give("mallory", 2)
		} else { // with the one of the read more than a quarter
			counted.Add(1)
		}
	}}
	ps = followThrough(t, f, &link)
	ps.scans = scans
	return ps, func(name string) {
		t.Helper()
		if n := reads.Swap(0); n == 0 || counted.Swap(0) != n || scans.Used() != 5 {
			t.Errorf("%s: not all of %d reads were counted; %d places are taken after them", name, n, scans.Used()-5)
		}
	}
}

// Only a few requests that NATS answers with a whole event run at a time.
func TestReader_WholeEventsInTurns(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 4)
	var ps *Partitions
	var needle atomic.Pointer[string] // part of the request
	var requests, held atomic.Int64
	link := natstest.Link{Before: func(data []byte) {
		if part := needle.Load(); part != nil && bytes.Contains(data, []byte(*part)) {
			requests.Add(1)
			held.Add(ps.wholeEvents.Used() + ps.compares.Used())
		}
	}}
	ps = followThrough(t, f, &link)
	last := f.Publish("a", 1) // only this event is in the window
	comesTo(t, ps, "s", last)
	p := ps.Of("s")
	r := opensAt(t, p.of, streamOf("a"), Start{}, ten)
	for _, tt := range []struct {
		name, request string
		ask           func(context.Context) error
	}{
		{"the oldest event", `"next_by_subj":"mcp.0.s.`, func(ctx context.Context) error {
			if exists, oldest := r.About(ctx); !exists || oldest == nil {
				return errors.New("there is no event")
			}
			return nil
		}},
		{"the first event since", `"next_by_subj":"\u003e"`, func(ctx context.Context) error {
			at, err := p.startAt(ctx, time.Now())
			if err == nil && at != last {
				err = fmt.Errorf("it follows %d", at)
			}
			return err
		}},
		{"the newest entry that a tail compares", `"seq":`, func(ctx context.Context) error {
			state, err := p.log.Look(ctx, 0)
			if err == nil {
				_, _, err = p.compare(ctx, state, state, state.Last)
			}
			return err
		}},
		{"the newest entry of a session", `"last_by_subj":"mcp.0.s.\u003e"`, func(ctx context.Context) error {
			of, err := p.fetchLife(ctx, "s")
			if err == nil && !of.found {
				err = errors.New("there is no life")
			}
			return err
		}},
	} {
		requests.Store(0)
		held.Store(0)
		needle.Store(&tt.request)
		if err := tt.ask(waittest.Context(t)); err != nil || requests.Load() == 0 || held.Load() != requests.Load() {
			t.Errorf("%s: %d requests with %d tokens, %v", tt.name, requests.Load(), held.Load(), err)
		}
		needle.Store(nil)
		if n := ps.wholeEvents.Used(); n != 0 {
			t.Errorf("%s: %d tokens are still taken", tt.name, n)
		}
	}
	back := opensAt(t, p.of, streamOf("a"), Start{After: r.ID(last)}, ten)
	ps.wholeEvents.Take("", wholeAtOnce)
	if exists, oldest := back.About(waittest.Context(t)); !exists || oldest != nil { // it does not wait
		t.Errorf("a client that comes back: %t, %v", exists, oldest)
	}
}

// Removed events are no newest ones, and cause no gap.
func TestReader_LastOfRemoved(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 10)
	f.Trim("a", eventlog.Trimmed, edgetest.Sequences(1, 8)...)
	f.Publish("b", 3)
	must.NoError(t, f.Backend.Log.ClearStream(waittest.Context(t), "s", "", "b"))
	last := f.Publish("a", 1)
	inWindow, below := followLog(t, f, 0), followLog(t, f, -1)
	for _, ps := range []*Partitions{inWindow, below} {
		comesTo(t, ps, "s", last)
	}
	for name, tt := range map[string]struct {
		of     *Partitions
		stream string
		last   int
		want   []uint64
	}{
		"trimmed":                  {inWindow, "a", 20, []uint64{9, 10, last}},
		"trimmed, below":           {below, "a", 20, []uint64{9, 10, last}},
		"cleared, of a flow":       {inWindow, "", 3, []uint64{9, 10, last}},
		"cleared, of a log's flow": {below, "", 3, []uint64{last}}, // they are not deleted yet
	} {
		t.Run(name, func(t *testing.T) {
			if got := newest(t, tt.of, tt.stream, tt.last); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// newest returns the newest events of a place; it fails when a gap is reported.
func newest(t *testing.T, s *Partitions, stream string, n int) (all []uint64) {
	t.Helper()
	r := opensAt(t, s, streamOf(stream), Start{Last: n}, window.Limits{Events: 100, Bytes: 1 << 20})
	for {
		step, err := r.Next(waittest.Context(t))
		if err != nil || len(step.Gaps) > 0 {
			t.Fatalf("gaps %+v, %v", step.Gaps, err)
		}
		if step.Empty() {
			return all
		}
		for _, it := range step.Items {
			all = append(all, it.Sequence)
		}
	}
}

// A trim that is stored while a reader pages through the log is noted on its chain, and the
// floor may pass its cursor.
func TestReader_RemovedBetweenTwoPages(t *testing.T) {
	for name, remove := range map[string]func(*edgetest.Log){
		"trim": func(f *edgetest.Log) {
			f.Trim("a", eventlog.Expired, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
		},
		"floor": func(f *edgetest.Log) { f.Purge(17) },
	} {
		t.Run(name, func(t *testing.T) {
			f := edgetest.NewLog(t)
			s := followLog(t, f, -1)
			f.Publish("b", 1) // its entry keeps the floor from moving
			comesTo(t, s, "s", f.Publish("a", 30))
			p := s.Of("s")
			r := opensAt(t, p.of, streamOf("a"), Start{}, window.Limits{Events: 5, Bytes: 1 << 20})
			page := func() (found Step) {
				v := p.window.Read(&r.ChainCursor, r.limit, nil)
				v.Inside, v.Start = false, 25
				must.NoError(t, r.below(waittest.Context(t), v, &found))
				r.Fresh = false
				return found
			}
			for range 2 {
				if found := page(); len(found.Items) != 5 || len(found.Gaps) > 0 {
					t.Fatalf("%d events, gaps %v", len(found.Items), found.Gaps)
				}
			}
			remove(f)
			found := page()
			if len(found.Gaps) != 1 || found.Gaps[0].Reason != ReasonExpired || len(found.Items) == 0 || found.First != 17 {
				t.Errorf("gaps %v, first %d", found.Gaps, found.First)
			}
		})
	}
}

// A trim that is stored after a reader has looked up the trims, and before it looks at the leader, is in no
// answer: the next page asks again.
func TestReader_TrimBetweenLookUpsAndLook(t *testing.T) {
	for name, stream := range map[string]string{"stream": "a", "flow": ""} {
		t.Run(name, func(t *testing.T) {
			f := edgetest.NewLog(t)
			f.Publish("a", 6)
			ps := followLog(t, f, -1)
			p := ps.Of("s")
			r := opensAt(t, p.of, streamOf(stream), Start{}, window.Limits{Events: 2, Bytes: 1 << 20})
			looks := &p.looks
			waittest.Until(t, "no look is under way", func() bool {
				looks.mu.Lock()
				defer looks.mu.Unlock()
				if looks.busy || p.jumpLook.Load() == nil {
					return false
				}
				looks.busy = true // the next look waits for the test
				return true
			})
			type result struct {
				Step
				error
			}
			page := make(chan result, 1)
			go func() {
				s, err := r.Next(waittest.Context(t))
				page <- result{s, err}
			}()
			waittest.Until(t, "the trims were looked up", func() bool {
				looks.mu.Lock()
				defer looks.mu.Unlock()
				return looks.next != nil
			})
			f.Announce("a", eventlog.Trimmed, 3, 4)
			looks.work.Go(looks.run)
			if s := waittest.Receive(t, "the first page", page); s.error != nil || len(s.Items) != 2 || len(s.Gaps) > 0 {
				t.Fatalf("%d events, gaps %+v, %v", len(s.Items), s.Gaps, s.error)
			}
			f.Remove(3, 4)
			s, err := r.Next(waittest.Context(t))
			if err != nil || len(s.Gaps) != 1 || s.Gaps[0].Reason != ReasonTrimmed || !s.Gaps[0].Certain || s.First != 5 {
				t.Errorf("gaps %+v, first %d, %v", s.Gaps, s.First, err)
			}
		})
	}
}

// The patience begins again with each absence of a janitor, but all readers together wait only once for one.
func TestPatience_BeginsWithEachGenerationAndLeader(t *testing.T) {
	p := &patience{limit: time.Hour}
	first := eventlog.State{Origin: "b", Generations: []event.Generation{{ID: "b", Start: 1}}}
	second := first
	second.Generations = append(slices.Clone(first.Generations), event.Generation{ID: "next", Start: 3})
	if p.observe(first) {
		t.Error("no wait")
	}
	p.since = p.since.Add(-2 * time.Hour)
	if !p.observe(first) {
		t.Error("another reader waits for as long")
	}
	if p.observe(second) {
		t.Error("no wait for the next generation")
	}
	p.since = p.since.Add(-2 * time.Hour)
	if second.Leader = "nats-2@later"; p.observe(second) {
		t.Error("no wait for the next leader")
	}
}

// The janitor checks the partition while a reader waits for the check.
func TestReader_GenerationCheckedWhileItWaits(t *testing.T) {
	for damaged, gap := range map[uint64]GapReason{0: "", 5: ReasonDamaged} {
		f := edgetest.NewLog(t)
		f.Publish("a", 10)
		f.Restart()
		p := followLog(t, f, -1).Of("s")
		r := must.Value(p.open(waittest.Context(t), streamOf("a"), Start{Continues: true, At: 4}, window.Limits{Events: 10, Bytes: 1 << 20}))(t)
		t.Cleanup(r.Close)
		var step Step
		read := make(chan error, 1)
		go func() {
			var err error
			step, err = r.Next(waittest.Context(t))
			read <- err
		}()
		waittest.Until(t, "it waits", func() bool {
			p.patience.mu.Lock()
			defer p.patience.mu.Unlock()
			return p.patience.generation != ""
		})
		f.Check(damaged)
		must.NoError(t, <-read)
		if len(step.Items) != 6 || (len(step.Gaps) == 0) != (gap == "") || gap != "" && (step.Gaps[0].Reason != gap || step.Gaps[0].Certain) {
			t.Errorf("damaged up to %d: %+v", damaged, step)
		}
	}
}

// A page of the log is judged by a window that has reached the end of the log at the time of the read.
func TestLooks_WaitForTheWindow(t *testing.T) {
	f := edgetest.NewLog(t)
	s := followLog(t, f, 0)
	p := s.Of("s")
	for range 20 {
		last := f.Publish("a", 1)
		state, err := p.looks.after(waittest.Context(t), p.window.Extent())
		if err != nil || state.Last < last || p.Stats().End < state.Last {
			t.Fatalf("after %d the log ends at %d and the window at %d: %v", last, state.Last, p.Stats().End, err)
		}
	}
}

// A window that changed its generation during a look has not reached the end of the log.
func TestLooks_WindowChangesItsGeneration(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 5)
	state, _ := f.Backend.Log.State(0)
	l := looks{base: t.Context(), look: func(ctx context.Context) (eventlog.State, error) { return f.Backend.Log.Look(ctx, 0) }, window: caughtUp(1 << 20)}
	defer l.work.Wait()
	if _, err := l.after(waittest.Context(t), window.Extent{Origin: state.Origin, Generation: state.Generation().ID}); !errors.Is(err, errOtherGeneration) {
		t.Errorf("the window is at %d: %v", l.window.Stats().End, err)
	}
}

// The log may have an opening before the tail does. A client that waits for the session does
// not receive its end when another client comes meanwhile.
func TestPartition_LogAheadOfTheTail(t *testing.T) {
	f := edgetest.NewLog(t)
	p := &Partition{of: &Partitions{wholeEvents: quota.NewPool(1)}, log: f.Backend.Log, window: caughtUp(1 << 20)}
	attach := func() window.Attachment {
		of := must.Value(p.lifeAt(waittest.Context(t), "s", "", 0))(t)
		return p.window.Attach(window.Place{Session: "s", Life: of.token}, of.found, of.began)
	}
	waiting := attach()
	rec := must.Value(f.Backend.Sessions.Create(waittest.Context(t), session.New("s", "", nil, time.Now())))(t)
	attach()
	p.window.Append(eventlog.Entry{Subject: event.Subject{Session: "s", Kind: event.Open}, Valid: true, Sequence: 1, Data: fmt.Appendf(nil, `{"life":%q}`, rec.Life)}, 0)
	if c := waiting.Chain; c.Place.Life != rec.Life || c.EndedAt != 0 {
		t.Errorf("it waits in life %q, which ends at %d", c.Place.Life, c.EndedAt)
	}
}

// The registry may know a life of a name that the window has yet to reach. Its reader does not receive the end of the
// previous life, and no gap.
func TestReader_LifeAheadOfTheWindow(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	before := f.Publish("a", 1)
	_, p := withoutTails(t, f, before)
	f.Reuse("s", "")
	last := f.Publish("a", 2)
	at := window.Place{Session: "s", Life: f.Life("s"), Stream: "a"}
	origin, gens := p.window.Generations()
	tag := event.TagParts{Origin: origin, Generation: gens[0].ID, Session: "s", Life: at.Life, Stream: "a"}.Tag()
	var readers []*Reader
	for _, from := range []Start{{}, {Now: true}, {After: event.ID{Stream: "a", Tag: tag, Sequence: last - 1}.String()}} {
		r := opensAt(t, p.of, at, from, ten)
		if readers = append(readers, r); r.Finished() {
			t.Errorf("after %q the stream is finished", from.After)
		}
		if s, err := r.Next(waittest.Context(t)); err != nil || !s.Empty() {
			t.Errorf("after %q: %+v, %v", from.After, s, err)
		}
	}
	advance(t, p, last)
	for i, want := range []int{2, 2, 1} {
		if s, err := readers[i].Next(waittest.Context(t)); err != nil || len(s.Items) != want || len(s.Gaps) > 0 || s.Ended {
			t.Errorf("reader %d: %+v, %v", i, s, err)
		}
	}
}

// After an outage of NATS the edge's copy of the registry may have an earlier life of a name than the client's ID.
func TestReader_LifeAheadOfTheRegistry(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	before := f.Publish("a", 1)
	_, p := withoutTails(t, f, before)
	at := window.Place{Session: "s", Life: f.Life("s"), Stream: "a"}
	f.Reuse("s", "")
	last := f.Publish("a", 2)
	origin, gens := p.window.Generations()
	tag := event.TagParts{Origin: origin, Generation: gens[0].ID, Session: "s", Life: f.Life("s"), Stream: "a"}.Tag()
	r, err := p.of.Open(waittest.Context(t), at, Start{After: event.ID{Stream: "a", Tag: tag, Sequence: last - 1}.String()}, ten)
	if !Transient(err) {
		defer r.Close()
		s, nextErr := r.Next(waittest.Context(t))
		t.Errorf("%v, %+v, %v", err, s, nextErr)
	}
}

// A window that was rolled back is filled again from the log: a reader that begins with the next event
// would get the retained ones, and one of the newest events would get more of them.
func TestPartition_OpensNothingWhileTheWindowIsFilledAgain(t *testing.T) {
	f := edgetest.NewLog(t)
	ps := followLog(t, f, 0)
	last := comesTo(t, ps, "s", f.Publish("a", 5))
	p := ps.Of("s")
	state, _ := ps.log.State(0)
	p.window.Rollback(state, 0, 1, last)
	soon, cancel := context.WithCancel(t.Context())
	cancel()
	for _, from := range []Start{{Now: true}, {Last: 2}, {}} {
		if r, err := p.open(soon, streamOf("a"), from, ten); !errors.Is(err, errNotReady) {
			t.Errorf("from %+v: the reader is %+v, %v", from, r, err)
		}
		if r, err := p.tryOpen(waittest.Context(t), streamOf("a"), from, ten); !errors.Is(err, errOtherGeneration) {
			t.Errorf("from %+v, rolled back a moment ago: the reader is %+v, %v", from, r, err)
		}
	}
	if _, err := ps.OpenGroup(soon, []Follow{{Session: "s"}}, Start{}, GroupConfig{}); !errors.Is(err, errNotReady) {
		t.Errorf("a group has the error %v", err)
	}
	p.window.Reach(last, 0)
	r, err := p.open(waittest.Context(t), streamOf("a"), Start{Now: true}, ten)
	if err != nil || r.Cursor != last {
		t.Fatalf("from now, the reader is at %+v, %v; not after %d", r, err, last)
	}
	r.Close()
}

// Another edge was faster, and the entries that it showed were lost before this edge has seen them.
func TestRead_RollbackBehindWindow(t *testing.T) {
	w := caughtUp(1 << 20)
	w.Append(eventlog.Entry{Subject: event.Subject{Session: "s", Stream: "a"}, Valid: true, Sequence: 1, Time: time.Unix(0, 1), Type: "message", Data: []byte("1")}, 0)
	ahead, level := InMemory(w, streamOf("a"), 5), InMemory(w, streamOf("a"), 1)
	fresh := InMemory(w, streamOf("a"), 5) // its client has seen no event that could be lost
	fresh.Fresh = true
	w.GoOn(eventlog.State{Origin: "b", Generations: []event.Generation{{ID: "b", Start: 1}, {ID: "next", Start: 3}}})
	for r, told := range map[*Reader]bool{ahead: true, level: false, fresh: false} {
		v := w.Read(&r.ChainCursor, window.Limits{Events: 1, Bytes: 1}, nil)
		var s Step
		if v.Forks > r.Forks {
			r.rolledBack(v, &s)
		}
		if len(s.Gaps) > 0 != told || told && r.Cursor != 2 {
			t.Errorf("a reader has the gaps %v and the cursor %d", s.Gaps, r.Cursor)
		}
	}
}

// A roll-back is certain only for a client that was sent an event of its stream that is lost.
func TestReader_RolledBackIsCertain(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 2)
	f.PublishTo("x", "a", 2)
	for common, certain := range map[uint64]bool{1: true, 2: false, 3: false} {
		ps := followLog(t, f, 0)
		r := opens(t, ps, "s", Start{})
		reads(t, r, 1, 2)
		rollBack(ps, "s", common, "x")
		step, err := r.Next(waittest.Context(t))
		if err != nil || len(step.Gaps) != 1 || step.Gaps[0].Reason != ReasonRolledBack || step.Gaps[0].Certain != certain {
			t.Errorf("rolled back to %d: gaps %+v, %v", common, step.Gaps, err)
		}
		r.Close()
	}
}

// A window that begins again after a roll-back may begin after the end of a stream: a reader whose cursor is
// before the end reaches it.
func TestReader_EndBelowARolledBackWindow(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	f.Publish("a", 2)
	must.NoError(t, f.Backend.Log.EndStream(waittest.Context(t), "s", f.Life("s"), "a"))
	last := f.PublishTo("x", "a", 3)
	ps := followLog(t, f, 0)
	r := opensAt(t, ps, streamOf("a"), Start{}, window.Limits{Events: 1, Bytes: 1 << 20})
	p := ps.Of("s")
	for n := range 2 {
		if s, err := r.Next(waittest.Context(t)); err != nil || len(s.Items) != 1 || s.Ended {
			t.Fatalf("event %d: %+v, %v", n, s, err)
		}
		if n == 0 {
			state, _ := ps.log.State(0)
			p.window.Rollback(state, last, last+1, last-1)
			p.window.Reach(last, 0)
		}
	}
	if s, err := r.Next(waittest.Context(t)); err != nil || !s.Ended {
		t.Errorf("after the last event: %+v, %v", s, err)
	}
}

// The cursor of a reader that is ahead of its window is named in the window's generation, not in one that
// the log has begun since: that one may have lost the entries there.
func TestReader_AheadOfAWindowOfAnEarlierGeneration(t *testing.T) {
	for name, c := range map[string]struct {
		stored int
		want   event.Verdict
	}{"lost": {5, event.RolledBack}, "not lost": {10, event.Good}} {
		f := edgetest.NewLog(t)
		f.Publish("a", c.stored)
		before, _ := f.Backend.Log.State(0)
		w := caughtUp(1 << 20)
		w.Begin(before, 0, 1)
		w.Reach(8, 0)
		r := InMemory(w, streamOf("a"), 10)
		r.part.log = f.Backend.Log
		f.Restart()
		if _, _, ok := r.Quick(nil); !ok || r.Cursor != 10 {
			t.Fatalf("%s: there is nothing to read, and the cursor is at %d: %t", name, r.Cursor, ok)
		}
		state, _ := f.Backend.Log.State(0)
		id, err := event.ParseID(r.ID(r.Cursor))
		if verdict, common := event.Resolve(id, r.tagParts(), state.Generations); err != nil || verdict != c.want || len(state.Generations) != 2 {
			t.Errorf("%s: in %+v the cursor is %d, with %d in common; %v", name, state.Generations, verdict, common, err)
		}
	}
}

// A view that is older than the look after a jump may lack trims.
func TestReader_ViewBeforeTheLookIsReadAgain(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 5)
	f.Trim("a", eventlog.Trimmed, 3)
	p := followLog(t, f, 0).Of("s")
	r := opensAt(t, p.of, streamOf("a"), Start{}, ten)
	v := p.window.Read(&r.ChainCursor, r.limit, nil)
	v.End--
	if err := r.prove(waittest.Context(t), v, &Step{}); !errors.Is(err, errReadAgain) {
		t.Errorf("a view of %d is enough: %v", v.End, err)
	}
}

// The tail may jump again while the partition is looked at after a jump.
func TestPartition_JumpDuringALook(t *testing.T) {
	for _, failed := range []error{nil, eventlog.ErrUnavailable} {
		ctx, cancel := context.WithCancel(t.Context())
		log := eventlog.State{Origin: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: 1, Last: 1}
		w := window.New(1<<20, func(string) {})
		asked, answers := make(chan struct{}), make(chan error)
		p := &Partition{of: &Partitions{cfg: Config{Logger: slog.New(slog.DiscardHandler)}}, ctx: ctx, window: w}
		p.looks = looks{base: ctx, window: w, look: func(context.Context) (eventlog.State, error) {
			asked <- struct{}{}
			return log, <-answers
		}}
		w.Begin(log, 1, 2)
		w.Reach(1, 0)
		p.lookAfterJump()
		waittest.Receive(t, "the first look", asked)
		w.Reach(3, 2)
		p.lookAfterJump()
		answers <- failed
		waittest.Receive(t, "the second look", asked)
		answers <- nil
		waittest.Until(t, "the second look is known", func() bool { return p.jumpLook.Load().follows(w.Extent()) })
		cancel()
		p.looks.work.Wait()
	}
}

// A series that appears with its first event hides that event from every rate.
func TestMetrics_ReasonsAreThereFromTheStart(t *testing.T) {
	if n := testutil.CollectAndCount(newMetrics(prometheus.NewRegistry(), func() []*Partition { return nil }).skipped); n != 4 {
		t.Errorf("%d series, want 4", n)
	}
}

// The floor may have passed events of the window by the time of a look: no event is missing
// after the last one that the tail missed.
func TestReader_FloorAboveWhatTheWindowHolds(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 6)
	f.Publish("b", 1)
	f.Publish("a", 4) // 8 to 11
	f.Trim("b", eventlog.Trimmed, 7)
	p := followLog(t, f, 0).Of("s")
	waittest.Until(t, "the edge has looked", func() bool { return p.jumpLook.Load() != nil })
	f.Purge(10)
	p.jumpLook.Store(nil)
	state, _ := p.log.State(0)
	tags := NewTagger(event.TagParts{Origin: state.Origin, Generation: state.Generation().ID, Session: "s"})
	for after, want := range map[uint64][]Gap{3: {{Reason: ReasonExpired, Stream: "a"}}, 8: nil} {
		id := event.ID{Stream: "a", Tag: tags.Tag("a"), Sequence: after}.String()
		r := must.Value(p.open(waittest.Context(t), streamOf("a"), Start{After: id}, ten))(t)
		found, err := r.Next(waittest.Context(t))
		r.Close()
		for i := range want {
			want[i].Requested = id
		}
		if err != nil || !slices.Equal(found.Gaps, want) || found.First != max(after+1, 8) {
			t.Errorf("after %d: %v, gaps %+v, want %+v; first %d", after, err, found.Gaps, want, found.First)
		}
	}
}

// The one gap of a page with several must cover them all.
func TestStep_OneGapForAll(t *testing.T) {
	s := Step{Gaps: []Gap{{Reason: ReasonExpired, Stream: "a", Requested: "a_1"}, {Reason: ReasonTrimmed, Certain: true, Stream: "a", Requested: "a_5"}}}
	if got, want := s.Gap(), (Gap{Reason: ReasonTrimmed, Certain: true, Stream: "a", Requested: "a_1"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	s.add(Gap{Reason: ReasonCleared, Stream: "b", Requested: "b_5"})
	if got := s.Gap(); len(s.Gaps) != 3 || got.Stream != "" {
		t.Errorf("%+v of %+v", got, s.Gaps)
	}
}

// An event after an end cancels it, also if the events after that one are removed.
func TestReader_EndIsCancelled(t *testing.T) {
	w := caughtUp(1 << 20)
	for i, stream := range []string{"a", "a", "b"} {
		w.Append(eventlog.Entry{Subject: event.Subject{Session: "s", Stream: stream}, Valid: true, Sequence: uint64(i + 1), Data: []byte("{}")}, 0) //nolint:gosec // small
	}
	r := InMemory(w, window.Place{Session: "s"}, 1)
	r.end, r.Dropped = 1, map[string]uint64{"b": 3}
	for _, want := range []int{1, 0} {
		if s, err := r.Next(t.Context()); err != nil || len(s.Items) != want || s.Ended {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

// A slow client does not receive the gap of the same loss again.
func TestReader_GoesBackBehindALoss(t *testing.T) {
	f := edgetest.NewLog(t)
	ps := followLog(t, f, 0)
	for range 4 {
		f.Publish("b", 1)
		f.Publish("a", 1)
	}
	must.NoError(t, f.Backend.Log.ClearStream(t.Context(), "s", f.Life("s"), "a"))
	last := comesTo(t, ps, "s", f.Publish("b", 1))
	r := opensAt(t, ps, window.Place{Session: "s"}, Start{}, ten)
	gaps, events := 0, 0
	for r.Cursor < last {
		s := must.Value(r.Next(waittest.Context(t)))(t)
		gaps += len(s.Gaps)
		if len(s.Items) == 0 {
			continue
		}
		events++
		r.GoBack(s, 1)
	}
	if gaps > 1 || events != 5 {
		t.Errorf("%d gaps, and %d events", gaps, events)
	}
}

// A connection to a session with one stream after the other does not remember all of them.
func TestAttackManyStreamsOnAConnection(t *testing.T) {
	place := event.TagParts{Origin: "o", Generation: "g", Session: "s", Life: "l"}
	tags := NewTagger(place)
	for n := range 10_000 {
		place.Stream = strconv.Itoa(n % 5000)
		if tag := tags.Tag(place.Stream); tag != place.Tag() {
			t.Fatalf("the tag of %s is %s", place.Stream, tag)
		}
	}
	if n := len(tags.known); n > maxTags {
		t.Errorf("it remembers %d streams", n)
	}
}
