package janitor

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// opened opens a session with so many streams of one event each.
func (r *running) opened(t *testing.T, name string, streams int) (last []uint64) {
	t.Helper()
	r.create(t, name)
	for i := range streams {
		last = append(last, r.publish(t, name, fmt.Sprint(i), 1)...)
	}
	return last
}

// fill publishes messages of a size until the session's partition is full, and returns the last one that was stored.
func (r *running) fill(t *testing.T, name string, size int) (last eventlog.Ack) {
	t.Helper()
	for {
		ack, err := r.b.Log.Publish(t.Context(), eventlog.Event{Session: name, Stream: "a", Data: fmt.Appendf(nil, "%q", strings.Repeat("x", size-2))})
		if errors.Is(err, eventlog.ErrFull) {
			r.followed(t, last)
			return last
		}
		must.NoError(t, err)
		last = ack
	}
}

func TestTrim_Age(t *testing.T) {
	t.Parallel()
	cfg := quick()
	cfg.TombstoneTTL, cfg.ClosedGrace = time.Second, 0
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxAge: time.Second}
	r := begin(t, srv, settings, cfg)
	events := r.opened(t, "open", 3)
	r.end(t, "open", "2")
	r.opened(t, "closed", 2)
	r.end(t, "closed", "")
	r.publish(t, "unopened", "a", 1)
	life := r.life("open")
	waittest.NoError(t, func() error {
		state, err := r.b.Log.Look(t.Context(), 0)
		if _, there := r.b.Sessions.Session("closed"); err == nil && (there || state.First <= events[2]) {
			err = fmt.Errorf("the log begins at %d, and the record of the closed session is there: %t", state.First, there)
		}
		return err
	})
	// The floor moves on with each copy, so the losses are read between two looks at it.
	waittest.NoError(t, func() error {
		before, err := r.b.Log.Look(t.Context(), 0)
		if err != nil {
			return err
		}
		missing, _, err := r.b.Log.LossesAfter(t.Context(), r.b.Log.Look, "open", life, "0", 0, 0)
		if err != nil {
			return err
		}
		after, err := r.b.Log.Look(t.Context(), 0)
		if err != nil {
			return err
		}
		if len(missing) != 1 || missing[0].Reason != eventlog.Expired || missing[0].UpTo+1 < before.First || missing[0].UpTo+1 > after.First {
			return fmt.Errorf("the log says that %+v is missing of open/0, while it began at %d to %d", missing, before.First, after.First)
		}
		return nil
	})
	for range 3 { // and again and again
		first, _ := r.b.Log.State(0)
		r.shows(t, 0, func(now eventlog.State) bool { return now.First > first.Last })
		if o, err := r.b.Log.Opening(t.Context(), "open"); err != nil || o.Life != life {
			t.Errorf("%+v, %v", o, err)
		}
	}
	if _, err := r.b.Log.Opening(t.Context(), "closed"); !errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("the opening of a forgotten life: %v", err)
	}
	if _, err := r.b.Log.Publish(t.Context(), eventlog.Event{Session: "open", Life: life, Stream: "2", Data: []byte(`{}`)}); !errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("an event after the end of its stream: %v", err)
	}
	for name, least := range map[string]float64{"floor_moves_total/age": 3, "floor_moves_total/bytes": 0, "copies_total/": 12, "floor_removed_events_total/": 4} {
		name, label, _ := strings.Cut(name, "/")
		if got := r.metric(t, name, label); got < least {
			t.Errorf("%s is %v, want at least %v", name, got, least)
		}
	}
	// A life whose opening is a copy ends with all its streams.
	r.end(t, "open", "")
	for i := range 3 {
		at := event.Subject{Session: "open", Life: life, Stream: fmt.Sprint(i), Kind: event.End}
		if _, err := r.b.Log.NewestSequence(t.Context(), at); err != nil {
			t.Errorf("stream %d has no end: %v", i, err)
		}
	}
	r.stop()
	r = begin(t, srv, settings, cfg)
	r.exact(t)
	r.wantCounts(t)
	if strings.Contains(r.log.String(), "nothing explains") {
		t.Error("something is not explained")
	}
}

