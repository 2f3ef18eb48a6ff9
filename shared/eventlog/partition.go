package eventlog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/eventlog/metadata"
	"rejoin/shared/natsconn"
)

// SmallerLimit compares limits, of which -1 is the largest.
func SmallerLimit(a, b int64) bool { return a > 0 && (b < 0 || a < b) }

// updateWithin bounds one change of a stream.
const updateWithin = time.Minute

// SetLimits gives partition p the limits of settings, and the log the settings
// themselves when p is 0. Settings that cannot be changed must be as they are. A
// partition that has the limits is left alone, so that it can be repeated. Only the
// acting janitor may call it, since it and [Log.BeginGeneration] read and write
// the same configuration.
//
// A change of a log gives the partitions their limits from the last one to the
// first, as [Create] makes them: partition 0 comes last, so the log's settings are
// the old ones until every partition has the new limits. A change that was cut off
// is then a difference, which the janitor undoes after a minute ([Log.ResetLimits]).
//
// Another number of replicas is that of this partition alone; buckets are changed by
// [Log.SetReplicas]. It returns when they are current, while publishing and reading continue:
// until then the loss of a server may be that of the partition. With more of them than
// the cluster has servers, the error wraps [ErrUnavailable].
//
// A smaller limit removes nothing at once: the janitor does with its next sweep.
//
// Errors wrap [ErrInvalidSettings], [ErrUnavailable], [ErrNotFound], [ErrMismatch]
// or [ErrFull]; with [ErrUnavailable] the limits may be the old or the new ones.
func (l *Log) SetLimits(ctx context.Context, p int, settings Settings) error {
	if err := settings.changes(l.Settings()); err != nil {
		return err
	}
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	var had Limits
	if err := l.change(ctx, p, func(info *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (bool, error) {
		had = limitsOf(info.Config)
		want := settings.streamConfig(p)
		cfg.Replicas, cfg.MaxBytes, cfg.MaxMsgSize = want.Replicas, want.MaxBytes, want.MaxMsgSize
		maps.Copy(cfg.Metadata, want.Metadata)
		return had != settings.Limits() || !maps.Equal(cfg.Metadata, metadata.Own(info.Config.Metadata)), nil
	}); err != nil {
		return err
	}
	if err := l.replicated(ctx, p, had, settings); err != nil {
		return err
	}
	return l.refresh(ctx, p)
}

// ResetLimits gives partition p the limits of the log's settings, but for the replicas. Errors are
// those of [Log.MakeRoom]. Only the acting janitor may call it.
func (l *Log) ResetLimits(ctx context.Context, p int) error {
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	if err := l.change(ctx, p, func(info *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (bool, error) {
		settings := l.Settings()
		if p == 0 {
			var err error
			if settings, err = settingsFrom(cfg.Metadata); err != nil {
				return false, err
			}
		}
		want := settings.streamConfig(p)
		cfg.MaxBytes, cfg.MaxMsgSize, cfg.Retention = want.MaxBytes, want.MaxMsgSize, want.Retention
		cfg.Discard, cfg.DiscardNewPerSubject = want.Discard, want.DiscardNewPerSubject
		cfg.MaxAge, cfg.MaxMsgs, cfg.MaxMsgsPerSubject = want.MaxAge, want.MaxMsgs, want.MaxMsgsPerSubject
		cfg.Duplicates = want.Duplicates // JetStream lets it be no longer than the age
		return limitsOf(*cfg) != limitsOf(info.Config), nil
	}); err != nil {
		return err
	}
	return l.refresh(ctx, p)
}

// minRoom is how much room a full partition gets at least, in bytes: some hundred control entries.
const minRoom = 1 << 16

// MakeRoom raises the limit of a partition's bytes by an eighth of its share of MaxBytes: a janitor
// that has to store an entry before it may remove others finds the partition full. Publishers
// take the room as well. So from twice the share on it adds 64 KiB, while no such room is left,
// until the janitor could store its entries. [Log.ResetLimits] takes the room back. made is false where
// entries are refused for another reason than the limit, as on a full disk. Errors wrap [ErrUnavailable] or
// [ErrNotFound]. Only the acting janitor may call it.
func (l *Log) MakeRoom(ctx context.Context, p int) (made bool, err error) {
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	err = l.change(ctx, p, func(info *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (bool, error) {
		share, holds := l.Settings().Limits().MaxBytes, int64(info.State.Bytes)
		full := max(cfg.MaxBytes, holds) // it holds more when the limit was lowered
		made = false
		switch {
		case cfg.MaxBytes <= 0:
		case full < 2*share:
			cfg.MaxBytes, made = full+max(share/8, minRoom), true
		case full < holds+minRoom:
			cfg.MaxBytes, made = full+minRoom, true
		}
		return made, nil
	})
	return made, err
}

// replicated waits until the replicas of a partition are current, if their number changes.
// A change that was cut off shows in the log's settings, which come last.
func (l *Log) replicated(ctx context.Context, p int, had Limits, settings Settings) error {
	if had.Replicas == settings.Replicas && l.Settings().Replicas == settings.Replicas {
		return nil
	}
	return l.waitCurrent(ctx, streamName(p))
}

// changeAttempts is how often a change of a configuration is tried.
const changeAttempts = 3

// change lets edit change the configuration of a partition, whose metadata has only our own keys
// then, and stores it if edit reports so. JetStream stores a configuration as a whole and without a
// comparison: one that was read long ago would undo later changes of the next acting janitor.
// So edit is called again, with the present configuration, when this process was held up for longer
// than lookWithin, and, in a cluster, when the change gets no answer. Errors are those of edit and
// [Log.Look]; with one that wraps [ErrUnavailable] the change may be stored.
//
// A server shows a configuration that it could not write, as on a full disk, and loses it at its next start
// (docs/upstream/0037): after an error the next change stores the configuration also where edit has nothing
// to change.
func (l *Log) change(ctx context.Context, p int, edit edit) error {
	release, err := l.parts[p].own(ctx)
	if err != nil {
		return err
	}
	defer release()
	return l.changeOwned(ctx, p, edit)
}

// edit changes a configuration, and reports whether it is to be stored.
type edit func(*jetstream.StreamInfo, *jetstream.StreamConfig) (store bool, err error)

// changeOwned does the work of change. The caller owns the partition.
func (l *Log) changeOwned(ctx context.Context, p int, edit edit) error {
	part := l.parts[p]
	failed, within := errHeldUp, updateWithin
	if l.Clustered() { // the answer comes from the partition's leader, and is lost when that changes
		within = requestTimeout
	}
	for range changeAttempts {
		read := l.now()
		info, err := l.info(ctx, p)
		if err != nil {
			return err
		}
		cfg := info.Config
		cfg.Metadata = metadata.Own(cfg.Metadata)
		if store, err := edit(info, &cfg); err != nil || !store && !part.unwritten {
			return err
		}
		if read.Until(l.now()) > lookWithin {
			continue
		}
		failed = l.update(ctx, cfg, within)
		part.unwritten = failed != nil
		if !l.Clustered() || ctx.Err() != nil || !errors.Is(failed, context.DeadlineExceeded) {
			return failed
		}
		within *= 2
	}
	return failed
}

var errHeldUp = fmt.Errorf("%w: this program stands still again and again", ErrUnavailable)

func (l *Log) update(ctx context.Context, cfg jetstream.StreamConfig, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := l.js.UpdateStream(ctx, cfg)
	return apiError(err)
}

// changes returns an error when a log with the settings now cannot change to s.
func (s Settings) changes(now Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Partitions != now.Partitions || s.Compression != now.Compression || s != s.withDefaults() {
		return fmt.Errorf("%w: only the limits and replicas of a log can be changed", ErrInvalidSettings)
	}
	return nil
}

const (
	// currentWithin bounds the wait for new replicas: JetStream copies all entries to
	// them while everything runs.
	currentWithin = 4 * time.Minute
	currentEvery  = 100 * time.Millisecond
)

// waitCurrent waits until all replicas of a stream have all of it. The error wraps
// [ErrUnavailable].
func (l *Log) waitCurrent(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, currentWithin)
	defer cancel()
	for {
		var n int
		stream, err := l.streamNow(ctx, name)
		if err == nil {
			var whole bool
			if n, whole = cluster.Current(stream.CachedInfo()); whole {
				return nil
			}
		}
		if !natsconn.Pause(ctx, currentEvery) {
			return errors.Join(fmt.Errorf("%w: %d replicas of %s are current yet", ErrUnavailable, n, name), err)
		}
	}
}

// SetReplicas gives the JetStream stream of a bucket a number of replicas and waits until
// they are current; a bucket that does not exist is left out. Errors are those of
// [Log.SetLimits].
func (l *Log) SetReplicas(ctx context.Context, bucket string, replicas int) error {
	name := "KV_" + bucket
	stream, err := l.streamNow(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return apiError(err)
	}
	cfg := stream.CachedInfo().Config
	if cfg.Replicas == replicas {
		return nil
	}
	cfg.Replicas, cfg.Metadata = replicas, metadata.Foreign(cfg.Metadata)
	if err := l.update(ctx, cfg, updateWithin); err != nil {
		return err
	}
	return l.waitCurrent(ctx, name)
}

// seen is Servers for a new partition with so many replicas, which needs no answer: nil says that the server is alone.
func (l *Log) seen(ctx context.Context, replicas int) cluster.Servers {
	if !l.Clustered() {
		return nil
	}
	servers, err := l.ping(ctx, nil, replicas)
	if err != nil {
		l.log.Warn("the servers of the cluster are not known", "error", err)
		return cluster.Servers{}
	}
	return servers
}

// newPartitionMetadata returns the metadata of a partition that is created on a server. known are the servers
// of its cluster, nil if it is alone. gone is the last known state of a partition that has disappeared. If its server
// was alone and was restarted since, it has not found the stream, but may still have the entries
// (docs/upstream/0036): the partition is the same one then, and no generation is known of this server.
func newPartitionMetadata(cfg jetstream.StreamConfig, server string, known cluster.Servers, gone State) map[string]string {
	meta := metadata.Own(cfg.Metadata)
	if gone.Origin != "" && gone.seenOn != server && known == nil {
		meta[metadata.KeyOrigin] = gone.Origin
		meta[metadata.KeyGenerations] = metadata.FormatGenerations(gone.Generations)
		meta[metadata.KeyChecked] = metadata.Checked{Damaged: gone.Damaged}.Format()
		return meta
	}
	origin := metadata.NewGenerationID()
	meta[metadata.KeyOrigin] = origin
	meta[metadata.KeyGenerations] = metadata.FormatGenerations([]event.Generation{{ID: origin, Start: 1}})
	meta[metadata.KeyServer] = server
	meta[metadata.KeyChecked] = metadata.Checked{Generation: origin}.Format()
	if len(known) > 0 {
		meta[metadata.KeyServers] = known.Format()
	}
	return meta
}

// createPartition makes the JetStream stream of a partition when it is missing; gone is its last
// known state. It never updates an existing one. servers returns those of the cluster.
func (l *Log) createPartition(ctx context.Context, p int, gone State, servers func() cluster.Servers) error {
	cfg := l.Settings().streamConfig(p)
	stream, err := l.find(ctx, p)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		cfg.Metadata = newPartitionMetadata(cfg, l.nc.ConnectedServerId(), servers(), gone)
		stream, err = l.js.CreateStream(ctx, cfg)
		switch {
		case err == nil && l.Clustered():
			return nil
		case err == nil:
			return l.rewriteMetadata(ctx, p, cfg.Metadata, stream.CachedInfo().State.LastSeq)
		case !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
			if err = apiError(err); errors.Is(err, ErrFull) {
				return fmt.Errorf("NATS cannot provide %d MiB for %s: raise its max_file_store, which is three quarters of the free disk unless it is set, or lower --max-bytes: %w",
					cfg.MaxBytes>>20, cfg.Name, err)
			}
			return err
		}
		if stream, err = l.find(ctx, p); errors.Is(err, jetstream.ErrStreamNotFound) { // the server that answers has not heard of it yet
			return fmt.Errorf("%w: %s", ErrUnavailable, err.Error())
		}
	}
	if err != nil {
		return apiError(err)
	}
	return checkPartition(stream.CachedInfo().Config, p)
}

// find asks for a partition's JetStream stream before the log is open. Without a leader there may be no answer.
func (l *Log) find(ctx context.Context, p int) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return l.js.Stream(ctx, streamName(p))
}

