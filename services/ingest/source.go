package ingest

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
	"rejoin/shared/quota"
	"rejoin/shared/web"
)

// source gives the messages of a request, one after the other.
type source interface {
	// next returns the next one. A [*lineError] concerns this one alone; any other
	// error ends the request's messages: [io.EOF] when there are no more.
	next() (element, error)
}

// element is a message in a request, with what its envelope says of it.
type element struct {
	data      []byte
	eventType string
	key       string
	held      int64 // bytes of memory that it takes; see [lines]
}

// lineError says what is wrong with one message before it is one.
type lineError struct{ err error }

func (e *lineError) Error() string { return e.err.Error() }
func (e *lineError) Unwrap() error { return e.err }

// shortArray is how many bytes an array may have that is checked at once: in a millisecond. Longer
// ones wait for each other, since all clients' requests would wait for the processors.
const shortArray = 64 << 10

// maxArray is how many messages an array may have: 4 MiB could be two million numbers, each of
// which would be an event. More go as NDJSON, which is read as fast as it is stored.
const maxArray = 50_000

// array gives the elements of a JSON array, each byte for byte. It holds one at a time.
type array struct {
	elements  *json.Decoder
	envelopes bool
}

func (s *Service) newArray(text []byte, envelopes bool) (*array, error) {
	if len(text) > shortArray {
		s.longArrays <- struct{}{}
		defer func() { <-s.longArrays }()
	}
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%w: it is not UTF-8", event.ErrInvalidJSON)
	}
	if !json.Valid(text) { // all of it, before anything is stored
		return nil, fmt.Errorf("%w: %w", event.ErrInvalidJSON, json.Unmarshal(text, &struct{}{}))
	}
	a := &array{json.NewDecoder(bytes.NewReader(text)), envelopes}
	if bracket, err := a.elements.Token(); err != nil || bracket != json.Delim('[') {
		return nil, web.New(web.CodeInvalidBody, "The body must be a JSON array.")
	}
	if !a.elements.More() {
		return nil, web.New(web.CodeInvalidBody, "The array is empty.")
	}
	if tooMany(text) {
		return nil, web.New(web.CodeBodyTooLarge, "The array has more than "+strconv.Itoa(maxArray)+" messages; send several, or "+mimeNDJSON+" over HTTP.")
	}
	return a, nil
}

// tooMany reports whether a JSON array has more than maxArray elements.
func tooMany(text []byte) bool {
	if bytes.Count(text, []byte(",")) < maxArray {
		return false
	}
	elements := json.NewDecoder(bytes.NewReader(text))
	_, err := elements.Token() // the bracket
	n := 0
	for ; err == nil && elements.More() && n <= maxArray; n++ {
		err = elements.Decode(new(json.RawMessage))
	}
	return n > maxArray
}

func (a *array) next() (element, error) {
	if !a.elements.More() {
		return element{}, io.EOF
	}
	var text json.RawMessage
	if err := a.elements.Decode(&text); err != nil {
		return element{}, err
	}
	return parseElement(text, a.envelopes)
}

// lines gives the lines of a text in NDJSON, of which empty ones do not count. It holds
// one line at a time. What an element holds is taken of the memory, and has to be given back.
type lines struct {
	r      *bufio.Reader
	max    int    // bytes of a line
	begin  func() // called before each line
	memory *quota.Pool
	client string // whom it is taken for
	held   int64  // for the line that is being read

	envelopes bool // each line is one
}

// envelopeBytes is how much longer than its message a line may be.
const envelopeBytes = 2 << 10

// linesBuffer is how much of a text in NDJSON is read at a time.
const linesBuffer = 64 << 10

func newLines(r io.Reader, maxMessage int, begin func(), memory *quota.Pool, client string) *lines {
	return &lines{r: bufio.NewReaderSize(r, linesBuffer), max: maxMessage + envelopeBytes, begin: begin, memory: memory, client: client}
}

// A line has its time-out from the end of the previous one: a deadline that moved with every
// byte would never end for a client that trickles.
func (l *lines) next() (e element, err error) {
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
			return element{}, err
		}
		e.held, l.held = l.held, 0
		return e, nil
	}
}

// letGo gives back what the line takes that is being read.
func (l *lines) letGo() {
	l.memory.Give(l.client, l.held)
	l.held = 0
}

// hold takes memory for so much more of a line. The error is [web.ErrNoMemory].
func (l *lines) hold(n int) error {
	if !l.memory.Take(l.client, int64(n)) {
		return web.ErrNoMemory
	}
	l.held += int64(n)
	return nil
}

// line returns a copy of the next line. Of one that is too long it holds nothing.
func (l *lines) line() ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		part, err := l.r.ReadSlice('\n')
		if !tooLong {
			if err := l.hold(len(part)); err != nil {
				return nil, err
			}
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
			return nil, &lineError{&tooLargeError{l.max - envelopeBytes}}
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil // the last line need not end
		default:
			return line, err
		}
	}
}

// parseElement reads a message, or an envelope around one. What is wrong with a message
// is said when it is checked.
func parseElement(text []byte, envelope bool) (element, error) {
	if !envelope {
		return element{data: text}, nil
	}
	if err := event.CheckJSON(text); err != nil {
		return element{}, &lineError{err}
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members["message"] == nil {
		return element{}, &lineError{web.New(web.CodeInvalidBody, "An envelope must be an object with the member message.")}
	}
	e := element{data: members["message"]}
	wrong := func(detail string) (element, error) {
		return element{}, &lineError{web.New(web.CodeInvalidBody, detail)}
	}
	for name, value := range members {
		switch name {
		case "message":
		case "key":
			if !readString(value, &e.key) || !event.ValidKey(e.key) {
				return wrong("An envelope's key must be a string of " + keyRule)
			}
		case "type":
			if !readString(value, &e.eventType) {
				return wrong("An envelope's type must be a string.")
			}
			if err := event.CheckType(e.eventType); err != nil {
				return element{}, &lineError{err}
			}
		default:
			return wrong("An envelope has the members message, key and type, and no others.")
		}
	}
	return e, nil
}

func readString(value json.RawMessage, s *string) bool {
	return value[0] == '"' && json.Unmarshal(value, s) == nil
}
