package janitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/must"
	"rejoin/shared/natsconn"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestTrim_LimitsExactly(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		settings eventlog.Settings
		keep     int
		reason   ledger.Cause
	}{
		{"events of a stream", eventlog.Settings{MaxEventsPerStream: 4}, 8, ledger.StreamEvents},
		{"events", eventlog.Settings{MaxEventsPerSession: 7}, 7, ledger.SessionEvents},
		{"bytes", eventlog.Settings{MaxBytesPerSession: 6*messageBytes - 1}, 5, ledger.SessionBytes},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := begin(t, natstest.Start(t), test.settings, quick())
			var all []uint64
			for range 10 {
				all = append(all, r.publish(t, "s", "a", 1)...)
				all = append(all, r.publish(t, "s", "b", 1)...)
			}
			quiet := r.publish(t, "other", "a", 3)
			waittest.NoError(t, func() error { return wantSequences(r.stored(t, "s", ""), all[len(all)-test.keep:]) })
			r.counts(t, float64(len(all)-test.keep), "trimmed_events_total", string(test.reason))
			must.NoError(t, wantSequences(r.stored(t, "other", ""), quiet))
			gone := all[:len(all)-test.keep]
			for i, stream := range []string{"a", "b"} {
				last := gone[len(gone)-1]
				if (len(gone)-1)%2 != i {
					last = gone[len(gone)-2]
				}
				r.wantTrimmed(t, "s", stream, last, eventlog.Trimmed)
			}
			r.wantTrimmed(t, "other", "a", 0, "")
			waittest.Until(t, "the sweep is logged", func() bool { return strings.Contains(r.log.String(), "msg=swept") })
		})
	}
}

func TestClear_DeletesAtOnce(t *testing.T) {
	t.Parallel()
	cfg := quick()
	cfg.Interval = time.Hour
	r := begin(t, natstest.Start(t), eventlog.Settings{}, cfg)
	a, b := r.publish(t, "s", "a", 20), r.publish(t, "s", "b", 5)
	at := r.mark(t, event.Clear, "s", "a")
	after := r.publish(t, "s", "a", 2)
	r.wantTrimmed(t, "s", "a", a[19], eventlog.Cleared)
	waittest.NoError(t, func() error {
		return wantSequences(r.stored(t, "s", ""), slices.Concat(b, []uint64{at}, after))
	})
	r.wantTrimmed(t, "s", "b", 0, "")

	whole := r.mark(t, event.Clear, "s", "")
	waittest.NoError(t, func() error { return wantSequences(r.stored(t, "s", ""), []uint64{at, whole}) })
	r.wantTrimmed(t, "s", "b", b[4], eventlog.Cleared)
	r.wantTrimmed(t, "s", "a", after[1], eventlog.Cleared)
}

// A janitor that gets a partition while it looks whether it is ready is not, before it has the ledger.
func TestReady_PartitionGotMeanwhile(t *testing.T) {
	t.Parallel()
	ready := make(chan error, 1)
	beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 1}, idle(), func(s *Service) {
		asked, holders := make(chan struct{}), s.holders
		s.holders = func() (own []int, vacant int) {
			close(asked)
			for !s.leases.Acts(0) && natsconn.Pause(t.Context(), time.Millisecond) {
			}
			return holders()
		}
		s.keepings[0].mu.Lock() // the ledger is not begun before the look is over
		go func() {
			ready <- s.complete()
			s.keepings[0].mu.Unlock()
		}()
		<-asked
		s.holders = holders
	})
	if err := waittest.Receive(t, "the look is over", ready); err == nil {
		t.Error("ready without the ledger")
	}
}

