// Package mcp reads requests of MCP's revision 2026-07-28, each of which carries its own
// revision and the capabilities of its client. Sources are the pages "Base protocol",
// "Versioning" and "Streamable HTTP" of the specification of that revision.
package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"rejoin/shared/rpc"
)

// Stateless is the first revision without sessions.
const Stateless = "2026-07-28"

// WithSessions are the revisions that begin a session with initialize, newest first.
var WithSessions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// Revisions are all that Rejoin speaks, newest first.
var Revisions = append([]string{Stateless}, WithSessions...)

// The fields of a request's _meta.
const (
	MetaVersion      = "io.modelcontextprotocol/protocolVersion"
	MetaClientInfo   = "io.modelcontextprotocol/clientInfo"
	MetaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaLogLevel     = "io.modelcontextprotocol/logLevel"
	MetaServerInfo   = "io.modelcontextprotocol/serverInfo"
	MetaSubscription = "io.modelcontextprotocol/subscriptionId"
	// MetaPrefix begins the names that belong to the protocol.
	MetaPrefix = "io.modelcontextprotocol/"
)

// The header fields that repeat values of the body.
const (
	HeaderVersion = "Mcp-Protocol-Version"
	HeaderMethod  = "Mcp-Method"
	HeaderName    = "Mcp-Name"
	// ParamPrefix begins the names of the fields that repeat a tool's arguments.
	ParamPrefix = "Mcp-Param-"
)

// Codes of errors, besides those of JSON-RPC.
const (
	CodeHeaderMismatch     = -32020
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
)

// Methods that Rejoin acts on.
const (
	MethodDiscover  = "server/discover"
	MethodListen    = "subscriptions/listen"
	MethodCallTool  = "tools/call"
	MethodGetPrompt = "prompts/get"
	MethodRead      = "resources/read"
)

// The methods of [ExtensionTasks].
const (
	MethodGetTask    = "tasks/get"
	MethodUpdateTask = "tasks/update"
	MethodCancelTask = "tasks/cancel"
	MethodTask       = "notifications/tasks"
)

// removed are the methods of earlier revisions that this one does not have. A request with one of
// these names is not passed on: a server of both eras might serve it.
var removed = map[string]bool{
	rpc.MethodInitialize: true, "ping": true, "logging/setLevel": true, "resources/subscribe": true, "resources/unsubscribe": true,
	"tasks/result": true, "tasks/list": true,
}

// Error is the answer to a request that violates the revision.
type Error struct {
	Status  int // of HTTP
	Code    int // of JSON-RPC
	Message string
	Data    any // may be nil
}

func (e *Error) Error() string { return e.Message }

func invalid(message string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: rpc.CodeInvalidParams, Message: "Invalid params: " + message}
}

func mismatch(format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Code: CodeHeaderMismatch, Message: "Header mismatch: " + fmt.Sprintf(format, args...)}
}

// Unsupported is the answer to a request of a revision that Rejoin does not speak, or not without a
// session.
func Unsupported(requested string) *Error {
	supported := Revisions
	if slices.Contains(WithSessions, requested) {
		supported = []string{Stateless} // the same request for that revision would be refused again
	}
	return &Error{
		Status: http.StatusBadRequest, Code: CodeUnsupportedVersion, Message: "Unsupported protocol version",
		Data: map[string]any{"supported": supported, "requested": requested},
	}
}

// Request is a request of the revision. Its fields are no part of the body that it was read from.
type Request struct {
	ID     json.RawMessage
	Method string
	// Name is the tool, prompt, resource or task that the request is about, as its header repeats
	// it; named says that the method has one.
	Name  string
	named bool
	// Version, Capabilities, ClientInfo and LogLevel are from _meta; the last two may be empty.
	Version      string
	Capabilities json.RawMessage
	ClientInfo   json.RawMessage
	LogLevel     string
	// Params are all parameters.
	Params map[string]json.RawMessage
	// Meta is params._meta.
	Meta map[string]json.RawMessage
}

// Claims reports whether a body claims to be of a revision without sessions.
func Claims(body []byte) bool {
	if !bytes.Contains(body, []byte("protocolVersion")) {
		return false // most bodies of earlier revisions: no need to read them again
	}
	m, err := rpc.ParseMessage(body)
	return err == nil && m.Param("_meta", MetaVersion) != nil
}

// NameOf is the parameter that a method's Mcp-Name repeats; empty for a method without one.
func NameOf(method string) string {
	switch method {
	case MethodCallTool, MethodGetPrompt:
		return "name"
	case MethodRead:
		return "uri"
	case MethodGetTask, MethodUpdateTask, MethodCancelTask:
		return "taskId"
	default:
		return ""
	}
}

