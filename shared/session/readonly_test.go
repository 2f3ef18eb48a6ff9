package session_test

import (
	"testing"

	"rejoin/shared/must"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// A service whose NATS user may not write the bucket answers from the log all the same, and
// corrects its own copy.
func TestReadOnly_LeavesTheIndex(t *testing.T) {
	_, r, l := single(t)
	made := mustCreate(t, r, "s")
	edge, _ := open(t, l.Conn())
	edge.ReadOnly()
	forget(t, l.Conn(), "s")
	waittest.Until(t, "the copies are empty", func() bool { return len(r.Sessions()) == 0 && len(edge.Sessions()) == 0 })
	rec, err := edge.Get(waittest.Context(t), "s")
	if err != nil || rec.Life != made.Life || rec.State != session.Open || rec.Revision != 0 {
		t.Errorf("it has %+v, %v", rec, err)
	}
	if rec, ok := edge.Session("s"); !ok || rec.Life != made.Life {
		t.Errorf("its copy has %+v", rec)
	}
	if other, _ := open(t, l.Conn()); len(other.Sessions()) != 0 {
		t.Errorf("the index was written: %+v", other.Sessions())
	}
	must.Value(r.Get(waittest.Context(t), "s"))(t)
	waittest.Until(t, "the index is written by another service", func() bool { rec, _ := edge.Session("s"); return rec.Revision != 0 })
}
