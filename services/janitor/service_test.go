package janitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

func TestASessionIsTrimmedToItsLimitsExactly(t *testing.T) {
	for _, test := range []struct {
		name     string
		settings eventlog.Settings
		keep     int
		reason   Reason
	}{
		{"events", eventlog.Settings{MaxEventsPerSession: 7}, 7, SessionEvents},
		{"bytes", eventlog.Settings{MaxBytesPerSession: 6*messageBytes - 1}, 5, SessionBytes},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := begin(t, natstest.Start(t), test.settings, quick())
			var all []uint64
			for range 10 {
				all = append(all, r.publish(t, "s", "a", 1)...)
				all = append(all, r.publish(t, "s", "b", 1)...)
			}
			quiet := r.publish(t, "other", "a", 3)
			eventually(t, func() error { return wantSequences(r.stored(t, "s", ""), all[len(all)-test.keep:]) })
			eventually(t, func() error {
				if got := r.metric(t, "trimmed_events_total", string(test.reason)); got != float64(len(all)-test.keep) {
					return fmt.Errorf("%v are counted as trimmed", got)
				}
				return nil
			})
			if err := wantSequences(r.stored(t, "other", ""), quiet); err != nil {
				t.Error(err)
			}
			gone := all[:len(all)-test.keep]
			for i, stream := range []string{"a", "b"} {
				last := gone[len(gone)-1]
				if (len(gone)-1)%2 != i {
					last = gone[len(gone)-2]
				}
				r.wantMark(t, "s", stream, marks.Mark{Removed: last, Reason: marks.Trimmed})
			}
			r.wantMark(t, "other", "a", marks.Mark{})
			eventually(t, func() error {
				if !strings.Contains(r.log.String(), "msg=swept") {
					return errors.New("the sweep is not logged")
				}
				return nil
			})
		})
	}
}

func TestAClearDeletesBeforeTheNextSweepAndOnlyWhatLiesBeforeIt(t *testing.T) {
	cfg := quick()
	cfg.Interval = time.Hour
	r := begin(t, natstest.Start(t), eventlog.Settings{}, cfg)
	a, b := r.publish(t, "s", "a", 20), r.publish(t, "s", "b", 5)
	at := r.mark(t, event.Clear, "s", "a")
	after := r.publish(t, "s", "a", 2)
	r.wantMark(t, "s", "a", marks.Mark{Removed: a[19], Reason: marks.Cleared})
	eventually(t, func() error {
		return wantSequences(r.stored(t, "s", ""), slices.Concat(b, []uint64{at}, after))
	})
	r.wantMark(t, "s", "a", marks.Mark{Removed: a[19], Reason: marks.Cleared})
	r.wantMark(t, "s", "b", marks.Mark{})

	whole := r.mark(t, event.Clear, "s", "")
	eventually(t, func() error { return wantSequences(r.stored(t, "s", ""), []uint64{whole}) })
	r.wantMark(t, "s", "b", marks.Mark{Removed: b[4], Reason: marks.Cleared})
}

func TestWhatJetStreamRemovesIsKnown(t *testing.T) {
	t.Run("limit of a stream", func(t *testing.T) {
		r := begin(t, natstest.Start(t), eventlog.Settings{MaxEventsPerStream: 4}, quick())
		busy, quiet := r.publish(t, "s", "busy", 10), r.publish(t, "s", "quiet", 4)
		r.wantMark(t, "s", "busy", marks.Mark{Removed: busy[5], Reason: marks.Trimmed})
		r.wantMark(t, "s", "quiet", marks.Mark{})
		if err := wantSequences(r.stored(t, "s", ""), slices.Concat(busy[6:], quiet)); err != nil {
			t.Error(err)
		}
	})
	t.Run("age", func(t *testing.T) {
		// The ledger sees them before they are gone, also on a machine that pauses.
		r := begin(t, natstest.Start(t), eventlog.Settings{MaxAge: 6 * time.Second}, quick())
		all := r.publish(t, "s", "a", 3)
		eventually(t, func() error {
			if m, err := r.ask(t, "s", "a"); err != nil || m != (marks.Mark{Removed: all[2], Reason: marks.Expired}) {
				return fmt.Errorf("%+v %w", m, err)
			}
			return nil
		})
		eventually(t, func() error {
			if n := r.metric(t, "retained_events", ""); n != 0 {
				return fmt.Errorf("%v events are retained", n)
			}
			return nil
		})
	})
	t.Run("bytes", func(t *testing.T) {
		r := begin(t, natstest.Start(t), eventlog.Settings{MaxBytes: 2 * 4096}, quick())
		all := r.publish(t, "s", "a", 100)
		left := r.stored(t, "s", "a")
		if len(left) == 0 || len(left) == 100 {
			t.Fatalf("%d events are left", len(left))
		}
		r.wantMark(t, "s", "a", marks.Mark{Removed: all[99-len(left)], Reason: marks.Trimmed})
	})
}

