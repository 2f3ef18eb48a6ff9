package event

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"unicode/utf8"
)

// MaxTypeLen is the longest SSE event type, in bytes.
const MaxTypeLen = 128

// DefaultType is the SSE event type of an event that names none.
const DefaultType = "message"

// laterTypes begins the SSE event types that later versions may send: clients of this one ignore them.
const laterTypes = "rejoin."

// IsReserved reports whether t is an SSE event type that Rejoin itself sends, or may send in a later version, so
// that no message has it; "open" and "error" are dispatched by EventSource itself (HTML, 9.2.2).
func IsReserved(t string) bool {
	switch t {
	case "connect", "cursor", "gap", "close", "expiring", "open", "error":
		return true
	default:
		return strings.HasPrefix(t, laterTypes)
	}
}

// CheckType reports whether a publisher may use t as an SSE event type: 1 to 128
// bytes of UTF-8 without control characters, and none of Rejoin's own. The error
// wraps [ErrInvalidType] or [ErrReservedType].
func CheckType(t string) error {
	if t == "" || len(t) > MaxTypeLen || !utf8.ValidString(t) {
		return fmt.Errorf("%w: it must be 1 to %d bytes of UTF-8", ErrInvalidType, MaxTypeLen)
	}
	if strings.ContainsFunc(t, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return fmt.Errorf("%w: it holds a control character", ErrInvalidType)
	}
	if strings.TrimSpace(t) != t {
		return fmt.Errorf("%w: it begins or ends with white space", ErrInvalidType)
	}
	if IsReserved(t) {
		return fmt.Errorf("%w: %q", ErrReservedType, t)
	}
	return nil
}

// CheckMessage reports whether data is one JSON-RPC 2.0 message: one JSON object
// in UTF-8 with "jsonrpc": "2.0" and the members of a request, a notification, a
// result or an error (JSON-RPC 2.0, sections 4 and 5; MCP narrows an id to a string or a number,
// an error's id may be null or absent). A member name that appears twice is refused,
// since readers disagree about which one counts.
//
// The error wraps [ErrInvalidJSON] or [ErrInvalidMessage] and names the defect
// without quoting the message.
func CheckMessage(data []byte) error {
	if err := CheckJSON(data); err != nil {
		return err
	}
	return CheckRPC(data)
}

// CheckRPC is [CheckMessage] for data that is one JSON text.
func CheckRPC(data []byte) error {
	var m members
	if err := m.read(data); err != nil {
		return err
	}
	return m.check()
}

// CheckJSON reports whether data is one JSON text in UTF-8. The error wraps [ErrInvalidJSON] and
// names the defect without quoting the text.
func CheckJSON(data []byte) error {
	if !utf8.Valid(data) {
		return fmt.Errorf("%w: it is not UTF-8", ErrInvalidJSON)
	}
	if !ValidJSON(data) {
		return fmt.Errorf("%w: %s", ErrInvalidJSON, syntaxError(data))
	}
	return nil
}

// CheckValue reports whether data may be a message: a JSON text that [CheckJSON] accepts, with at
// most [MaxLevels] levels. The error wraps [ErrInvalidJSON].
func CheckValue(data []byte) error {
	if err := CheckJSON(data); err != nil {
		return err
	}
	if tooDeep(data) {
		return fmt.Errorf("%w: it has more than %d levels", ErrInvalidJSON, MaxLevels)
	}
	return nil
}

func syntaxError(data []byte) string {
	if len(bytes.TrimSpace(data)) == 0 {
		return "it is empty"
	}
	var v json.RawMessage
	if err := json.Unmarshal(data, &v); err != nil {
		return err.Error()
	}
	return "it is not one JSON text"
}

// members holds the raw top-level members of a message; nil means absent.
type members struct {
	jsonrpc, id, method, params, result, err []byte
}

func (m *members) read(data []byte) error {
	if bytes.TrimLeft(data, " \t\r\n")[0] != '{' {
		return fmt.Errorf("%w: it is not an object", ErrInvalidMessage)
	}
	for key, value := range Members(data) {
		if err := m.set(key, value); err != nil {
			return err
		}
	}
	return nil
}

func (m *members) set(key, value []byte) error {
	var place *[]byte
	switch string(text(key)) {
	case "jsonrpc":
		place = &m.jsonrpc
	case "id":
		place = &m.id
	case "method":
		place = &m.method
	case "params":
		place = &m.params
	case "result":
		place = &m.result
	case "error":
		place = &m.err
	default:
		return nil
	}
	if *place != nil {
		return fmt.Errorf("%w: it has two members %q", ErrInvalidMessage, text(key))
	}
	*place = value
	return nil
}

