package delivery

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/sse"
)

// AppendObject appends an event as an object of JSON, as pages and flows show it. The
// message is as it was published, byte for byte.
func AppendObject(b []byte, it *window.Item, tags cursor.Tagger) []byte {
	return appendObject(append(b, '{'), it, tags)
}

// appendObject appends the members, and the end, of such an object.
func appendObject(b []byte, it *window.Item, tags cursor.Tagger) []byte {
	typ, message := window.FrameParts(it.Frame)
	b = AppendString(append(b, `"id":`...), event.ID{Stream: it.Stream, Tag: tags.Tag(it.Stream), Sequence: it.Sequence}.String())
	b = AppendString(append(b, `,"stream":`...), it.Stream)
	b = AppendString(append(b, `,"type":`...), typ)
	b = time.Unix(0, it.Time).UTC().AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	b = append(append(b, `","message":`...), message...)
	return append(b, '}')
}

// AppendString appends a string of JSON. The only error is about bytes that are not
// UTF-8, which it replaces.
func AppendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// ConnectData is the data of the first event on a connection.
type ConnectData struct {
	Session     string  `json:"session"`
	Stream      *string `json:"stream"`
	Exists      bool    `json:"exists"`
	Resumed     bool    `json:"resumed"`
	Oldest      *string `json:"oldest"`
	RetainedFor float64 `json:"retainedFor"`
}

// closeData is the data of the last event of a stream or session.
type closeData struct {
	Status  string  `json:"status"`
	Session string  `json:"session"`
	Stream  *string `json:"stream"`
}

// GapData is the data of a gap event, and the gap of a page.
type GapData struct {
	// Session is set where a connection follows several.
	Session   string           `json:"session,omitempty"`
	Reason    cursor.GapReason `json:"reason"`
	Certain   bool             `json:"certain"`
	Stream    *string          `json:"stream"`
	Requested string           `json:"requested"`
	ResumesAt string           `json:"resumesAt"`
}

// appendJSON appends a block whose data is v, which always can be marshalled.
func appendJSON(b []byte, id, typ string, v any) []byte {
	return sse.AppendEvent(b, id, typ, event.MustJSON(v))
}

// OrNull returns nil for the empty stream of a session's flow.
func OrNull(stream string) *string {
	if stream == "" {
		return nil
	}
	return &stream
}
