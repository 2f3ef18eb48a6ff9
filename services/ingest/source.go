package ingest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"rejoin/services/web"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
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
}

// lineError says what is wrong with one message before it is one.
type lineError struct{ err error }

func (e *lineError) Error() string { return e.err.Error() }
func (e *lineError) Unwrap() error { return e.err }

// isArray reports whether a JSON text begins as an array does.
func isArray(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("["))
}

// array gives the elements of a JSON array, each byte for byte.
type array struct{ rest []json.RawMessage }

func newArray(text []byte) (*array, error) {
	var a array
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%w: it is not UTF-8", event.ErrInvalidJSON)
	}
	if err := json.Unmarshal(text, &a.rest); err != nil {
		return nil, fmt.Errorf("%w: %w", event.ErrInvalidJSON, err)
	}
	if len(a.rest) == 0 {
		return nil, web.New(web.CodeInvalidBody, "The array is empty.")
	}
	return &a, nil
}

func (a *array) next() (element, error) {
	if len(a.rest) == 0 {
		return element{}, io.EOF
	}
	text := a.rest[0]
	a.rest = a.rest[1:]
	return parseElement(text)
}

// lines gives the lines of a text in NDJSON, of which empty ones do not count. It holds
// one line at a time.
type lines struct {
	r     *bufio.Reader
	max   int    // bytes of a line
	begin func() // called before each line
}

// envelopeBytes is how much longer than its message a line may be.
const envelopeBytes = 2 << 10

func newLines(r io.Reader, maxMessage int, begin func()) *lines {
	return &lines{bufio.NewReaderSize(r, 64<<10), maxMessage + envelopeBytes, begin}
}

func (l *lines) next() (element, error) {
	l.begin() // not again for empty lines, which would be a way to trickle
	for {
		line, err := l.line()
		if err != nil {
			return element{}, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return parseElement(line)
		}
	}
}

// line returns a copy of the next line. Of one that is too long it holds nothing.
func (l *lines) line() ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		part, err := l.r.ReadSlice('\n')
		if !tooLong {
			line = append(line, part...)
		}
		if len(line) > l.max {
			line, tooLong = nil, true
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case tooLong && (err == nil || errors.Is(err, io.EOF)):
			return nil, &lineError{eventlog.ErrTooLarge}
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil // the last line need not end
		default:
			return line, err
		}
	}
}

// parseElement reads a message, or an envelope around one. What is wrong with a message
// is said when it is checked.
func parseElement(text []byte) (element, error) {
	members, ok := envelope(text)
	if !ok {
		return element{data: text}, nil
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

// envelope returns the members of an object that is no JSON-RPC message itself and has
// the member "message".
func envelope(text []byte) (members map[string]json.RawMessage, ok bool) {
	if !bytes.Contains(text, []byte(`"message"`)) || event.CheckMessage(text) == nil || !event.ValidJSON(text) {
		return nil, false
	}
	err := json.Unmarshal(text, &members)
	return members, err == nil && members["message"] != nil && members["jsonrpc"] == nil
}

func readString(value json.RawMessage, s *string) bool {
	return value[0] == '"' && json.Unmarshal(value, s) == nil
}
