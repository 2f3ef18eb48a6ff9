package client

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"rejoin/shared/event"
)

// Start is where a subscriber without a cursor begins.
type Start uint8

const (
	// StartOldest begins with all retained events, and continues live.
	StartOldest Start = iota
	// StartNow leaves out the events that were published before.
	StartNow
)

// Defaults of a [SubscriberConfig].
const (
	// DefaultIdleTimeout is three heartbeats of an edge.
	DefaultIdleTimeout = 45 * time.Second
	// DefaultOpenTimeout is longer than the minute in which an edge gives up.
	DefaultOpenTimeout = 75 * time.Second
	// DefaultSubscriberRetry is the retry time that an edge sends, too.
	DefaultSubscriberRetry = 3 * time.Second
	// DefaultSubscriberMaxRetry bounds how late a subscriber notices that the
	// server is available again.
	DefaultSubscriberMaxRetry = 30 * time.Second
	// DefaultMaxEventBytes has room for the largest message that a log may allow, 31 MiB, and
	// for its envelope.
	DefaultMaxEventBytes = 32<<20 + 64<<10
)

// Connection is the edge's report at the beginning of a connection.
type Connection struct {
	// Exists says that an event was ever published to the stream or session. If it is false,
	// the subscriber waits for the first event.
	Exists bool
	// Resumed says that the connection continues after a cursor.
	Resumed bool
}

// SubscriberConfig configures a [Subscriber]. URL and Session are needed; for all
// else the zero value means the default.
type SubscriberConfig struct {
	// URL is the URL of the edge, as "https://rejoin.example". It may have a path.
	URL string

	// Session is the session's name.
	Session string

	// Stream is the stream's name. Empty: all streams of the session, in the order
	// in which their events were stored.
	Stream string

	// After is a saved cursor to continue after. Empty: Start decides.
	After string

	// Start is where to begin without a cursor. Default: StartOldest.
	Start Start

	// Since, without a cursor, leaves out events stored before. Default: Start decides.
	Since time.Time

	// Last, without a cursor, leaves out all but so many of the newest events, at most 1,000.
	// Default: Start decides. Since and StartNow take precedence.
	Last int

	// Methods leaves out all messages but those that have one of these JSON-RPC methods,
	// at most 32; "notifications/*" is every one that begins so. Responses have no method.
	// Default: all messages.
	Methods []string

	// Level leaves out the log messages (notifications/message) below a level of RFC
	// 5424: "debug", "info", "notice", "warning", "error", "critical", "alert" or
	// "emergency". Default: all of them.
	Level string

	// Times asks for the time of each event of a single stream, in larger blocks.
	// Events of a session have it anyway. Default: false.
	Times bool

	// Cursors yields an event of KindCursor when the cursor has moved though nothing
	// was published, about every 15 s: a program that saves it does not look like
	// one that has missed events after it was disconnected. Default: false.
	Cursors bool

	// Token returns a token before every connection. Default: no token is sent.
	Token TokenFunc

	// HTTPClient sends the requests. A Timeout of it would bound how long a
	// connection lives, and without HTTP2.SendPingTimeout a dead connection of HTTP/2
	// is used again. Default: one of the subscriber's own.
	HTTPClient *http.Client

	// Logger receives every connection that ended and the wait for the next one.
	// Default: nothing is logged.
	Logger *slog.Logger

	// OnConnect is called with the edge's report at the beginning of each connection, before its
	// first event. It must return soon. Default: nothing is called.
	OnConnect func(Connection)

	// OnFailure is called with the reason why there is no connection, or why one broke, before the
	// next attempt; not when a server ends one in its routine. It must return soon. Default: nothing
	// is called.
	OnFailure func(error)

	// IdleTimeout is how long a connection may be silent before it counts as dead.
	// It must be longer than the edge's heartbeat (15 s). Default: 45 s.
	IdleTimeout time.Duration

	// OpenTimeout is how long to wait for the beginning of an answer, the call of
	// Token included. Default: 75 s.
	OpenTimeout time.Duration

	// Retry is how long to wait before the next connection, until the server sets
	// another time, 100 ms at least; up to a half of it comes on top at random. It doubles with every
	// connection in a row that failed without any block of the server. Default: 3 s.
	Retry time.Duration

	// MaxRetry bounds the wait, also the one that the server sets. Default: 30 s.
	MaxRetry time.Duration

	// MaxEventBytes bounds one block of the event stream, and so the memory that a
	// server can make the subscriber use. Default: 32 MiB and 64 KiB.
	MaxEventBytes int
}

// Validate returns an error that wraps [ErrInvalidConfig] when the configuration
// makes no sense.
func (c *SubscriberConfig) Validate() error {
	if err := checkURL(c.URL); err != nil {
		return err
	}
	if err := event.CheckSession(c.Session); err != nil {
		return fmt.Errorf("%w: session: %w", ErrInvalidConfig, err)
	}
	if c.Stream != "" {
		if err := event.CheckStream(c.Stream); err != nil {
			return fmt.Errorf("%w: stream: %w", ErrInvalidConfig, err)
		}
	}
	if !event.PrintableASCII(c.After) {
		return fmt.Errorf("%w: After is not a cursor", ErrInvalidConfig)
	}
	if c.Start > StartNow {
		return fmt.Errorf("%w: there is no start %d", ErrInvalidConfig, c.Start)
	}
	return notNegative([]field{
		{"Last", int64(c.Last)},
		{"IdleTimeout", int64(c.IdleTimeout)},
		{"OpenTimeout", int64(c.OpenTimeout)},
		{"Retry", int64(c.Retry)},
		{"MaxRetry", int64(c.MaxRetry)},
		{"MaxEventBytes", int64(c.MaxEventBytes)},
	})
}

// field is a number in a configuration.
type field struct {
	name  string
	value int64
}

func notNegative(fields []field) error {
	for _, f := range fields {
		if f.value < 0 {
			return fmt.Errorf("%w: %s is negative", ErrInvalidConfig, f.name)
		}
	}
	return nil
}

// withDefaults returns the configuration with its zero values replaced.
func (c SubscriberConfig) withDefaults() SubscriberConfig {
	c.Logger = orDiscard(c.Logger)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, DefaultIdleTimeout)
	c.OpenTimeout = cmp.Or(c.OpenTimeout, DefaultOpenTimeout)
	c.Retry = cmp.Or(c.Retry, DefaultSubscriberRetry)
	c.MaxRetry = cmp.Or(c.MaxRetry, DefaultSubscriberMaxRetry)
	c.MaxEventBytes = cmp.Or(c.MaxEventBytes, DefaultMaxEventBytes)
	return c
}

func orDiscard(logger *slog.Logger) *slog.Logger {
	if logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return logger
}
