package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/natsconn"
)

const (
	// watchEvery is how often partitions are looked at for a re-creation, which nothing announces.
	watchEvery = 2 * time.Second
	// readyEvery is how often they are looked at while a new generation is awaited.
	readyEvery = 25 * time.Millisecond
	// readyAfterError is the same when a look has failed: a server may refuse it at once, for long.
	readyAfterError = 100 * time.Millisecond
	// looksAtOnce is how many partitions are looked at at once after a connection.
	looksAtOnce = 16
	// readyWithin is how long the log awaits a new server's generation before it continues without.
	readyWithin = 3 * time.Second
	// readyInCluster is the same in a cluster, where a partition may have a leader some
	// seconds before the janitor's lease and JetStream itself have one: 4 to 9 s each after
	// a start of all servers.
	readyInCluster = 10 * time.Second
)

// watch keeps every partition's State fresh. After a connection to another server
// it looks often, until the janitor has begun a generation for that server, or
// until readyWithin, or readyInCluster, has passed without one since a look was answered.
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
		pause := l.look(ctx, server, due)
		due = all
		var again <-chan time.Time
		tick := ticker.C
		if pause > 0 {
			again, tick = time.After(pause), nil
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
// the others. It returns the pause before the next look if any of them is not ready on server; 0: all are.
func (l *Log) look(ctx context.Context, server string, partitions []int) (pause time.Duration) {
	if server == "" {
		return 0
	}
	var mu sync.Mutex
	for some := range slices.Chunk(partitions, looksAtOnce) {
		var looking sync.WaitGroup
		for _, p := range some {
			looking.Go(func() {
				ready, err := l.lookAt(ctx, p)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case ready:
				case err != nil:
					pause = max(pause, readyAfterError)
				default:
					pause = max(pause, readyEvery)
				}
			})
		}
		looking.Wait()
	}
	return pause
}

// createAgain creates a lost partition again, while nothing else in this process changes it.
func (l *Log) createAgain(ctx context.Context, p int) error {
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	release, err := l.parts[p].own(ctx)
	if err != nil {
		return err
	}
	defer release()
	natsconn.AwaitDeletion(ctx)
	gone, _ := l.State(p)
	return l.createPartition(ctx, p, gone, func() cluster.Servers { return l.seen(ctx, l.Settings().Replicas) })
}

// lookAt refreshes a partition and reports whether it is ready on the server that is
// connected.
func (l *Log) lookAt(ctx context.Context, p int) (ready bool, err error) {
	part := l.parts[p]
	err = l.refreshWithin(ctx, p)
	if errors.Is(err, ErrNotFound) && l.creator {
		l.log.Error("a partition is missing; creating it again", "partition", p)
		if err = l.createAgain(ctx, p); err == nil {
			err = l.refreshWithin(ctx, p)
		}
	}
	if errors.Is(err, errVersion) {
		l.convert(err)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) { // a look that ends with its connection is no failure of the partition
		l.lookTrouble.Note(ctx, strconv.Itoa(p), "cannot look at a partition", slog.Int("partition", p), slog.Any("error", err))
	}
	at := l.connected()
	part.mu.Lock()
	defer part.mu.Unlock()
	if part.isReadyOn(at) || err != nil {
		return part.isReadyOn(at), err
	}
	if part.awaiting != at.id {
		part.awaiting, part.since = at.id, time.Now()
	}
	within := readyWithin
	if at.clustered {
		within = readyInCluster
	}
	within = cmp.Or(time.Duration(l.awaits.Load()), within)
	if time.Since(part.since) <= within {
		return false, nil
	}
	l.log.Warn("no janitor has looked at a partition since its server started", "partition", p)
	part.readyOn = at.id
	close(part.changed)
	part.changed = make(chan struct{})
	return true, nil
}

// AwaitJanitor makes the log await a janitor's generation for so long before it continues without, instead of
// readyWithin or readyInCluster. It is for tests with a janitor, which is slow on a busy machine.
func (l *Log) AwaitJanitor(within time.Duration) { l.awaits.Store(int64(within)) }

func (l *Log) refreshWithin(ctx context.Context, p int) error {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	return l.refresh(ctx, p)
}

// awaitReady waits until a partition may be published to or tailed on the server that
// is connected now, and returns that server's ID. It waits for a generation of the
// server's own, so that no event is written or shown under an ID that a power cut
// could have given to another event; in a cluster until the janitor has compared the
// servers, but a publisher on a server that is known from before does not wait. After readyWithin, or
// readyInCluster, it returns all the same. The error wraps [ErrUnavailable].
func (l *Log) awaitReady(ctx context.Context, p int) (string, error) {
	part := l.parts[p]
	for {
		if l.converted.Err() != nil {
			return "", fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(l.converted))
		}
		now := l.connected()
		part.mu.Lock()
		ready, changed := part.isReadyOn(now), part.changed
		part.mu.Unlock()
		if now.id != "" && ready {
			return now.id, nil
		}
		if now.id == "" && l.nc.IsClosed() {
			return "", fmt.Errorf("%w: %w", ErrUnavailable, nats.ErrConnectionClosed)
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		case <-changed:
		case <-time.After(readyEvery):
		}
	}
}
