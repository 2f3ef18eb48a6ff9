package bridge

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

// body reads the messages of an upstream's answer: an event stream, or JSON (MCP
// 2025-11-25, Streamable HTTP, sending messages).
type body struct {
	events *sse.Decoder // nil for JSON
	json   io.Reader    // nil when it was read
	max    int          // bytes of JSON
}

// incoming is what came at once: the messages of an event, or of a JSON text. An event
// without a message only has an ID.
type incoming struct {
	messages []json.RawMessage
	id       string // of the event; empty when it has none of its own
}

const eventStream = "text/event-stream"

// An answer, or an event of a stream, may be this many times as large as a message: it may
// be an array, and what is a little too large is told for itself. What is larger ends the
// answer.
const (
	mostMessages  = 4
	blockOverhead = 64 << 10 // names of fields, IDs
)

// newBody reads messages of at most maxBytes bytes, and larger ones in part. It returns nil for an answer of another media type.
func newBody(header http.Header, r io.Reader, maxBytes int) *body {
	most := mostMessages*maxBytes + blockOverhead
	switch mediaType(header) {
	case eventStream:
		return &body{events: sse.NewDecoder(r, most)}
	case "application/json":
		return &body{json: r, max: most}
	default:
		return nil
	}
}

func mediaType(header http.Header) string {
	t, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// next returns what comes next; [io.EOF] says that the answer is over. Errors wrap
// errTooLarge, [event.ErrInvalidJSON], or are those of the reader.
func (b *body) next() (incoming, error) {
	if b.events == nil {
		return b.text()
	}
	for {
		e, err := b.events.Next()
		if errors.Is(err, sse.ErrTooLong) {
			return incoming{}, fmt.Errorf("%w: %w", errTooLarge, err)
		}
		if err != nil {
			return incoming{}, err
		}
		if len(e.Data) == 0 {
			return incoming{}, nil
		}
		if e.Type != event.DefaultType {
			continue
		}
		all, _, err := rpc.Messages(e.Data)
		if err != nil {
			all = []json.RawMessage{e.Data} // it is dropped, and the stream goes on
		}
		in := incoming{messages: all}
		if e.HasID {
			in.id = e.ID
		}
		return in, nil
	}
}

func (b *body) text() (incoming, error) {
	if b.json == nil {
		return incoming{}, io.EOF
	}
	r := b.json
	b.json = nil
	data, err := io.ReadAll(io.LimitReader(r, int64(b.max)+1))
	switch {
	case err != nil:
		return incoming{}, err
	case len(data) > b.max:
		return incoming{}, fmt.Errorf("%w: more than %d bytes", errTooLarge, b.max)
	}
	all, _, err := rpc.Messages(data)
	return incoming{messages: all}, err
}

// lastID returns the last event ID, also of an event without a message.
func (b *body) lastID() string {
	if b.events == nil {
		return ""
	}
	return b.events.LastID()
}

// retry returns how long the upstream wants to be left alone before it is asked again.
func (b *body) retry() time.Duration {
	if b.events == nil {
		return 0
	}
	return b.events.Retry()
}
