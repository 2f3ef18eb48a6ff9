package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"

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

// Message is what edges and bridges look at of a JSON-RPC message. A member that is not
// there is nil.
type Message struct {
	ID     json.RawMessage `json:"id"`
	Method *string         `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// ParseMessage reads a message, and holds no part of it. Errors are those of
// [event.CheckMessage].
func ParseMessage(data []byte) (m Message, err error) {
	if err := event.CheckMessage(data); err != nil {
		return Message{}, err
	}
	if err := Unmarshal(data, &m); err != nil {
		return Message{}, fmt.Errorf("%w: %w", event.ErrInvalidMessage, err)
	}
	return m, nil
}

// IsRequest reports whether the message wants a response.
func (m Message) IsRequest() bool { return m.Method != nil && m.ID != nil }

// IsResponse reports whether the message is the response to a request.
func (m Message) IsResponse() bool { return m.Method == nil && m.ID != nil }

// Is reports whether the message is a request or notification of a method.
func (m Message) Is(method string) bool { return m.Method != nil && *m.Method == method }

// Param returns a member of params by its path; nil when there is none.
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

// Messages returns the messages of a body: those of an array, or the one. They are not
// checked. The error is [event.ErrInvalidJSON].
func Messages(body []byte) (all []json.RawMessage, batch bool, err error) {
	body = bytes.Trim(body, " \t\r\n")
	if !bytes.HasPrefix(body, []byte("[")) {
		return []json.RawMessage{body}, false, nil
	}
	if Unmarshal(body, &all) != nil {
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
