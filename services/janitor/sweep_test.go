package janitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
	"rejoin/shared/natstest"
)

// trimMarks returns what is stored in the bucket.
func trimMarks(t *testing.T, srv *natstest.Server) map[string]trim {
	t.Helper()
	js, err := jetstream.New(srv.Connect())
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), TrimsBucket)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := kv.ListKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]trim{}
	for k := range keys.Keys() {
		e, err := kv.Get(t.Context(), k)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		var mark trim
		if err := json.Unmarshal(e.Value(), &mark); err != nil {
			t.Fatal(err)
		}
		all[k] = mark
	}
	return all
}

func TestHowFarASessionIsTrimmedIsWrittenDownUntilTheLogSaysItItself(t *testing.T) {
	srv := natstest.Start(t)
	r := begin(t, srv, eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}, quick())
	all := r.publish(t, "a", "x", 3)
	other := r.publish(t, "other", "x", 4)
	eventually(t, func() error { return wantSequences(r.stored(t, "other", "x"), other[2:]) })
	got := trimMarks(t, srv)
	if want := (trim{UpTo: other[1], Reason: marks.Trimmed, Birth: r.partitions[0].ledger.birth}); got["other"] != want {
		t.Errorf("the marks are %+v, want %+v", got, want)
	}
	// Once everything before it is gone the mark of the first session says nothing.
	at := r.mark(t, event.Clear, "a", "")
	eventually(t, func() error { return wantSequences(r.stored(t, "a", ""), []uint64{at}) })
	if all[2] > other[1] {
		t.Fatal("the order of the test is wrong")
	}
	eventually(t, func() error {
		if got := trimMarks(t, srv); len(got) != 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

func TestASweepOnlyDeletesFromThePartitionItPlannedFor(t *testing.T) {
	srv := natstest.Start(t)
	cfg := quick()
	cfg.Interval = time.Hour
	r := begin(t, srv, eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}, cfg)
	r.onlySweeps()
	r.publish(t, "s", "a", 5)
	p := r.partitions[0]
	if rest, err := r.sweeper.plan(t.Context(), p); err != nil || rest != urgentLeft {
		t.Fatal(rest, err)
	}
	p.with(func(l *ledger) { l.created = l.created.Add(-time.Second) })
	deleted := map[Reason]int{}
	if _, err := r.sweeper.batch(t.Context(), p, deleted); err == nil || len(deleted) != 0 {
		t.Errorf("%v was deleted, %v", deleted, err)
	}
	if n := len(r.stored(t, "s", "a")); n != 5 {
		t.Errorf("%d events are left", n)
	}
}

func TestWhatASweepLeftIsDoneByTheNext(t *testing.T) {
	srv := natstest.Start(t)
	settings := eventlog.Settings{Partitions: 1, MaxEventsPerSession: 300}
	cfg := quick()
	cfg.Interval = time.Hour
	r := begin(t, srv, settings, cfg)
	r.onlySweeps()
	all := r.publish(t, "s", "a", 900)
	p := r.partitions[0]
	if _, err := r.sweeper.plan(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if rest, err := r.sweeper.batch(t.Context(), p, map[Reason]int{}); err != nil || rest != urgentLeft {
		t.Fatal(rest, err)
	}
	if err := wantSequences(r.stored(t, "s", "a"), all[batchSize:]); err != nil {
		t.Error(err)
	}
	r.wantMark(t, "s", "a", marks.Mark{Removed: all[599], Reason: marks.Trimmed})
	r.stop()

	r = begin(t, srv, settings, quick())
	eventually(t, func() error { return wantSequences(r.stored(t, "s", "a"), all[600:]) })
	r.exact(t)
	r.wantMark(t, "s", "a", marks.Mark{Removed: all[599], Reason: marks.Trimmed, Maybe: all[batchSize-1]})
}

func TestEventsBehindACloseMarkerAreRemovedAndDoNotCount(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{}, quick())
	before := r.publish(t, "s", "a", 3)
	at := r.mark(t, event.Close, "s", "a")
	r.publish(t, "s", "a", 2)
	eventually(t, func() error { return wantSequences(r.stored(t, "s", ""), append(slices.Clone(before), at)) })
	r.wantMark(t, "s", "a", marks.Mark{})
}

func TestABurstThatTheTailMissesIsAttributed(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerStream: 1}, quick())
	r.publish(t, "s", "quiet", 1)
	js, err := jetstream.New(r.b.Conn)
	if err != nil {
		t.Fatal(err)
	}
	subject := event.Subject{Session: "s", Stream: "busy"}.String()
	var last jetstream.PubAckFuture
	for range 2000 {
		if last, err = js.PublishAsync(subject, []byte(`{"jsonrpc":"2.0","method":"n"}`)); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	ack := <-last.Ok()
	eventually(t, func() error {
		if m, err := r.ask(t, "s", "busy"); err != nil || max(m.Removed, m.Maybe) != ack.Sequence-1 {
			return fmt.Errorf("%+v %w", m, err)
		}
		return nil
	})
	r.wantMark(t, "s", "quiet", marks.Mark{})
}

func TestEveryMetricMoves(t *testing.T) {
	srv, settings, cfg := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 4}, quick()
	r := begin(t, srv, settings, cfg)
	r.publish(t, "s", "a", 3)
	r.publish(t, "s", "b", 3)
	r.wantMark(t, "nobody", "x", marks.Mark{})
	for name, want := range map[string]float64{
		"retained_events": 4, "retained_bytes": 4 * messageBytes, "sessions": 1, "streams": 2, "lag_events": 0, "lease_held": 1,
		"trimmed_events_total/" + string(SessionEvents): 2, "registry_records_total/registered": 1,
	} {
		name, label, _ := strings.Cut(name, "/")
		eventually(t, func() error {
			if got := r.metric(t, name, label); got != want {
				return fmt.Errorf("%s is %v, want %v", name, got, want)
			}
			return nil
		})
	}
	eventually(t, func() error { // who has no answer in time asks again
		if r.metric(t, "marks_requests_total", answered) == 0 {
			return fmt.Errorf("no question is counted")
		}
		return nil
	})
	eventually(t, func() error {
		if r.metric(t, "sweep_duration_seconds", "") == 0 {
			return fmt.Errorf("no sweep is counted")
		}
		return nil
	})
	p := r.partitions[0]
	p.with(func(l *ledger) { l.through -= 2 })
	if got := r.metric(t, "lag_events", ""); got != 2 {
		t.Errorf("the lag is %v", got)
	}
	p.with(func(l *ledger) { l.through += 2 })
	if got := r.metric(t, "tail_missed_total", ""); got != 0 {
		t.Errorf("%v sequences were missed", got)
	}
	r.stop()
	r = begin(t, srv, settings, cfg)
	if got := r.metric(t, "tail_missed_total", ""); got != 2 {
		t.Errorf("a janitor that starts has missed %v sequences, want those that were trimmed", got)
	}
}
