package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/rpc"
	"rejoin/shared/sse"
)

// Body reads the messages of an upstream's answer: an event stream, or JSON (MCP
// 2025-11-25, Streamable HTTP, sending messages).
type Body struct {
	events *sse.Decoder // nil for JSON
	json   io.Reader    // nil when it was read
	max    int          // bytes of JSON
}

// Incoming has the messages of one event, or of one JSON text. An event
// without a message only has an ID.
type Incoming struct {
	Messages []json.RawMessage
	ID       string // of the event; empty when it has none of its own
}

// EventStream is the media type of Server-Sent Events.
const EventStream = "text/event-stream"

// An answer, or an event of a stream, may be this many times as large as a message: it may
// be an array, and a message that is a little too large is reported by itself. A larger one ends the
// answer.
const (
	MostMessages  = 4
	BlockOverhead = 64 << 10 // names of fields, IDs
)

// NewBody reads messages of at most maxBytes bytes, and larger ones in part. It returns nil for an answer of another
// media type.
func NewBody(header http.Header, r io.Reader, maxBytes int) *Body {
	most := MostMessages*maxBytes + BlockOverhead
	switch MediaType(header) {
	case EventStream:
		return &Body{events: sse.NewDecoder(r, most)}
	case "application/json":
		return &Body{json: r, max: most}
	default:
		return nil
	}
}

// MediaType returns the media type of a response, without parameters and in lower case.
func MediaType(header http.Header) string {
	t, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// Next returns the next messages; [io.EOF] marks the end of the answer. Errors wrap
// [ErrTooLarge], [event.ErrInvalidJSON], or are those of the reader.
func (b *Body) Next() (Incoming, error) {
	if b.events == nil {
		return b.text()
	}
	for {
		e, err := b.events.Next()
		if errors.Is(err, sse.ErrTooLong) {
			return Incoming{}, fmt.Errorf("%w: %w", ErrTooLarge, err)
		}
		if err != nil {
			return Incoming{}, err
		}
		if len(e.Data) == 0 {
			return Incoming{}, nil
		}
		if e.Type != event.DefaultType {
			continue
		}
		all, _, err := rpc.Messages(e.Data)
		if err != nil {
			all = []json.RawMessage{e.Data} // it is dropped, and the stream continues
		}
		in := Incoming{Messages: all}
		if e.HasID {
			in.ID = e.ID
		}
		return in, nil
	}
}

func (b *Body) text() (Incoming, error) {
	if b.json == nil {
		return Incoming{}, io.EOF
	}
	r := b.json
	b.json = nil
	data, err := io.ReadAll(io.LimitReader(r, int64(b.max)+1))
	switch {
	case err != nil:
		return Incoming{}, err
	case len(data) > b.max:
		return Incoming{}, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, b.max)
	}
	all, _, err := rpc.Messages(data)
	return Incoming{Messages: all}, err
}

// LastID returns the last event ID, also of an event without a message.
func (b *Body) LastID() string {
	if b.events == nil {
		return ""
	}
	return b.events.LastID()
}

// Retry returns the pause that the upstream asks for before the next request.
func (b *Body) Retry() time.Duration {
	if b.events == nil {
		return 0
	}
	return b.events.Retry()
}
