package client

import (
	"cmp"
	"log/slog"
	"net/http"
	"time"
)

// Defaults of a [PublisherConfig].
const (
	DefaultMaxBufferedMessages = 10_000
	DefaultMaxBufferedBytes    = 16 << 20
	DefaultMaxBatchMessages    = 1000
	// DefaultMaxBatchBytes stays below the limit of proxies for a request, 1 MiB often.
	DefaultMaxBatchBytes     = 512 << 10
	DefaultMaxRequests       = 8
	DefaultAnswerTimeout     = 30 * time.Second
	DefaultPublisherRetry    = 100 * time.Millisecond
	DefaultPublisherMaxRetry = 5 * time.Second
	// DefaultRepeatWithin is the two minutes in which a log recognizes keys, less
	// the time that a repetition may take to reach it.
	DefaultRepeatWithin = 110 * time.Second
)

// PublisherConfig configures a [Publisher]. URL is needed; for all else the
// zero value means the default.
type PublisherConfig struct {
	// URL is the URL of ingest, as "https://rejoin.example". It may have a path.
	URL string

	// Token returns a token before every request. Default: no token is sent.
	Token TokenFunc

	// HTTPClient sends the requests. Without HTTP2.SendPingTimeout it uses a dead
	// connection of HTTP/2 again. Default: one of the publisher's own.
	HTTPClient *http.Client

	// Logger receives every request that failed and will be repeated. Default:
	// nothing is logged.
	Logger *slog.Logger

	// OnFailure is called with the reason why a request failed, before it is repeated, by
	// several goroutines at a time. It must return soon, and so not call Close, which waits
	// for it. Default: nothing is called.
	OnFailure func(error)

	// MaxBufferedMessages and MaxBufferedBytes bound the published messages that have no
	// outcome yet; Publish waits while the buffer is full. Bytes are counted as
	// they are sent, with key and type. Defaults: 10,000, and 16 MiB.
	MaxBufferedMessages int
	MaxBufferedBytes    int

	// MaxBatchMessages and MaxBatchBytes bound one request. A message that is
	// larger gets a request of its own. A batch that is answered 413, as by a proxy,
	// is divided, and those after it are smaller; one that a proxy refuses with 403, as for
	// the content of a message, is divided until that message is alone. Defaults: 1000, and 512 KiB.
	MaxBatchMessages int
	MaxBatchBytes    int

	// MaxRequests is how many requests are under way at a time, each for another
	// stream. Default: 8.
	MaxRequests int

	// AnswerTimeout is how long the server may take no part of a request, and be silent
	// after it and in the answer. Default: 30 s.
	AnswerTimeout time.Duration

	// Retry is how long to wait before a failed request is repeated; up to a half of
	// it comes on top at random. It doubles with every failure in a row, and a
	// server's Retry-After may make it longer.
	// Default: 100 ms.
	Retry time.Duration

	// MaxRetry bounds the wait, also that of a Retry-After. Default: 5 s.
	MaxRetry time.Duration

	// RepeatWithin is how long after an attempt without an answer the message may
	// be repeated. It must be well below the log's duplicate window, which is two
	// minutes, unless NATS restarts after the event was removed. Default: 110 s.
	RepeatWithin time.Duration
}

// Validate returns an error that wraps [ErrInvalidConfig] when the configuration
// makes no sense.
func (c *PublisherConfig) Validate() error {
	if err := checkURL(c.URL); err != nil {
		return err
	}
	return notNegative([]field{
		{"MaxBufferedMessages", int64(c.MaxBufferedMessages)},
		{"MaxBufferedBytes", int64(c.MaxBufferedBytes)},
		{"MaxBatchMessages", int64(c.MaxBatchMessages)},
		{"MaxBatchBytes", int64(c.MaxBatchBytes)},
		{"MaxRequests", int64(c.MaxRequests)},
		{"AnswerTimeout", int64(c.AnswerTimeout)},
		{"Retry", int64(c.Retry)},
		{"MaxRetry", int64(c.MaxRetry)},
		{"RepeatWithin", int64(c.RepeatWithin)},
	})
}

// withDefaults returns the configuration with its zero values replaced.
func (c PublisherConfig) withDefaults() PublisherConfig {
	c.Logger = orDiscard(c.Logger)
	c.MaxBufferedMessages = cmp.Or(c.MaxBufferedMessages, DefaultMaxBufferedMessages)
	c.MaxBufferedBytes = cmp.Or(c.MaxBufferedBytes, DefaultMaxBufferedBytes)
	c.MaxBatchMessages = cmp.Or(c.MaxBatchMessages, DefaultMaxBatchMessages)
	c.MaxBatchBytes = cmp.Or(c.MaxBatchBytes, DefaultMaxBatchBytes)
	c.MaxRequests = cmp.Or(c.MaxRequests, DefaultMaxRequests)
	c.AnswerTimeout = cmp.Or(c.AnswerTimeout, DefaultAnswerTimeout)
	c.Retry = cmp.Or(c.Retry, DefaultPublisherRetry)
	c.MaxRetry = cmp.Or(c.MaxRetry, DefaultPublisherMaxRetry)
	c.RepeatWithin = cmp.Or(c.RepeatWithin, DefaultRepeatWithin)
	return c
}
