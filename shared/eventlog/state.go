package eventlog

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
)

// State is what is known of a partition at one moment.
type State struct {
	// Created is when the partition's JetStream stream was made; another time means another log.
	Created time.Time
	// Time is when the leader answered, by its own clock.
	Time time.Time
	// Birth is the ID of the partition's first generation.
	Birth string
	// Generations are the partition's generations, oldest first.
	Generations []event.Generation
	// Damaged is the newest sequence of what a janitor found missing that nothing
	// explains; 0 for none. See [State.Checked].
	Damaged uint64
	// First and Last are the oldest retained sequence and the newest ever given;
	// First is Last+1 when nothing is retained.
	First, Last uint64
	// Events and Bytes are what is retained.
	Events, Bytes uint64
	// Current is how many of the servers that hold the partition have all of it.
	Current int
	// Limits are those that JetStream enforces, as the partition itself has them.
	Limits Limits
	// Leader names the server of a cluster that leads the partition, and since when it does:
	// each replica has files of its own. Empty outside a cluster, and while no server leads.
	Leader string

	checked checked  // what a janitor has noted
	atomic  bool     // it takes atomic batches; see [Series]
	server  string   // the server that the newest generation was begun for
	servers Servers  // in a cluster, what the janitor has written down
	holders []string // in a cluster, the names of the servers that hold it
	seenOn  string   // the server that this client was connected to when it looked
}

// Generation returns the newest generation.
func (s State) Generation() event.Generation { return s.Generations[len(s.Generations)-1] }

// Checked reports whether a janitor has read all of the partition since its server was started,
// in a cluster whether it has compared it with the server that leads since it does: only then
// Damaged is known.
func (s State) Checked() bool {
	return s.checked.generation == s.Generation().ID && s.checked.leader == s.Leader &&
		(s.Leader != "" && len(s.servers) > 0 || s.server == s.seenOn)
}

// SameServer reports whether two states were seen on the same server, in one run of it.
func (s State) SameServer(other State) bool { return s.seenOn != "" && s.seenOn == other.seenOn }

// partition guards a State; changed is closed and replaced whenever it is set.
type partition struct {
	mu      sync.Mutex
	state   State
	stream  jetstream.Stream
	settled string // the server on which publishing and tailing may go on
	// awaiting is the server on which they wait for the janitor since the first look that
	// was answered, or did.
	awaiting string
	since    time.Time
	asked    uint64 // the number of looks that were begun
	shown    uint64 // the number of the look that state is from
	changed  chan struct{}
	births   births
	// unsettled is how often publishing went on without the janitor's word.
	unsettled uint64
	owned     chan struct{} // holds one token while somebody changes the configuration
}

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
	state, err := stateOf(info, server)
	if err != nil {
		return err
	}
	settings := l.Settings()
	if p == 0 {
		if settings, err = l.settingsNow(info.Config.Metadata); err != nil {
			return err
		}
	}
	at := l.connected()
	part.mu.Lock()
	defer part.mu.Unlock()
	if number < part.shown {
		return nil // a look that was begun later is back already, and knows more
	}
	part.shown = number
	part.state, part.stream = state, stream
	if server != "" && at.id == server && part.knows(at) {
		part.settled = server
	}
	if p == 0 {
		l.settings.Store(&settings)
	}
	close(part.changed)
	part.changed = make(chan struct{})
	return nil
}

// stateOf returns the state of a partition, given the server that the client was connected to.
func stateOf(info *jetstream.StreamInfo, server string) (State, error) {
	gens, err := parseGenerations(info.Config.Metadata[metaGenerations])
	if err != nil {
		return State{}, err
	}
	servers, err := parseServers(info.Config.Metadata[metaServers])
	if err != nil {
		return State{}, err
	}
	held, _ := current(info)
	noted := parseChecked(info.Config.Metadata[metaChecked])
	state := State{
		Current:     held,
		Created:     info.Created,
		Time:        info.TimeStamp,
		Birth:       info.Config.Metadata[metaBirth],
		Generations: gens,
		checked:     noted,
		Damaged:     noted.damaged,
		First:       max(info.State.FirstSeq, 1),
		Last:        info.State.LastSeq,
		Events:      info.State.Msgs,
		Bytes:       info.State.Bytes,
		Limits:      limitsOf(info.Config),
		Leader:      leaderOf(info),
		atomic:      info.Config.AllowAtomicPublish,
		server:      info.Config.Metadata[metaServer],
		servers:     servers,
		holders:     holders(info),
		seenOn:      server,
	}
	if state.Events == 0 {
		state.First = state.Last + 1
	}
	return state, nil
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
	msg, err := l.lastMessage(ctx, s.Partition, s.String())
	if err != nil {
		return 0, err
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
