package janitor

import (
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

func TestWhatIsNotUrgentTakesAFifthOfTheTimeOrWhatItMust(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		took, due time.Duration
		left      int
		want      time.Duration
	}{
		"little is left":       {5 * ms, time.Minute, 100, 20 * ms},
		"all is done":          {5 * ms, time.Minute, 0, 20 * ms},
		"it would take long":   {5 * ms, time.Minute, leisureSize * 6000, 5 * ms},
		"between":              {5 * ms, time.Minute, leisureSize * 4000, 10 * ms},
		"it is overdue":        {5 * ms, -time.Second, 1000, 5 * ms},
		"the server is slow":   {50 * ms, time.Minute, 1000, 200 * ms},
		"it cannot be done":    {50 * ms, time.Minute, 1_000_000, 50 * ms},
		"nothing took no time": {0, time.Minute, 1000, 0},
	} {
		if got := leisurely(tt.took, tt.due, tt.left); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// A sweep, which removes what has to go now, does not wait for the rest to be gone.
func TestWhatIsUrgentGoesFirst(t *testing.T) {
	srv := natstest.Start(t)
	cfg := quick()
	cfg.Interval, cfg.ClosedGrace = time.Hour, 0
	r := begin(t, srv, eventlog.Settings{Partitions: 1, MaxEventsPerSession: 300}, cfg)
	r.onlySweeps()
	rec, err := r.b.Sessions.Create(t.Context(), session.New("closed", "", nil, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	r.publish(t, "closed", "a", 100)
	if err := session.Close(t.Context(), r.b.Sessions, r.b.Log, rec.Session, "", false, 0); err != nil {
		t.Fatal(err)
	}
	all := r.publish(t, "busy", "a", 310)
	p := r.partitions[0]
	if rest, err := r.sweeper.plan(t.Context(), p); err != nil || rest != urgentLeft {
		t.Fatal(rest, err)
	}
	if rest, err := r.sweeper.batch(t.Context(), p, map[Reason]int{}); err != nil || rest != leisureLeft {
		t.Fatal(rest, err)
	}
	if err := wantSequences(r.stored(t, "busy", "a"), all[10:]); err != nil {
		t.Error(err)
	}
	if n := r.metric(t, "doomed_entries", ""); n != 100 {
		t.Errorf("%v entries are doomed", n)
	}
	if n := len(r.stored(t, "closed", "a")); n != 100 {
		t.Errorf("%d events of the closed session are left", n)
	}
}
