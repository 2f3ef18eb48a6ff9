package session

import (
	"errors"

	"rejoin/shared/eventlog"
)

var (
	// ErrNotFound is returned when neither the log nor the registry has a session.
	ErrNotFound = errors.New("there is no such session")

	// ErrExists is returned when a session that is to be created exists already.
	ErrExists = errors.New("the session exists")

	// ErrClosed is returned when a session or stream has ended.
	ErrClosed = eventlog.ErrClosed

	// ErrConflict is returned when another process has changed a record since it was read.
	ErrConflict = errors.New("the record has changed meanwhile")

	// ErrRetention is returned when a session's metadata asks for limits in a way that
	// cannot be read.
	ErrRetention = errors.New("retention in the metadata is not valid")

	// ErrMessages is returned when the member messages of a session's metadata is neither any nor
	// jsonrpc.
	ErrMessages = errors.New("messages in the metadata is not valid")

	// ErrUnavailable is returned when the registry cannot be reached.
	ErrUnavailable = errors.New("the session registry cannot be reached")
)
