package janitor

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestSweep_PartitionRecreated(t *testing.T) {
	cfg := quick()
	cfg.Interval = time.Hour
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2, MaxAge: time.Second}, cfg, onlySweeps)
	r.publish(t, "s", "a", 5)
	p := r.partitions[0]
	p.With(func(l *ledger.Ledger) { l.Created = l.Created.Add(-time.Second) })
	if err := r.sweeper.announce(t.Context(), p, false, map[ledger.Cause]int{}); !errors.Is(err, follow.ErrChanged) {
		t.Errorf("it announces: %v", err)
	}
	p.With(func(l *ledger.Ledger) { l.Newest.At = l.Newest.At.Add(time.Hour) })
	if err := r.sweeper.keepFloor(t.Context(), p); !errors.Is(err, follow.ErrChanged) {
		t.Errorf("it moves the floor: %v", err)
	}
	if now, err := r.b.Log.Look(t.Context(), 0); err != nil || now.Entries != 5 || now.Last != 5 {
		t.Errorf("%+v, %v", now, err)
	}
}

// Nothing is deleted before the announcement survives a power cut.
func TestTrim_AnnouncementIsSyncedFirst(t *testing.T) {
	cfg := quick()
	cfg.SyncInterval = time.Hour
	var clock aheadClock
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 1, MaxAge: -1, MaxEventsPerSession: 2}, cfg, clock.ofLedgers, func(s *Service) { s.deleter.every = 10 * time.Millisecond })
	all := r.publish(t, "s", "a", 5)
	r.wantTrimmed(t, "s", "a", all[2], eventlog.Trimmed)
	r.sweepNow(t)
	for _, later := range []time.Duration{0, 2*time.Hour - time.Minute} {
		clock.ahead.Store(int64(later))
		must.NoError(t, r.deleter.round())
		if err := wantSequences(r.stored(t, "s", "a"), all); err != nil {
			t.Errorf("%s later: %v", later, err)
		}
	}
	clock.ahead.Store(int64(2*time.Hour + time.Minute))
	waittest.NoError(t, func() error { return wantSequences(r.stored(t, "s", "a"), all[3:]) })
}

func TestMetrics_EachMoves(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 4}, quick())
	r.publish(t, "other", "a", 1) // the log begins with it, whatever is removed
	r.publish(t, "s", "a", 3)
	r.publish(t, "s", "b", 3)
	for name, want := range map[string]float64{
		"retained_events": 5, "retained_bytes": 5 * messageBytes, "sessions": 2, "streams": 3, "lag_events": 0, "partitions_held": 1,
		"trimmed_events_total/" + string(ledger.SessionEvents): 2, "deleted_entries_total": 2, "pending_entries": 0,
		"copies_total": 0, "floor_moves_total/age": 0, "floor_moves_total/bytes": 0, "floor_removed_events_total": 0, "registry_records_total/repaired": 0,
	} {
		name, label, _ := strings.Cut(name, "/")
		r.counts(t, want, name, label)
	}
	waittest.Until(t, "a sweep is counted", func() bool { return r.metric(t, "sweep_duration_seconds") > 0 })
	if n := r.metric(t, "trims_total"); n < 1 || n > 2 {
		t.Errorf("%v trims are counted", n)
	}
	p := r.partitions[0]
	p.With(func(l *ledger.Ledger) { l.Through -= 2 })
	if got := r.metric(t, "lag_events"); got != 2 {
		t.Errorf("the lag is %v", got)
	}
	p.With(func(l *ledger.Ledger) { l.Through += 2 })
}

func TestMetrics_UnderReplicated(t *testing.T) {
	three := eventlog.Limits{Replicas: 3}
	for name, tt := range map[string]struct {
		state eventlog.State
		want  bool
	}{
		"not seen yet":                  {eventlog.State{}, false},
		"all are current":               {eventlog.State{Current: 3, Whole: midday.Add(-time.Hour), Limits: three}, false},
		"one lacks the newest entry":    {eventlog.State{Current: 2, Whole: midday.Add(-2 * time.Second), Limits: three}, false},
		"one has been away for a while": {eventlog.State{Current: 2, Whole: midday.Add(-31 * time.Second), Limits: three}, true},
	} {
		if got := underReplicated(tt.state, midday); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// An opening whose life the janitor has yet to read needs no repair of the record.
func TestMetrics_RepairedRecordsHaveChanged(t *testing.T) {
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1}
	r := begin(t, srv, settings, idle()) // a record that is yet to be written may be repaired
	r.used(t, "s")
	r.stop()
	r = begin(t, srv, settings, idle())
	waittest.Until(t, "the opening is read", func() (known bool) {
		r.registrar.round(r.term(t))
		r.partitions[0].With(func(l *ledger.Ledger) { known = l.Opening("s").Known })
		return known
	})
	if n := r.metric(t, "registry_records_total", "repaired"); n != 0 {
		t.Errorf("%v records were repaired, and none was wrong", n)
	}
	r.lose(t, session.Bucket)
	waittest.NoError(t, func() error {
		r.registrar.round(r.term(t))
		if n := r.metric(t, "registry_records_total", "repaired"); n != 1 {
			return fmt.Errorf("%v records were repaired", n)
		}
		return nil
	})
}