func TestLedger_AfterServerRestart(t *testing.T) {
	srv := natstest.StartParallel(t)
	r := begin(t, srv, eventlog.Settings{MaxEventsPerSession: 5}, quick())
	before := r.publish(t, "s", "a", 8)
	waittest.NoError(t, func() error { return wantSequences(r.stored(t, "s", "a"), before[3:]) })
	state, _ := r.b.Log.State(0)
	generations := len(state.Generations)

	srv.Stop()
	if err := r.complete(); err != nil {
		t.Errorf("not ready during an outage: %v", err)
	}
	srv.Start()
	waittest.NoError(t, func() error {
		// A request while the connection breaks is never answered.
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := r.b.Log.Look(ctx, 0)
		return err
	})
	after := r.publish(t, "s", "a", 2)
	for p := range 2 {
		r.shows(t, p, func(s eventlog.State) bool { return len(s.Generations) == generations+1 }) // each by itself
	}
	now, err := r.b.Log.Look(t.Context(), r.b.Log.Partition("s"))
	late := strings.Contains(r.log.String(), "no janitor has looked at a partition") // publishers wait for 3 s
	if start := now.Generation().Start; err != nil || start <= before[7] || start > after[0] && !late {
		t.Errorf("an event is stored at %d, and the generation begins at %d, after %d; %v", after[0], start, before[7], err)
	}
	all := slices.Concat(before, after)
	waittest.NoError(t, func() error { return wantSequences(r.stored(t, "s", "a"), all[5:]) })
	r.wantTrimmed(t, "s", "a", all[4], eventlog.Trimmed)
	if strings.Contains(r.log.String(), "starts again") {
		t.Error("the ledger started again")
	}
}

// An entry that belongs nowhere is left to the floor: a delete would leave a hole that nothing
// explains.
func TestLedger_StrayEntry(t *testing.T) {
	r := begin(t, natstest.StartParallel(t), eventlog.Settings{MaxAge: 500 * time.Millisecond}, quick())
	wrong := 1 - r.b.Log.Partition("s")
	for _, subject := range []string{fmt.Sprintf("mcp.%d.s.=.a", wrong), "mcp.0.a=zz.=.b"} {
		must.Value(r.b.Conn.RequestMsg(nats.NewMsg(subject), waittest.Timeout))(t)
	}
	for p := range 2 {
		r.shows(t, p, func(s eventlog.State) bool { return s.Entries == 0 })
	}
	if n := r.metric(t, "deleted_entries_total") + r.metric(t, "trims_total"); n != 0 {
		t.Errorf("%v are counted", n)
	}
	r.wantCounts(t)
}

func TestRegistry_Duties(t *testing.T) {
	t.Parallel()
	cfg := quick()
	cfg.ClosedGrace, cfg.TombstoneTTL = 300*time.Millisecond, 600*time.Millisecond
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{MaxAge: -1}, cfg, impatient)
	// The registry is lost.
	js := natstest.JetStream(t, r.b.Conn)
	kv := must.Value(js.KeyValue(t.Context(), session.Bucket))(t)
	lost := r.create(t, "lost")
	must.NoError(t, kv.Delete(t.Context(), event.Token("lost")))
	r.copies(t, "lost", func(rec session.Record) bool {
		return rec.Life == lost.Life && rec.State == session.Open && rec.Revision != lost.Revision
	})

	// The registry is older than the last change of members.
	older := r.create(t, "shared")
	data := must.Value(json.Marshal(older))(t)
	must.Value(r.b.Sessions.SetMembers(t.Context(), "shared", []string{"bob"}, func(session.Record) error { return nil }))(t)
	must.Value(kv.Put(t.Context(), event.Token("shared"), data))(t)
	r.copies(t, "shared", func(rec session.Record) bool { return slices.Equal(rec.Members, []string{"bob"}) })

	// A process ends a session and dies after the seal.
	dying := r.create(t, "dying")
	r.publish(t, "dying", "a", 3)
	seal := event.Subject{Partition: r.b.Log.Partition("dying"), Session: "dying", Life: dying.Life, Kind: event.Seal}
	must.Value(js.Publish(t.Context(), seal.String(), nil))(t)
	waittest.Until(t, "a close is finished", func() bool { // 2 if the next round has not heard of the close
		return r.metric(t, "registry_records_total", "finished") > 0
	})
	r.copies(t, "dying", none)
	page, err := r.b.Log.Read(t.Context(), eventlog.Query{Session: "dying", Life: dying.Life, UpTo: math.MaxInt64, MaxEvents: 1, MaxBytes: 1 << 20})
	if err != nil || len(page.Entries) > 0 {
		t.Errorf("%+v is left, %v", page.Entries, err)
	}
	if o, err := r.b.Log.Opening(t.Context(), "dying"); !errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("the opening is left: %+v, %v", o, err)
	}
	if n := r.metric(t, "trimmed_events_total", string(ledger.Closed)); n != 3 {
		t.Errorf("%v events of the closed session were removed", n)
	}
}

