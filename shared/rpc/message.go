package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"rejoin/shared/event"
)

// Codes of JSON-RPC errors (JSON-RPC 2.0, section 5.1).
const (
	CodeParse          = -32700
	CodeInvalid        = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

// MethodInitialize begins a session (MCP 2025-11-25, Lifecycle).
const MethodInitialize = "initialize"

// Message has the members of a JSON-RPC message that edges and bridges read. A member that is
// absent is nil.
type Message struct {
	ID     json.RawMessage `json:"id"`
	Method *string         `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// ParseMessage reads a message, and holds no part of it. An error without an ID has the ID null: JSON-RPC wants
// null where the request could not be read, and the schema of MCP 2026-07-28 leaves the member out. Errors are
// those of [event.CheckMessage], and [ErrTooMany].
func ParseMessage(data []byte) (m Message, err error) {
	if err := event.CheckMessage(data); err != nil {
		return Message{}, err
	}
	if tooManyMembers(data) {
		return Message{}, ErrTooMany
	}
	if err := Unmarshal(data, &m); err != nil {
		return Message{}, fmt.Errorf("%w: %w", event.ErrInvalidMessage, err)
	}
	if m.Error != nil && m.Method == nil && m.ID == nil {
		m.ID = json.RawMessage("null")
	}
	return m, nil
}

// IsRequest reports whether the message wants a response.
func (m Message) IsRequest() bool { return m.Method != nil && m.ID != nil }

// IsResponse reports whether the message is the response to a request.
func (m Message) IsResponse() bool { return m.Method == nil && m.ID != nil }

// Is reports whether the message is a request or notification of a method.
func (m Message) Is(method string) bool { return m.Method != nil && *m.Method == method }

// Param returns a member of params by its path; nil when it is absent.
func (m Message) Param(path ...string) json.RawMessage {
	value := m.Params
	for _, name := range path {
		var members map[string]json.RawMessage
		if Unmarshal(value, &members) != nil {
			return nil
		}
		value = members[name]
	}
	return value
}

// ErrTooMany is returned for a message with more than maxMembers members, and for a body with more than
// maxMembers messages. It wraps [event.ErrInvalidMessage].
var ErrTooMany = fmt.Errorf("%w: an object or an array of it is too long", event.ErrInvalidMessage)

// maxMembers bounds the members of each object, and the elements of each array, that edges and bridges look
// into: each takes some 100 bytes of memory, which the budget for bodies does not count. The arguments of a
// tool, the data of a log message, and results, also those in the state of a task, are passed on as they are,
// and may have any number.
const maxMembers = 10_000

// shortestMember is how many bytes a member or an element takes at least, with its comma.
const shortestMember = 2

// tooManyMembers reports whether a message, its parameters, or the decoded values in those have more than
// maxMembers members.
func tooManyMembers(message []byte) bool {
	if len(message) <= maxMembers*shortestMember {
		return false
	}
	d := newDecoder(message)
	if d.PeekKind() != '{' {
		return false
	}
	return !walk(d, func(name string) bool {
		if name != "params" || d.PeekKind() != '{' {
			return d.SkipValue() == nil
		}
		return walk(d, func(name string) bool {
			switch name {
			case "arguments", "data", "result", "error":
				return d.SkipValue() == nil
			default:
				return fits(d, 2)
			}
		})
	})
}

// fits passes over a value, and reports whether it has few enough members to so many levels.
func fits(d *jsontext.Decoder, levels int) bool {
	if kind := d.PeekKind(); levels == 0 || kind != '{' && kind != '[' {
		return d.SkipValue() == nil
	}
	return walk(d, func(string) bool { return fits(d, levels-1) })
}

// walk calls each before the value of each member or element of the next object or array, as long as there are
// not too many, and each passes over the value and returns true. It reports whether it reached the end. The
// name of an element is empty.
func walk(d *jsontext.Decoder, each func(name string) bool) bool {
	begin, err := d.ReadToken()
	for n := 0; err == nil && d.PeekKind() != '}' && d.PeekKind() != ']'; n++ {
		var name string
		if begin.Kind() == '{' {
			var token jsontext.Token
			if token, err = d.ReadToken(); err != nil {
				return false
			}
			name = token.String()
		}
		if n == maxMembers || !each(name) {
			return false
		}
	}
	if err == nil {
		_, err = d.ReadToken()
	}
	return err == nil
}

// newDecoder returns a decoder that reads JSON as [Unmarshal] does.
func newDecoder(data []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// Messages returns the messages of a body: those of an array, or the one. They are not
// checked. Errors are [event.ErrInvalidJSON] and [ErrTooMany].
func Messages(body []byte) (all []json.RawMessage, batch bool, err error) {
	body = bytes.Trim(body, " \t\r\n")
	if !bytes.HasPrefix(body, []byte("[")) {
		return []json.RawMessage{body}, false, nil
	}
	d := newDecoder(body)
	whole := walk(d, func(string) bool {
		message, err := d.ReadValue()
		all = append(all, bytes.Clone(message))
		return err == nil
	})
	switch {
	case !whole && len(all) == maxMembers:
		return nil, true, ErrTooMany
	case !whole, d.InputOffset() != int64(len(body)):
		return nil, true, event.ErrInvalidJSON
	}
	return all, true, nil
}

// Unmarshal is [json.Unmarshal], but that members have their names exactly as they are
// written.
func Unmarshal(data []byte, v any) error {
	return jsonv2.Unmarshal(data, v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// ErrorMessage returns a JSON-RPC error. No ID is null, no data is left out.
func ErrorMessage(id json.RawMessage, code int, message string, data any) []byte {
	type rpcError struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    any    `json:"data,omitempty"`
	}
	return event.MustJSON(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   rpcError        `json:"error"`
	}{"2.0", id, rpcError{code, message, data}})
}

// IDKey returns a text that is equal for equal IDs: 1 and 1.0 are, 1 and "1" are not.
func IDKey(id []byte) string {
	var text string
	if len(id) > 0 && id[0] == '"' && json.Unmarshal(id, &text) == nil {
		return `"` + text
	}
	if f, err := strconv.ParseFloat(string(id), 64); err == nil && f == float64(int64(f)) && f < 1<<53 && f > -1<<53 {
		return strconv.FormatInt(int64(f), 10)
	}
	return string(bytes.TrimSpace(id))
}