func TestPartition_Full(t *testing.T) {
	r := begin(t, natstest.StartParallel(t), eventlog.Settings{Partitions: 1, MaxBytes: 128 << 10, MaxAge: -1}, quick())
	r.opened(t, "quiet", 2)
	r.create(t, "busy")
	published := 0
	for first := uint64(1); first < 1000; {
		published++
		waittest.NoError(t, func() error { // there is less time than in a larger partition
			_, err := r.b.Log.Publish(t.Context(), eventlog.Event{Session: "busy", Life: r.life("busy"), Stream: "a", Data: []byte(`{"jsonrpc":"2.0","method":"n"}`)})
			return err
		}, eventlog.ErrFull)
		state := must.Value(r.b.Log.Look(t.Context(), 0))(t)
		first = state.First
	}
	if life := r.life("quiet"); life == "" {
		t.Error("the quiet session is gone")
	} else if o, err := r.b.Log.Opening(t.Context(), "quiet"); err != nil || o.Life != life {
		t.Errorf("%+v, %v", o, err)
	}
	left := len(r.stored(t, "busy", "a"))
	if left == 0 || left == published {
		t.Errorf("%d of %d events are left", left, published)
	}
	if n := r.metric(t, "floor_moves_total", ledger.ByVolume); n == 0 {
		t.Error("no move is counted")
	}
	r.wantCounts(t)
}

// Copies that have to be stored before the floor may move are refused, as all entries are.
func TestPartition_FullWhileCopying(t *testing.T) {
	cfg := idle()
	cfg.SyncInterval = time.Hour
	var clock aheadClock
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 1, MaxBytes: 64 << 10, MaxAge: -1}, cfg, clock.ofLedgers, func(s *Service) { s.partitions[0].Alarmed = func() {} })
	r.opened(t, "quiet", 2)
	r.fill(t, "busy", 30)
	must.Value(r.b.Log.MakeRoom(t.Context(), 0))(t) // publishers took it: it holds twice its share
	r.fill(t, "busy", 30)
	limit := func() int64 {
		state := must.Value(r.b.Log.Look(t.Context(), 0))(t)
		return state.Limits.MaxBytes
	}
	r.sweepNow(t)
	if first, _ := r.b.Log.State(0); first.First != 1 {
		t.Errorf("the floor has moved to %d, and everything was stored a moment ago", first.First)
	}
	clock.ahead.Store(int64(3 * time.Hour)) // the stored entries are on disk
	// Else the janitor may read the opening's life after it has copied the births, by whose time little is on disk.
	r.partitions[0].With(func(l *ledger.Ledger) { l.Learn("quiet", 1, r.life("quiet")) })
	r.sweepNow(t)
	if got := limit(); got <= 128<<10 {
		t.Errorf("there is no more room than %d", got)
	}
	if n := r.metric(t, "copies_total"); n != 3 {
		t.Errorf("%v entries were copied", n)
	}
	clock.ahead.Add(int64(3 * time.Hour)) // and so are the copies
	r.sweepNow(t)
	state, err := r.b.Log.Look(t.Context(), 0)
	if err != nil || state.First < 9 || state.Bytes > 56<<10 {
		t.Errorf("%d bytes are left from %d on, %v", state.Bytes, state.First, err)
	}
	r.sweepNow(t)
	clock.ahead.Add(int64(limitsKept))
	r.sweepNow(t)
	if got := limit(); got != 64<<10 {
		t.Errorf("the limit is %d", got)
	}
	if o, err := r.b.Log.Opening(t.Context(), "quiet"); err != nil || o.Life != r.life("quiet") {
		t.Errorf("%+v, %v", o, err)
	}
	r.wantCounts(t)
}

