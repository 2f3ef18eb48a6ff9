package edge

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"rejoin/shared/event"
	"rejoin/shared/sse"
)

// appendFrame appends an event as the finished SSE block that every client of its
// stream gets: prefix is the event ID up to the sequence.
func appendFrame(b, prefix []byte, sequence uint64, typ string, data []byte) []byte {
	if typ != event.DefaultType {
		b = sse.AppendField(b, "event", typ)
	}
	b = append(b, "id: "...)
	b = append(b, prefix...)
	b = strconv.AppendUint(b, sequence, 10)
	b = append(b, '\n')
	b = sse.AppendData(b, data)
	return append(b, '\n')
}

// frameSize is how large a frame is whose data is one line, or a little less.
func frameSize(prefix []byte, typ string, data []byte) int {
	const names, sequence = len("event: \nid: \ndata: \n\n"), 20
	return names + len(typ) + len(prefix) + sequence + len(data)
}

// frameParts takes a frame of appendFrame apart again: the event type, and the
// data with its lines joined. It is how everything but the plain stream is made
// from the window's bytes.
func frameParts(frame []byte) (typ string, data []byte) {
	typ = event.DefaultType
	single := true
	for len(frame) > 1 {
		line, rest, _ := bytes.Cut(frame, []byte{'\n'})
		frame = rest
		switch {
		case bytes.HasPrefix(line, []byte("data: ")):
			if data == nil {
				data = line[len("data: "):]
				continue
			}
			if single {
				data, single = bytes.Clone(data), false
			}
			data = append(append(data, '\n'), line[len("data: "):]...)
		case bytes.HasPrefix(line, []byte("event: ")):
			typ = string(line[len("event: "):])
		}
	}
	return typ, data
}

// ofLog is the segment of a frame that is not the window's.
const ofLog = ^uint64(0)

// item is one event that a read found.
type item struct {
	stream   string
	sequence uint64
	time     int64  // nanoseconds since 1970
	frame    []byte // of appendFrame
	offset   uint64 // of the frame in the window, and of its segment
	segment  uint64
	number   uint64 // of its entry in the window; 0 when it is from the log
	trail    *trail // nil unless the event is sampled
}

// appendObject appends the event as an object of JSON, as pages and flows show it. The
// message is as it was published, byte for byte.
func (it *item) appendObject(b []byte, tags tagger) []byte {
	typ, message := frameParts(it.frame)
	b = appendString(append(b, `{"id":`...), event.ID{Stream: it.stream, Tag: tags.tag(it.stream), Sequence: it.sequence}.String())
	b = appendString(append(b, `,"stream":`...), it.stream)
	b = appendString(append(b, `,"type":`...), typ)
	b = time.Unix(0, it.time).UTC().AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	b = append(append(b, `","message":`...), message...)
	return append(b, '}')
}

// appendString appends a string of JSON. The only error is about bytes that are not
// UTF-8, which it replaces.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// tagger makes the tags of a session's event IDs, each once.
type tagger struct {
	place event.Place
	known map[string]string
}

func newTagger(place event.Place) tagger { return tagger{place: place, known: map[string]string{}} }

// tag returns the tag of a stream's IDs, or of the flow's when stream is empty.
func (t tagger) tag(stream string) string {
	tag, ok := t.known[stream]
	if !ok {
		place := t.place
		place.Stream = stream
		tag = place.Tag()
		t.known[stream] = tag
	}
	return tag
}

// connectData is the data of the first event on a connection.
type connectData struct {
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

// gapData is the data of a gap event, and the gap of a page.
type gapData struct {
	Reason    Reason  `json:"reason"`
	Certain   bool    `json:"certain"`
	Stream    *string `json:"stream"`
	Requested string  `json:"requested"`
	ResumesAt string  `json:"resumesAt"`
}

// appendJSON appends a block whose data is v, which always can be marshalled.
func appendJSON(b []byte, id, typ string, v any) []byte {
	return sse.AppendEvent(b, id, typ, marshal(v))
}

func marshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// orNull returns nil for the empty stream of a session's flow.
func orNull(stream string) *string {
	if stream == "" {
		return nil
	}
	return &stream
}
