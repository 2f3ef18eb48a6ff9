package bridge

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// codeTimeout is the JSON-RPC error code of a time-out that the SDKs use.
const codeTimeout = -32001

const (
	methodInitialized = "notifications/initialized"
	methodCancelled   = "notifications/cancelled"
)

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

// cancelled returns the notification that a request is cancelled.
func cancelled(id json.RawMessage) []byte {
	return []byte(`{"jsonrpc":"2.0","method":"` + methodCancelled + `","params":{"requestId":` + string(id) + `,"reason":"timed out"}}`)
}
