package client

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrInvalidConfig is returned by the constructors and by Validate for a
	// configuration that makes no sense.
	ErrInvalidConfig = errors.New("invalid configuration")

	// ErrBusy is yielded by a second loop over a [Subscriber] whose first one has
	// not ended.
	ErrBusy = errors.New("the subscriber is already being read")

	// ErrProtocol is yielded when the server sent data that no Rejoin server
	// sends, or a block larger than MaxEventBytes. Trying again would not help.
	ErrProtocol = errors.New("the server does not speak the protocol")

	// ErrTooLarge is returned by [Publisher.Publish] for a message that alone is
	// larger than the whole buffer.
	ErrTooLarge = errors.New("the message is larger than the publisher's buffer")

	// ErrInvalidKey is returned by [Publisher.Publish] for an idempotency key that
	// is longer than 256 bytes or holds other characters than visible ASCII and
	// spaces.
	ErrInvalidKey = errors.New("the idempotency key is not valid")

	// ErrClosed is returned by [Publisher.Publish] after Close, and is the outcome
	// of messages that Close did not wait for. They were not stored, unless the error
	// wraps [ErrUnknown] as well.
	ErrClosed = errors.New("the publisher is closed")

	// ErrUnknown is the outcome of a message that may have been stored or not: a
	// request that carried it got no answer, and it is too late to find out by a
	// repetition; or a redirect made a GET of the request, and that was refused.
	// The error wraps the reason as well.
	ErrUnknown = errors.New("whether the message was stored is unknown")
)

// The problem codes that a program is most likely to act on; docs/http.md lists all.
const (
	CodeNotFound      = "not_found"
	CodeGap           = "gap"
	CodeSessionClosed = "session_closed"
	CodeStreamClosed  = "stream_closed"
)

// The codes of a message's outcome that are worth another try.
const (
	codeUnavailable    = "unavailable"
	codePublishUnknown = "publish_unknown"
	codeStorageFull    = "storage_full"
	codeInternal       = "internal"
)

// Error is a refusal by the server: an HTTP status with its problem document
// (RFC 9457), or the refusal of one message in a request that was accepted.
// Get at it with [errors.AsType].
type Error struct {
	// Status is the HTTP status, or 0 when one message was refused.
	Status int
	// Code is the problem's stable name, as "session_closed". It is empty when
	// the answer was not a Rejoin server's.
	Code string
	// Detail is an explanation for people; it may be empty.
	Detail string
	// RetryAfter is the server's Retry-After, or 0.
	RetryAfter time.Duration
}

// Error returns status, code and detail.
func (e *Error) Error() string {
	s := "refused"
	if e.Status != 0 {
		s += fmt.Sprintf(" with status %d", e.Status)
	}
	if e.Code != "" {
		s += ": " + e.Code
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

var (
	// errSilent ends a request whose server has sent nothing for too long.
	errSilent = errors.New("the server was silent for too long")

	// errEnded is returned when an event stream ended and may be requested again.
	errEnded = errors.New("the connection has ended")

	// errUnavailable is returned when an event stream ended before it began, as that of an
	// edge without the log, or of a proxy without an edge.
	errUnavailable = errors.New("the service is unavailable")

	// errBroken is returned when a proxy has broken off an event and written other data, as after a
	// failure of its own.
	errBroken = errors.New("an event is broken")

	// errDone ends a subscription in good order: the stream is closed, or its
	// reader wants no more.
	errDone = errors.New("the subscription is over")
)
