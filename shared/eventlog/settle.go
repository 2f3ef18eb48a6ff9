package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/eventlog/metadata"
)

const (
	// watchEvery is how often partitions are looked at for a re-creation, which nothing announces.
	watchEvery = 2 * time.Second
	// settleEvery is how often they are looked at while a new generation is awaited.
	settleEvery = 25 * time.Millisecond
	// settleAfterError is the same when a look has failed: a server may refuse it at once, for long.
	settleAfterError = 100 * time.Millisecond
	// looksAtOnce is how many partitions are looked at at once after a connection.
	looksAtOnce = 16
	// settleWithin is how long a new server's generation is awaited before going on without.
	settleWithin = 3 * time.Second
	// settleInCluster is the same in a cluster, where a partition may have a leader some
	// seconds before the janitor's lease and JetStream itself have one: 4 to 9 s each after
	// a start of all servers.
	settleInCluster = 10 * time.Second
)

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
// the others. It returns when to look again since any of them is not settled on server; 0: all are.
func (l *Log) look(ctx context.Context, server string, partitions []int) (pause time.Duration) {
	if server == "" {
		return 0
	}
	var mu sync.Mutex
	for some := range slices.Chunk(partitions, looksAtOnce) {
		var looking sync.WaitGroup
		for _, p := range some {
			looking.Go(func() {
				settled, err := l.lookAt(ctx, p)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case settled:
				case err != nil:
					pause = max(pause, settleAfterError)
				default:
					pause = max(pause, settleEvery)
				}
			})
		}
		looking.Wait()
	}
	return pause
}

// createAgain creates a partition that has gone, while nothing else in this process changes it.
func (l *Log) createAgain(ctx context.Context, p int) error {
	ctx, done := l.request(ctx)
	defer done()
	release, err := l.parts[p].own(ctx)
	if err != nil {
		return err
	}
	defer release()
	gone, _ := l.State(p)
	return l.createPartition(ctx, p, gone, func() cluster.Servers { return l.seen(ctx) })
}

// lookAt refreshes a partition and reports whether it is settled on the server that is
// connected.
func (l *Log) lookAt(ctx context.Context, p int) (settled bool, err error) {
	part := l.parts[p]
	err = l.refreshWithin(ctx, p)
	if errors.Is(err, ErrNotFound) && l.creator {
		l.log.Error("a partition has gone; creating it again", "partition", p)
		if err = l.createAgain(ctx, p); err == nil {
			err = l.refreshWithin(ctx, p)
		}
	}
	if err != nil && ctx.Err() == nil {
		l.lookTrouble.Note(ctx, strconv.Itoa(p), "cannot look at a partition", slog.Int("partition", p), slog.Any("error", err))
	}
	at := l.connected()
	part.mu.Lock()
	defer part.mu.Unlock()
	if part.settledOn(at) || err != nil {
		return part.settledOn(at), err
	}
	if part.awaiting != at.id {
		part.awaiting, part.since = at.id, time.Now()
	}
	within := settleWithin
	if at.clustered {
		within = settleInCluster
	}
	if time.Since(part.since) <= within {
		return false, nil
	}
	l.log.Warn("no janitor has looked at a partition since its server started", "partition", p)
	part.settled = at.id
	part.unsettled++
	close(part.changed)
	part.changed = make(chan struct{})
	return true, nil
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

// BeginGeneration makes sure that partition p has a generation for the servers
// that hold it now, and reports whether it had to start one. Only the janitor
// that acts for the partition may call it.
//
// A server that was restarted may have lost what it stored last (a power cut,
// an older copy of its files), so IDs made before may name events that are gone.
// In a cluster the loss of one server loses nothing, and a generation is begun when most
// of those that hold the partition were restarted at once. looks is what [Log.Servers]
// said, oldest first; without any, nothing is done in a cluster. The log is asked there
// only when what is known of it, at most a few seconds old, says that there is something
// to write.
//
// It gives up after a second, since others wait for its result, but not for long:
// call it again then. Errors wrap [ErrUnavailable], [ErrNotFound] or [ErrMismatch].
func (l *Log) BeginGeneration(ctx context.Context, p int, looks ...cluster.Servers) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	ctx, done := l.request(ctx)
	defer done()
	at := l.connected()
	switch {
	case at.id == "":
		return false, ErrUnavailable
	case at.clustered:
		return l.compareServers(ctx, p, looks)
	}
	return l.changeServers(ctx, p, func(info *jetstream.StreamInfo, meta map[string]string, gens []event.Generation) ([]event.Generation, error) {
		if meta[metadata.KeyServer] == at.id {
			return nil, nil
		}
		more, err := begunByEntry(ctx, l.stream(p), p, gens)
		if err != nil {
			return nil, err
		}
		if own := metadata.GenerationIDOf(at.id); !event.HasGeneration(more, own) {
			more = append(more, event.Generation{ID: own, Start: info.State.LastSeq + 1})
		}
		meta[metadata.KeyServer] = at.id
		return more, nil
	})
}

