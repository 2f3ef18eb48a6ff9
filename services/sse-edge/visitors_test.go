package edge

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"rejoin/shared/presence"
	"rejoin/shared/waittest"
)

func TestVisitorsRememberTheLastRequest(t *testing.T) {
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

// What is forgotten may have been asked for until the half that it was in was closed.
func TestAMillionVisitorsTakeBoundedMemoryAndNobodyIsForgottenForCertain(t *testing.T) {
	v, now := newVisitors(), int64(1e9)
	last := map[string]int64{}
	for i := range 1_000_000 {
		name := fmt.Sprint(i * 7919 % 300_000)
		now += int64(i % 2)
		v.note(name, time.Unix(now, 0))
		v.note("always", time.Unix(now, 0))
		last[name] = now
		if len(v.recent) > maxVisited || len(v.older) > maxVisited {
			t.Fatalf("it holds %d and %d", len(v.recent), len(v.older))
		}
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

func TestTheJanitorIsToldWhoIsThere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.startService(nil)
	url := s.url()
	for _, name := range []string{"connected", "polled", "alone"} {
		if _, err := f.Backend.Sessions.Register(waittest.Context(t), name, ""); err != nil {
			t.Fatal(err)
		}
		waittest.Until(t, "the edge knows the session", func() bool { _, ok := s.sessions.Session(name); return ok })
	}
	c := subscribe(t, url+"/v1/sessions/connected/events")
	poll(t, url+"/v1/sessions/polled/events")
	poll(t, url+"/v1/sessions/stranger/events")
	q := presence.Question{Sessions: []presence.Session{{Name: "connected", Within: -10}, {Name: "polled", Within: 60}, {Name: "polled", Within: -10}, {Name: "alone", Within: 60}, {Name: "stranger", Within: 60}}}
	want := func(present ...int) {
		t.Helper()
		waittest.Until(t, fmt.Sprint("an answer of ", present), func() bool {
			answers, err := presence.Ask(t.Context(), f.Backend.Conn, q, 100*time.Millisecond)
			if err != nil || len(answers) != 1 {
				return false
			}
			var got []int
			for _, p := range answers[0].Present {
				got = append(got, p.Session)
			}
			return slices.Equal(got, present)
		})
	}
	want(0, 1)
	c.close()
	want(1)
	q.Sessions[0].Within = 60
	want(0, 1)
}
