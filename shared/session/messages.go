package session

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// ParseMessages reads from a session's metadata, an object or nothing, whether its messages must be
// JSON-RPC 2.0. They must when the member "messages" is "jsonrpc", and in a session of an MCP server,
// which has the member "mcp" of its bridge; they need not when "messages" is "any", which is the
// default. The error wraps [ErrMessages].
func ParseMessages(metadata json.RawMessage) (jsonrpc bool, err error) {
	mentions := func(name string) bool { return bytes.Contains(metadata, []byte(name)) }
	if !mentions(`"messages"`) && !mentions(`"mcp"`) && !mentions(`\`) {
		return false, nil // most metadata is not decoded
	}
	members := map[string]json.RawMessage{} // a struct would take names in any case
	if err := json.Unmarshal(metadata, &members); err != nil {
		return false, fmt.Errorf("%w: %w", ErrMessages, err)
	}
	_, bridged := members["mcp"]
	switch said, ok := members["messages"]; {
	case bridged:
		return true, nil
	case !ok, string(said) == `"any"`:
		return false, nil
	case string(said) == `"jsonrpc"`:
		return true, nil
	default:
		return false, fmt.Errorf(`%w: it must be "any" or "jsonrpc"`, ErrMessages)
	}
}
