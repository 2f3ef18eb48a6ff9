package eventlog_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestAbsent_ListsWhatIsDeletedBetweenFirstAndLast(t *testing.T) {
	_, l := single(t)
	for n := range 9 {
		publishOnce(t, l, n)
	}
	for _, seq := range []uint64{4, 7, 6} {
		must.NoError(t, l.Delete(waittest.Context(t), 0, seq))
	}
	must.NoError(t, l.Purge(waittest.Context(t), 0, 3))
	state, absent, err := l.Absent(waittest.Context(t), 0)
	if err != nil || !slices.Equal(absent, []uint64{4, 6, 7}) || state.First != 3 || state.Last != 9 || state.Absent() != 3 {
		t.Errorf("%v of %d to %d, %d, %v", absent, state.First, state.Last, state.Absent(), err)
	}
	must.NoError(t, l.Purge(waittest.Context(t), 0, 10))
	if state, absent, err := l.Absent(waittest.Context(t), 0); err != nil || len(absent) > 0 || state.Absent() != 0 {
		t.Errorf("of an empty partition %v, %d, %v", absent, state.Absent(), err)
	}
}

// The check of one server's files proves nothing about those of another one, nor about its own when
// it leads again: it may have been restarted in between.
func TestChecked_HoldsForOneLeader(t *testing.T) {
	_, l := inCluster(t)
	publishOnce(t, l, 0)
	// A look during an election may get no answer, or one that changes a moment later.
	until := func(ok func(eventlog.State) bool) (state eventlog.State) {
		t.Helper()
		ctx := waittest.Context(t)
		for {
			once, cancel := context.WithTimeout(ctx, time.Second)
			state, err := l.Look(once, 0)
			cancel()
			if err == nil && ok(state) {
				return state
			}
			if ctx.Err() != nil {
				t.Fatalf("%q leads, checked %t, damaged %d, %v", state.Leader, state.Checked(), state.Damaged, err)
			}
		}
	}
	noted := func(damaged uint64) func(eventlog.State) bool {
		return func(s eventlog.State) bool {
			return s.Leader != "" && (s.Checked() || l.SetChecked(waittest.Context(t), 0, s, damaged) == nil && look(t, l).Checked())
		}
	}
	first := until(func(s eventlog.State) bool { return s.Leader != "" })
	if first.Checked() {
		t.Fatal("it is checked before a janitor has compared it with its leader")
	}
	if until(noted(7)); look(t, l).Damaged != 7 {
		t.Error("nothing is noted")
	}
	first = look(t, l)
	second := until(func(s eventlog.State) bool {
		if s.Leader == first.Leader {
			_, _ = l.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN.MCP_0", nil, time.Second) // it is asked again
		}
		return s.Leader != first.Leader && s.Leader != ""
	})
	if second.Checked() || second.Damaged != 7 {
		t.Errorf("with %q it is checked: %t, damaged %d", second.Leader, second.Checked(), second.Damaged)
	}
	if err := l.SetChecked(waittest.Context(t), 0, first, 9); err != nil && !errors.Is(err, eventlog.ErrUnavailable) {
		t.Error(err)
	}
	if until(noted(3)); look(t, l).Damaged != 7 {
		t.Errorf("damaged up to %d: something is noted of a server that does not lead any more, or what was damaged once does not stay so", look(t, l).Damaged)
	}
}

func TestSequenceAt_BesideWhatIsDeleted(t *testing.T) {
	srv := natstest.Start(t)
	l := create(t, srv, eventlog.Settings{Partitions: 1})
	if at, err := l.SequenceAt(waittest.Context(t), 0, time.Now().Add(time.Hour)); err != nil || at == 0 {
		t.Errorf("of an empty log: %d, %v", at, err)
	}
	var all []eventlog.Entry
	for range 9 {
		all = append(all, must.Value(l.At(waittest.Context(t), 0, publish(t, l, "s", "a", 0)))(t))
	}
	deleted := []int{0, 3, 4, 8}
	for _, i := range deleted {
		must.NoError(t, l.Delete(waittest.Context(t), 0, all[i].Sequence))
	}
	for i, e := range all {
		at := must.Value(l.SequenceAt(waittest.Context(t), 0, e.Time))(t)
		for k, other := range all {
			if !slices.Contains(deleted, k) && (other.Sequence >= at) != (k >= i) {
				t.Errorf("of event %d: %d, and event %d is %d", i, at, k, other.Sequence)
			}
		}
	}
}
