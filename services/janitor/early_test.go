package janitor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// sweepNow has the sweeper sweep.
func (r *running) sweepNow(t *testing.T) {
	t.Helper()
	waittest.NoError(t, func() error { return r.sweeper.sweepNow(waittest.Timeout).err }, eventlog.ErrUnavailable)
}

// everything has the registrar do its duties, and the sweeper sweep.
func (r *running) everything(t *testing.T) {
	t.Helper()
	r.registrar.round(r.term(t))
	r.sweepNow(t)
}

func TestTrim_BetweenSweeps(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		settings eventlog.Settings
	}{
		{"events", eventlog.Settings{MaxEventsPerSession: 40}},
		{"bytes", eventlog.Settings{MaxBytesPerSession: 40 * messageBytes}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := quick()
			cfg.Interval = time.Hour
			test.settings.Partitions = 1
			r := begin(t, natstest.Start(t), test.settings, cfg)
			within := r.publish(t, "within", "a", 44) // less than an eighth more
			all := r.publish(t, "s", "a", 30)
			for range 3 {
				all = append(all, r.publish(t, "s", "b", 15)...)
				waittest.Until(t, "no more than 44 events are stored", func() bool { return len(r.stored(t, "s", "")) <= 44 })
			}
			waittest.NoError(t, func() error { // a trim may be half deleted
				left := r.stored(t, "s", "")
				if len(left) < 40 {
					t.Fatalf("%d events are left", len(left))
				}
				return wantSequences(left, all[len(all)-len(left):])
			})
			must.NoError(t, wantSequences(r.stored(t, "within", ""), within))
			if strings.Contains(r.log.String(), "msg=swept") {
				t.Error("there is a line for what was trimmed between the sweeps")
			}
			r.sweepNow(t)
			if line := fmt.Sprintf("session_%s=%d", test.name, len(all)-40+4); !strings.Contains(r.log.String(), line) {
				t.Errorf("the log does not say %s", line)
			}
		})
	}
}

// The cost of planning a partition of 10,000 sessions, and of planning one session of it.
func BenchmarkPlan(b *testing.B) {
	const sessions, each = 10_000, 10
	env := daemon.NewEnv(nil)
	back := must.Value(backend.Create(b.Context(), backend.Config{NATSURL: natstest.Start(b).URL()}, "janitor", eventlog.Settings{Partitions: 1, MaxEventsPerSession: 10_000}, env.Log))(b)
	defer back.Close()
	l := ledger.New()
	for i := range sessions * each {
		at := event.Subject{Session: fmt.Sprint("session-", i%sessions), Stream: "main"}
		if i < sessions {
			must.Value(back.Sessions.Create(b.Context(), session.New(at.Session, "", nil, time.Now())))(b)
		}
		l.Apply(eventlog.Entry{Subject: at, Valid: true, Sequence: l.Through + 1, Time: midday, Size: 512}, midday)
	}
	l.Reach(l.Through, midday)
	w := newSweeper(quick(), back, nil, env.Log)
	b.Run("partition", func(b *testing.B) {
		for b.Loop() {
			w.plannedTrims(l, nil, midday)
		}
	})
	b.Run("session", func(b *testing.B) {
		for b.Loop() {
			w.plannedTrims(l, []string{event.LifeKey("session-1", "")}, midday)
		}
	})
	for i := range 10_500 {
		at := event.Subject{Session: "hot", Stream: fmt.Sprint(i % 50)}
		l.Apply(eventlog.Entry{Subject: at, Valid: true, Sequence: l.Through + 1, Time: midday, Size: 512}, midday)
	}
	b.Run("hot session", func(b *testing.B) {
		for b.Loop() {
			if n := len(w.removalsOf(l, l.Accounts[event.LifeKey("hot", "")], w.limits(), midday)); n != 50 {
				b.Fatal(n)
			}
		}
	})
}
