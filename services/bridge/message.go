package bridge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"rejoin/shared/event"
)

// JSON-RPC error codes. The time-out's is the one that the SDKs use.
const (
	codeParse    = -32700
	codeInvalid  = -32600
	codeInternal = -32603
	codeTimeout  = -32001
)

const (
	methodInitialize  = "initialize"
	methodInitialized = "notifications/initialized"
	methodCancelled   = "notifications/cancelled"
)

// message is what the bridge looks at of a JSON-RPC message.
type message struct {
	ID     jsontext.Value `json:"id"`
	Method *string        `json:"method"`
	Params jsontext.Value `json:"params"`
	Result jsontext.Value `json:"result"`
	Error  jsontext.Value `json:"error"`
}

func (m message) request() bool  { return m.Method != nil && m.ID != nil }
func (m message) response() bool { return m.Method == nil && m.ID != nil }
func (m message) is(method string) bool {
	return m.Method != nil && *m.Method == method
}

// param returns a member of params by its path; nil when there is none.
func (m message) param(path ...string) json.RawMessage {
	value := m.Params
	for _, name := range path {
		var members map[string]jsontext.Value
		if value.Kind() != '{' || unmarshal(value, &members) != nil {
			return nil
		}
		value = members[name]
	}
	return json.RawMessage(value)
}

// parse reads a message. Errors are those of [event.CheckMessage].
func parse(data []byte) (m message, err error) {
	if err := event.CheckMessage(data); err != nil {
		return message{}, err
	}
	if err := unmarshal(data, &m); err != nil {
		return message{}, fmt.Errorf("%w: %w", event.ErrInvalidMessage, err)
	}
	return m, nil
}

func unmarshal(data []byte, v any) error {
	return jsonv2.Unmarshal(data, v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// elements returns the messages of a body: those of an array, or the one. The error
// wraps [event.ErrInvalidJSON].
func elements(data []byte) (all [][]byte, batch bool, err error) {
	data = bytes.TrimSpace(data)
	if !bytes.HasPrefix(data, []byte("[")) {
		return [][]byte{data}, false, nil
	}
	var values []jsontext.Value
	if err := unmarshal(data, &values); err != nil {
		return nil, true, fmt.Errorf("%w: %w", event.ErrInvalidJSON, err)
	}
	for _, v := range values {
		all = append(all, v)
	}
	return all, true, nil
}

// idKey returns a text that is equal for equal IDs: 1 and 1.0 are, 1 and "1" are not.
func idKey(id []byte) string {
	var text string
	if len(id) > 0 && id[0] == '"' && json.Unmarshal(id, &text) == nil {
		return `"` + text
	}
	if f, err := strconv.ParseFloat(string(id), 64); err == nil && f == float64(int64(f)) && f < 1<<53 && f > -1<<53 {
		return strconv.FormatInt(int64(f), 10)
	}
	return string(bytes.TrimSpace(id))
}

// errorMessage returns a JSON-RPC error for a request.
func errorMessage(id json.RawMessage, code int, text string) []byte {
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	b, err := json.Marshal(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   any             `json:"error"`
	}{"2.0", id, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{code, text}})
	if err != nil {
		panic(err) // an ID that was read can be written
	}
	return b
}

// cancelled returns the notification that a request is cancelled.
func cancelled(id json.RawMessage) []byte {
	return []byte(`{"jsonrpc":"2.0","method":"` + methodCancelled + `","params":{"requestId":` + string(id) + `,"reason":"timed out"}}`)
}
