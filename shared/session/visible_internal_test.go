package session

import (
	"testing"
	"time"

	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
)

// A copy that is behind has the record of the former owner. The new one gets the session all
// the same.
func TestVisible_NameHasAnotherOwnerByNow(t *testing.T) {
	l, r := onePartition(t)
	alices := must.Value(r.Create(t.Context(), New("s", "alice", nil, time.Now())))(t)
	must.NoError(t, r.End(t.Context(), "s", "", false))
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
	ended := must.Value(r.Get(t.Context(), "s"))(t)
	must.NoError(t, eventlogtest.Forget(t.Context(), l, "s"))
	must.NoError(t, r.Remove(t.Context(), ended))
	for name, rec := range map[string]Record{"open": alices, "ended": ended} {
		behind(rec)
		if rec, err := r.Visible(t.Context(), "s", bobs); err != ErrNotFound { //nolint:errorlint // the very same error
			t.Errorf("%s, and removed: %+v, %v", name, rec, err)
		}
	}
	his := must.Value(r.Create(t.Context(), New("s", "bob", nil, time.Now())))(t)
	for name, rec := range map[string]Record{"open": alices, "ended": ended} {
		behind(rec)
		if rec, err := r.Visible(t.Context(), "s", bobs); err != nil || rec.Life != his.Life {
			t.Errorf("%s, and opened again: %+v, %v", name, rec, err)
		}
	}
}
