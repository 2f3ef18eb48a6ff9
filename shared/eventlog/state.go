package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/eventlog/metadata"
	"rejoin/shared/natsconn"
)

// State is the known state of a partition at one moment.
type State struct {
	// Created is when the partition's JetStream stream was made; another time means another log.
	Created time.Time
	// Time is when the leader answered, by its own clock.
	Time time.Time
	// Origin is the ID of the partition's first generation.
	Origin string
	// Generations are the partition's generations, oldest first.
	Generations []event.Generation
	// Damaged is the newest missing sequence that a janitor found and that nothing
	// explains; 0 for none. See [State.Checked].
	Damaged uint64
	// First and Last are the oldest retained sequence and the newest ever given;
	// First is Last+1 when nothing is retained.
	First, Last uint64
	// Entries and Bytes are the number and the size of the retained entries.
	Entries, Bytes uint64
	// Current is how many of the servers that hold the partition have all of it. Under load the slowest
	// lacks the newest entry most of the time.
	Current int
	// Whole is when a look of this program last found as many of them as the partition has replicas, by the
	// program's clock; until one has, the time of the first look.
	Whole time.Time
	// Quorum says that the leader has lately heard from most of these servers, so that no other one leads
	// and Last is the partition's.
	Quorum bool
	// Limits are those that JetStream enforces, as the partition itself has them.
	Limits Limits
	// Leader names the server of a cluster that leads the partition, and since when it does:
	// each replica has files of its own. Empty outside a cluster, and while no server leads.
	Leader string

	checked metadata.Checked // the result of a janitor's check
	made    string           // when the stream of the generations was made; empty if that is not recorded
	server  string           // the server that the newest generation was begun for
	servers cluster.Servers  // in a cluster, the servers that the janitor has recorded
	holders []string         // in a cluster, the names of the servers that hold it
	seenOn  string           // the server that this client was connected to when it looked
}

// Generation returns the newest generation.
func (s State) Generation() event.Generation {
	if len(s.Generations) == 0 {
		return event.Generation{} // of a partition that was not looked at yet
	}
	return s.Generations[len(s.Generations)-1]
}

// Checked reports whether a janitor has read all of the partition since its server was started,
// in a cluster whether it has compared it with the server that leads since it does: only then
// Damaged is known.
func (s State) Checked() bool {
	return len(s.Generations) > 0 && s.checked.Generation == s.Generation().ID && s.checked.Leader == s.Leader &&
		(s.Leader != "" && len(s.servers) > 0 || s.server == s.seenOn)
}

// begun reports whether a generation has begun on a server that is alone.
func (s State) begun(server string) bool {
	return s.server == server || event.HasGeneration(s.Generations, metadata.RunGenerationID(server, s.Created))
}

// SameServer reports whether two states were seen on the same server, in one run of it.
func (s State) SameServer(other State) bool { return s.seenOn != "" && s.seenOn == other.seenOn }

// keep returns the generations of a later look, with those that s has and the look lacks. JetStream stores a
// configuration without a comparison: of two janitors that act for a moment one may overwrite a generation that the
// other has begun, and a server that has just become the leader may be behind with the configuration. Without the
// generation an ID of an event lost before it would be valid, and name another event. When the log is put back to an
// older copy, its servers are restarted; then the lost generations are unknown.
func (s State) keep(later State) []event.Generation {
	if !s.SameServer(later) || !s.Created.Equal(later.Created) || s.Origin != later.Origin {
		return later.Generations
	}
	return event.KeepGenerations(s.Generations, later.Generations)
}

// partition guards a State; changed is closed and replaced whenever it is set.
type partition struct {
	mu      sync.Mutex
	state   State
	stream  jetstream.Stream
	readyOn string // the server on which publishing and tailing may proceed
	// awaiting is the server on which they wait, or waited, for the janitor since the first
	// look that was answered.
	awaiting string
	since    time.Time
	asked    uint64 // the number of looks that were begun
	shown    uint64 // the number of the look that state is from
	changed  chan struct{}
	births   *births
	// sent is how many bytes this program has sent, and roomUntil how many it will have sent when
	// the partition is nearly full, by the last look.
	sent, roomUntil atomic.Int64
	owned           chan struct{} // holds one token while a goroutine owns the configuration
	unwritten       bool          // a change of it has failed, and may be shown; its owner reads and sets it
}

