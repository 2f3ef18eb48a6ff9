package bridge

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/quota"
	"rejoin/shared/rpc"
)

// slots bounds how many there are at once of what a gauge counts, of which each client has a
// share; see [quota.Pool]. It is safe for concurrent use.
type slots struct {
	pool  *quota.Pool
	count prometheus.Gauge
}

func newSlots(n int, count prometheus.Gauge) slots {
	return slots{pool: quota.NewPool(int64(n)), count: count}
}

// enter takes a place for a client, if there is one; leave gives it back.
func (p slots) enter(client string) bool {
	if !p.pool.Take(client, 1) {
		return false
	}
	p.count.Inc()
	return true
}

func (p slots) leave(client string) {
	p.pool.Give(client, 1)
	p.count.Dec()
}

// used returns how many places are taken.
func (p slots) used() int64 { return p.pool.Used() }

// mostlyFree reports whether less than half is taken.
func (p slots) mostlyFree() bool { return 2*p.used() < p.pool.Capacity() }

// clientOf returns whose share the session is of that a call begins: the owner's, or without
// access control that of the client's address; empty when it is not known.
func clientOf(c rpc.Call) string { return cmp.Or(c.Owner, c.Client) }
