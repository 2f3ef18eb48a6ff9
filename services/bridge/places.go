package bridge

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/quota"
	"rejoin/shared/rpc"
)

// places bounds how many there are at once of what a gauge counts, of which each client has a
// share; see [quota.Pool]. It is safe for concurrent use.
type places struct {
	pool  *quota.Pool
	count prometheus.Gauge
}

func newPlaces(n int, count prometheus.Gauge) places {
	return places{pool: quota.NewPool(int64(n)), count: count}
}

// enter takes a place for a client, if there is one; leave gives it back.
func (p places) enter(client string) bool {
	if !p.pool.Take(client, 1) {
		return false
	}
	p.count.Inc()
	return true
}

func (p places) leave(client string) {
	p.pool.Give(client, 1)
	p.count.Dec()
}

// clientOf returns whose share the session is of that a call begins: the owner's, or without
// access control that of the client's address; empty when it is not known.
func clientOf(c rpc.Call) string { return cmp.Or(c.Owner, c.Client) }
