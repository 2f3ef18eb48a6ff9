package session_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rejoin/shared/must"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestVisible(t *testing.T) {
	_, r, l := single(t)
	other, _ := open(t, l.Conn())
	for name, owner := range map[string]string{"hers": "alice", "nobodys": ""} {
		must.Value(r.Create(waittest.Context(t), session.New(name, owner, nil, time.Now())))(t)
	}
	for _, registry := range []*session.Registry{r, other} { // the latter's copy may lag
		if rec, err := registry.Visible(waittest.Context(t), "hers", ownedBy("alice")); err != nil || rec.Session != "hers" || rec.Life == "" {
			t.Errorf("%+v, %v", rec, err)
		}
		if _, ok := registry.Session("hers"); !ok {
			t.Error("what the leader said is not remembered")
		}
		for _, at := range [][2]string{{"hers", "bob"}, {"hers", "Alice"}, {"hers", ""}, {"nobodys", ""}, {"nobodys", "bob"}, {"nothing", "alice"}, {"nothing", ""}} {
			if rec, err := registry.Visible(waittest.Context(t), at[0], ownedBy(at[1])); err != session.ErrNotFound || rec.Session != "" { //nolint:errorlint // the very same error, so that answers cannot differ
				t.Errorf("%v: %+v, %v", at, rec, err)
			}
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Visible(gone, "hers", ownedBy("bob")); !errors.Is(err, session.ErrUnavailable) {
		t.Error(err)
	}
}

// The time of a 404 reveals nothing: for another's session as much is sent, and as much is received, as for
// an unused name, however large its metadata is, and however many members it has.
func TestAttackSessionGuessingByTime(t *testing.T) {
	srv, r, _ := single(t)
	metadata := []byte(`{"a":"` + strings.Repeat("x", 16_000) + `"}`)
	for name, data := range map[string][]byte{"small1": nil, "large1": metadata, "large2": metadata} {
		must.Value(r.Create(waittest.Context(t), session.New(name, "alice", data, time.Now())))(t)
	}
	mustEnd(t, r, "large2", "")
	members := make([]string, 100)
	for i := range members {
		members[i] = strings.Repeat("x", 100) + fmt.Sprint(i)
	}
	must.Value(r.Create(waittest.Context(t), session.New("shared", "alice", nil, time.Now()).WithMembers(members)))(t)
	mustCreate(t, r, "changed")
	mustSetMembers(t, r, "changed", members...)
	nc := connect(t, srv)
	edge, _ := open(t, nc)
	edge.ReadOnly()
	type cost struct{ requests, bytes uint64 }
	ask := func(name string) cost {
		least := cost{1 << 62, 1 << 62}
		for range 10 { // the connection does not always receive data for others meanwhile
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
	// The seal of an ended session is an entry without a body.
	for name, more := range map[string]uint64{"small1": 0, "large1": 0, "shared": 0, "changed": 8, "large2": 256} {
		if got := ask(name); got.requests != unused.requests || more == 0 && got != unused || got.bytes > unused.bytes+more {
			t.Errorf("%s takes %+v, an unused name %+v", name, got, unused)
		}
	}
	if unused.requests != 2 {
		t.Errorf("it takes %d requests", unused.requests)
	}
}
