package session

import "errors"

var (
	// ErrNotFound is returned when a session is not registered.
	ErrNotFound = errors.New("the session is not registered")

	// ErrExists is returned when a session that is to be created is there already.
	ErrExists = errors.New("the session exists")

	// ErrClosed is returned when a session or stream is closing or closed.
	ErrClosed = errors.New("the session or stream is closed")

	// ErrConflict is returned when somebody else changed a record in between.
	ErrConflict = errors.New("the record was changed by somebody else")

	// ErrRetention is returned when a session's metadata asks for limits in a way that
	// cannot be read.
	ErrRetention = errors.New("retention in the metadata is not valid")

	// ErrUnavailable is returned when the registry cannot be reached.
	ErrUnavailable = errors.New("the session registry cannot be reached")
)