func (m *members) check() error {
	bad := func(why string) error { return fmt.Errorf("%w: %s", ErrInvalidMessage, why) }
	if m.jsonrpc == nil {
		return bad(`it has no "jsonrpc"`)
	}
	if string(m.jsonrpc) != `"2.0"` {
		return bad(`"jsonrpc" is not "2.0"`)
	}
	idNull := string(m.id) == "null"
	if m.id != nil && !idNull && m.id[0] != '"' && !isNumber(m.id[0]) {
		return bad(`"id" is not a string or a number`)
	}
	if m.method != nil {
		switch {
		case m.method[0] != '"':
			return bad(`"method" is not a string`)
		case m.result != nil || m.err != nil:
			return bad(`it has a "method" and a "result" or "error"`)
		case idNull:
			return bad(`a request's "id" is null`)
		case len(m.params) > 0 && m.params[0] != '{' && m.params[0] != '[':
			return bad(`"params" is not an object or an array`)
		}
		return nil
	}
	switch {
	case m.result == nil && m.err == nil:
		return bad(`it has no "method", "result" or "error"`)
	case m.result != nil && m.err != nil:
		return bad(`it has a "result" and an "error"`)
	case m.result != nil && (m.id == nil || idNull):
		return bad(`a result has no "id"`)
	case m.err != nil:
		return checkError(m.err)
	}
	return nil
}

func checkError(data []byte) error {
	if bytes.TrimLeft(data, " \t\r\n")[0] != '{' {
		return fmt.Errorf(`%w: "error" is not an object`, ErrInvalidMessage)
	}
	var e struct {
		Code    json.RawMessage `json:"code"`
		Message json.RawMessage `json:"message"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf(`%w: "error" cannot be read`, ErrInvalidMessage)
	}
	if len(e.Code) == 0 || !isNumber(e.Code[0]) || bytes.ContainsAny(e.Code, ".eE") {
		return fmt.Errorf(`%w: the error's "code" is not an integer`, ErrInvalidMessage)
	}
	if len(e.Message) == 0 || e.Message[0] != '"' {
		return fmt.Errorf(`%w: the error's "message" is not a string`, ErrInvalidMessage)
	}
	return nil
}

func isNumber(c byte) bool { return c == '-' || '0' <= c && c <= '9' }

// scanner steps over JSON that is known to be valid, and copies nothing. A [jsontext.Decoder]
// takes 2 to 7 times as long and allocates 4 to 17 times a message.
type scanner struct {
	data []byte
	pos  int
}

// Members yields the members of an object, which must be valid JSON, in their order and with those of the
// same name: the name as it is written, with its quotes, and the value. They are parts of object. A value that
// is no object has no members.
func Members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		s := scanner{data: object}
		for name := range s.names {
			if !yield(name, s.value()) {
				return
			}
		}
	}
}

// Elements are the elements of an array.
type Elements struct{ scanner }

// ElementsOf returns the elements of an array, which must be valid JSON. A value that is no array has none.
func ElementsOf(array []byte) *Elements {
	e := &Elements{scanner{data: array}}
	if e.space(); e.pos < len(array) && e.peek() == '[' {
		e.pos++
	} else {
		e.pos = len(array)
	}
	return e
}

// Next returns the next element, which is a part of the array, or nil when there are no more.
func (e *Elements) Next() (value []byte) {
	if e.space(); e.pos == len(e.data) || e.peek() == ']' {
		return nil
	}
	value = e.value()
	if e.space(); e.peek() == ',' {
		e.pos++
	}
	return value
}

// Compact removes the white space from valid JSON in place, and returns the part of data that holds the result.
func Compact(data []byte) []byte {
	compact, s := data[:0], scanner{data: data}
	for s.space(); s.pos < len(data); s.space() {
		at := s.pos
		if s.peek() == '"' {
			s.str()
		} else {
			s.pos++
		}
		compact = append(compact, data[at:s.pos]...)
	}
	return compact
}

// names yields the names of an object's members as they are written, each while the scanner is at the value. It
// steps over a value that the loop leaves.
func (s *scanner) names(yield func(name []byte) bool) {
	s.space()
	if s.pos == len(s.data) || s.peek() != '{' {
		return
	}
	s.pos++
	s.space()
	for s.peek() != '}' {
		name := s.value()
		s.space()
		s.pos++ // the colon
		s.space()
		at := s.pos
		if !yield(name) {
			return
		}
		if s.pos == at {
			s.value()
		}
		s.space()
		if s.peek() == ',' {
			s.pos++
			s.space()
		}
	}
}

func (s *scanner) peek() byte { return s.data[s.pos] }

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// value steps over one value and returns its bytes.
func (s *scanner) value() []byte {
	start, depth := s.pos, 0
	for {
		switch s.data[s.pos] {
		case '"':
			s.str()
		case '{', '[':
			depth++
			s.pos++
		case '}', ']':
			depth--
			s.pos++
		default:
			s.pos++
			if depth == 0 {
				s.scalar()
			}
		}
		if depth == 0 {
			return s.data[start:s.pos]
		}
	}
}

func (s *scanner) scalar() {
	for ; s.pos < len(s.data); s.pos++ {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n', ',', ':', '}', ']':
			return
		}
	}
}

func (s *scanner) str() {
	for s.pos++; s.data[s.pos] != '"'; s.pos++ {
		if s.data[s.pos] == '\\' {
			s.pos++
		}
	}
	s.pos++
}
