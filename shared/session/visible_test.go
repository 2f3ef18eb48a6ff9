package session_test

import (
	"context"
	"errors"
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
	for _, registry := range []*session.Registry{r, other} { // the latter's copy may be behind
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
