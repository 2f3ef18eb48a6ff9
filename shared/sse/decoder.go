package sse

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// ErrTooLong is returned when an event, or a line, is longer than the decoder allows.
var ErrTooLong = errors.New("event is too long")

// Event is one dispatched block.
type Event struct {
	// ID is the last event ID after the block: the block's own, or the one before.
	ID string
	// HasID says whether the block itself set the ID.
	HasID bool
	// Type is the event type; "message" when the block has no type.
	Type string
	// Data is the joined data lines.
	Data []byte
	// Retry is the reconnection time that the block set, or 0.
	Retry time.Duration
}

// Decoder reads events from a stream as a browser does (HTML, 9.2.6): CR, LF and
// CR LF end lines, a block without data dispatches nothing but moves the last
// event ID, comments are ignored. It is not safe for concurrent use.
type Decoder struct {
	r      *bufio.Reader
	max    int
	lastID string
	retry  time.Duration
	first  bool
	afterR bool
	line   []byte
}

// NewDecoder returns a decoder that refuses lines, and the data of an event, of more than maxBytes bytes.
func NewDecoder(r io.Reader, maxBytes int) *Decoder {
	return &Decoder{r: bufio.NewReader(r), max: maxBytes, first: true}
}

// LastID returns the last event ID, which a client sends when it reconnects.
func (d *Decoder) LastID() string { return d.lastID }

// Retry returns the reconnection time that the stream asked for last, or 0.
func (d *Decoder) Retry() time.Duration { return d.retry }

// Next returns the next dispatched event. At the end of the stream it returns
// [io.EOF]; an unfinished block is dropped, as the standard requires.
func (d *Decoder) Next() (Event, error) {
	event := Event{}
	var data []byte
	for {
		line, err := d.readLine()
		if err != nil {
			return Event{}, err
		}
		if len(line) == 0 {
			if event.HasID {
				d.lastID = event.ID
			}
			if data == nil {
				event = Event{}
				continue
			}
			event.ID, event.Data = d.lastID, data[:len(data)-1]
			if event.Type == "" {
				event.Type = "message"
			}
			return event, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			event.Type = string(value)
		case "data":
			if len(data)+len(value) > d.max {
				return Event{}, fmt.Errorf("%w: more than %d bytes", ErrTooLong, d.max)
			}
			data = append(append(data, value...), '\n')
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				event.ID, event.HasID = string(value), true
			}
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				event.Retry = time.Duration(ms) * time.Millisecond //nolint:gosec // at most 31 bits
				d.retry = event.Retry
			}
		}
	}
}

// readLine returns the next line without its end. A lone CR ends a line at once:
// whether an LF follows is looked at when the next line is read, so that an event
// is not held back until more arrives.
func (d *Decoder) readLine() ([]byte, error) {
	d.line = d.line[:0]
	for {
		c, err := d.r.ReadByte()
		if err != nil {
			return nil, err
		}
		if d.first {
			d.first = false
			if c == 0xEF {
				if rest, err := d.r.Peek(2); err == nil && rest[0] == 0xBB && rest[1] == 0xBF {
					_, _ = d.r.Discard(2)
					continue
				}
			}
		}
		if c == '\n' && d.afterR {
			d.afterR = false
			continue
		}
		d.afterR = c == '\r'
		if c == '\n' || c == '\r' {
			return d.line, nil
		}
		if len(d.line) >= d.max {
			return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLong, d.max)
		}
		d.line = append(d.line, c)
	}
}
