package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Limits are what JetStream enforces by itself in one partition, where -1 means none, and
// on how many servers it keeps it.
type Limits struct {
	Replicas           int
	MaxAge             time.Duration // in whole milliseconds
	MaxEventsPerStream int64
	MaxBytes           int64 // of this partition alone
}

// Limits returns the limits that every partition of a log with these settings has.
func (s Settings) Limits() Limits {
	l := Limits{Replicas: s.Replicas, MaxAge: s.MaxAge.Truncate(time.Millisecond), MaxEventsPerStream: s.MaxEventsPerStream, MaxBytes: s.MaxBytes}
	if s.MaxAge < 0 {
		l.MaxAge = -1
	}
	if s.MaxBytes > 0 {
		l.MaxBytes = max(s.MaxBytes/int64(s.Partitions), 1)
	}
	return l
}

// limitsOf returns the limits of a stream, in which JetStream says 0 for none as well.
func limitsOf(cfg jetstream.StreamConfig) Limits {
	l := Limits{Replicas: max(cfg.Replicas, 1), MaxAge: cfg.MaxAge.Truncate(time.Millisecond), MaxEventsPerStream: cfg.MaxMsgsPerSubject, MaxBytes: cfg.MaxBytes}
	if l.MaxAge <= 0 {
		l.MaxAge = -1
	}
	if l.MaxEventsPerStream <= 0 {
		l.MaxEventsPerStream = -1
	}
	if l.MaxBytes <= 0 {
		l.MaxBytes = -1
	}
	return l
}

// Earlier is a limit of events per stream that held before a larger one. Whoever
// wonders whose event is missing needs it: a stream that has few events may have
// lost more to the smaller limit.
//
// A limit of 0 stands for a change to a smaller limit while events were stored:
// nats-server 2.15.2 may then remove more than the smaller limit asks for, up to all
// of a stream, because its update goes on removing what a publish has removed
// meanwhile.
type Earlier struct {
	MaxEventsPerStream int64
	// UpTo is the newest sequence that the limit, or the change, may have removed. It
	// is math.MaxUint64 until the change is known to be over.
	UpTo uint64
}

// maxEarlier bounds the list in a partition's metadata.
const maxEarlier = 16

// formatEarlier writes "limit:upTo,limit:" with nothing for an open end.
func formatEarlier(list []Earlier) string {
	items := make([]string, len(list))
	for i, e := range list {
		items[i] = strconv.FormatInt(e.MaxEventsPerStream, 10) + ":"
		if e.UpTo != math.MaxUint64 {
			items[i] += strconv.FormatUint(e.UpTo, 10)
		}
	}
	return strings.Join(items, ",")
}

func parseEarlier(s string) ([]Earlier, error) {
	if s == "" {
		return nil, nil
	}
	var list []Earlier
	for item := range strings.SplitSeq(s, ",") {
		limit, upTo, ok := strings.Cut(item, ":")
		n, err := strconv.ParseInt(limit, 10, 64)
		e := Earlier{MaxEventsPerStream: n, UpTo: math.MaxUint64}
		if upTo != "" && err == nil {
			e.UpTo, err = strconv.ParseUint(upTo, 10, 64)
		}
		if !ok || err != nil || n < 0 {
			return nil, fmt.Errorf("%w: its earlier limits are %q", ErrMismatch, s)
		}
		list = append(list, e)
	}
	return list, nil
}

// SmallerLimit compares limits, of which -1 is the largest.
func SmallerLimit(a, b int64) bool { return a > 0 && (b < 0 || a < b) }

// stillEarlier returns the earlier limits that say something beside a limit. One that
// is not smaller does not: what it has left of a stream, the present one takes as
// well. Nor does one that removed nothing behind the first retained sequence.
func stillEarlier(list []Earlier, limit int64, first uint64) []Earlier {
	return tidyEarlier(slices.DeleteFunc(slices.Clone(list), func(e Earlier) bool {
		return e.MaxEventsPerStream > 0 && !SmallerLimit(e.MaxEventsPerStream, limit) || e.UpTo < first
	}))
}

