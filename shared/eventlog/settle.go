package eventlog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// watchEvery is how often partitions are looked at for a re-creation, which nothing announces.
	watchEvery = 2 * time.Second
	// settleEvery is how often they are looked at while a new generation is awaited.
	settleEvery = 25 * time.Millisecond
	// looksAtOnce is how many partitions are looked at at once after a connection.
	looksAtOnce = 16
	// settleWithin is how long a new server's generation is awaited before going on without.
	settleWithin = 3 * time.Second
	// settleInCluster is the same in a cluster, where a partition may have a leader some
	// seconds before the janitor's lease and JetStream itself have one: 4 to 9 s each after
	// a start of all servers.
	settleInCluster = 10 * time.Second
	// lookWithin bounds what must not hold up the settling: a request that was under
	// way when its server went is never answered, and would wait for requestTimeout.
	lookWithin = time.Second
)

// connection is the server that is connected.
type connection struct {
	id, name  string // empty without one
	clustered bool
}

// connected returns the server that is connected now.
func (l *Log) connected() connection {
	for {
		c := connection{l.nc.ConnectedServerId(), l.nc.ConnectedServerName(), l.Clustered()}
		if c.id == l.nc.ConnectedServerId() {
			return c
		}
	}
}

// knows reports whether the janitor has written down that the partition is what it was, or
// that it is in another generation, on the server that is connected. In a cluster no publisher
// waits where no janitor has written anything, and the server may be one that holds
// nothing. The caller holds the lock.
func (part *partition) knows(c connection) bool {
	if c.clustered {
		return !part.state.servers.awaits(c.name, c.id)
	}
	return part.state.server == c.id
}

// settledOn reports whether the partition may be published to and tailed on the server that
// is connected. What was known before the connection is good in a cluster, where a server
// that was not restarted says that not all were. The caller holds the lock.
func (part *partition) settledOn(c connection) bool {
	return part.settled == c.id || c.clustered && part.knows(c)
}

// Clustered reports whether the server is one of a cluster, where a restart of
// one server is no new life of a partition.
func (l *Log) Clustered() bool { return l.server.Clustered() }

// watch keeps every partition's State fresh. After a connection to another server
// it looks often, until the janitor has begun a generation for that server, or
// until settleWithin, or settleInCluster, has passed without one since a look was answered.
func (l *Log) watch(ctx context.Context) {
	connected := l.nc.StatusChanged(nats.CONNECTED)
	defer l.nc.RemoveStatusListener(connected)
	all := make([]int, len(l.parts))
	for p := range all {
		all[p] = p
	}
	// One partition after the other, so that the looks do not come in bursts.
	ticker := time.NewTicker(watchEvery / time.Duration(len(all)))
	defer ticker.Stop()
	var server string
	due, next := all, 0
	for {
		if now := l.nc.ConnectedServerId(); now != server {
			server, due = now, all
		}
		unsettled := l.look(ctx, server, due)
		due = all
		var again <-chan time.Time
		tick := ticker.C
		if unsettled {
			again, tick = time.After(settleEvery), nil
		}
		select {
		case <-ctx.Done():
			return
		case <-connected:
		case <-again:
		case <-tick:
			due = all[next : next+1]
			next = (next + 1) % len(all)
		}
	}
}

// look refreshes partitions, several at once so that those without a leader do not hold up
// the others, and reports whether any of them is not settled on server.
func (l *Log) look(ctx context.Context, server string, partitions []int) bool {
	if server == "" {
		return false
	}
	var unsettled atomic.Bool
	for some := range slices.Chunk(partitions, looksAtOnce) {
		var looking sync.WaitGroup
		for _, p := range some {
			looking.Go(func() {
				if !l.lookAt(ctx, p) {
					unsettled.Store(true)
				}
			})
		}
		looking.Wait()
	}
	return unsettled.Load()
}

// lookAt refreshes a partition and reports whether it is settled on the server that is
// connected.
func (l *Log) lookAt(ctx context.Context, p int) bool {
	part := l.parts[p]
	err := l.refreshWithin(ctx, p)
	if errors.Is(err, ErrNotFound) && l.creator {
		l.log.Error("a partition has gone; creating it anew", "partition", p)
		if err = l.createPartition(ctx, p, func() Servers { return l.seen(ctx) }); err == nil {
			err = l.refreshWithin(ctx, p)
		}
	}
	if err != nil && ctx.Err() == nil {
		l.log.Warn("cannot look at a partition", "partition", p, "error", err)
	}
	at := l.connected()
	part.mu.Lock()
	defer part.mu.Unlock()
	if part.settledOn(at) || err != nil {
		return part.settledOn(at)
	}
	if part.awaiting != at.id {
		part.awaiting, part.since = at.id, time.Now()
	}
	within := settleWithin
	if at.clustered {
		within = settleInCluster
	}
	if time.Since(part.since) <= within {
		return false
	}
	l.log.Warn("no janitor has looked at a partition since its server started", "partition", p)
	part.settled = at.id
	part.unsettled++
	close(part.changed)
	part.changed = make(chan struct{})
	return true
}

func (l *Log) refreshWithin(ctx context.Context, p int) error {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	return l.refresh(ctx, p)
}

// settle waits until a partition may be published to or tailed on the server that
// is connected now, and returns that server's ID. It waits for a generation of the
// server's own, so that no event is written or shown under an ID that a power cut
// could have given to another event; in a cluster until the janitor has compared the
// servers, but a publisher on a server that is known from before does not wait. The error wraps
// [ErrUnavailable].
func (l *Log) settle(ctx context.Context, p int) (string, error) {
	part := l.parts[p]
	for {
		server := l.nc.ConnectedServerId()
		part.mu.Lock()
		settled, changed := part.settled == server, part.changed
		part.mu.Unlock()
		if !settled {
			now := l.connected()
			part.mu.Lock()
			server, settled = now.id, part.settledOn(now)
			part.mu.Unlock()
		}
		if server != "" && settled {
			return server, nil
		}
		if server == "" && l.nc.IsClosed() {
			return "", errors.Join(ErrUnavailable, nats.ErrConnectionClosed)
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(ErrUnavailable, ctx.Err())
		case <-changed:
		case <-time.After(settleEvery):
		}
	}
}
