package eventlog

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog/metadata"
)

// Version is the version of the log's layout, the only one that this program reads. 2: a life in each
// subject, and openings, births and ends in the log. 3: a session's partition is the CRC-32 of its name,
// which proxies can compute, and not the FNV-1a of its token.
const Version = "3"

// The largest values that a setting may have. JetStream's file store takes records
// of 32 MiB, in which subject and headers count.
const (
	maxPartitions   = 1024
	maxMessageBytes = 31 << 20
)

// HeaderRoom is the room for headers in JetStream's limit, above the largest message, since the
// limit counts headers as well. Those of an event come to 1,300 bytes at most, of which the fence
// has 950; the rest is for publishers on NATS, which may send more.
const HeaderRoom = 4 << 10

// controlRoom is the room for a control entry in JetStream's limit: the list of a trim lies in headers,
// which NATS limits to 64 KiB, and an opening has metadata.
const controlRoom = 64 << 10

// Settings are the properties of a log, set by its creator; only the limits and
// the replicas can be changed later ([Log.SetLimits]). Every service reads them from the log, so
// that none that starts with other defaults can delete anything. -1 switches a limit off; zero means the default.
type Settings struct {
	// Partitions is the number of partitions. Default 16.
	Partitions int
	// Replicas is the number of servers that hold each partition. Default 1. While most of
	// them are down, nothing is stored or removed: publishes are refused, or have an unknown
	// outcome. Edges still serve the events in their windows, and their connections stay.
	Replicas int
	// MaxAge is how long the janitor retains an event. Default 1 h.
	MaxAge time.Duration
	// MaxEventsPerStream is how many events of one stream the janitor retains. Default 10,000.
	MaxEventsPerStream int64
	// MaxBytes is how many bytes the whole log may hold. The janitor removes the oldest entries
	// before; without a janitor the log is full some day, and refuses events. Default 8 GiB.
	MaxBytes int64
	// MaxMessageBytes is the largest event, without its headers. Default 8 MiB.
	MaxMessageBytes int
	// MaxEventsPerSession is how many events of one session the janitor retains. Default 10,000.
	MaxEventsPerSession int64
	// MaxBytesPerSession is how many bytes of one session the janitor retains. Default 32 MiB.
	MaxBytesPerSession int64
	// MaxStreamsPerSession is how many open streams of one session may hold events; of
	// more the janitor retains those that were written to last. Default 100.
	MaxStreamsPerSession int64
	// Compression stores blocks compressed with S2.
	Compression bool
}

// Partition returns the partition of a session.
func (s Settings) Partition(session string) int { return event.Partition(session, s.Partitions) }

// DefaultSettings returns the settings of a log without configuration.
func DefaultSettings() Settings {
	return Settings{Compression: true}.withDefaults()
}

func (s Settings) withDefaults() Settings {
	return Settings{
		Partitions:           cmp.Or(s.Partitions, 16),
		Replicas:             cmp.Or(s.Replicas, 1),
		MaxAge:               cmp.Or(s.MaxAge, time.Hour),
		MaxEventsPerStream:   cmp.Or(s.MaxEventsPerStream, 10_000),
		MaxBytes:             cmp.Or(s.MaxBytes, 8<<30),
		MaxMessageBytes:      cmp.Or(s.MaxMessageBytes, 8<<20),
		MaxEventsPerSession:  cmp.Or(s.MaxEventsPerSession, 10_000),
		MaxBytesPerSession:   cmp.Or(s.MaxBytesPerSession, 32<<20),
		MaxStreamsPerSession: cmp.Or(s.MaxStreamsPerSession, 100),
		Compression:          s.Compression,
	}
}

// Validate returns an error that wraps [ErrInvalidSettings] when a log cannot be
// created with these settings.
func (s Settings) Validate() error {
	s = s.withDefaults()
	bad := func(why string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalidSettings, fmt.Sprintf(why, args...))
	}
	switch {
	case s.Partitions < 1 || s.Partitions > maxPartitions:
		return bad("partitions must be 1 to %d", maxPartitions)
	case s.Replicas < 1 || s.Replicas > 5:
		return bad("replicas must be 1 to 5")
	case s.MaxAge != -1 && s.MaxAge < 100*time.Millisecond:
		return bad("the maximum age must be at least 100ms, or -1 for none")
	case s.MaxEventsPerStream < -1, s.MaxEventsPerSession < -1, s.MaxBytesPerSession < -1, s.MaxStreamsPerSession < -1, s.MaxBytes < -1:
		return bad("a limit must be positive, or -1 for none")
	case s.MaxMessageBytes < 1 || s.MaxMessageBytes > maxMessageBytes:
		return bad("the largest message must be 1 to %d bytes", maxMessageBytes)
	}
	return nil
}

// leastPartition is the smallest size of a partition that CheckSize accepts.
const leastPartition = 64 << 10

// CheckSize returns an error that wraps [ErrInvalidSettings] when MaxBytes leaves the partitions no
// room for messages, as where a unit was forgotten. It is for flags: Validate accepts such logs.
func (s Settings) CheckSize() error {
	s = s.withDefaults()
	if least := leastPartition * int64(s.Partitions); s.MaxBytes > 0 && s.MaxBytes < least {
		return fmt.Errorf("%w: --max-bytes must be at least %d, 64 KiB for each partition, not %d", ErrInvalidSettings, least, s.MaxBytes)
	}
	return nil
}