// earlierDuring returns the earlier limits while the limit of events per stream
// changes, with an open end for what the change adds.
func earlierDuring(list []Earlier, from, to int64, first uint64) []Earlier {
	next := slices.Clone(list)
	switch {
	case SmallerLimit(from, to):
		next = append(next, Earlier{MaxEventsPerStream: from, UpTo: math.MaxUint64})
	case SmallerLimit(to, from):
		next = append(next, Earlier{UpTo: math.MaxUint64})
	}
	return stillEarlier(next, to, first)
}

// ended returns the earlier limits with the end of those that have none.
func ended(list []Earlier, last uint64) []Earlier {
	next := slices.Clone(list)
	for i := range next {
		if next[i].UpTo == math.MaxUint64 {
			next[i].UpTo = last
		}
	}
	return tidyEarlier(next)
}

// tidyEarlier leaves out what a smaller limit that ended later says as well, and
// makes one of the two oldest when there are too many: the smaller limit, for longer.
func tidyEarlier(list []Earlier) []Earlier {
	slices.SortFunc(list, func(a, b Earlier) int {
		return cmp.Or(cmp.Compare(a.MaxEventsPerStream, b.MaxEventsPerStream), cmp.Compare(b.UpTo, a.UpTo))
	})
	var out []Earlier
	for _, e := range list {
		if len(out) == 0 || e.UpTo > out[len(out)-1].UpTo {
			out = append(out, e)
		}
	}
	for len(out) > maxEarlier {
		out[1].MaxEventsPerStream = out[0].MaxEventsPerStream
		out = out[1:]
	}
	return out
}

// updateWithin bounds one change of a partition: JetStream answers when everything
// that a smaller limit forbids has been removed.
const updateWithin = time.Minute

// SetLimits gives partition p the limits of settings, and the log the settings
// themselves when p is 0. Settings that cannot be changed must be as they are. A
// partition that has the limits is left alone, so that it can be repeated. Only the
// acting janitor may call it, since it and [Log.BeginGeneration] read and write
// the same configuration.
//
// Whoever changes a log gives the partitions their limits from the last one to the
// first, as [Create] makes them: partition 0 comes last, so the log's settings are
// the old ones until every partition has the new limits. A change that was cut off
// is then a difference that is still there, to be made, and asked about, again.
//
// Another number of replicas is that of this partition alone; buckets are changed by
// [Log.SetReplicas]. It returns when they are current, while publishing and reading go on:
// until then the loss of a server may be that of the partition. With more of them than
// the cluster has servers, the error wraps [ErrUnavailable].
//
// A smaller limit removes events at once, with one exception: JetStream looks for
// events that are older than a new age when as much time has passed.
//
// Errors wrap [ErrInvalidSettings], [ErrUnavailable], [ErrNotFound], [ErrMismatch]
// or [ErrFull]; with [ErrUnavailable] the limits may be the old or the new ones.
func (l *Log) SetLimits(ctx context.Context, p int, settings Settings) error {
	if err := settings.changes(l.Settings()); err != nil {
		return err
	}
	release, err := l.parts[p].own(ctx)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := l.request(ctx)
	defer cancel()
	_, info, err := l.info(ctx, p)
	if err != nil {
		return err
	}
	before, err := parseEarlier(info.Config.Metadata[metaEarlier])
	if err != nil {
		return err
	}
	have, want := limitsOf(info.Config), settings.Limits()
	during := earlierDuring(before, have.MaxEventsPerStream, want.MaxEventsPerStream, info.State.FirstSeq)
	cfg := settings.configure(info.Config, p, during)
	if have == want && maps.Equal(cfg.Metadata, ownMetadata(info.Config.Metadata)) && !slices.ContainsFunc(during, isOpen) {
		return l.replicated(ctx, p, have, settings)
	}
	if want.MaxAge > 0 && have.MaxAge > want.MaxAge {
		// nats-server 2.15.2 keeps its timer for the old age, which may be hours off,
		// unless there was no age meanwhile.
		ageless := cfg
		ageless.MaxAge = 0
		if err := l.update(ctx, ageless); err != nil {
			return err
		}
	}
	if err := l.update(ctx, cfg); err != nil {
		return err
	}
	if slices.ContainsFunc(during, isOpen) {
		_, now, err := l.info(ctx, p)
		if err != nil {
			return err
		}
		list := ended(during, now.State.LastSeq)
		quiet := now.State.LastSeq == info.State.LastSeq && !slices.ContainsFunc(before, isOpen)
		if quiet && SmallerLimit(want.MaxEventsPerStream, have.MaxEventsPerStream) {
			list = stillEarlier(before, want.MaxEventsPerStream, now.State.FirstSeq)
		}
		if err := l.update(ctx, settings.configure(now.Config, p, list)); err != nil {
			return err
		}
	}
	if err := l.replicated(ctx, p, have, settings); err != nil {
		return err
	}
	return l.refresh(ctx, p)
}

