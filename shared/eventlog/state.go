package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
)

// State is what is known of a partition at one moment.
type State struct {
	// Created is when the partition's JetStream stream was made; another time means another log.
	Created time.Time
	// Birth is the ID of the partition's first generation.
	Birth string
	// Generations are the partition's generations, oldest first.
	Generations []event.Generation
	// First and Last are the oldest retained sequence and the newest ever given;
	// First is Last+1 when nothing is retained.
	First, Last uint64
	// Events and Bytes are what is retained.
	Events, Bytes uint64
	// Current is how many of the servers that hold the partition have all of it.
	Current int
	// Limits are those that JetStream enforces, as the partition itself has them.
	Limits Limits
	// Earlier are the smaller limits of events per stream that the partition had,
	// the smallest, which is the oldest, first.
	Earlier []Earlier

	atomic bool   // it takes atomic batches; see [Series]
	server string // the server that the newest generation was begun for
	seenOn string // the server that this client was connected to when it looked
}

// Generation returns the newest generation.
func (s State) Generation() event.Generation { return s.Generations[len(s.Generations)-1] }

// SameServer reports whether two states were seen on the same server, in one run of it.
func (s State) SameServer(other State) bool { return s.seenOn != "" && s.seenOn == other.seenOn }

// partition guards a State; changed is closed and replaced whenever it is set.
type partition struct {
	mu      sync.Mutex
	state   State
	stream  jetstream.Stream
	settled string // the server on which publishing and tailing may go on
	asked   uint64 // the number of looks that were begun
	shown   uint64 // the number of the look that state is from
	changed chan struct{}
	owned   chan struct{} // holds one token while somebody changes the configuration
}

const (
	// watchEvery is how often partitions are looked at for a re-creation, which nothing announces.
	watchEvery = 2 * time.Second
	// settleEvery is how often they are looked at while a new generation is awaited.
	settleEvery = 25 * time.Millisecond
	// settleWithin is how long a new server's generation is awaited before going on without.
	settleWithin = 3 * time.Second
	// lookWithin bounds what must not hold up the settling: a request that was under
	// way when its server went is never answered, and would wait for requestTimeout.
	lookWithin = time.Second
)

// State returns what was last seen of a partition, at most a few seconds old, and
// a channel that is closed when it is looked at again.
func (l *Log) State(p int) (State, <-chan struct{}) {
	part := l.parts[p]
	part.mu.Lock()
	defer part.mu.Unlock()
	return part.state, part.changed
}

// Look asks the partition's leader for its state now. Errors wrap [ErrUnavailable]
// or [ErrNotFound].
func (l *Log) Look(ctx context.Context, p int) (State, error) {
	if err := l.refresh(ctx, p); err != nil {
		return State{}, err
	}
	state, _ := l.State(p)
	return state, nil
}

// info asks for a partition's JetStream stream as it is now.
func (l *Log) info(ctx context.Context, p int) (jetstream.Stream, *jetstream.StreamInfo, error) {
	stream, err := l.js.Stream(ctx, streamName(p))
	if err != nil {
		return nil, nil, apiError(err)
	}
	info := stream.CachedInfo()
	return stream, info, checkPartition(info.Config, p)
}

func (l *Log) refresh(ctx context.Context, p int) error {
	part := l.parts[p]
	part.mu.Lock()
	part.asked++
	number := part.asked
	part.mu.Unlock()
	server := l.nc.ConnectedServerId()
	ctx, cancel := l.request(ctx)
	defer cancel()
	stream, info, err := l.info(ctx, p)
	if err != nil {
		return err
	}
	gens, err := parseGenerations(info.Config.Metadata[metaGenerations])
	if err != nil {
		return err
	}
	earlier, err := parseEarlier(info.Config.Metadata[metaEarlier])
	if err != nil {
		return err
	}
	settings := l.Settings()
	if p == 0 {
		if settings, err = l.settingsNow(info.Config.Metadata); err != nil {
			return err
		}
	}
	held, _ := current(info)
	state := State{
		Current:     held,
		Created:     info.Created,
		Birth:       info.Config.Metadata[metaBirth],
		Generations: gens,
		First:       max(info.State.FirstSeq, 1),
		Last:        info.State.LastSeq,
		Events:      info.State.Msgs,
		Bytes:       info.State.Bytes,
		Limits:      limitsOf(info.Config),
		Earlier:     earlier,
		atomic:      info.Config.AllowAtomicPublish,
		server:      info.Config.Metadata[metaServer],
		seenOn:      server,
	}
	if state.Events == 0 {
		state.First = state.Last + 1
	}
	part.mu.Lock()
	defer part.mu.Unlock()
	if number < part.shown {
		return nil // a look that was begun later is back already, and knows more
	}
	part.shown = number
	if clustered := l.clustered(); server != "" && (state.server == server || clustered) {
		part.settled = server
	}
	part.state, part.stream = state, stream
	if p == 0 {
		l.settings.Store(&settings)
	}
	close(part.changed)
	part.changed = make(chan struct{})
	return nil
}