// changeServers lets change see a partition with its generations, and enter into its metadata what
// is known of the servers that hold it, and begins the generations that change returns. It reports
// whether there were any. Errors are those of [Log.BeginGeneration].
func (l *Log) changeServers(ctx context.Context, p int, change func(*jetstream.StreamInfo, map[string]string, []event.Generation) (more []event.Generation, err error)) (bool, error) {
	var begun, stored bool
	err := l.change(ctx, p, func(info *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (bool, error) {
		gens, err := metadata.ParseGenerations(cfg.Metadata[metadata.KeyGenerations])
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrMismatch, err)
		}
		more, err := change(info, cfg.Metadata, gens)
		if err != nil {
			return false, err
		}
		begun = len(more) > 0
		cfg.Metadata[metadata.KeyGenerations] = metadata.FormatGenerations(event.NextGenerations(gens, more...))
		stored = !maps.Equal(cfg.Metadata, metadata.Own(info.Config.Metadata))
		return stored, nil
	})
	if err != nil || !stored {
		return false, err
	}
	return begun, l.refresh(ctx, p)
}

// seen is Servers for a new partition, which can do without: nil says that the server is alone.
func (l *Log) seen(ctx context.Context) cluster.Servers {
	if !l.Clustered() {
		return nil
	}
	servers, err := l.Servers(ctx, nil)
	if err != nil {
		l.log.Warn("the servers of the cluster are not known", "error", err)
		return cluster.Servers{}
	}
	return servers
}

// compareServers is BeginGeneration in a cluster.
func (l *Log) compareServers(ctx context.Context, p int, looks []cluster.Servers) (bool, error) {
	if len(looks) == 0 {
		return false, nil
	}
	state, _ := l.State(p)
	if lost, next := state.servers.Compare(state.holders, looks); len(state.holders) > 0 && !lost && maps.Equal(next, state.servers) {
		return false, nil
	}
	return l.changeServers(ctx, p, func(info *jetstream.StreamInfo, meta map[string]string, gens []event.Generation) (more []event.Generation, _ error) {
		names := cluster.Holders(info)
		if len(names) == 0 {
			return nil, fmt.Errorf("%w: partition %d has no leader", ErrUnavailable, p)
		}
		known, err := cluster.Parse(meta[metadata.KeyServers])
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrMismatch, err)
		}
		// It may come from a server that was alone, and began some with an entry.
		if more, err = begunByEntry(ctx, l.stream(p), p, gens); err != nil {
			return nil, err
		}
		lost, next := known.Compare(names, looks)
		if !maps.Equal(next, known) {
			meta[metadata.KeyServers] = next.Format()
		}
		if lost {
			more = append(more, event.Generation{ID: metadata.NewGenerationID(), Start: info.State.LastSeq + 1})
		}
		return more, nil
	})
}

// SetChecked notes that a janitor has found out what is missing of a partition without an
// explanation, in the generation of a look and in the files of the server that led the
// partition then: nothing after damaged; 0 for nothing at all. Nothing is noted when another
// server leads by now, or in another generation. What was damaged once stays so, also when the
// floor has passed it: a birth that was written again since may say of its stream less than there
// was. Only the janitor that acts for the partition may call it. Errors are those of [Log.BeginGeneration].
func (l *Log) SetChecked(ctx context.Context, p int, state State, damaged uint64) error {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	_, err := l.changeServers(ctx, p, func(info *jetstream.StreamInfo, meta map[string]string, gens []event.Generation) ([]event.Generation, error) {
		if id := state.Generation().ID; gens[len(gens)-1].ID == id && cluster.Leader(info) == state.Leader {
			meta[metadata.KeyChecked] = metadata.Checked{Generation: id, Damaged: max(damaged, metadata.ParseChecked(meta[metadata.KeyChecked]).Damaged), Leader: state.Leader}.Format()
		}
		return nil, nil
	})
	return err
}