// field is one setting as metadata of MCP_0.
type field struct {
	key string
	get func(*Settings) int64
	set func(*Settings, int64)
}

func fields() []field {
	return []field{
		{"rejoin.partitions", func(s *Settings) int64 { return int64(s.Partitions) }, func(s *Settings, v int64) { s.Partitions = int(v) }},
		{"rejoin.replicas", func(s *Settings) int64 { return int64(s.Replicas) }, func(s *Settings, v int64) { s.Replicas = int(v) }},
		{"rejoin.max_age_ms", func(s *Settings) int64 {
			if s.MaxAge < 0 {
				return -1
			}
			return s.MaxAge.Milliseconds()
		}, func(s *Settings, v int64) {
			if s.MaxAge = time.Duration(v) * time.Millisecond; v < 0 {
				s.MaxAge = -1
			}
		}},
		{"rejoin.max_events_per_stream", func(s *Settings) int64 { return s.MaxEventsPerStream }, func(s *Settings, v int64) { s.MaxEventsPerStream = v }},
		{"rejoin.max_bytes", func(s *Settings) int64 { return s.MaxBytes }, func(s *Settings, v int64) { s.MaxBytes = v }},
		{"rejoin.max_message_bytes", func(s *Settings) int64 { return int64(s.MaxMessageBytes) }, func(s *Settings, v int64) { s.MaxMessageBytes = int(v) }},
		{"rejoin.max_events_per_session", func(s *Settings) int64 { return s.MaxEventsPerSession }, func(s *Settings, v int64) { s.MaxEventsPerSession = v }},
		{"rejoin.max_bytes_per_session", func(s *Settings) int64 { return s.MaxBytesPerSession }, func(s *Settings, v int64) { s.MaxBytesPerSession = v }},
		{"rejoin.max_streams_per_session", func(s *Settings) int64 { return s.MaxStreamsPerSession }, func(s *Settings, v int64) { s.MaxStreamsPerSession = v }},
	}
}

func (s Settings) metadata() map[string]string {
	m := map[string]string{metadata.KeyVersion: Version, "rejoin.compression": strconv.FormatBool(s.Compression)}
	for _, f := range fields() {
		m[f.key] = strconv.FormatInt(f.get(&s), 10)
	}
	return m
}

func settingsFrom(meta map[string]string) (Settings, error) {
	if version := meta[metadata.KeyVersion]; version != Version {
		return Settings{}, fmt.Errorf("%w: it has version %q and this program reads version %q; use the program that wrote it, or begin another log", ErrMismatch, version, Version)
	}
	s := Settings{Compression: meta["rejoin.compression"] == "true"}
	for _, f := range fields() {
		v, err := strconv.ParseInt(meta[f.key], 10, 64)
		if err != nil {
			return Settings{}, fmt.Errorf("%w: its %s is %q", ErrMismatch, f.key, meta[f.key])
		}
		f.set(&s, v)
	}
	if err := s.Validate(); err != nil {
		return Settings{}, fmt.Errorf("%w: %w", ErrMismatch, err)
	}
	return s, nil
}

// maxConsumers is set explicitly because nats-server 2.15 gives streams that ask
// for no limit one of 1,000, and consumer 1,001 fails with error 10026 (docs/upstream/0010).
const maxConsumers = 100_000

// Limits are the limits that JetStream enforces by itself in one partition, where -1 means none, and
// the number of servers that hold it. JetStream removes nothing: a full partition refuses events.
// All other limits are metadata of partition 0, which the janitor enforces from its next sweep on.
type Limits struct {
	Replicas int
	MaxBytes int64 // of this partition alone
	// MaxMessageBytes is the largest entry, without its headers: the largest event or, if that is smaller,
	// 64 KiB for control entries.
	MaxMessageBytes int
	// Removes says that JetStream removes entries by itself, since its configuration was changed.
	Removes bool
}

// Limits returns the limits that every partition of a log with these settings has.
func (s Settings) Limits() Limits {
	l := Limits{Replicas: s.Replicas, MaxBytes: s.MaxBytes, MaxMessageBytes: max(s.MaxMessageBytes, controlRoom)}
	if s.MaxBytes > 0 {
		l.MaxBytes = max(s.MaxBytes/int64(s.Partitions), 1)
	}
	return l
}

// limitsOf returns the limits of a stream, for which JetStream has 0 for none as well.
func limitsOf(cfg jetstream.StreamConfig) Limits {
	l := Limits{
		Replicas: max(cfg.Replicas, 1), MaxBytes: cfg.MaxBytes, MaxMessageBytes: int(cfg.MaxMsgSize) - HeaderRoom,
		Removes: cfg.MaxAge > 0 || cfg.MaxMsgs > 0 || cfg.MaxMsgsPerSubject > 0 || cfg.Discard != jetstream.DiscardNew || cfg.Retention != jetstream.LimitsPolicy,
	}
	if l.MaxBytes <= 0 {
		l.MaxBytes = -1
	}
	return l
}
