package admission

import (
	"fmt"
	"testing"
	"time"
)

func TestVisitors_LastRequest(t *testing.T) {
	v, noon := newVisitors(), time.Unix(1e9, 0)
	v.note("a", noon)
	v.note("a", noon.Add(time.Minute))
	v.note("b", noon)
	for session, want := range map[string]int64{"a": noon.Unix() + 60, "b": noon.Unix(), "c": 0} {
		if got := v.last(session); got != want {
			t.Errorf("%s was last asked for at %d, want %d", session, got, want)
		}
	}
}

// A forgotten session may have been requested until the last request of any forgotten session.
func TestVisitors_Million(t *testing.T) {
	v, now := newVisitors(), int64(1e9)
	last := map[string]int64{}
	for i := range 1_000_000 {
		name := fmt.Sprint(i * 7919 % 300_000)
		now += int64(i % 2)
		v.note(name, time.Unix(now, 0))
		v.note("always", time.Unix(now, 0))
		last[name] = now
	}
	if n := v.seen.Len(); n > maxVisited {
		t.Errorf("it holds %d", n)
	}
	forgotten := 0
	for name, at := range last {
		switch got := v.last(name); {
		case got < at:
			t.Fatalf("%s was asked for at %d, and it says %d", name, at, got)
		case got > at:
			forgotten++
		}
	}
	if v.last("always") != now || forgotten == 0 {
		t.Errorf("%d are in doubt", forgotten)
	}
}