// rewriteMetadata writes the metadata of a partition that was just created, on a server that is alone, once
// more: where JetStream has found the files of one that had disappeared, with entries up to last, it has not written
// the metadata, and would not find the stream at the next start either (docs/upstream/0036). The janitor then begins a
// generation, since it is unknown on which server the entries were stored. Metadata that have changed since the stream
// was created were written with the change, such as a generation that the acting janitor has begun.
func (l *Log) rewriteMetadata(ctx context.Context, p int, created map[string]string, last uint64) error {
	part := l.parts[p]
	part.unwritten = true // also if they cannot be read
	return l.changeOwned(ctx, p, func(info *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (bool, error) {
		part.unwritten = maps.Equal(cfg.Metadata, created)
		cfg.Metadata[metadata.KeyMade] = metadata.Made(info.Created)
		if part.unwritten && last > 0 {
			l.log.Warn("a partition that was created again has entries", "partition", p, "last", last)
			delete(cfg.Metadata, metadata.KeyServer)
		}
		return part.unwritten, nil
	})
}

// streamConfig returns the JetStream stream of a partition. The metadata of partition 0 have the settings.
func (s Settings) streamConfig(p int) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name:               streamName(p),
		Description:        "Rejoin event log, partition " + strconv.Itoa(p),
		Subjects:           []string{streamSubject(p)},
		Retention:          jetstream.LimitsPolicy,
		Storage:            jetstream.FileStorage,
		Discard:            jetstream.DiscardNew, // the janitor alone removes entries
		Replicas:           s.Replicas,
		MaxMsgs:            -1,
		MaxMsgsPerSubject:  -1,
		MaxBytes:           s.Limits().MaxBytes,
		MaxMsgSize:         int32(s.Limits().MaxMessageBytes + HeaderRoom), //nolint:gosec // validated: at most 31 MiB
		MaxConsumers:       maxConsumers,
		Duplicates:         2 * time.Minute,
		AllowAtomicPublish: true,
		Metadata:           map[string]string{metadata.KeyVersion: Version},
	}
	if p == 0 {
		cfg.Metadata = s.metadata()
	}
	if s.Compression {
		cfg.Compression = jetstream.S2Compression
	}
	return cfg
}
