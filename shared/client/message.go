package client

import (
	"context"
	"fmt"
	"strconv"

	"rejoin/shared/event"
)

// Message is a message for a [Publisher].
type Message struct {
	// Session is the session's name: 1 to 128 visible ASCII characters. The first
	// message creates its session.
	Session string
	// Stream is the stream's name, of the same alphabet.
	Stream string
	// Data is one JSON value: of a session of an MCP server, or one that asks for it, a JSON-RPC 2.0
	// message. It is stored as it is, but for line ends between its tokens, which become spaces.
	Data []byte
	// Type is the SSE event type: up to 128 bytes of UTF-8 without control
	// characters or white space at either end, and not one of Rejoin's own. Empty: "message".
	Type string
	// Key is the idempotency key, 1 to 256 visible ASCII characters or spaces: two
	// messages of a stream that have the same one within two minutes are stored
	// once. Empty: one of its own, so that only repetitions by the publisher itself
	// are recognized.
	Key string
}

func (m *Message) check() error {
	if err := event.CheckSession(m.Session); err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if err := event.CheckStream(m.Stream); err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	if m.Type != "" {
		if err := event.CheckType(m.Type); err != nil {
			return err
		}
	}
	if m.Key != "" && !event.ValidKey(m.Key) {
		return ErrInvalidKey
	}
	return event.CheckValue(m.Data)
}

// line returns a checked message as one line of a request.
func (m *Message) line(key string) []byte {
	const names = len(`{"key":"","type":"","message":}`) + 1
	b := make([]byte, 0, names+len(key)+len(m.Type)+len(m.Data))
	b = append(b, `{"key":`...)
	b = strconv.AppendQuote(b, key) // JSON, since it is visible ASCII
	if m.Type != "" {
		b = append(b, `,"type":`...)
		b = append(b, event.MustJSON(m.Type)...)
	}
	b = append(b, `,"message":`...)
	from := len(b)
	b = append(b, m.Data...)
	// Inside of strings JSON has no line ends.
	for i, c := range b[from:] {
		if c == '\r' || c == '\n' {
			b[from+i] = ' '
		}
	}
	return append(b, '}', '\n')
}

// Stored is the outcome of a message that is in the log.
type Stored struct {
	// ID is the event's ID.
	ID string
	// Duplicate says that a message with the same key had been stored before, and
	// ID is that one's. After a failure that may have been an earlier attempt of the
	// publisher to store this very message.
	Duplicate bool
}

// Result gets the outcome of a message. It is safe for
// concurrent use.
type Result struct {
	done   chan struct{}
	stored Stored
	err    error
}

// Done returns a channel that is closed when the outcome is known.
func (r *Result) Done() <-chan struct{} { return r.done }

// Wait returns the outcome. Without an error, the message is stored. The errors:
//
//   - [ErrUnknown], with the reason: the outcome is unknown;
//   - an [*Error]: refused by the server, and not stored;
//   - [ErrClosed]: the publisher was closed before, and it is not stored;
//   - the cause of ctx's end: there is no outcome yet, and Wait may be called again.
func (r *Result) Wait(ctx context.Context) (Stored, error) {
	select {
	case <-r.done:
		return r.stored, r.err
	default:
	}
	select {
	case <-r.done:
		return r.stored, r.err
	case <-ctx.Done():
		return Stored{}, context.Cause(ctx)
	}
}
