package pause

import (
	"testing"
	"testing/synctest"
	"time"
)

// A pause is confirmed by a look at the name that began after it.
func TestWatch_Confirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watch
		w.Start()
		want := func(seen int, confirmed bool) {
			t.Helper()
			if n, ok := w.Seen(), w.IsConfirmed(); n != seen || ok != confirmed {
				t.Errorf("there were %d pauses, confirmed %t, and not %d, %t", n, ok, seen, confirmed)
			}
		}
		want(0, true)
		for range 3 {
			time.Sleep(pausedFor)
			want(0, true)
		}
		time.Sleep(pausedFor + 1)
		want(1, false)
		w.Confirm(0) // a look from before
		want(1, false)
		w.Confirm(1)
		want(1, true)
		time.Sleep(time.Hour)
		want(2, false)
		time.Sleep(time.Hour)
		w.Confirm(2)
		want(3, false)
		w.Confirm(3)
		w.Confirm(1) // a slow one
		want(3, true)
	})
}
