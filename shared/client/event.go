package client

import (
	"encoding/json"
	"fmt"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/sse"
)

// Kind is the kind of an [Event].
type Kind uint8

const (
	// KindMessage is a published message.
	KindMessage Kind = iota
	// KindGap means that messages are missing here; see [Event.Gap].
	KindGap
	// KindCursor means that the cursor has moved although nothing was published. It
	// is yielded only when [SubscriberConfig.Cursors] asks for it.
	KindCursor
)

// Event is an element of the loop over a [Subscriber]. Its fields belong to the caller.
type Event struct {
	// Kind says which of the following fields are set.
	Kind Kind

	// Cursor is the cursor after this event in the subscribed stream or session. A later
	// subscriber that starts with it gets all later events, once.
	Cursor string

	// ID is a message's event ID. On a session's flow it is the ID in the
	// message's own stream, so it is not a cursor of the flow.
	ID string
	// Stream is the stream that a message was published to.
	Stream string
	// Type is a message's SSE event type, "message" when its publisher gave no type.
	Type string
	// Time is when a message was stored. It is zero on a single stream, unless
	// [SubscriberConfig.Times] asks for it.
	Time time.Time
	// Message is one JSON value. Of a single stream it is the stored message,
	// with LF for every line end; with times, and on a session's flow, it is the same
	// JSON, maybe with other spaces and escapes.
	Message json.RawMessage

	// Gap reports missing events; nil for other kinds.
	Gap *Gap
}

// Gap reports that events are missing at this point, since they no longer exist. The
// subscription continues with the retained events.
type Gap struct {
	// Reason is the reason why events are missing.
	Reason Reason `json:"reason"`
	// Certain is false when it is unknown whether any event is missing.
	Certain bool `json:"certain"`
	// Stream is the stream whose events are missing, or empty for any of the session.
	Stream string `json:"stream"`
	// Requested is the cursor that the missing events should have followed.
	Requested string `json:"requested"`
	// ResumesAt is the cursor at which the subscription continues.
	ResumesAt string `json:"resumesAt"`
}

// Reason is the reason why events are missing. There may be others in the future.
type Reason string

const (
	// ReasonExpired means that the events were older than the log keeps them.
	ReasonExpired Reason = "expired"
	// ReasonTrimmed means that the stream or session had too many events, bytes or open
	// streams, or that the session was closed for a while.
	ReasonTrimmed Reason = "trimmed"
	// ReasonCleared means that the stream or the session was cleared.
	ReasonCleared Reason = "cleared"
	// ReasonRolledBack means that the log has lost its newest events. Some of those
	// that follow may have been yielded before.
	ReasonRolledBack Reason = "rolled_back"
	// ReasonDamaged means that entries of the log are missing without a known cause, as when
	// a file was damaged: events of the stream may be among them.
	ReasonDamaged Reason = "damaged"
	// ReasonUnknown means that the cursor cannot be read, or belongs to another stream,
	// session or log, or to an earlier session of the name that the log has forgotten.
	ReasonUnknown Reason = "unknown"
)

// The SSE event types of blocks that Rejoin itself sends and that a subscriber
// acts on. There are others, which carry only an ID.
const (
	typeConnect = "connect"
	typeCursor  = "cursor"
	typeGap     = "gap"
	typeClose   = "close"
)

// gapOf reads a block that reports a gap.
func gapOf(block sse.Event) (*Gap, error) {
	var g Gap
	if err := json.Unmarshal(block.Data, &g); err != nil {
		return nil, fmt.Errorf("%w: a gap cannot be read: %w", ErrProtocol, err)
	}
	return &g, nil
}

// enveloped reads a block whose data is an object that holds the message.
func enveloped(block sse.Event) (Event, error) {
	var object struct {
		ID      string          `json:"id"`
		Stream  string          `json:"stream"`
		Type    string          `json:"type"`
		Time    time.Time       `json:"time"`
		Message json.RawMessage `json:"message"`
	}
	if err := json.Unmarshal(block.Data, &object); err != nil {
		return Event{}, fmt.Errorf("%w: an event cannot be read: %w", ErrProtocol, err)
	}
	if object.Message == nil {
		return Event{}, fmt.Errorf("%w: an event has no message", ErrProtocol)
	}
	if object.Type == "" {
		object.Type = event.DefaultType
	}
	return Event{ID: object.ID, Stream: object.Stream, Type: object.Type, Time: object.Time, Message: object.Message}, nil
}
