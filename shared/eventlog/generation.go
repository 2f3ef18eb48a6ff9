package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/eventlog/metadata"
	"rejoin/shared/natsconn"
)

// BeginGeneration makes sure that partition p has a generation for the servers
// that hold it now, and reports whether it had to start one. Only the janitor
// that acts for the partition may call it.
//
// A server that was restarted may have lost its newest entries (a power cut,
// an older copy of its files), so IDs made before may name lost events. So may
// those of a partition of which a backup was restored while its server ran.
// In a cluster the loss of one server loses nothing, and a generation is begun when most
// of those that hold the partition were restarted at once. looks are the results of
// [Log.Servers], oldest first; without any, nothing is done in a cluster. The log is asked
// there only when its known state, at most a few seconds old, shows that there is a change
// to write.
//
// It gives up after a second, since others wait for its result, but not for long:
// call it again then. Errors wrap [ErrUnavailable], [ErrNotFound] or [ErrMismatch].
func (l *Log) BeginGeneration(ctx context.Context, p int, looks ...cluster.Servers) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, l.beginWithin)
	defer cancel()
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	at := l.connected()
	switch {
	case at.id == "":
		return false, ErrUnavailable
	case at.clustered:
		return l.compareServers(ctx, p, looks)
	}
	return l.changeServers(ctx, p, func(info *jetstream.StreamInfo, meta map[string]string, gens []event.Generation) ([]event.Generation, error) {
		made := metadata.Made(info.Created)
		if meta[metadata.KeyServer] == at.id && meta[metadata.KeyMade] == made {
			return nil, nil
		}
		more, err := l.unlisted(ctx, p, info, gens)
		if err != nil {
			return nil, err
		}
		if own := metadata.RunGenerationID(at.id, info.Created); meta[metadata.KeyServer] != at.id && !event.HasGeneration(more, own) && !event.HasGeneration(gens, own) {
			more = append(more, event.Generation{ID: own, Start: info.State.LastSeq + 1})
		}
		meta[metadata.KeyServer], meta[metadata.KeyMade] = at.id, made
		return more, nil
	})
}