// remember notes the generations that were written: another janitor may overwrite them before the next look.
func (part *partition) remember(written State) {
	part.mu.Lock()
	defer part.mu.Unlock()
	if part.state.SameServer(written) && part.state.Created.Equal(written.Created) {
		part.state.Generations = written.Generations
	}
}

// own waits until no other goroutine of this process reads and writes the configuration of
// the partition: of two at a time one would undo the other's change. The error
// wraps [ErrUnavailable].
func (part *partition) own(ctx context.Context) (release func(), err error) {
	select {
	case part.owned <- struct{}{}:
		return func() { <-part.owned }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
}

// State returns the last seen state of a partition, at most a few seconds old, and
// a channel that is closed when it is looked at again.
func (l *Log) State(p int) (State, <-chan struct{}) {
	part := l.parts[p]
	part.mu.Lock()
	defer part.mu.Unlock()
	return part.state, part.changed
}

// maxReserve is the largest reserve of [State.room]: several times the bytes that publishers have in flight.
const maxReserve = 32 << 20

// room returns how many bytes the partition can take until it is nearly full. The rest is a
// sixteenth of the limit at most, since the janitor begins to remove at seven eighths.
func (s State) room() int64 {
	if s.Limits.MaxBytes <= 0 {
		return math.MaxInt64 / 2 // to which the sent bytes are added
	}
	return s.Limits.MaxBytes - int64(s.Bytes) - min(s.Limits.MaxBytes/16, maxReserve) //nolint:gosec // far fewer bytes
}

// mayBeFull reports whether there may be no room for so many bytes more.
func (part *partition) mayBeFull(size int64) bool {
	return part.sent.Load()+size > part.roomUntil.Load()
}

// Look asks the partition's leader for its state now, which [Log.State] returns from then on. Errors wrap
// [ErrUnavailable] or [ErrNotFound].
func (l *Log) Look(ctx context.Context, p int) (State, error) {
	if err := l.refresh(ctx, p); err != nil {
		return State{}, err
	}
	state, _ := l.State(p)
	return state, nil
}

// LookAfterRead is [Log.Look] for callers that judge by it which entries a read lacks, since any server of a cluster
// may have answered the read: First is the announced floor, if that is higher. Errors are those of Look.
func (l *Log) LookAfterRead(ctx context.Context, p int) (State, error) {
	state, err := l.Look(ctx, p)
	if err != nil || state.Leader == "" {
		return state, err
	}
	upTo, _, err := l.announcedFloor(ctx, p)
	state.First = max(state.First, upTo+1)
	return state, err
}

// streamNow asks for a JetStream stream as it is now.
func (l *Log) streamNow(ctx context.Context, name string) (stream jetstream.Stream, err error) {
	err = l.repeat(ctx, func(ctx context.Context) error {
		stream, err = l.js.Stream(ctx, name)
		return err
	})
	return stream, err
}

// info asks for a partition's JetStream stream as it is now, and keeps the handle of it.
func (l *Log) info(ctx context.Context, p int) (*jetstream.StreamInfo, error) {
	stream, err := l.streamNow(ctx, streamName(p))
	if err != nil {
		return nil, apiError(err)
	}
	info, part := stream.CachedInfo(), l.parts[p]
	if err := checkPartition(info.Config, p); err != nil {
		return nil, err
	}
	part.mu.Lock()
	defer part.mu.Unlock()
	part.stream = stream
	return info, nil
}

func (l *Log) refresh(ctx context.Context, p int) error {
	part := l.parts[p]
	part.mu.Lock()
	part.asked++
	number, sent := part.asked, part.sent.Load()
	part.mu.Unlock()
	server := l.nc.ConnectedServerId()
	info, err := l.info(ctx, p)
	if err != nil {
		return err
	}
	state, err := stateOf(info, server)
	if err != nil {
		return err
	}
	// A janitor that has compared the servers, and recorded when the stream was made, has listed all generations.
	compared := server == state.server
	if at := l.connected(); at.clustered {
		compared = state.servers.Knows(at.name, at.id)
	}
	if (!compared || state.made != metadata.Made(state.Created)) && !l.shows {
		more, err := l.unlisted(ctx, p, info, state.Generations)
		if err != nil {
			return err
		}
		state.Generations = event.NextGenerations(state.Generations, more...)
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
		return nil // a look that was begun later has its answer already, which is newer
	}
	part.shown = number
	if state.Whole = part.state.Whole; state.Whole.IsZero() || state.Current >= state.Limits.Replicas {
		state.Whole = time.Now()
	}
	state.Generations = part.state.keep(state)
	part.state = state
	part.roomUntil.Store(sent + state.room())
	if server != "" && at.id == server && part.knows(at) {
		part.readyOn = server
	}
	if p == 0 {
		l.settings.Store(&settings)
	}
	close(part.changed)
	part.changed = make(chan struct{})
	return nil
}

// MaxBytes returns how many bytes the partition may hold: its share by the settings, or the limit that
// JetStream enforces if that is less, as while they are changed. -1 is for no limit.
func (s State) MaxBytes(settings Settings) int64 {
	share := settings.Limits().MaxBytes
	if SmallerLimit(s.Limits.MaxBytes, share) {
		return s.Limits.MaxBytes
	}
	return share
}

// stateOf returns the state of a partition, given the server that the client was connected to.
// While an election is not over, any server of a cluster answers with its own state, which may lack
// acknowledged entries: the error wraps ErrUnavailable then.
func stateOf(info *jetstream.StreamInfo, server string) (State, error) {
	if !cluster.FromLeader(info) {
		return State{}, fmt.Errorf("%w: %s has no leader, or the leader did not answer", ErrUnavailable, info.Config.Name)
	}
	gens, err := metadata.ParseGenerations(info.Config.Metadata[metadata.KeyGenerations])
	if err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrMismatch, err)
	}
	servers, err := cluster.Parse(info.Config.Metadata[metadata.KeyServers])
	if err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrMismatch, err)
	}
	held, _ := cluster.Current(info)
	noted := metadata.ParseChecked(info.Config.Metadata[metadata.KeyChecked])
	state := State{
		Current:     held,
		Quorum:      cluster.HasQuorum(info),
		Created:     info.Created,
		Time:        info.TimeStamp,
		Origin:      info.Config.Metadata[metadata.KeyOrigin],
		Generations: gens,
		checked:     noted,
		made:        info.Config.Metadata[metadata.KeyMade],
		Damaged:     noted.Damaged,
		First:       max(info.State.FirstSeq, 1),
		Last:        info.State.LastSeq,
		Entries:     info.State.Msgs,
		Bytes:       info.State.Bytes,
		Limits:      limitsOf(info.Config),
		Leader:      cluster.Leader(info),
		server:      info.Config.Metadata[metadata.KeyServer],
		servers:     servers,
		holders:     cluster.Holders(info),
		seenOn:      server,
	}
	if state.Entries == 0 {
		state.First = state.Last + 1
	}
	return state, nil
}

