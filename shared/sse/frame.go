// Package sse writes and reads Server-Sent Events (HTML Living Standard, 9.2).
package sse

import (
	"bytes"
	"strconv"
	"time"
)

// AppendField appends one line "name: value". The value must hold no CR, LF or
// NUL; names and types are checked where they enter the system.
func AppendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, '\n')
}

// AppendRetry appends the line that sets a client's reconnection time, rounded to
// milliseconds.
func AppendRetry(b []byte, d time.Duration) []byte {
	b = append(b, "retry: "...)
	b = strconv.AppendInt(b, d.Milliseconds(), 10)
	return append(b, '\n')
}

// AppendData appends data as "data:" lines, one for each of its lines. CR, LF and
// CR LF all end a line, since any of them would end one in the stream; the reader
// joins the lines with LF. For JSON, where line ends stand between tokens only,
// that is the same text.
func AppendData(b, data []byte) []byte {
	for {
		i := bytes.IndexAny(data, "\r\n")
		if i < 0 {
			b = append(b, "data: "...)
			b = append(b, data...)
			return append(b, '\n')
		}
		b = append(b, "data: "...)
		b = append(b, data[:i]...)
		b = append(b, '\n')
		if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			i++
		}
		data = data[i+1:]
	}
}

// AppendEvent appends a whole block: the ID and the type when they are not empty,
// the data, and the empty line that dispatches it.
func AppendEvent(b []byte, id, typ string, data []byte) []byte {
	if typ != "" {
		b = AppendField(b, "event", typ)
	}
	if id != "" {
		b = AppendField(b, "id", id)
	}
	b = AppendData(b, data)
	return append(b, '\n')
}