// changeServers calls change with a partition and its generations, to record in its metadata the
// servers that hold it, and begins the generations that change returns. It reports whether there
// were any. Errors are those of [Log.BeginGeneration].
func (l *Log) changeServers(ctx context.Context, p int, change func(*jetstream.StreamInfo, map[string]string, []event.Generation) (more []event.Generation, err error)) (bool, error) {
	var begun, stored bool
	var next State
	server := l.nc.ConnectedServerId()
	err := l.change(ctx, p, func(info *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (bool, error) {
		read, err := stateOf(info, server)
		if err != nil {
			return false, err
		}
		known, _ := l.State(p)
		gens := known.keep(read)
		more, err := change(info, cfg.Metadata, gens)
		if err != nil {
			return false, err
		}
		next, next.Generations = read, event.NextGenerations(gens, more...)
		begun = next.Generation() != read.Generation() // a look may know of one that is not listed
		cfg.Metadata[metadata.KeyGenerations] = metadata.FormatGenerations(next.Generations)
		stored = !maps.Equal(cfg.Metadata, metadata.Own(info.Config.Metadata))
		return stored, nil
	})
	if err != nil || !stored {
		return false, err
	}
	l.parts[p].remember(next)
	return begun, l.refresh(ctx, p)
}

// unlisted returns the generations of a partition, by their starts, that are not on the list in its metadata: those that
// began with an entry, and that of a restore.
//
// A backup that is restored on a server that runs makes another JetStream stream, which has the entries and metadata of
// the backup. Its generation begins with the first entry that was stored there, or with the first entry of all when that
// one is not found in time: clients get the others again then, and miss none in silence. The ID is that of the stream, so
// that every look finds the same generation, before a janitor has listed it.
func (l *Log) unlisted(ctx context.Context, p int, info *jetstream.StreamInfo, gens []event.Generation) ([]event.Generation, error) {
	begun, err := l.begunByEntry(ctx, p, gens)
	before, made := info.Config.Metadata[metadata.KeyMade], metadata.Made(info.Created)
	id := metadata.RestoreGenerationID(info.Created)
	if err != nil || before == made || event.HasGeneration(gens, id) {
		return begun, err
	}
	first := max(info.State.FirstSeq, 1)
	if before == "" { // a new partition, or one of an earlier version: it is restored if it has older entries
		oldest, err := l.get(ctx, p, first, jetstream.WithGetMsgSubject(streamSubject(p)))
		if errors.Is(err, ErrNotFound) || err == nil && !oldest.Time.Before(info.Created) {
			return begun, nil
		}
		if err != nil {
			return nil, err
		}
	}
	start, err := l.storedSince(ctx, p, info, info.Created, first)
	more := append([]event.Generation{{ID: id, Start: start}}, begun...)
	slices.SortStableFunc(more, func(a, b event.Generation) int { return cmp.Compare(a.Start, b.Start) })
	return more, err
}

// storedSince returns the first sequence of a partition from which on all entries were stored at a time or later; another
// sequence when that is not found within half of the time that BeginGeneration has, as when an answer takes 25 ms.
func (l *Log) storedSince(ctx context.Context, p int, info *jetstream.StreamInfo, at time.Time, otherwise uint64) (uint64, error) {
	searching, cancel := context.WithTimeout(ctx, l.beginWithin/2)
	defer cancel()
	from, err := l.search(searching, p, max(info.State.FirstSeq, 1), info.State.LastSeq+1, at)
	if err != nil && searching.Err() != nil && ctx.Err() == nil {
		return otherwise, nil
	}
	return from, err
}

// compareServers is BeginGeneration in a cluster.
func (l *Log) compareServers(ctx context.Context, p int, looks []cluster.Servers) (bool, error) {
	if len(looks) == 0 {
		return false, nil
	}
	state, _ := l.State(p)
	if lost, next := state.servers.Compare(state.holders, looks); len(state.holders) > 0 && !lost && maps.Equal(next, state.servers) && state.made == metadata.Made(state.Created) {
		return false, nil
	}
	return l.changeServers(ctx, p, func(info *jetstream.StreamInfo, meta map[string]string, gens []event.Generation) (more []event.Generation, _ error) {
		at := time.Now() // when info.TimeStamp was, or soon after
		names := cluster.Holders(info)
		if len(names) == 0 {
			return nil, fmt.Errorf("%w: partition %d has no leader", ErrUnavailable, p)
		}
		known, err := cluster.Parse(meta[metadata.KeyServers])
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrMismatch, err)
		}
		if more, err = l.unlisted(ctx, p, info, gens); err != nil { // it may come from a server that was alone
			return nil, err
		}
		meta[metadata.KeyMade] = metadata.Made(info.Created)
		lost, next := known.Compare(names, looks)
		if !maps.Equal(next, known) {
			meta[metadata.KeyServers] = next.Format()
		}
		if lost {
			start, err := l.lostFrom(ctx, p, info, at, known, looks)
			if err != nil {
				return nil, err
			}
			more = append(more, event.Generation{ID: metadata.NewGenerationID(), Start: start})
		}
		return more, nil
	})
}

// lostFrom returns the first sequence of the new generation of a partition of which most servers were restarted
// together: the first sequence that may have been given to a lost entry, and again to one stored since. info is as of
// at, known are the servers before, looks those after it.
//
// Clients of a server that was not restarted, also of one that holds no partition, do not wait. They store once a
// restarted server runs again, and the leader may have changed since: the generation begins with the first entry after
// the last look before that. Where all were restarted, all clients wait, and the generation begins with the first entry
// since the newest leader leads, if that is one of them. Else it begins at the end of the log; also when the entries are
// not found in time.
func (l *Log) lostFrom(ctx context.Context, p int, info *jetstream.StreamInfo, at time.Time, known cluster.Servers, looks []cluster.Servers) (uint64, error) {
	end := info.State.LastSeq + 1
	leader, led := info.Cluster.Leader, info.Cluster.LeaderSince
	now := looks[len(looks)-1][leader]
	var from time.Time // by the leader's clock
	if led != nil && now != "" && known.Awaits(leader, now) {
		from = *led
	}
	restarted, survives := known.Restarted(cluster.Holders(info), looks)
	if away := l.arrivals.first(restarted); !away.IsZero() && (survives || led == nil) {
		if back := info.TimeStamp.Add(away.Sub(at)); from.IsZero() || back.Before(from) {
			from = back
		}
	}
	if from.IsZero() {
		return end, nil
	}
	first, err := l.storedSince(ctx, p, info, from, end) // publishers and edges wait for the generation
	return min(first, end), err
}

