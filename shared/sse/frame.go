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
// joins the lines with LF. For JSON, where line ends are between tokens only,
// that is the same text.
func AppendData(b, data []byte) []byte {
	// Two searches for one byte are many times as fast as one search for two.
	next := func(c byte, from int) int {
		if i := bytes.IndexByte(data[from:], c); i >= 0 {
			return from + i
		}
		return len(data)
	}
	cr, lf := next('\r', 0), next('\n', 0)
	for from := 0; ; {
		end := min(cr, lf)
		b = append(b, "data: "...)
		b = append(b, data[from:end]...)
		b = append(b, '\n')
		if end == len(data) {
			return b
		}
		if from = end + 1; end == cr && lf == from && from < len(data) {
			from++
		}
		if cr < from {
			cr = next('\r', from)
		}
		if lf < from {
			lf = next('\n', from)
		}
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
