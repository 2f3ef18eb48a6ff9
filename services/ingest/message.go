package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"rejoin/services/ingest/problem"
	"rejoin/services/ingest/request"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
)

// message is one event on its way into the log, whatever brought it here.
type message struct {
	session, stream string
	eventType       string // the SSE event type, or empty
	key             string // the idempotency key, or empty
	keyIndex        uint64 // of the message among those with the key
	trace           tracing.Context
	publisher       string      // that rates are counted for; empty on NATS
	client          string      // that gets the session, if that is new; see [web.Clients.Client]
	grants          auth.Grants // of its publisher over HTTP
	trusted         bool        // it was sent on NATS, which has its own access control
	batch           *batch      // that it belongs to, or nil
	data            []byte
}

// sharer returns the name in whose share the message takes its slot: its publisher's, and on NATS, which
// does not name the publisher, its session's.
func (m message) sharer() string {
	if m.trusted {
		return "session " + m.session
	}
	return sharerOf(m.publisher)
}

// sharerOf returns the name in whose share the requests of a publisher over HTTP take their slots.
func sharerOf(publisher string) string { return "publisher " + publisher }

// stored is a publisher's answer for an event in the log.
type stored struct {
	ID        string `json:"id"`
	Duplicate bool   `json:"duplicate"`
}

// mayBeRepeated adds problem.ErrRepeated to an error that wraps [session.ErrClosed], when m has a key.
func (m message) mayBeRepeated(err error) error {
	if m.key != "" && errors.Is(err, session.ErrClosed) {
		return fmt.Errorf("%w: %w", problem.ErrRepeated, err)
	}
	return err
}

// checkNames checks session and stream.
func (m message) checkNames() error {
	if err := event.CheckSession(m.session); err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if err := event.CheckStream(m.stream); err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	return nil
}

func (m message) check(maxBytes int) error {
	if err := m.checkNames(); err != nil {
		return err
	}
	if m.eventType != "" {
		if err := event.CheckType(m.eventType); err != nil {
			return err
		}
	}
	if len(m.data) > maxBytes {
		return &request.TooLargeError{Max: maxBytes}
	}
	return event.CheckValue(m.data)
}

// compact takes the white space out of a message that was printed over several lines: a frame
// of SSE would need a field for each line. The checked message becomes shorter in its place, so that it takes no more
// memory.
func (m *message) compact() {
	if bytes.ContainsAny(m.data, "\n\r") {
		m.data = event.Compact(m.data)
	}
}

// publishLog writes a debug line about each message.
type publishLog struct {
	*slog.Logger
	bodies bool // with the message
}

// published logs the outcome of a message that was begun, or why it was not.
func (l publishLog) published(ctx context.Context, m message, ack stored, err error) {
	if !l.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := []any{"session", m.session, "stream", m.stream, "bytes", len(m.data)}
	if l.bodies {
		attrs = append(attrs, "body", string(m.data))
	}
	if err != nil {
		l.DebugContext(ctx, "a message is not stored", append(attrs, "code", string(problem.Of(err).Code))...)
		return
	}
	l.DebugContext(ctx, "a message is stored", append(attrs, "id", ack.ID, "duplicate", ack.Duplicate)...)
}
