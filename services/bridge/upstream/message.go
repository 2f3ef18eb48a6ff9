package upstream

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// CodeTimeout is the JSON-RPC error code of a time-out that the SDKs use.
const CodeTimeout = -32001

// Methods of MCP that the bridge sends itself or acts on.
const (
	MethodInitialized = "notifications/initialized"
	MethodCancelled   = "notifications/cancelled"
)

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

// Cancelled returns the notification that a request is cancelled.
func Cancelled(id json.RawMessage) []byte {
	return []byte(`{"jsonrpc":"2.0","method":"` + MethodCancelled + `","params":{"requestId":` + string(id) + `,"reason":"timed out"}}`)
}