// begunByEntry returns the generations that began with an entry of a partition and are not on the list
// in its metadata. When the list is full, an old one may have been merged with another one: only entries
// from the newest one's start on count then.
func (l *Log) begunByEntry(ctx context.Context, p int, gens []event.Generation) (more []event.Generation, err error) {
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	from := uint64(1)
	if len(gens) >= event.MaxGenerations {
		from = gens[len(gens)-1].Start
	}
	for {
		msg, err := l.stream(p).GetMsg(ctx, from, jetstream.WithGetMsgSubject(event.GenerationSubject(p, "*")))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return more, nil
		case err != nil:
			return nil, apiError(err)
		}
		if id, ok := event.ParseGenerationSubject(p, msg.Subject); ok && !event.HasGeneration(gens, id) {
			more = append(more, event.Generation{ID: id, Start: msg.Sequence})
		}
		from = msg.Sequence + 1
	}
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

// SequenceAt returns the first sequence from which on all retained entries of a partition were stored
// at a time or later. The error wraps [ErrUnavailable].
func (l *Log) SequenceAt(ctx context.Context, p int, at time.Time) (uint64, error) {
	state, err := l.Look(ctx, p)
	if err != nil {
		return 0, err
	}
	return l.search(ctx, p, state.First, state.Last+1, at)
}

