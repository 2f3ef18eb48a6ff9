package e2e

import (
	"net/http"
	"strings"
	"testing"

	"rejoin/shared/waittest"
)

// Who is connected is asked of the edge, over NATS, before a session is closed.
func TestIdleSession_ClosedUnlessVisited(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--idle-after=10s", "--interval=200ms", "--max-age=10s", "--nats-sync-interval=100ms", "--partitions=1",
		"--closed-grace=0s", "--tombstone-ttl=10s", "--max-connection-age=10m")
	create := func(session string) {
		t.Helper()
		p.create(`{"session":"` + session + `"}`)
	}
	state := func(session string) string {
		a := do(t, http.MethodGet, p.api()+"/v1/sessions/"+session, "")
		if a.status == http.StatusNotFound {
			return "gone"
		}
		return stringIn(t, a.body, "state")
	}
	for _, session := range []string{"visited", "polled", "alone"} {
		create(session)
	}
	s := p.subscribe("/v1/sessions/visited/events", "")
	s.next("connect")
	poll := func() {
		a := do(t, http.MethodGet, p.api()+"/v1/sessions/polled/events", "", "Accept", jsonType)
		if a.status != http.StatusOK || strings.Contains(a.body, `"closed":true`) {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	seen := map[string]bool{}
	n := 0
	waittest.Until(t, "the idle session has come and gone", func() bool {
		poll()
		n++
		p.publish("busy", "main", n, n)
		now := state("alone")
		seen[now] = true
		return now == "gone"
	})
	if !seen["open"] || !seen["closed"] {
		t.Errorf("it was %v", seen)
	}
	for _, session := range []string{"visited", "polled", "busy"} {
		if got := state(session); got != "open" {
			t.Errorf("the session %s is %s", session, got)
		}
	}
	p.publish("visited", "main", 1, 1)
	if got := s.next("message").Data; !strings.Contains(string(got), numbered(1)) {
		t.Errorf("got %s", got)
	}
	create("alone")
}
