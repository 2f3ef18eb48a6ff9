package host

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/quota"
	"rejoin/shared/rpc"
)

// Slots bounds how many there are at once of what a gauge counts, of which each client has a
// share; see [quota.Pool]. It is safe for concurrent use.
type Slots struct {
	pool  *quota.Pool
	count prometheus.Gauge
}

// NewSlots returns n free places, of which count shows how many are taken.
func NewSlots(n int, count prometheus.Gauge) Slots {
	return Slots{pool: quota.NewPool(int64(n)), count: count}
}

// Enter takes a place for a client, if there is one; Leave gives it back.
func (p Slots) Enter(client string) bool {
	if !p.pool.Take(client, 1) {
		return false
	}
	p.count.Inc()
	return true
}

// Leave gives a place of a client back.
func (p Slots) Leave(client string) {
	p.pool.Give(client, 1)
	p.count.Dec()
}

// Used returns how many places are taken.
func (p Slots) Used() int64 { return p.pool.Used() }

// MostlyFree reports whether less than half is taken.
func (p Slots) MostlyFree() bool { return 2*p.Used() < p.pool.Capacity() }

// ClientOf returns whose share the session is of that a call begins: the owner's, or without
// access control that of the client's address; empty when it is not known.
func ClientOf(c rpc.Call) string { return cmp.Or(c.Owner, c.Client) }
