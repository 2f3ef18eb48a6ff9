package session_test

import (
	"fmt"
	"testing"

	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// A registry that keeps some partitions has their records alone, those of before until it has the
// others, and all that is written meanwhile.
func TestKeep_RecordsOfPartitions(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	nc := connect(t, srv)
	writer, l := createWith(t, nc, eventlog.Settings{Partitions: 3})
	r, _ := open(t, connect(t, srv))
	n := 0
	write := func() {
		for range 20 {
			mustCreate(t, writer, fmt.Sprint("s", n))
			n++
		}
	}
	write()
	for _, kept := range [][]bool{{true, false, true}, {false, true, false}, {false, false, false}, {true, true, true}} {
		copied := make(chan struct{})
		r.Keep(kept, func() { close(copied) })
		for p, k := range kept {
			if !k && r.Has(p) {
				t.Errorf("it says that it keeps partition %d", p)
			}
		}
		write()
		waittest.Receive(t, "the copy is complete", copied)
		waittest.Until(t, "the copy has what is kept", func() bool {
			for p, k := range kept {
				if k != r.Has(p) {
					return false
				}
			}
			found := 0
			for i := range n {
				name := fmt.Sprint("s", i)
				rec, ok := r.Session(name)
				if ok != kept[l.Partition(name)] || ok && rec.Session != name {
					return false
				}
				if ok {
					found++
				}
			}
			return found == len(r.Sessions())
		})
		if rec, err := r.Get(waittest.Context(t), "s1"); err != nil || rec.Session != "s1" {
			t.Errorf("Get returns %+v, %v", rec, err)
		}
	}
}