// A partition without a leader delays no duties in other partitions, and keeps no idle sessions open there.
func TestRegistry_PartitionUnavailable(t *testing.T) {
	t.Parallel()
	cfg := idle()
	cfg.IdleAfter = flagtype.Duration(time.Hour)
	var attempts []int // by partition
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 3}, cfg, func(s *Service) {
		attempts = make([]int, len(s.partitions))
		do := s.registrar.do
		s.registrar.now = func() time.Time { return time.Now().Add(2 * time.Hour) } // all sessions are idle
		s.registrar.do = func(p int, f func(context.Context) error) (bool, error) {
			if attempts[p]++; p == 1 {
				return true, eventlog.ErrUnavailable
			}
			return do(p, f)
		}
	})
	js := natstest.JetStream(t, r.b.Conn)
	alone := inPartitions(r.b.Log, "alone")
	names := slices.Clone(alone)
	for _, name := range alone {
		r.create(t, name)
	}
	for _, prefix := range []string{"one", "two"} { // a process ends them and dies after the seal
		for p, name := range inPartitions(r.b.Log, prefix) {
			seal := event.Subject{Partition: p, Session: name, Life: r.create(t, name).Life, Kind: event.Seal}
			ack := must.Value(js.Publish(t.Context(), seal.String(), nil))(t)
			r.followed(t, eventlog.Ack{Partition: p, Sequence: ack.Sequence})
			names = append(names, name)
		}
	}
	waittest.NoError(t, func() error {
		for _, name := range names {
			if _, ok := r.b.Sessions.Session(name); !ok || !r.registrar.ready(r.b.Log.Partition(name)) {
				return fmt.Errorf("the janitor does not know of %s, or does not act for it", name)
			}
		}
		return nil
	})
	r.registrar.round(t.Context())
	if want := []int{2, 1, 2}; !slices.Equal(attempts, want) {
		t.Errorf("there were %v attempts in the partitions, want %v", attempts, want)
	}
	if n := r.metric(t, "registry_records_total", "finished"); n != 4 {
		t.Errorf("%v closes were finished", n)
	}
	r.registrar.round(t.Context()) // the second one that finds them alone
	for p, name := range alone {
		want := session.Closed
		if p == 1 {
			want = session.Open
		}
		if rec, err := r.b.Sessions.Get(t.Context(), name); err != nil || rec.State != want {
			t.Errorf("partition %d: the idle session is %q, %v", p, rec.State, err)
		}
	}
}

// A round may take seconds, and a publisher without a fence does not wait for its end.
func TestRegistry_TombstoneWithLaterEvents(t *testing.T) {
	t.Parallel()
	cfg := idle()
	cfg.ClosedGrace, cfg.TombstoneTTL = 0, 0
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1, MaxAge: time.Second}, cfg)
	for _, name := range []string{"empty", "late"} {
		r.create(t, name)
		r.end(t, name, "")
	}
	var todo []ledger.Duty
	waittest.NoError(t, func() error {
		records, inLog, ok := r.registrar.known(0, r.registrar.names()[0])
		if todo = ledger.Duties(records, inLog, r.cfg.nameKept, 0, time.Now(), time.Now()); ok && len(todo) == 2 && todo[0].Task == ledger.Remove {
			return nil
		}
		r.sweepNow(t)
		return fmt.Errorf("ledger ready %t, to do %+v", ok, todo)
	})
	late := event.Subject{Session: "late", Life: r.life("late"), Stream: "a"}
	js := natstest.JetStream(t, r.b.Conn)
	ack := must.Value(js.Publish(t.Context(), late.String(), []byte(`{}`)))(t)
	r.followed(t, eventlog.Ack{Sequence: ack.Sequence})
	r.registrar.doAll(r.term(t), todo)
	r.copies(t, "empty", none)
	if _, there := r.b.Sessions.Session("late"); !there {
		t.Error("the tombstone is not there any more")
	}
}

func TestMemory_FreedAfterTheLogWasRead(t *testing.T) {
	t.Parallel()
	freed := make(chan struct{}, 1)
	beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 1}, idle(), func(s *Service) {
		s.freeMemory = func() { follow.Ring(freed) }
	})
	waittest.Receive(t, "memory is freed", freed)
}
