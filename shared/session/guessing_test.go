package session_test

import (
	"strings"
	"testing"
	"time"

	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// The time that a 404 takes tells nothing: for another's session as much is asked,
// and as much is received, as for an unused name, however large its metadata is.
func TestAttackSessionGuessingByTime(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	r, _ := create(t, connect(t, srv))
	metadata := []byte(`{"a":"` + strings.Repeat("x", 16_000) + `"}`)
	for name, data := range map[string][]byte{"small1": nil, "large1": metadata, "large2": metadata} {
		if _, err := r.Create(waittest.Context(t), session.New(name, "alice", data, time.Now())); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.End(waittest.Context(t), "large2", "", false); err != nil {
		t.Fatal(err)
	}
	nc := connect(t, srv)
	edge, _ := open(t, nc)
	edge.ReadOnly()
	type cost struct{ requests, bytes uint64 }
	ask := func(name string) cost {
		least := cost{1 << 62, 1 << 62}
		for range 10 { // what the connection receives meanwhile for others is not always there
			before := nc.Stats()
			if _, err := edge.Visible(waittest.Context(t), name, ownedBy("mallory")); err != session.ErrNotFound { //nolint:errorlint // the very same error
				t.Fatalf("%s: %v", name, err)
			}
			after := nc.Stats()
			least = cost{min(least.requests, after.OutMsgs-before.OutMsgs), min(least.bytes, after.InBytes-before.InBytes)}
		}
		return least
	}
	unused := ask("unused")
	for _, name := range []string{"small1", "large1"} {
		if got := ask(name); got != unused {
			t.Errorf("%s takes %+v, an unused name %+v", name, got, unused)
		}
	}
	// The seal of an ended session is an entry without a body.
	if got := ask("large2"); got.requests != unused.requests || got.bytes > unused.bytes+256 {
		t.Errorf("an ended session takes %+v, an unused name %+v", got, unused)
	}
	if unused.requests != 2 {
		t.Errorf("it takes %d requests", unused.requests)
	}
}
