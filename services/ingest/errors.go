package ingest

import (
	"context"
	"errors"

	"rejoin/services/web"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

var (
	// errStreamClosed is returned when a session is open and its stream is not.
	// It comes along with [session.ErrClosed].
	errStreamClosed = errors.New("the stream is closed")

	// errTooManyStreams is returned when a session has as many open streams as it may.
	errTooManyStreams = errors.New("too many open streams")

	// errBusy is returned when as much is under way as the configuration allows.
	errBusy = errors.New("too many requests are under way")

	// errStopping is returned when the service is about to stop.
	errStopping = errors.New("the service is stopping")

	// errCloseFailed is returned when a close could not be finished. It comes
	// along with the reason.
	errCloseFailed = errors.New("the close is not finished")
)

// problem is the one place where an error becomes what a client is told.
func problem(err error) *web.Problem {
	if p, ok := errors.AsType[*web.Problem](err); ok {
		return p
	}
	if limited, ok := errors.AsType[*rateError](err); ok {
		return web.Wrap(err, web.CodeRateLimited, "This "+limited.of+" has more messages a second than it may.")
	}
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case is(event.ErrInvalidName), is(event.ErrInvalidToken):
		return web.Wrap(err, web.CodeInvalidName, err.Error())
	case is(event.ErrInvalidJSON):
		return web.Wrap(err, web.CodeInvalidJSON, err.Error())
	case is(event.ErrInvalidMessage):
		return web.Wrap(err, web.CodeInvalidMessage, err.Error())
	case is(session.ErrRetention):
		return web.Wrap(err, web.CodeInvalidBody, err.Error())
	case is(event.ErrInvalidType):
		return web.Wrap(err, web.CodeInvalidHeader, "Event-Type: "+err.Error())
	case is(event.ErrReservedType):
		return web.Wrap(err, web.CodeReservedType, err.Error())

	case is(errStreamClosed):
		return web.Wrap(err, web.CodeStreamClosed, "")
	case is(session.ErrClosed):
		return web.Wrap(err, web.CodeSessionClosed, "")
	case is(errTooManyStreams):
		return web.Wrap(err, web.CodeTooManyStreams, "Close a stream of the session before you begin another one.")
	case is(session.ErrExists):
		return web.Wrap(err, web.CodeSessionExists, "")
	case is(session.ErrNotFound):
		return web.Wrap(err, web.CodeNotFound, "There is no such session.")

	case is(auth.ErrExpired):
		return web.Wrap(err, web.CodeUnauthorized, "")

	case is(errBusy):
		return web.Wrap(err, web.CodeUnavailable, "Too many requests are under way.")
	case is(errStopping):
		return web.Wrap(err, web.CodeUnavailable, "This server is stopping.")
	case is(errCloseFailed):
		return web.Wrap(err, web.CodeUnavailable, "The close is not finished; repeat the request to finish it.")

	case is(eventlog.ErrTooLarge):
		return web.Wrap(err, web.CodeBodyTooLarge, "The message and its headers are larger than the log allows.")
	case is(eventlog.ErrFull):
		return web.Wrap(err, web.CodeStorageFull, "The event was not stored.")
	case is(eventlog.ErrUnknown):
		return web.Wrap(err, web.CodePublishUnknown,
			"The event may have been stored. Repeat the request with the same Idempotency-Key within two minutes: it is not stored twice then.")
	case is(eventlog.ErrUnavailable), is(session.ErrUnavailable):
		return web.Wrap(err, web.CodeUnavailable, "The log cannot be reached; nothing was stored.")
	case is(session.ErrConflict), is(context.DeadlineExceeded), is(context.Canceled):
		return web.Wrap(err, web.CodeUnavailable, "")
	default:
		return web.AsProblem(err)
	}
}