// search is SequenceAt between two sequences.
func (l *Log) search(ctx context.Context, p int, from, end uint64, at time.Time) (uint64, error) {
	for from < end {
		middle := from + (end-from)/2
		msg, err := l.get(ctx, p, middle, jetstream.WithGetMsgSubject(">"))
		switch {
		case err == nil && msg.Time.Before(at):
			from = msg.Sequence + 1
		case err == nil || errors.Is(err, ErrNotFound): // nothing is retained from there on
			end = middle
		default:
			return 0, err
		}
	}
	return from, nil
}

// Standing measures for how long a reader of a partition has stood still. The
// zero Standing has measured nothing. It belongs to one goroutine.
type Standing struct {
	at   uint64
	from time.Time // zero while there is nothing after it
}

// Since returns for how long the reader has stood at a sequence before end, which it
// should have reached.
func (s *Standing) Since(at, end uint64, now time.Time) time.Duration {
	switch {
	case end <= at:
		*s = Standing{}
	case s.from.IsZero() || s.at != at:
		*s = Standing{at, now}
	default:
		return now.Sub(s.from)
	}
	return 0
}

// Absent returns how many sequences from First to Last have no entry.
func (s State) Absent() uint64 { return s.Last + 1 - s.First - s.Entries }

// Absent asks the partition's leader for its state and for the sequences from First to Last of
// which its files have no entry, in order. The answer is one message with about eight bytes for
// each of them, and a server ends a connection for which 64 MiB wait: so a caller does not ask before a
// look has shown that there are not too many ([State.Absent]). Errors are those of [Log.Look].
func (l *Log) Absent(ctx context.Context, p int) (State, []uint64, error) {
	server := l.nc.ConnectedServerId()
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	info, err := l.stream(p).Info(ctx, jetstream.WithDeletedDetails(true))
	if err != nil {
		return State{}, nil, apiError(err)
	}
	if err := checkPartition(info.Config, p); err != nil {
		return State{}, nil, err
	}
	state, err := stateOf(info, server)
	absent := info.State.Deleted
	if state.Last == 0 {
		absent = nil // JetStream lists 0 until the first entry
	}
	if n := len(absent); err == nil && uint64(n) != state.Absent() {
		err = fmt.Errorf("%w: the leader of partition %d lacks %d entries and lists %d", ErrUnavailable, p, state.Absent(), n)
	}
	return state, absent, err
}

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

// knows reports whether the janitor has recorded that the partition is unchanged, or in
// another generation, on the connected server. In a cluster no publisher waits where no
// janitor has recorded anything, and the server may be one that holds no partition.
// The caller holds the lock.
func (part *partition) knows(c connection) bool {
	if c.clustered {
		return !part.state.servers.Awaits(c.name, c.id)
	}
	return part.state.server == c.id
}

// isReadyOn reports whether the partition may be published to and tailed on the connected
// server. In a cluster the state from before the connection is good enough: a server that
// was not restarted proves that not all were. The caller holds the lock.
func (part *partition) isReadyOn(c connection) bool {
	return part.readyOn == c.id || c.clustered && part.knows(c)
}

func checkPartition(cfg jetstream.StreamConfig, p int) error {
	if len(cfg.Subjects) != 1 || cfg.Subjects[0] != streamSubject(p) {
		return fmt.Errorf("%w: the JetStream stream %s holds %q and not %q; it belongs to something else",
			ErrMismatch, cfg.Name, cfg.Subjects, streamSubject(p))
	}
	if v := cfg.Metadata[metadata.KeyVersion]; v != Version {
		err := errVersion
		if v == "" { // it belongs to another program, or a server has lost the metadata
			err = ErrMismatch
		}
		return fmt.Errorf("%w: the JetStream stream %s has version %q and this program reads version %q", err, cfg.Name, v, Version)
	}
	if cfg.Metadata[metadata.KeyOrigin] == "" {
		return fmt.Errorf("%w: the JetStream stream %s has no %s", ErrMismatch, cfg.Name, metadata.KeyOrigin)
	}
	return nil
}
