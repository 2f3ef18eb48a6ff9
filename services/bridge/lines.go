package bridge

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
)

// lines reads lines of bounded length. It is not safe for concurrent use.
type lines struct {
	r    *bufio.Reader
	max  int
	line []byte
}

func newLines(r io.Reader, maxBytes int) *lines {
	return &lines{r: bufio.NewReader(r), max: maxBytes}
}

// next returns the next line without its end, good until the next call. What is behind
// the last line end is no line. The error of a line that is too long is errTooLarge, and
// the next one follows; rest is told of all of it.
func (l *lines) next(rest func([]byte)) ([]byte, error) {
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
		case err != nil: // the line goes on
		case long:
			return nil, errTooLarge
		default:
			return l.line[:len(l.line)-1], nil
		}
	}
}

// skimmer finds the ID of a JSON-RPC message that is too long to be kept.
type skimmer struct {
	depth   int
	quoted  bool
	escaped bool
	value   bool   // behind the colon of a member of the message
	key     []byte // of that member
	id      []byte // what the member "id" holds
	other   bool   // there is a method: it is no response
}

// skimBytes bounds what is kept of a key or an ID.
const skimBytes = 256

// add takes the next part of the message.
func (s *skimmer) add(part []byte) {
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

// keep keeps what stands at the top of the message.
func (s *skimmer) keep(b byte) {
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
	case !s.value && len(s.key) < skimBytes:
		s.key = append(s.key, b)
	case s.value && string(s.key) == `"id"` && len(s.id) < skimBytes:
		s.id = append(s.id, b)
	}
}

// response returns the ID that the message is the response to, or nil.
func (s *skimmer) response() json.RawMessage {
	if s.other || s.depth != 0 || !json.Valid(s.id) || s.id[0] == '{' || s.id[0] == '[' || s.id[0] == 'n' {
		return nil
	}
	return s.id
}
