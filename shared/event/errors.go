package event

import "errors"

var (
	// ErrInvalidName is returned when a session or stream name is empty, longer
	// than [MaxNameLen], holds a character outside 0x21–0x7E, or is reserved.
	ErrInvalidName = errors.New("invalid name")

	// ErrInvalidToken is returned when a subject token is not the encoding of any name.
	ErrInvalidToken = errors.New("invalid token")

	// ErrInvalidSubject is returned when a subject does not name an event of the log.
	ErrInvalidSubject = errors.New("invalid subject")

	// ErrInvalidID is returned when a text is not an event ID.
	ErrInvalidID = errors.New("invalid event id")

	// ErrInvalidJSON is returned when a message is not one JSON text in UTF-8.
	ErrInvalidJSON = errors.New("invalid JSON")

	// ErrInvalidMessage is returned when a JSON text is not one JSON-RPC 2.0 message.
	ErrInvalidMessage = errors.New("invalid JSON-RPC message")

	// ErrInvalidType is returned when an SSE event type is empty, too long, or
	// holds a control character.
	ErrInvalidType = errors.New("invalid event type")

	// ErrReservedType is returned when a publisher asks for an SSE event type that
	// Rejoin itself sends.
	ErrReservedType = errors.New("reserved event type")
)
