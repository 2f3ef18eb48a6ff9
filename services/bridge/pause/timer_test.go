package pause

import (
	"testing"
	"testing/synctest"
	"time"
)

// runs lets the process run for a while.
func (w *Watch) runs(d time.Duration) {
	for range d / beatEvery {
		time.Sleep(beatEvery)
		w.Seen()
	}
}

// timers begins timers of 10 s, and looks whether one has fired.
type timers struct {
	t     *testing.T
	watch *Watch
	fired bool
}

func newTimers(t *testing.T, w *Watch) *timers {
	t.Helper()
	w.Start()
	return &timers{t: t, watch: w}
}

func (ts *timers) begin() *Timer {
	return ts.watch.AfterFunc(10*time.Second, func() { ts.fired = true })
}

// want checks whether one has fired since the last check.
func (ts *timers) want(what string, now bool) {
	ts.t.Helper()
	if synctest.Wait(); ts.fired != now {
		ts.t.Errorf("%s: it has fired %t", what, ts.fired)
	}
	ts.fired = false
}

// A timer that runs out in a pause, or soon after, runs once more: the messages of the pause are read first.
func TestTimer_RunsOutInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watch
		ten := newTimers(t, &w)
		begin, want := ten.begin, ten.want
		begin()
		w.runs(9 * time.Second)
		want("before its time", false)
		w.runs(2 * time.Second)
		want("after its time", true)

		begin()
		w.runs(9 * time.Second)
		time.Sleep(time.Minute)
		want("after a pause", false)
		w.runs(9 * time.Second)
		want("before its time after the pause", false)
		w.runs(2 * time.Second)
		want("after its time after the pause", true)

		stopped := begin()
		time.Sleep(time.Minute)
		stopped.Stop()
		stopped.Stop()
		w.runs(time.Minute)
		want("stopped", false)
	})
}

// So does one that runs out in an outage of NATS, or soon after.
func TestTimer_RunsOutInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watch
		ten := newTimers(t, &w)
		begin, want := ten.begin, ten.want
		begin()
		w.runs(5 * time.Second)
		first, second := w.Outage(), w.Outage()
		first.Set(true)
		second.Set(true)
		w.runs(time.Second)
		first.Set(false)
		first.Set(false)
		w.runs(time.Minute)
		want("in the outage", false)
		second.Set(false)
		w.runs(9 * time.Second)
		want("soon after the outage", false)
		w.runs(11 * time.Second)
		want("long after the outage", true)

		begin()
		w.runs(5 * time.Second)
		second.Set(true)
		second.Set(false)
		w.runs(6 * time.Second)
		want("after a short outage", false)
		w.runs(10 * time.Second)
		want("after its time after the short outage", true)
		if !w.IsConfirmed() {
			t.Error("an outage is a pause of the process")
		}
	})
}

// A watch that was not started has seen no pause.
func TestWatch_NotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watch
		fired := false
		w.AfterFunc(time.Hour, func() { fired = true })
		time.Sleep(2 * time.Hour)
		if synctest.Wait(); !fired || w.Seen() != 0 || !w.IsConfirmed() {
			t.Errorf("it has seen %d pauses", w.Seen())
		}
	})
}
