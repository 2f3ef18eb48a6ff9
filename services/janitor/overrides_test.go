package janitor

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// register registers a session whose metadata asks for limits.
func (r *running) register(t *testing.T, name, retention string) {
	t.Helper()
	rec := session.New(name, "", json.RawMessage(`{"retention":`+retention+`}`), time.Now())
	must.Value(r.b.Sessions.Create(t.Context(), rec))(t)
}

func TestTrim_OldestOpenStreams(t *testing.T) {
	srv := natstest.Start(t)
	cfg := quick()
	cfg.Streams.MaxStreamsOverride = 3
	r := begin(t, srv, eventlog.Settings{Partitions: 1, MaxStreamsPerSession: 2}, cfg)
	r.register(t, "one", `{"maxStreams":1}`)
	r.register(t, "many", `{"maxStreams":-1}`)
	finish := func(name, stream string) {
		must.Value(r.b.Log.Publish(t.Context(), eventlog.Event{Session: name, Life: r.life(name), Stream: stream, Data: []byte(`{}`), Final: true}))(t)
	}
	last := uint64(0)
	for _, name := range []string{"plain", "one", "many"} {
		finish(name, "finished")
		for i := range 4 {
			if all := r.publish(t, name, fmt.Sprint("open-", i), 2); name == "plain" && i == 2 {
				last = all[1]
			}
		}
	}
	for name, kept := range map[string]int{"plain": 2, "one": 1, "many": 3} {
		for i := range 4 {
			want := 2
			if i < 4-kept {
				want = 0
			}
			stream := fmt.Sprint("open-", i)
			waittest.Value(t, name+"/"+stream, func() []uint64 { return r.stored(t, name, stream) }, func(got []uint64) bool { return len(got) == want })
		}
		if got := r.stored(t, name, "finished"); len(got) != 1 {
			t.Errorf("%s: of the finished stream %v are left", name, got)
		}
	}
	gone := r.publish(t, "plain", "open-0", 1)
	waittest.NoError(t, func() error { return wantSequences(r.stored(t, "plain", "open-2"), nil) })
	must.NoError(t, wantSequences(r.stored(t, "plain", "open-0"), gone))
	r.wantTrimmed(t, "plain", "open-2", last, eventlog.Trimmed)
	r.counts(t, 4+6+2+2, "trimmed_events_total", "session_streams")
}

// A copy of the registry without the record of a session, or with an older one, does not have the limits
// that the session asks for.
func TestTrim_RecordsNotCopied(t *testing.T) {
	srv := natstest.Start(t)
	cfg := quick()
	cfg.MaxEventsOverride = 100
	var copied *session.Registry
	prepare := func(s *Service) {
		var err error
		copied, err = session.OpenRegistry(t.Context(), s.backend.Log, s.logger, session.ByPartition())
		must.NoError(t, err)
		t.Cleanup(copied.Close)
		s.sweeper.sessions = copied
	}
	r := beginAt(t, srv.URL(), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 3}, cfg, prepare)
	r.register(t, "more", `{"maxEvents":9}`)
	all := r.publish(t, "more", "s", 12)
	r.publish(t, "plain", "s", 5) // of a life that has no record
	waittest.Until(t, "three events are left of a session without a record", func() bool { return len(r.stored(t, "plain", "s")) == 3 })
	if swept := r.sweeper.sweepNow(waittest.Timeout); swept.err != nil {
		t.Fatal(swept.err)
	}
	if left := r.stored(t, "more", "s"); len(left) != len(all) {
		t.Errorf("%d events are left of %d without a record", len(left), len(all))
	}
	copied.Keep([]bool{true}, func() {})
	waittest.NoError(t, func() error { return wantSequences(r.stored(t, "more", "s"), all[3:]) })
}

func TestTrim_FinishedStreamsFirst(t *testing.T) {
	srv := natstest.Start(t)
	cfg := quick()
	cfg.ClosedGrace, cfg.MaxEventsOverride, cfg.Interval = 0, 5, time.Hour
	r := begin(t, srv, eventlog.Settings{Partitions: 1, MaxEventsPerSession: 3}, cfg, onlySweeps)
	r.register(t, "more", `{"maxEvents":9}`)
	r.register(t, "less", `{"maxEvents":2}`)
	r.register(t, "small", fmt.Sprintf(`{"maxBytes":%d}`, messageBytes))
	r.register(t, "odd", `{"maxEvents":"2"}`)
	wants := map[string][2]int{"more": {3, 2}, "less": {2, 0}, "small": {1, 0}, "odd": {3, 0}, "plain": {3, 0}}
	for name := range wants {
		r.publish(t, name, "open", 3)
		r.publish(t, name, "finished", 2)
		ack := must.Value(r.b.Log.Publish(t.Context(), eventlog.Event{Session: name, Life: r.life(name), Stream: "finished", Data: []byte(`{}`), Final: true}))(t)
		r.followed(t, ack)
	}
	r.sweeper.cleared()
	for name, want := range wants {
		waittest.Value(t, fmt.Sprint("of ", name, " there are ", want), func() [2]int {
			return [2]int{len(r.stored(t, name, "open")), len(r.stored(t, name, "finished"))}
		}, func(got [2]int) bool { return got == want })
	}
}
