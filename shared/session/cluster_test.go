package session_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// inCluster returns a log with three replicas, and its registry.
func inCluster(t *testing.T) (*session.Registry, *eventlog.Log) {
	t.Helper()
	nc := must.Value(nats.Connect(natstest.StartCluster(t).URL(), nats.Timeout(30*time.Second)))(t)
	t.Cleanup(nc.Close)
	settings := one()
	settings.Replicas = 3
	return createWith(t, nc, settings)
}

// With replicas, the loser of the race over an opening or a marker receives another error.
func TestCreate_ConcurrentAfterRemoveInACluster(t *testing.T) {
	r, l := inCluster(t)
	for n := range 50 {
		name := fmt.Sprint(n)
		must.NoError(t, remove(t, r, l, mustCreate(t, r, name)))
		var made atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				_, err := r.Create(waittest.Context(t), session.New(name, "", nil, time.Now()))
				if err == nil {
					made.Add(1)
				} else if !errors.Is(err, session.ErrExists) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if made.Load() != 1 {
			t.Fatalf("it was made %d times", made.Load())
		}
	}
}

// A change of members right after another one is repeated while the cluster still has that one
// under way.
func TestSetMembers_InACluster(t *testing.T) {
	r, l := inCluster(t)
	mustCreate(t, r, "s")
	for n := range 50 {
		mustSetMembers(t, r, "s", fmt.Sprint(n))
	}
	o, err := l.Opening(waittest.Context(t), "s")
	if err != nil || o.Changes != 50 || o.Members[0] != "49" {
		t.Errorf("%+v, %v", o, err)
	}
}
