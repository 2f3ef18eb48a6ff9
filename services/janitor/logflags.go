package janitor

import (
	"fmt"
	"log/slog"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
)

// LogFlags are the properties of a log that is created. A log that exists keeps
// its own. Zero means not given, and is no value of a flag.
type LogFlags struct {
	// Partitions is the number of partitions. Default: 16.
	Partitions int `type:"positive" help:"Partitions of a new log (default: 16)." placeholder:"N"`
	// Replicas is the number of servers that hold each partition. Default: 1.
	Replicas int `type:"positive" help:"Servers that store each partition of a new log (default: 1)." placeholder:"N"`
	// MaxAge is how long an event is retained; -1 for no limit. Default: 1 h.
	MaxAge flagtype.Duration `type:"limit" help:"How long a new log retains an event; -1 for unlimited (default: 1h)." placeholder:"DURATION"`
	// MaxEventsPerStream is how many events of one stream are retained; -1 all. Default: 10,000.
	MaxEventsPerStream int64 `type:"limit" help:"Events that a new log retains per stream; -1 for unlimited (default: 10000)." placeholder:"N"`
	// MaxBytes is how many bytes the whole log may hold; -1 any number. Default: 8 GiB.
	MaxBytes flagtype.Bytes `type:"limit" help:"Maximum size of a new log; -1 for unlimited (default: 8GiB)." placeholder:"BYTES"`
	// MaxMessageBytes is the largest event. Default: 8 MiB.
	MaxMessageBytes flagtype.Bytes `type:"positive" help:"Maximum size of a message in a new log (default: 8MiB)." placeholder:"BYTES"`
	// MaxEventsPerSession is how many events of one session are retained; -1 all. Default: 10,000.
	MaxEventsPerSession int64 `type:"limit" help:"Events that a new log retains per session; -1 for unlimited (default: 10000)." placeholder:"N"`
	// MaxBytesPerSession is how many bytes of one session are retained; -1 any number. Default: 32 MiB.
	MaxBytesPerSession flagtype.Bytes `type:"limit" help:"Bytes that a new log retains per session; -1 for unlimited (default: 32MiB)." placeholder:"BYTES"`
	// MaxStreamsPerSession is how many open streams of one session may hold events; -1 any number. Default: 100.
	MaxStreamsPerSession int64 `type:"limit" help:"Maximum number of open streams per session in a new log; -1 for unlimited (default: 100)." placeholder:"N"`
	// Compression stores blocks compressed with S2. Default: true.
	Compression *bool `negatable:"" help:"Compress the stored blocks of a new log (default: yes)."`
}

// Settings returns the settings of a new log.
func (f LogFlags) Settings() eventlog.Settings {
	return eventlog.Settings{
		Partitions: f.Partitions, Replicas: f.Replicas, MaxAge: time.Duration(f.MaxAge),
		MaxEventsPerStream: f.MaxEventsPerStream, MaxBytes: int64(f.MaxBytes), MaxMessageBytes: int(f.MaxMessageBytes),
		MaxEventsPerSession: f.MaxEventsPerSession, MaxBytesPerSession: int64(f.MaxBytesPerSession),
		MaxStreamsPerSession: f.MaxStreamsPerSession,
		Compression:          f.Compression == nil || *f.Compression,
	}
}

// Validate returns an error that wraps [eventlog.ErrInvalidSettings] when no log
// can be created with the flags.
func (f LogFlags) Validate() error {
	s := f.Settings()
	if err := s.Validate(); err != nil {
		return err
	}
	return s.CheckSize()
}

// WarnOfDifferences logs each flag that was given and that the log does not have.
func (f LogFlags) WarnOfDifferences(log eventlog.Settings, logger *slog.Logger) {
	check := func(flag string, given bool, asked, has any) {
		if given && asked != has {
			logger.Warn("the log exists and keeps its own setting", "flag", flag, "given", fmt.Sprint(asked), "log", fmt.Sprint(has))
		}
	}
	check("--partitions", f.Partitions != 0, f.Partitions, log.Partitions)
	check("--replicas", f.Replicas != 0, f.Replicas, log.Replicas)
	check("--max-age", f.MaxAge != 0, time.Duration(f.MaxAge), log.MaxAge)
	check("--max-events-per-stream", f.MaxEventsPerStream != 0, f.MaxEventsPerStream, log.MaxEventsPerStream)
	check("--max-bytes", f.MaxBytes != 0, int64(f.MaxBytes), log.MaxBytes)
	check("--max-message-bytes", f.MaxMessageBytes != 0, int(f.MaxMessageBytes), log.MaxMessageBytes)
	check("--max-events-per-session", f.MaxEventsPerSession != 0, f.MaxEventsPerSession, log.MaxEventsPerSession)
	check("--max-bytes-per-session", f.MaxBytesPerSession != 0, int64(f.MaxBytesPerSession), log.MaxBytesPerSession)
	check("--max-streams-per-session", f.MaxStreamsPerSession != 0, f.MaxStreamsPerSession, log.MaxStreamsPerSession)
	check("--compression", f.Compression != nil, f.Compression != nil && *f.Compression, log.Compression)
}