// replicated waits until the replicas of a partition are current, if their number changes.
// A change that was cut off shows in the log's settings, which come last.
func (l *Log) replicated(ctx context.Context, p int, had Limits, settings Settings) error {
	if had.Replicas == settings.Replicas && l.Settings().Replicas == settings.Replicas {
		return nil
	}
	return l.waitCurrent(ctx, streamName(p))
}

func isOpen(e Earlier) bool { return e.UpTo == math.MaxUint64 }

func (l *Log) update(ctx context.Context, cfg jetstream.StreamConfig) error {
	ctx, cancel := context.WithTimeout(ctx, updateWithin)
	defer cancel()
	_, err := l.js.UpdateStream(ctx, cfg)
	return apiError(err)
}

// changes returns an error when settings cannot be those of a log that has others now.
func (s Settings) changes(now Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	fixed := now
	fixed.Replicas = s.Replicas
	fixed.MaxAge, fixed.MaxEventsPerStream, fixed.MaxBytes = s.MaxAge, s.MaxEventsPerStream, s.MaxBytes
	fixed.MaxEventsPerSession, fixed.MaxBytesPerSession, fixed.MaxStreamsPerSession = s.MaxEventsPerSession, s.MaxBytesPerSession, s.MaxStreamsPerSession
	if s != fixed || s != s.withDefaults() {
		return fmt.Errorf("%w: only the limits and replicas of a log can be changed", ErrInvalidSettings)
	}
	return nil
}

// configure returns a partition's configuration with the limits of settings.
func (s Settings) configure(cfg jetstream.StreamConfig, p int, earlier []Earlier) jetstream.StreamConfig {
	want := s.streamConfig(p)
	cfg.Replicas = want.Replicas
	cfg.MaxAge, cfg.Duplicates = want.MaxAge, want.Duplicates
	cfg.MaxMsgsPerSubject, cfg.MaxBytes = want.MaxMsgsPerSubject, want.MaxBytes
	cfg.AllowAtomicPublish = want.AllowAtomicPublish
	cfg.Metadata = ownMetadata(cfg.Metadata)
	if delete(cfg.Metadata, metaEarlier); len(earlier) > 0 {
		cfg.Metadata[metaEarlier] = formatEarlier(earlier)
	}
	if p == 0 {
		maps.Copy(cfg.Metadata, s.metadata())
	}
	return cfg
}

// own waits until nobody else in this process reads and writes the configuration of
// the partition: of two at a time one would undo the other's change. The error
// wraps [ErrUnavailable].
func (part *partition) own(ctx context.Context) (release func(), err error) {
	select {
	case part.owned <- struct{}{}:
		return func() { <-part.owned }, nil
	case <-ctx.Done():
		return nil, errors.Join(ErrUnavailable, ctx.Err())
	}
}