func TestARestartedJanitorAccusesOnlyWhoMayHaveLostEvents(t *testing.T) {
	srv := natstest.Start(t)
	settings := eventlog.Settings{MaxEventsPerStream: 4, MaxEventsPerSession: 10, Partitions: 1}
	r := begin(t, srv, settings, quick())
	r.publish(t, "quiet", "a", 1)
	full := r.publish(t, "full", "a", 9)         // five removed by the limit of the stream
	early := r.publish(t, "trimmed", "early", 3) // one removed by the limit of the session
	for _, stream := range []string{"b", "c"} {
		r.publish(t, "trimmed", stream, 4)
	}
	r.wantMark(t, "full", "a", marks.Mark{Removed: full[4], Reason: marks.Trimmed})
	eventually(t, func() error { return wantSequences(r.stored(t, "trimmed", "early"), early[1:]) })
	r.wantMark(t, "trimmed", "early", marks.Mark{Removed: early[0], Reason: marks.Trimmed})
	r.stop()

	r = begin(t, srv, settings, quick())
	r.exact(t)
	r.wantMark(t, "quiet", "a", marks.Mark{})
	r.wantMark(t, "quiet", "unknown", marks.Mark{})
	r.wantMark(t, "full", "a", marks.Mark{Maybe: full[4]})
	r.wantMark(t, "trimmed", "early", marks.Mark{Maybe: early[0]})
	r.wantMark(t, "trimmed", "unknown", marks.Mark{Maybe: early[0]})
}

func TestTheLedgerGoesOnAcrossARestartOfTheServer(t *testing.T) {
	srv := natstest.Start(t)
	r := begin(t, srv, eventlog.Settings{MaxEventsPerSession: 5}, quick())
	before := r.publish(t, "s", "a", 8)
	eventually(t, func() error { return wantSequences(r.stored(t, "s", "a"), before[3:]) })
	state, _ := r.b.Log.State(0)
	generations := len(state.Generations)

	srv.Stop()
	if err := r.complete(); err != nil {
		t.Errorf("not ready during an outage: %v", err)
	}
	srv.Start()
	eventually(t, func() error {
		// What is asked while the connection breaks is never answered.
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := r.b.Log.Look(ctx, 0)
		return err
	})
	after := r.publish(t, "s", "a", 2)
	for p := range 2 {
		eventually(t, func() error { // each by itself
			state, err := r.b.Log.Look(t.Context(), p)
			if err == nil && len(state.Generations) != generations+1 {
				err = fmt.Errorf("partition %d has the generations %v", p, state.Generations)
			}
			return err
		})
	}
	now, err := r.b.Log.Look(t.Context(), r.b.Log.Partition("s"))
	late := strings.Contains(r.log.String(), "no janitor has looked at a partition") // who publishes waits for 3 s
	if start := now.Generation().Start; err != nil || start <= before[7] || start > after[0] && !late {
		t.Errorf("an event is stored at %d, and the generation begins at %d, behind %d; %v", after[0], start, before[7], err)
	}
	all := slices.Concat(before, after)
	eventually(t, func() error { return wantSequences(r.stored(t, "s", "a"), all[5:]) })
	r.wantMark(t, "s", "a", marks.Mark{Removed: all[4], Reason: marks.Trimmed})
	if strings.Contains(r.log.String(), "begins anew") {
		t.Error("the ledger began anew")
	}
}

