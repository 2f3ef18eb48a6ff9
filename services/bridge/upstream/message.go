package upstream

import "encoding/json"

// CodeTimeout is the JSON-RPC error code of a time-out that the SDKs use.
const CodeTimeout = -32001

// Methods of MCP that the bridge sends itself or acts on.
const (
	MethodInitialized = "notifications/initialized"
	MethodCancelled   = "notifications/cancelled"
)

// Cancelled returns the notification that a request is cancelled.
func Cancelled(id json.RawMessage) []byte {
	return []byte(`{"jsonrpc":"2.0","method":"` + MethodCancelled + `","params":{"requestId":` + string(id) + `,"reason":"timed out"}}`)
}
