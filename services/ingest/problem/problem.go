// Package problem has the errors of ingest, and the one place where an error becomes a client's answer.
package problem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"rejoin/services/ingest/request"
	"rejoin/services/ingest/streams"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

var (
	// ErrStreamClosed is returned, along with [session.ErrClosed], when a session is open and
	// its stream has ended.
	ErrStreamClosed = errors.New("the stream is closed")

	// ErrRepeated is returned along with [session.ErrClosed] for a message with an
	// idempotency key: it may be the repeat of one that was stored before the end. The log
	// recognizes it for two minutes, and is not asked when the registry knows of the end.
	ErrRepeated = errors.New("an earlier attempt may have been stored")

	// ErrFenced is returned along with the reason for a message that JetStream refused
	// because of its fence: nothing is stored, as if it had not been tried.
	ErrFenced = errors.New("the log refused the message")

	// ErrMember is returned when a member of a session sends a request that only its owner may send.
	ErrMember = errors.New("the caller is a member of the session, and not its owner")

	// ErrOpenedAgain is returned when the session that a message was for has ended, and
	// another one of its name is open. The message was not stored.
	ErrOpenedAgain = errors.New("the session was closed and opened again")

	// ErrBusy is returned when as much is under way as the configuration allows.
	ErrBusy = errors.New("too many requests are under way")

	// ErrStopping is returned when the service is about to stop.
	ErrStopping = errors.New("the service is stopping")

	// ErrCloseFailed is returned, along with the reason, when a close could not be finished.
	ErrCloseFailed = errors.New("the close is not finished")
)

// Of returns the answer to a client for an error.
func Of(err error) *web.Problem {
	if p, ok := errors.AsType[*web.Problem](err); ok {
		return p
	}
	if limited, ok := errors.AsType[*RateError](err); ok {
		return web.Wrap(err, web.CodeRateLimited, limited.Error())
	}
	if full, ok := errors.AsType[*session.FullError](err); ok {
		return web.Wrap(err, web.CodeTooManySessions, full.Error())
	}
	if large, ok := errors.AsType[*request.TooLargeError](err); ok {
		return web.Wrap(err, web.CodeBodyTooLarge, large.Error())
	}
	for _, a := range answers {
		if !errors.Is(err, a.of) {
			continue
		}
		detail := strings.Replace(a.detail, "%s", err.Error(), 1)
		if errors.Is(err, ErrRepeated) {
			detail = "The message was not stored now; an earlier attempt with the same Idempotency-Key may have been stored before the end."
		}
		return web.Wrap(err, a.code, detail)
	}
	return web.AsProblem(err)
}

// answers are those to errors without a type of their own. Of several that an error wraps the first one counts.
var answers = []struct {
	of     error
	code   web.Code
	detail string // %s stands for the error
}{
	{event.ErrInvalidName, web.CodeInvalidName, "%s"},
	{event.ErrInvalidToken, web.CodeInvalidName, "%s"},
	{event.ErrInvalidJSON, web.CodeInvalidJSON, "%s"},
	{event.ErrInvalidMessage, web.CodeInvalidMessage, "%s"},
	{session.ErrRetention, web.CodeInvalidBody, "%s"},
	{session.ErrMessages, web.CodeInvalidBody, "%s"},
	{event.ErrInvalidType, web.CodeInvalidHeader, "Event-Type: %s"},
	{event.ErrReservedType, web.CodeReservedType, "%s"},
	{ErrStreamClosed, web.CodeStreamClosed, ""},
	{session.ErrClosed, web.CodeSessionClosed, ""},
	{streams.ErrTooMany, web.CodeTooManyStreams, "Close a stream of the session before you begin another one."},
	{session.ErrExists, web.CodeSessionExists, ""},
	{session.ErrNotFound, web.CodeNotFound, "There is no such session."},
	{ErrMember, web.CodeInsufficientScope, "The session is its owner's to close, and so are its members."},
	{auth.ErrExpired, web.CodeUnauthorized, ""},
	{ErrBusy, web.CodeUnavailable, "Too many requests are under way."},
	{ErrStopping, web.CodeUnavailable, "This server is stopping."},
	{ErrCloseFailed, web.CodeUnavailable, "The close is not finished; repeat the request to finish it."},
	{ErrOpenedAgain, web.CodeUnavailable, "The session was closed and opened again in between; the message was not stored."},
	{eventlog.ErrTooLarge, web.CodeBodyTooLarge, "The message and its headers are larger than the log allows."},
	{eventlog.ErrFull, web.CodeStorageFull, "The event was not stored."},
	{session.ErrUnavailable, web.CodeUnavailable, "The log cannot be reached; nothing was stored."}, // with an unknown outcome too: of an opening, not of an event
	{eventlog.ErrUnknown, web.CodePublishUnknown, "The event may have been stored. Repeat the request with the same Idempotency-Key within two minutes: it is not stored twice then."},
	{eventlog.ErrUnavailable, web.CodeUnavailable, "The log cannot be reached; nothing was stored."},
	{context.DeadlineExceeded, web.CodeUnavailable, ""},
	{context.Canceled, web.CodeUnavailable, ""},
}

// RateError is returned when a publisher or a session has as many messages a second as it
// may, or a client as many new sessions.
type RateError struct {
	Of, What string        // a "publisher" has too many "messages"
	Wait     time.Duration // until there may be another one
}

func (e *RateError) Error() string {
	return fmt.Sprintf("This %s has more %s a second than it may.", e.Of, e.What)
}