// arrivals are the times at which the servers of a cluster were not there yet. The zero arrivals have none. It is safe
// for concurrent use.
type arrivals struct {
	mu     sync.Mutex
	looked time.Time            // when the newest look began
	before map[string]time.Time // when the last look without a server began, by the server's ID; zero: there was none
}

// maxArrivals bounds the servers that are remembered.
const maxArrivals = 256

// note takes in a look that began at a time.
func (a *arrivals) note(there cluster.Servers, began time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.before == nil || len(a.before) > maxArrivals {
		a.before, a.looked = map[string]time.Time{}, time.Time{}
	}
	for _, id := range there {
		if _, known := a.before[id]; !known {
			a.before[id] = a.looked
		}
	}
	a.looked = began
}

// first returns when none of some servers was there yet; zero if that is not known.
func (a *arrivals) first(ids []string) (at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, id := range ids {
		before := a.before[id]
		if before.IsZero() {
			return time.Time{}
		}
		if i == 0 || before.Before(at) {
			at = before
		}
	}
	return at
}

// SetChecked records the result of a janitor's check of a partition for damage, in the generation
// of a look and in the files of the server that led the partition then: no damage after damaged;
// 0 for none at all. Nothing is recorded when another server leads by now, or in another
// generation. Damage stays recorded also when the floor has passed it: a birth that was written
// again since may lack events of its stream. Only the janitor that acts for the partition may call
// it. Errors are those of [Log.BeginGeneration].
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

// writable waits until entries may be stored in a partition, as awaitReady does, and returns the connection for
// which that holds. Where no janitor has begun a generation, it begins one: with an entry under a subject of the
// server's run alone, so that the first to store it decides where the generation starts. The error wraps
// [ErrUnavailable] or [ErrFull].
func (l *Log) writable(ctx context.Context, p int) (on uint64, err error) {
	for {
		on = l.connectionNumber()
		server, err := l.awaitReady(ctx, p)
		if err != nil || l.Clustered() {
			return on, err
		}
		if state, _ := l.State(p); state.begun(server) {
			return on, nil
		}
		if err = l.storeGeneration(ctx, on, p, server); !errors.Is(err, errAgain) {
			return on, unavailable(err)
		}
	}
}

// storeGeneration stores the entry that the generation of a server's run begins with.
func (l *Log) storeGeneration(ctx context.Context, on uint64, p int, server string) error {
	release, err := l.parts[p].own(ctx)
	if err != nil {
		return err
	}
	defer release()
	state, err := l.Look(ctx, p)
	if err != nil || state.begun(server) {
		return err
	}
	msg := nats.NewMsg(event.GenerationSubject(p, metadata.RunGenerationID(server, state.Created)))
	msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, "0")
	if _, err := l.publishOn(ctx, on, p, msg); err != nil && !errors.Is(err, ErrConflict) {
		return err
	}
	_, err = l.Look(ctx, p)
	return err
}

// AwaitGeneration returns when the partition of a session has a generation for the server that is
// connected, and begins one where no janitor does, as every publish: for callers that publish straight to
// JetStream. Errors wrap [ErrUnavailable] or [ErrFull].
func (l *Log) AwaitGeneration(ctx context.Context, session string) error {
	_, err := l.writable(ctx, l.Partition(session))
	return err
}

// unavailable returns the error of a message that was not sent since the generation could not be begun.
func unavailable(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrFull) {
		return err
	}
	return fmt.Errorf("%w: the generation cannot be begun: %s", ErrUnavailable, err.Error())
}