// Parse reads a request and checks the members that every request of the revision must have. The error
// is an [*Error]; the request's ID, if it has one, is returned with it.
func Parse(body []byte) (r Request, err error) {
	m, err := rpc.ParseMessage(body)
	if err != nil || !m.IsRequest() {
		return r, &Error{Status: http.StatusBadRequest, Code: rpc.CodeInvalid, Message: "Invalid request"}
	}
	r.ID, r.Method = m.ID, *m.Method
	if len(m.Params) > 0 && rpc.Unmarshal(m.Params, &r.Params) != nil {
		return r, invalid("params is not an object.")
	}
	if meta := r.Params["_meta"]; meta != nil && rpc.Unmarshal(meta, &r.Meta) != nil {
		return r, invalid("_meta is not an object.")
	}
	if !text(r.Meta[MetaVersion], &r.Version) {
		return r, invalid("_meta has no " + MetaVersion + ".")
	}
	if r.Capabilities = r.Meta[MetaCapabilities]; !isObject(r.Capabilities) {
		return r, invalid("_meta has no " + MetaCapabilities + ".")
	}
	if r.ClientInfo = r.Meta[MetaClientInfo]; r.ClientInfo != nil && !isObject(r.ClientInfo) {
		return r, invalid(MetaClientInfo + " is not an object.")
	}
	if level := r.Meta[MetaLogLevel]; level != nil && !text(level, &r.LogLevel) {
		return r, invalid(MetaLogLevel + " is not a string.")
	}
	if len(r.LogLevel) > maxLogLevel {
		return r, invalid(MetaLogLevel + " is not a level.")
	}
	if string(r.Meta["progressToken"]) == "null" {
		delete(r.Meta, "progressToken") // SDKs write null for no token
	}
	if !isToken(r.Meta["progressToken"]) {
		return r, invalid("progressToken must be a string or a number of at most 1 KiB.")
	}
	if param := NameOf(r.Method); param != "" {
		if r.named = text(r.Params[param], &r.Name); !r.named {
			return r, invalid(param + " is missing.")
		}
	}
	return r, nil
}

// Bounds of the members that are kept as long as a call runs. No level is as long.
const (
	maxLogLevel = 32
	maxToken    = 1 << 10
)

// isToken reports whether a value can be a progress token, or is absent.
func isToken(value json.RawMessage) bool {
	switch {
	case len(value) == 0:
		return true
	case len(value) > maxToken:
		return false
	default:
		return value[0] == '"' || value[0] == '-' || '0' <= value[0] && value[0] <= '9'
	}
}

// text reads a JSON string.
func text(value json.RawMessage, to *string) bool {
	return len(value) > 0 && value[0] == '"' && json.Unmarshal(value, to) == nil
}

func isObject(value json.RawMessage) bool { return len(value) > 0 && value[0] == '{' }

// Check compares a request with its header, and refuses versions and methods that the revision does
// not have. The error is an [*Error].
func (r Request) Check(header func(name string) string) error {
	version, method := header(HeaderVersion), header(HeaderMethod)
	switch {
	case version == "":
		return mismatch("%s is missing.", HeaderVersion)
	case version != r.Version:
		return mismatch("%s is %q, and the body says %q.", HeaderVersion, version, r.Version)
	case r.Version != Stateless:
		return Unsupported(r.Version)
	case method == "":
		return mismatch("%s is missing.", HeaderMethod)
	case method != r.Method:
		return mismatch("%s is %q, and the body says %q.", HeaderMethod, method, r.Method)
	}
	if r.named {
		encoded := header(HeaderName)
		name, ok := Decode(encoded)
		switch {
		case encoded == "":
			return mismatch("%s is missing.", HeaderName)
		case !ok:
			return mismatch("%s cannot be decoded.", HeaderName)
		case name != r.Name:
			return mismatch("%s is %q, and the body says %q.", HeaderName, name, r.Name)
		}
	}
	if removed[r.Method] {
		return &Error{Status: http.StatusNotFound, Code: rpc.CodeMethodNotFound, Message: "Method not found: revision " + Stateless + " has no " + r.Method + "."}
	}
	return nil
}

// StatusOf returns the status of HTTP that belongs to a response.
func StatusOf(response []byte) int {
	m, err := rpc.ParseMessage(response)
	var e struct {
		Code int `json:"code"`
	}
	if err != nil || m.Error == nil || rpc.Unmarshal(m.Error, &e) != nil {
		return http.StatusOK
	}
	switch e.Code {
	case rpc.CodeMethodNotFound:
		return http.StatusNotFound
	case CodeHeaderMismatch, CodeMissingCapability, CodeUnsupportedVersion:
		return http.StatusBadRequest
	default:
		return http.StatusOK
	}
}

// The prefix and suffix of a header's value in Base64.
const (
	base64Prefix = "=?base64?"
	base64Suffix = "?="
)

// Decode returns the text of a header's value; false when its encoding is not valid.
func Decode(value string) (string, bool) {
	inner, ok := strings.CutPrefix(value, base64Prefix)
	if !ok {
		return value, true
	}
	if inner, ok = strings.CutSuffix(inner, base64Suffix); !ok {
		return value, true
	}
	b, err := base64.StdEncoding.DecodeString(inner)
	return string(b), err == nil
}

// Encode returns a header's value for a text.
func Encode(value string) string {
	encoded := strings.HasPrefix(value, base64Prefix) && strings.HasSuffix(value, base64Suffix)
	special := func(r rune) bool { return (r < ' ' || r > '~') && r != '\t' }
	if !encoded && value == strings.Trim(value, " \t") && !strings.ContainsFunc(value, special) {
		return value
	}
	return base64Prefix + base64.StdEncoding.EncodeToString([]byte(value)) + base64Suffix
}