func TestARecreatedPartitionGetsANewLedger(t *testing.T) {
	srv := natstest.Start(t)
	r := begin(t, srv, eventlog.Settings{Partitions: 1, MaxEventsPerSession: 5}, quick())
	r.publish(t, "s", "a", 9)
	old, _ := r.b.Log.State(0)
	js, err := srv.Connect().JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream("MCP_0"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if state, err := r.b.Log.Look(t.Context(), 0); err != nil || state.Birth == old.Birth {
			return fmt.Errorf("the partition is not back: %w", err)
		}
		return nil
	})
	all := r.publish(t, "s", "a", 2)
	if all[0] != 1 {
		t.Fatalf("the first sequence is %d", all[0])
	}
	r.wantMark(t, "s", "a", marks.Mark{})
	_, err = marks.Ask(t.Context(), r.b.Conn, marks.Request{Birth: old.Birth})
	if err == nil || !strings.Contains(err.Error(), "birth") {
		t.Errorf("a question about the old partition: %v", err)
	}
}

func TestMarksOverNATS(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{MaxEventsPerStream: 1}, quick())
	state, _ := r.b.Log.State(0)
	eventually(t, func() error { // the clerk is there
		_, err := r.ask(t, "s", "a")
		return err
	})
	for _, test := range []struct{ name, question, want string }{
		{"nonsense", "{", "cannot be read"},
		{"no such partition", `{"partition":9}`, "no partition 9"},
		{"another birth", `{"partition":0,"birth":"x"}`, "another birth"},
		{"ahead", fmt.Sprintf(`{"partition":0,"birth":%q,"through":99999}`, state.Birth), "followed the log to"},
	} {
		t.Run(test.name, func(t *testing.T) {
			msg, err := r.b.Conn.Request(marks.Subject, []byte(test.question), patience)
			if err != nil {
				t.Fatal(err)
			}
			var reply marks.Reply
			if err := json.Unmarshal(msg.Data, &reply); err != nil || !strings.Contains(reply.Error, test.want) {
				t.Errorf("%s, %v", msg.Data, err)
			}
		})
	}
	eventually(t, func() error {
		if r.metric(t, "marks_requests_total", refused) < 4 {
			return fmt.Errorf("they are not counted")
		}
		return nil
	})
}

func TestManyStreamsAreOneQuestion(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerStream: 2}, quick())
	events := r.publish(t, "s", "a", 3)
	closed, err := r.b.Log.Mark(t.Context(), event.Close, "s", "a")
	if err != nil {
		t.Fatal(err)
	}
	other := r.publish(t, "s", "b", 1)
	state, err := r.b.Log.Look(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var reply marks.Reply
	eventually(t, func() error { // the clerk is there
		reply, err = marks.Ask(t.Context(), r.b.Conn, marks.Request{
			Birth: state.Birth, Through: state.Last,
			Places: []marks.Place{{Session: "s", Stream: "b"}, {Session: "s", Stream: "a"}, {Session: "no", Stream: "body"}},
		})
		return err
	})
	want := []marks.PlaceMark{
		{First: other[0]},
		{Mark: marks.Mark{Removed: events[0], Reason: marks.Trimmed}, Closed: closed.Sequence, First: events[1]},
		{},
	}
	if !slices.Equal(reply.Places, want) {
		t.Errorf("%+v", reply.Places)
	}
	many := marks.Request{Birth: state.Birth, Places: make([]marks.Place, marks.MaxPlaces+1)}
	if _, err := marks.Ask(t.Context(), r.b.Conn, many); !errors.Is(err, marks.ErrUnavailable) {
		t.Errorf("a question that is too long: %v", err)
	}
}

func TestAPageOfTheLongestNamesFitsIntoAMessage(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerStream: 1, MaxEventsPerSession: -1}, quick())
	name := strings.Repeat("<", event.MaxNameLen)
	var last []uint64
	want := marks.PageSize + 10
	for i := range want {
		last = r.publish(t, name, fmt.Sprintf("%s%04d", name[4:], i), 2)
	}
	state, err := r.b.Log.Look(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	places := make([]marks.Place, marks.MaxPlaces)
	for i := range places {
		places[i] = marks.Place{Session: name, Stream: name[4:] + "0000"}
	}
	var reply marks.Reply
	eventually(t, func() error { // the clerk is there
		reply, err = marks.Ask(t.Context(), r.b.Conn, marks.Request{Birth: state.Birth, Places: places})
		return err
	})
	if reply.Places[0].Removed == 0 {
		t.Errorf("the longest question has %d answers", len(reply.Places))
	}
	for _, req := range []marks.Request{{}, {Session: name}} {
		req.Birth, req.Through = state.Birth, last[1]
		reply, err := marks.Ask(t.Context(), r.b.Conn, req)
		if err != nil || len(reply.Marks) != want {
			t.Fatalf("%d marks, %v", len(reply.Marks), err)
		}
		if got := reply.Marks[want-1]; got.Removed != last[0] {
			t.Errorf("the last mark is %+v", got)
		}
	}
}