// settingsNow reads the settings that partition 0 has now. The services were built
// for a number of partitions, so another one is another log.
func (l *Log) settingsNow(meta map[string]string) (Settings, error) {
	now, err := settingsFrom(meta)
	if err == nil && now.Partitions != len(l.parts) {
		err = fmt.Errorf("%w: it has %d partitions and had %d", ErrMismatch, now.Partitions, len(l.parts))
	}
	return now, err
}

// clustered reports whether the server is one of a cluster, where a restart of
// one server is no new life of a partition.
func (l *Log) clustered() bool { return l.server.Clustered() }

// watch keeps every partition's State fresh. After a connection to another server
// it looks often, until the janitor has begun a generation for that server, or
// until settleWithin has passed without one.
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
	var since time.Time
	due, next := all, 0
	for {
		if now := l.nc.ConnectedServerId(); now != server {
			server, since, due = now, time.Now(), all
		}
		unsettled := l.look(ctx, server, time.Since(since) > settleWithin, due)
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

// look refreshes partitions and reports whether any of them is not settled on server.
func (l *Log) look(ctx context.Context, server string, late bool, partitions []int) (unsettled bool) {
	if server == "" {
		return false
	}
	for _, p := range partitions {
		part := l.parts[p]
		err := l.refreshWithin(ctx, p)
		if errors.Is(err, ErrNotFound) && l.creator {
			l.log.Error("a partition has gone; creating it anew", "partition", p)
			if err = l.createPartition(ctx, p); err == nil {
				err = l.refreshWithin(ctx, p)
			}
		}
		if err != nil && ctx.Err() == nil {
			l.log.Warn("cannot look at a partition", "partition", p, "error", err)
		}
		part.mu.Lock()
		if part.settled != server {
			if late && err == nil {
				l.log.Warn("no janitor has looked at a partition since its server started", "partition", p)
				part.settled = server
				close(part.changed)
				part.changed = make(chan struct{})
			} else {
				unsettled = true
			}
		}
		part.mu.Unlock()
	}
	return unsettled
}

func (l *Log) refreshWithin(ctx context.Context, p int) error {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	return l.refresh(ctx, p)
}

// settle waits until a partition may be published to or tailed on the server that
// is connected now, and returns that server's ID. It waits for a generation of the
// server's own, so that no event is written or shown under an ID that a power cut
// could have given to another event. In a cluster nobody waits: partitions whose leader
// is being elected would hold up the others. The error wraps [ErrUnavailable].
func (l *Log) settle(ctx context.Context, p int) (string, error) {
	part := l.parts[p]
	for {
		server := l.nc.ConnectedServerId()
		part.mu.Lock()
		settled, changed := part.settled, part.changed
		part.mu.Unlock()
		if server != "" && (settled == server || l.clustered()) {
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

// First returns the sequence of the oldest retained event on a subject at or after
// a sequence. The error wraps [ErrNotFound] or [ErrUnavailable].
func (l *Log) First(ctx context.Context, s event.Subject, from uint64) (uint64, error) {
	msg, err := l.get(ctx, s.Partition, from, jetstream.WithGetMsgSubject(s.String()))
	if err != nil {
		return 0, err
	}
	return msg.Sequence, nil
}

// Last returns the sequence of the newest retained event on a subject. The error
// wraps [ErrNotFound] or [ErrUnavailable].
func (l *Log) Last(ctx context.Context, s event.Subject) (uint64, error) {
	ctx, cancel := l.request(ctx)
	defer cancel()
	msg, err := l.stream(s.Partition).GetLastMsgForSubject(ctx, s.String())
	if err != nil {
		return 0, apiError(err)
	}
	return msg.Sequence, nil
}

// At returns the event at a sequence. The error wraps [ErrNotFound] or [ErrUnavailable].
func (l *Log) At(ctx context.Context, p int, sequence uint64) (Entry, error) {
	msg, err := l.get(ctx, p, sequence)
	if err != nil {
		return Entry{}, err
	}
	return l.entryFromRaw(msg, p), nil
}

func (l *Log) get(ctx context.Context, p int, sequence uint64, opts ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := l.request(ctx)
	defer cancel()
	msg, err := l.stream(p).GetMsg(ctx, sequence, opts...)
	return msg, apiError(err)
}

// stream returns the client's handle of a partition, which is good for requests by name.
func (l *Log) stream(p int) jetstream.Stream {
	part := l.parts[p]
	part.mu.Lock()
	defer part.mu.Unlock()
	return part.stream
}
