package upstream

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
)

// Lines reads lines of bounded length. It is not safe for concurrent use.
type Lines struct {
	r    *bufio.Reader
	max  int
	line []byte
}

// NewLines returns a reader of lines of at most maxBytes bytes.
func NewLines(r io.Reader, maxBytes int) *Lines {
	return &Lines{r: bufio.NewReader(r), max: maxBytes}
}

// Next returns the next line without its end, good until the next call. Bytes after
// the last line end are no line. The error of a line that is too long is [ErrTooLarge],
// and rest receives all of that line; the next call returns the following one.
func (l *Lines) Next(rest func([]byte)) ([]byte, error) {
	l.line = l.line[:0]
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if !long && len(l.line)+len(part) > l.max+1 {
			long = true
			rest(l.line)
		}
		if long {
			rest(part)
		} else {
			l.line = append(l.line, part...)
		}
		switch {
		case err != nil: // the line continues
		case long:
			return nil, ErrTooLarge
		default:
			return l.line[:len(l.line)-1], nil
		}
	}
}

// Skimmer finds the ID of a JSON-RPC message that is too long to be kept.
type Skimmer struct {
	depth   int
	quoted  bool
	escaped bool
	value   bool   // after the colon of a member of the message
	key     []byte // of that member
	id      []byte // the value of the member "id"
	other   bool   // there is a method: it is no response
}

// SkimBytes bounds the bytes that are kept of a key or an ID.
const SkimBytes = 256

// Add takes the next part of the message.
func (s *Skimmer) Add(part []byte) {
	for _, b := range part {
		s.keep(b)
		switch {
		case s.escaped:
			s.escaped = false
		case s.quoted:
			s.escaped, s.quoted = b == '\\', b != '"'
		case b == '"':
			s.quoted = true
		case b == '{' || b == '[':
			s.depth++
		case b == '}' || b == ']':
			s.depth--
		}
	}
}

// keep keeps the keys and the ID at the top level of the message.
func (s *Skimmer) keep(b byte) {
	if s.depth != 1 {
		return
	}
	if !s.quoted {
		switch b {
		case ':':
			s.value = true
			s.other = s.other || string(s.key) == `"method"`
			return
		case ',', '}':
			s.value, s.key = false, s.key[:0]
			return
		case ' ', '\t', '\r', '\n':
			return
		}
	}
	switch {
	case !s.value && len(s.key) < SkimBytes:
		s.key = append(s.key, b)
	case s.value && string(s.key) == `"id"` && len(s.id) < SkimBytes:
		s.id = append(s.id, b)
	}
}

// Response returns the ID that the message is the response to, or nil.
func (s *Skimmer) Response() json.RawMessage {
	if s.other || s.depth != 0 || !json.Valid(s.id) || s.id[0] == '{' || s.id[0] == '[' || s.id[0] == 'n' {
		return nil
	}
	return s.id
}
