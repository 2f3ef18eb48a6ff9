package janitor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
)

// sweepNow has the sweeper sweep.
func (r *running) sweepNow(t *testing.T) {
	t.Helper()
	passes(t, eventlog.ErrUnavailable, func() error { return r.sweeper.sweepNow(patience).err })
}

// everything has the registrar do its duties, and the sweeper sweep.
func (r *running) everything(t *testing.T) {
	t.Helper()
	r.registrar.round(r.term(t))
	r.sweepNow(t)
}

func TestASessionThatHoldsTooMuchIsTrimmedBeforeTheNextSweep(t *testing.T) {
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
				eventually(t, func() error {
					if n := len(r.stored(t, "s", "")); n > 44 {
						return fmt.Errorf("%d events are stored", n)
					}
					return nil
				})
			}
			eventually(t, func() error { // a trim may be half deleted
				left := r.stored(t, "s", "")
				if len(left) < 40 {
					t.Fatalf("%d events are left", len(left))
				}
				return wantSequences(left, all[len(all)-len(left):])
			})
			if err := wantSequences(r.stored(t, "within", ""), within); err != nil {
				t.Error(err)
			}
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

func TestTheAlarmRingsOnceUntilItIsHeard(t *testing.T) {
	l := newLedger()
	l.alarm = limits{maxPerStream: -1, maxEvents: 100, maxBytes: -1}.alarm()
	publish := func(session string, n int) {
		for range n {
			l.apply(eventlog.Entry{Subject: event.Subject{Session: session, Stream: "x"}, Valid: true, Sequence: l.through + 1, Time: noon}, noon)
		}
	}
	publish("a", 111)
	publish("b", 200)
	if l.alarmed() {
		t.Error("it rings before the ledger is complete")
	}
	l.reach(l.through, noon)
	for range 2 {
		if got := fmt.Sprint(l.alarms()); got != "[b ]" || l.alarmed() {
			t.Errorf("it rang for %s", got)
		}
		l.hush(unopened("b"))
		publish("b", 2)
	}
	l.alarms()
	if publish("b", 2); l.alarmed() {
		t.Error("it rings for a session that had to give up nothing")
	}
	l.hush(unopened("b"))
	for range 2 { // it could not be trimmed
		l.ringAgain([]string{unopened("b"), unopened("gone")})
	}
	if publish("b", 2); !l.alarmed() || len(l.over) != 1 {
		t.Errorf("it rings for %q", l.over)
	}
	l.drop()
	if l.alarmed() || l.alarm.events != 112 {
		t.Errorf("the ledger that was dropped is left with %+v and %v", l.alarm, l.over)
	}
}

func TestAlarm_IsAnEighthAboveTheLimit(t *testing.T) {
	for limit, want := range map[int64]int64{-1: 0, 1: 2, 7: 8, 8: 9, 16: 18, 10_000: 11_250} {
		if got := (limits{limit, limit, limit, -1, 0}).alarm(); got != (alarm{want, want, want}) {
			t.Errorf("with a limit of %d it rings at %+v, want %d", limit, got, want)
		}
	}
	m := alarm{perStream: 3, events: 5, bytes: 50}
	for name, test := range map[string]struct {
		a    account
		s    stream
		want bool
	}{
		"nothing":  {account{events: 4, bytes: 49}, stream{events: sized(1, 2)}, false},
		"a stream": {account{events: 3}, stream{events: sized(1, 2, 3)}, true},
		"events":   {account{events: 5}, stream{}, true},
		"bytes":    {account{bytes: 50}, stream{}, true},
	} {
		if got := m.rings(&test.a, &test.s); got != test.want {
			t.Errorf("%s: it rings: %t", name, got)
		}
	}
}

// What it takes to plan a partition of 10,000 sessions, and to plan one session of it.
func BenchmarkPlan(b *testing.B) {
	const sessions, each = 10_000, 10
	env := daemon.NewEnv(nil)
	back, err := backend.Create(b.Context(), backend.Config{NATSURL: natstest.Start(b).URL()}, "janitor", eventlog.Settings{Partitions: 1, MaxEventsPerSession: 10_000}, env.Log)
	if err != nil {
		b.Fatal(err)
	}
	defer back.Close()
	l := newLedger()
	for i := range sessions * each {
		at := event.Subject{Session: fmt.Sprint("session-", i%sessions), Stream: "main"}
		if i < sessions {
			if _, err := back.Sessions.Register(b.Context(), at.Session, ""); err != nil {
				b.Fatal(err)
			}
		}
		l.apply(eventlog.Entry{Subject: at, Valid: true, Sequence: l.through + 1, Time: noon, Size: 512}, noon)
	}
	l.reach(l.through, noon)
	w := newSweeper(quick(), back, nil, env.Log)
	b.Run("partition", func(b *testing.B) {
		for b.Loop() {
			w.planned(l, nil, noon)
		}
	})
	b.Run("session", func(b *testing.B) {
		for b.Loop() {
			w.planned(l, []string{unopened("session-1")}, noon)
		}
	})
	for i := range 10_500 {
		at := event.Subject{Session: "hot", Stream: fmt.Sprint(i % 50)}
		l.apply(eventlog.Entry{Subject: at, Valid: true, Sequence: l.through + 1, Time: noon, Size: 512}, noon)
	}
	b.Run("hot session", func(b *testing.B) {
		for b.Loop() {
			if n := len(w.ofLife(l, l.accounts[unopened("hot")], w.limits(), noon)); n != 50 {
				b.Fatal(n)
			}
		}
	})
}
