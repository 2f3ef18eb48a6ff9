package window

import (
	"bytes"
	"strconv"

	"rejoin/shared/event"
	"rejoin/shared/sse"
)

// AppendFrame appends an event as the finished SSE block that every client of its
// stream receives: prefix is the event ID up to the sequence.
func AppendFrame(b, prefix []byte, sequence uint64, typ string, data []byte) []byte {
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

// FrameParts takes a frame of AppendFrame apart again: the event type, and the
// data with its lines joined. All formats but the plain stream are made so from
// the window's bytes.
func FrameParts(frame []byte) (typ string, data []byte) {
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

// OfLog is the segment of a frame that is not the window's.
const OfLog = ^uint64(0)

// Item is one event that a read found.
type Item struct {
	Stream   string
	Sequence uint64
	Time     int64  // nanoseconds since 1970
	Frame    []byte // of AppendFrame
	Offset   uint64 // of the frame in the window, and of its segment
	Segment  uint64
	Number   uint64 // of its entry in the window; 0 when it is from the log
	Trail    *Trail // nil unless the event is sampled
	FromLog  bool   // it was read from the log
}

// Source returns where an event was read.
func (it *Item) Source() string {
	if it.FromLog {
		return "log"
	}
	return "window"
}
