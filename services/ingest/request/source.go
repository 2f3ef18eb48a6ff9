package request

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/quota"
	"rejoin/shared/web"
)

// Source gives the messages of a request, one after the other.
type Source interface {
	// Next returns the next one. A [*LineError] concerns this one alone; any other
	// error ends the request's messages: [io.EOF] when there are no more.
	Next() (Element, error)
}

// Element is a message in a request, with the members of its envelope.
type Element struct {
	Data []byte
	Type string // the SSE event type, or empty
	Key  string // the idempotency key, or empty
	Held int64  // bytes of memory that it takes; see [Lines]
}

// LineError is returned for a line or element that yields no message.
type LineError struct{ Err error }

func (e *LineError) Error() string { return e.Err.Error() }
func (e *LineError) Unwrap() error { return e.Err }

// shortArray is how many bytes an array may have that is checked at once: in a millisecond. Longer
// ones wait for each other, since all clients' requests would wait for the processors.
const shortArray = 64 << 10

// maxArray is how many messages an array may have: 4 MiB could be two million numbers, each of
// which would be an event. More are sent as NDJSON, which is read as fast as it is stored.
const maxArray = 50_000

// array gives the elements of a JSON array, each byte for byte: they are parts of it.
type array struct {
	elements  *event.Elements
	envelopes bool
}

// Arrays reads JSON arrays. Each is checked as a whole before any element of it is stored.
type Arrays struct {
	long chan struct{} // a token for each array of more than shortArray bytes that is being checked
}

// NewArrays returns Arrays that check so many long arrays at once.
func NewArrays(longAtOnce int) Arrays { return Arrays{make(chan struct{}, longAtOnce)} }

// Read returns the elements of an array, which are parts of text.
func (all Arrays) Read(text []byte, envelopes bool) (Source, error) {
	if len(text) > shortArray {
		all.long <- struct{}{}
		defer func() { <-all.long }()
	}
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%w: it is not UTF-8", event.ErrInvalidJSON)
	}
	if !json.Valid(text) { // all of it, before anything is stored
		return nil, fmt.Errorf("%w: %w", event.ErrInvalidJSON, json.Unmarshal(text, &struct{}{}))
	}
	if bytes.TrimSpace(text)[0] != '[' {
		return nil, web.New(web.CodeInvalidBody, "The body must be a JSON array.")
	}
	switch n := count(text); {
	case n == 0:
		return nil, web.New(web.CodeInvalidBody, "The array is empty.")
	case n > maxArray:
		return nil, web.New(web.CodeBodyTooLarge, "The array has more than "+strconv.Itoa(maxArray)+" messages; send several, or "+MIMELines+" over HTTP.")
	}
	return &array{event.ElementsOf(text), envelopes}, nil
}

// count returns how many elements a JSON array has, up to maxArray+1.
func count(text []byte) (n int) {
	for all := event.ElementsOf(text); n <= maxArray && all.Next() != nil; n++ {
	}
	return n
}

func (a *array) Next() (Element, error) {
	text := a.elements.Next()
	if text == nil {
		return Element{}, io.EOF
	}
	return parseElement(text, a.envelopes)
}

// Lines gives the lines of a text in NDJSON, of which empty ones do not count. It holds
// one line at a time. The bytes of an element are taken of the memory, and the caller has to give them back.
type Lines struct {
	r      *bufio.Reader
	max    int    // bytes of a line
	begin  func() // called before each line
	memory *quota.Pool
	client string // the one that it is taken for
	held   int64  // for the line that is being read

	envelopes bool // each line is one
}

// envelopeBytes is how much longer than its message a line may be.
const envelopeBytes = 2 << 10

// LinesBuffer is how much of a text in NDJSON is read at a time.
const LinesBuffer = 64 << 10

// NewLines returns the lines of a text, each a message of up to maxMessage bytes, or an envelope around
// one. begin is called before each line; memory is taken for client.
func NewLines(r io.Reader, envelopes bool, maxMessage int, begin func(), memory *quota.Pool, client string) *Lines {
	return &Lines{r: bufio.NewReaderSize(r, LinesBuffer), max: maxMessage + envelopeBytes, begin: begin, memory: memory, client: client, envelopes: envelopes}
}

// Next returns the next line, which has its time-out from the end of the previous one: a deadline
// that moved with every byte would never end for a client that trickles.
func (l *Lines) Next() (e Element, err error) {
	l.begin() // not again for empty lines, which would be a way to trickle
	for {
		line, err := l.line()
		if err == nil {
			if line = bytes.TrimSpace(line); len(line) == 0 {
				l.letGo()
				continue
			}
			e, err = parseElement(line, l.envelopes)
		}
		if err != nil {
			l.letGo()
			return Element{}, err
		}
		e.Held, l.held = l.held, 0
		return e, nil
	}
}

// letGo gives back the memory of the line that is being read.
func (l *Lines) letGo() {
	l.memory.Give(l.client, l.held)
	l.held = 0
}

// line returns a copy of the next line. It holds no part of a line that is too long.
func (l *Lines) line() ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		part, err := l.r.ReadSlice('\n')
		if !tooLong {
			if !l.memory.Take(l.client, int64(len(part))) {
				return nil, web.ErrNoMemory
			}
			l.held += int64(len(part))
			line = append(line, part...)
		}
		if len(line) > l.max {
			line, tooLong = nil, true
			l.letGo()
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case tooLong && (err == nil || errors.Is(err, io.EOF)):
			return nil, &LineError{&TooLargeError{l.max - envelopeBytes}}
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil // the last line need not end
		default:
			return line, err
		}
	}
}

// parseElement reads a message, or an envelope around one. The message itself is checked later.
func parseElement(text []byte, envelope bool) (Element, error) {
	if !envelope {
		return Element{Data: text}, nil
	}
	if err := event.CheckJSON(text); err != nil {
		return Element{}, &LineError{err}
	}
	wrong := func(detail string) (Element, error) {
		return Element{}, &LineError{web.New(web.CodeInvalidBody, detail)}
	}
	members, known := envelopeMembers(text)
	if !known {
		return wrong("An envelope has the members message, key and type, and no others.")
	}
	e := Element{Data: members["message"]}
	if e.Data == nil {
		return wrong("An envelope must be an object with the member message.")
	}
	if key, given := members["key"]; given && (!readString(key, &e.Key) || !event.ValidKey(e.Key)) {
		return wrong("An envelope's key must be a string of " + keyRule)
	}
	if eventType, given := members["type"]; given {
		if !readString(eventType, &e.Type) {
			return wrong("An envelope's type must be a string.")
		}
		if err := event.CheckType(e.Type); err != nil {
			return Element{}, &LineError{err}
		}
	}
	return e, nil
}

// envelopeMembers returns the members of an object; none of any other value. It ends at the first one that
// no envelope has, of which there may be any number.
func envelopeMembers(text []byte) (members map[string]json.RawMessage, known bool) {
	members = map[string]json.RawMessage{}
	for key, value := range event.Members(text) {
		var name string
		if json.Unmarshal(key, &name) != nil || name != "message" && name != "key" && name != "type" {
			return nil, false
		}
		members[name] = value
	}
	return members, true
}

func readString(value json.RawMessage, s *string) bool {
	return value[0] == '"' && json.Unmarshal(value, s) == nil
}

// TooLargeError is returned for a message of more than Max bytes. It wraps
// [eventlog.ErrTooLarge].
type TooLargeError struct{ Max int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("A message may have up to %d bytes; rejoin log set --max-message-bytes=N changes it.", e.Max)
}

func (e *TooLargeError) Unwrap() error { return eventlog.ErrTooLarge }
