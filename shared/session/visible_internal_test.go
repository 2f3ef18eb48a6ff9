package session

import (
	"testing"
	"time"

	"rejoin/shared/eventlog/eventlogtest"
)

// A copy that is behind has the record of the former owner. The new one gets the session all
// the same.
func TestVisible_NameHasAnotherOwnerByNow(t *testing.T) {
	l, r := onePartition(t)
	alices, err := r.Create(t.Context(), New("s", "alice", nil, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.End(t.Context(), "s", "", false); err != nil {
		t.Fatal(err)
	}
	behind := func(rec Record) {
		t.Helper()
		r.mu.Lock()
		r.copy.set(key("s"), rec)
		r.mu.Unlock()
	}
	bobs := func(rec Record) bool { return rec.Owner == "bob" }
	behind(alices)
	if rec, err := r.Visible(t.Context(), "s", bobs); err != ErrNotFound { //nolint:errorlint // the very same error
		t.Errorf("ended, but not removed: %+v, %v", rec, err)
	}
	ended, err := r.Get(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := eventlogtest.Forget(t.Context(), l, "s"); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	for name, rec := range map[string]Record{"open": alices, "ended": ended} {
		behind(rec)
		if rec, err := r.Visible(t.Context(), "s", bobs); err != ErrNotFound { //nolint:errorlint // the very same error
			t.Errorf("%s, and removed: %+v, %v", name, rec, err)
		}
	}
	his, err := r.Create(t.Context(), New("s", "bob", nil, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	for name, rec := range map[string]Record{"open": alices, "ended": ended} {
		behind(rec)
		if rec, err := r.Visible(t.Context(), "s", bobs); err != nil || rec.Life != his.Life {
			t.Errorf("%s, and opened again: %+v, %v", name, rec, err)
		}
	}
}
