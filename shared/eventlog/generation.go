package eventlog

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
)

func newGenerationID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand, Go 1.24)
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}

// formatGenerations writes "id:start,id:start".
func formatGenerations(gens []event.Generation) string {
	var b strings.Builder
	for i, g := range gens {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(g.ID)
		b.WriteByte(':')
		b.WriteString(strconv.FormatUint(g.Start, 10))
	}
	return b.String()
}

func parseGenerations(s string) ([]event.Generation, error) {
	var gens []event.Generation
	for item := range strings.SplitSeq(s, ",") {
		id, number, ok := strings.Cut(item, ":")
		start, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil || id == "" {
			return nil, fmt.Errorf("%w: its generations are %q", ErrMismatch, s)
		}
		gens = append(gens, event.Generation{ID: id, Start: start})
	}
	return gens, nil
}

// BeginGeneration makes sure that partition p has a generation for the servers
// that hold it now, and reports whether it had to start one. Only the acting
// janitor may call it.
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
func (l *Log) BeginGeneration(ctx context.Context, p int, looks ...Servers) (bool, error) {
	at := l.connected()
	switch {
	case at.id == "":
		return false, ErrUnavailable
	case at.clustered:
		return l.compareServers(ctx, p, looks)
	}
	return l.changeServers(ctx, p, func(_ *jetstream.StreamInfo, meta map[string]string) (bool, error) {
		if meta[metaServer] == at.id {
			return false, nil
		}
		meta[metaServer] = at.id
		return true, nil
	})
}

// changeServers lets change see a partition and enter into its metadata what is known of
// the servers that hold it, and begins a generation if change says so. It reports whether
// it has begun one. Errors are those of [Log.BeginGeneration].
func (l *Log) changeServers(ctx context.Context, p int, change func(*jetstream.StreamInfo, map[string]string) (begin bool, err error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	var begin, stored bool
	err := l.change(ctx, p, func(info *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (_ bool, err error) {
		if begin, err = change(info, cfg.Metadata); err != nil {
			return false, err
		}
		if begin {
			gens, err := parseGenerations(cfg.Metadata[metaGenerations])
			if err != nil {
				return false, err
			}
			gens = event.NextGeneration(gens, event.Generation{ID: newGenerationID(), Start: info.State.LastSeq + 1})
			cfg.Metadata[metaGenerations] = formatGenerations(gens)
		}
		stored = !maps.Equal(cfg.Metadata, ownMetadata(info.Config.Metadata))
		return stored, nil
	})
	if err != nil || !stored {
		return false, err
	}
	return begin, l.refresh(ctx, p)
}

// ownMetadata returns what is ours: the server adds entries of its own, which an
// update must not send back.
func ownMetadata(meta map[string]string) map[string]string {
	own := make(map[string]string, len(meta))
	for k, v := range meta {
		if strings.HasPrefix(k, "rejoin.") {
			own[k] = v
		}
	}
	return own
}

// foreignMetadata is [ownMetadata] of a stream that is not a partition: all but the server's.
func foreignMetadata(meta map[string]string) map[string]string {
	return maps.Collect(func(yield func(string, string) bool) {
		for k, v := range meta {
			if !strings.HasPrefix(k, "_nats.") && !yield(k, v) {
				return
			}
		}
	})
}

func newPartitionMetadata(cfg jetstream.StreamConfig, server string, cluster Servers) map[string]string {
	birth := newGenerationID()
	meta := ownMetadata(cfg.Metadata)
	meta[metaBirth] = birth
	meta[metaGenerations] = formatGenerations([]event.Generation{{ID: birth, Start: 1}})
	meta[metaServer] = server
	meta[metaChecked] = checked{generation: birth}.format()
	if len(cluster) > 0 {
		meta[metaServers] = cluster.format()
	}
	return meta
}