// The floor of a full partition does not wait for its next step by age.
func TestPartition_FullOfExpired(t *testing.T) {
	t.Parallel()
	var clock aheadClock
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 1, MaxBytes: 64 << 10, MaxAge: time.Hour}, idle(), clock.ofLedgers, func(s *Service) { s.partitions[0].Alarmed = func() {} })
	last := r.fill(t, "busy", 1<<10)
	clock.ahead.Store(int64(2 * time.Hour))
	*r.sweeper.floors[0] = floorState{term: r.term(t).Done(), moved: r.partitions[0].Now()}
	must.NoError(t, r.sweeper.keepFloor(r.term(t), r.partitions[0]))
	if state, err := r.b.Log.Look(t.Context(), 0); err != nil || state.First != last.Sequence+1 {
		t.Errorf("the log begins at %d, want %d, %v", state.First, last.Sequence+1, err)
	}
}

// The other limits of a partition were first seen in another term, and may now be the room
// of a change that is being made: they are watched again.
func TestFloor_RoomOfAnotherTerm(t *testing.T) {
	r := begin(t, natstest.StartParallel(t), eventlog.Settings{Partitions: 1, MaxBytes: 1 << 20}, idle())
	must.Value(r.b.Log.MakeRoom(t.Context(), 0))(t)
	roomy := must.Value(r.b.Log.Look(t.Context(), 0))(t)
	r.sweeper.floors[0].other = midday
	must.NoError(t, r.sweeper.keepFloor(r.term(t), r.partitions[0]))
	if now, err := r.b.Log.Look(t.Context(), 0); err != nil || now.Limits != roomy.Limits {
		t.Errorf("the limits are %+v, want %+v, %v", now.Limits, roomy.Limits, err)
	}
}

// A change of the limits that took long was undone where it was made first, and ends with the settings.
func TestFloor_LimitsFollowTheSettings(t *testing.T) {
	t.Parallel()
	var clock aheadClock
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 2, MaxBytes: 8 << 20}, idle(), clock.ofLedgers)
	to := r.b.Log.Settings()
	to.MaxBytes, to.MaxMessageBytes = 16<<20, 16<<20
	for p := range 2 {
		r.sweepNow(t)
		if p == 0 { // as a change that is at partition 1 first
			must.NoError(t, r.b.Log.SetLimits(t.Context(), 1, to))
		}
		r.sweepNow(t)
		clock.ahead.Add(int64(limitsKept))
		r.sweepNow(t)
		if state, _ := r.b.Log.State(1); state.Limits != r.b.Log.Settings().Limits() {
			t.Errorf("partition 1 has the limits %+v, want %+v", state.Limits, r.b.Log.Settings().Limits())
		}
		must.NoError(t, r.b.Log.SetLimits(t.Context(), 0, to))
	}
}

// The limit of a change that was cut off is the one that refuses events.
func TestFloor_PartitionOfASmallerLimit(t *testing.T) {
	r := begin(t, natstest.StartParallel(t), eventlog.Settings{Partitions: 2, MaxBytes: 1 << 20, MaxAge: -1}, idle())
	to := r.b.Log.Settings()
	to.MaxBytes = 256 << 10
	must.NoError(t, r.b.Log.SetLimits(t.Context(), 1, to))
	name := inPartitions(r.b.Log, "s")[1]
	r.fill(t, name, 1<<10)
	r.sweepNow(t)
	if state, err := r.b.Log.Look(t.Context(), 1); err != nil || state.First == 1 {
		t.Errorf("nothing of the full partition is removed: %+v, %v", state, err)
	}
	r.publish(t, name, "a", 1)
}

// The other partitions are not swept meanwhile.
func TestFloor_RoomTakesOneBatchOfDeletes(t *testing.T) {
	r := beginAt(t, natstest.StartParallel(t).URL(), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 1}, idle(), deletesNothing)
	r.publish(t, "s", "a", batchSize+10)
	r.sweepNow(t)
	p := r.partitions[0]
	must.NoError(t, r.sweeper.makeRoom(r.term(t), p))
	if left := toDelete(r.partitions)[eventlog.Trimmed]; left != 9 {
		t.Errorf("%d entries are left to be deleted, want 9", left)
	}
}