func TestAStrayEntryIsRemoved(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{}, quick())
	wrong := 1 - r.b.Log.Partition("s")
	for _, subject := range []string{fmt.Sprintf("mcp.%d.s.a", wrong), "mcp.0.a=zz.b"} {
		if _, err := r.b.Conn.RequestMsg(nats.NewMsg(subject), patience); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if n := r.metric(t, "trimmed_events_total", string(Stray)); n != 2 {
			return fmt.Errorf("%v were removed", n)
		}
		return nil
	})
	for p := range 2 {
		if state, err := r.b.Log.Look(t.Context(), p); err != nil || state.Events != 0 {
			t.Errorf("partition %d holds %d entries, %v", p, state.Events, err)
		}
	}
}

func TestRegistryDutiesAreDone(t *testing.T) {
	cfg := quick()
	cfg.CloseAfter, cfg.ClosedGrace, cfg.TombstoneTTL = 100*time.Millisecond, 300*time.Millisecond, 600*time.Millisecond
	r := begin(t, natstest.Start(t), eventlog.Settings{}, cfg)
	r.publish(t, "direct", "a", 1)
	eventually(t, func() error {
		if rec, err := r.b.Sessions.Get(t.Context(), "direct", ""); err != nil || rec.State != session.Open || rec.Owner != "" {
			return fmt.Errorf("%+v %w", rec, err)
		}
		return nil
	})

	rec, err := r.b.Sessions.Register(t.Context(), "dying", "")
	if err != nil {
		t.Fatal(err)
	}
	r.publish(t, "dying", "a", 3)
	rec.State, rec.Ended = session.Closing, time.Now()
	if _, err := r.b.Sessions.Update(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if n := r.metric(t, "registry_records_total", "finished"); n != 1 {
			return fmt.Errorf("%v closes were finished", n)
		}
		return nil
	})
	eventually(t, func() error { return wantSequences(r.stored(t, "dying", ""), nil) })
	eventually(t, func() error {
		if _, ok := r.b.Sessions.Session("dying"); ok {
			return fmt.Errorf("the tombstone is still there")
		}
		return nil
	})
	eventually(t, func() error {
		if n := r.metric(t, "trimmed_events_total", string(Closed)); n != 3 {
			return fmt.Errorf("%v events of the closed session were removed", n)
		}
		return nil
	})
}

// A round may take seconds, and a direct publisher does not wait for its end.
func TestATombstoneStaysWhenSomethingIsPublishedBehindIt(t *testing.T) {
	cfg := idle()
	cfg.ClosedGrace, cfg.TombstoneTTL = 0, 0
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1}, cfg)
	r.acts(t)
	for _, name := range []string{"empty", "late"} {
		if _, err := r.b.Sessions.Create(t.Context(), session.New(name, "", nil, time.Now())); err != nil {
			t.Fatal(err)
		}
		if err := session.Close(t.Context(), r.b.Sessions, r.b.Log, name, "", false, 0); err != nil {
			t.Fatal(err)
		}
	}
	var todo []duty
	eventually(t, func() error {
		r.sweepNow(t)
		inLog, ok := r.registrar.inLog() // it learns of a purge behind the log
		todo = duties(r.b.Sessions.Sessions(), inLog, cfg, time.Now())
		if !ok || len(todo) != 2 {
			return fmt.Errorf("ledger ready %t, to do %+v", ok, todo)
		}
		return errors.Join(wantSequences(r.stored(t, "empty", ""), nil), wantSequences(r.stored(t, "late", ""), nil))
	})
	r.publish(t, "late", "a", 1)
	r.registrar.doAll(r.charge.Load().ctx, todo)
	for name, want := range map[string]error{"empty": session.ErrNotFound, "late": nil} {
		if _, err := r.b.Sessions.Get(t.Context(), name, ""); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
