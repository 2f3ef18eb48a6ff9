// Package translate turns messages of MCP's revision 2026-07-28, which has no sessions, into those
// of the revisions before, and back. It knows messages alone: the bridge decides when they are
// sent, and by whom.
package translate

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// Object is a JSON object whose members are left as they are.
type Object = map[string]json.RawMessage

// ErrResult is returned for an answer that a server may not give.
var ErrResult = errors.New("the MCP server's answer does not match its revision")

// read reads an object; null is none.
func read(value json.RawMessage) (o Object, ok bool) {
	return o, rpc.Unmarshal(value, &o) == nil && o != nil
}

// some returns a value, or nil for null.
func some(value json.RawMessage) json.RawMessage {
	if string(value) == "null" {
		return nil
	}
	return value
}

// readSome reads an object that may be missing: a missing one is empty.
func readSome(value json.RawMessage) (o Object, ok bool) {
	if some(value) == nil {
		return Object{}, true
	}
	return read(value)
}

// ServerInfo is a server's result of initialize.
type ServerInfo struct {
	Version      string
	Info         json.RawMessage // nil when the server gave none
	Capabilities Object
	Instructions json.RawMessage // likewise
}

// ParseServer reads the result of initialize.
func ParseServer(result json.RawMessage) (s ServerInfo, err error) {
	var r struct {
		ProtocolVersion string          `json:"protocolVersion"`
		ServerInfo      json.RawMessage `json:"serverInfo"`
		Capabilities    Object          `json:"capabilities"`
		Instructions    json.RawMessage `json:"instructions"`
	}
	if err := rpc.Unmarshal(result, &r); err != nil || r.ProtocolVersion == "" {
		return s, ErrResult
	}
	return ServerInfo{r.ProtocolVersion, some(r.ServerInfo), r.Capabilities, some(r.Instructions)}, nil
}

// maxInfo bounds a server's information that is kept with each call.
const maxInfo = 1 << 10

// BriefInfo returns a server's information, and only its name and version if it is long: it may
// have icons.
func BriefInfo(info json.RawMessage) json.RawMessage {
	if len(info) <= maxInfo {
		return info
	}
	all, _ := read(info)
	brief := Object{}
	for _, name := range []string{"name", "version"} {
		var value string
		if json.Unmarshal(all[name], &value) == nil && len(value) <= maxInfo {
			brief[name] = all[name]
		}
	}
	if len(brief) < 2 {
		return nil
	}
	return event.MustJSON(brief)
}

// Can reports whether the server declared a capability, or a member of it that is true.
func (s ServerInfo) Can(capability, member string) bool {
	value, ok := s.Capabilities[capability]
	if member == "" || !ok {
		return ok
	}
	var members Object
	return rpc.Unmarshal(value, &members) == nil && string(members[member]) == "true"
}

// clientInfo is sent for a client without one.
var clientInfo = map[string]string{"name": "rejoin", "version": "1"}

// Initialize returns the request that begins a session for a client's request: with the client's
// capabilities, and no extensions, which the revision does not have.
func Initialize(r mcp.Request, id string) []byte {
	capabilities := Object{}
	if rpc.Unmarshal(r.Capabilities, &capabilities) == nil {
		delete(capabilities, "extensions")
	}
	var info any = clientInfo
	if r.ClientInfo != nil {
		info = r.ClientInfo
	}
	return Message(map[string]any{
		"id": id, "method": rpc.MethodInitialize,
		"params": map[string]any{"protocolVersion": mcp.WithSessions[0], "capabilities": capabilities, "clientInfo": info},
	})
}

// Message writes a JSON-RPC message.
func Message(members map[string]any) []byte {
	members["jsonrpc"] = "2.0"
	return event.MustJSON(members)
}

// Request returns a client's request in the form of an earlier revision, with another ID
// and progress token. more are parameters to add.
func Request(r mcp.Request, id string, more Object) []byte {
	params, meta := maps.Clone(r.Params), Object{}
	for name, value := range r.Meta {
		if !strings.HasPrefix(name, mcp.MetaPrefix) {
			meta[name] = value
		}
	}
	delete(params, "_meta")
	delete(params, "inputResponses")
	delete(params, "requestState")
	delete(params, "task") // a client of the new revision cannot ask for one
	maps.Copy(params, more)
	if meta["progressToken"] != nil {
		meta["progressToken"] = event.MustJSON(id)
	}
	if len(meta) > 0 {
		params["_meta"] = event.MustJSON(meta)
	}
	return Message(map[string]any{"id": id, "method": r.Method, "params": params})
}

// known are the requests that servers of earlier revisions take.
var known = map[string]bool{
	"tools/list": true, mcp.MethodCallTool: true, "prompts/list": true, mcp.MethodGetPrompt: true,
	"resources/list": true, "resources/templates/list": true, mcp.MethodRead: true, "completion/complete": true,
}

// Known reports whether earlier revisions have a method.
func Known(method string) bool { return known[method] }

// Cacheable are the methods whose results say for how long they may be kept.
var Cacheable = map[string]bool{
	mcp.MethodDiscover: true, "tools/list": true, "prompts/list": true, "resources/list": true, "resources/templates/list": true, mcp.MethodRead: true,
}

// Result returns a result of a server of an earlier revision in the client's form: complete, with the
// server's name, and not to be kept, since the server gave no time for it.
func (s ServerInfo) Result(method string, result json.RawMessage) (json.RawMessage, error) {
	r, ok := read(result)
	if !ok {
		return nil, ErrResult
	}
	r["resultType"] = event.MustJSON("complete")
	if Cacheable[method] {
		r["ttlMs"], r["cacheScope"] = json.RawMessage("0"), event.MustJSON("private")
	}
	meta, ok := readSome(r["_meta"])
	if !ok {
		return nil, ErrResult
	}
	delete(meta, relatedTask)
	if s.Info != nil {
		meta[mcp.MetaServerInfo] = s.Info
	}
	if delete(r, "_meta"); len(meta) > 0 {
		r["_meta"] = event.MustJSON(meta)
	}
	if method == "tools/list" && r["tools"] != nil {
		r["tools"] = withoutExecution(r["tools"])
	}
	return event.MustJSON(r), nil
}

// maxToolPages bounds how many pages of tools are read.
const maxToolPages = 100

// EachTool hands over the tools of a server, page by page. list makes a request for tools/list with these
// parameters, and returns its result; one that cannot be read is the last.
func EachTool[Tool any](list func(params Object) (result json.RawMessage), take func(Tool)) {
	params := Object{}
	for range maxToolPages {
		var page struct {
			Tools []Tool          `json:"tools"`
			Next  json.RawMessage `json:"nextCursor"`
		}
		if rpc.Unmarshal(list(params), &page) != nil {
			return
		}
		for _, tool := range page.Tools {
			take(tool)
		}
		if params["cursor"] = some(page.Next); params["cursor"] == nil {
			return
		}
	}
}

// HasTaskTools reports whether the server has tools whose calls may be tasks of the revision 2025-11-25.
func (s ServerInfo) HasTaskTools() bool {
	var tasks struct {
		Requests struct {
			Tools struct {
				Call json.RawMessage `json:"call"`
			} `json:"tools"`
		} `json:"requests"`
	}
	return rpc.Unmarshal(s.Capabilities["tasks"], &tasks) == nil && some(tasks.Requests.Tools.Call) != nil
}

// relatedTask names in _meta the task of the revision 2025-11-25 that a message belongs to.
const relatedTask = mcp.MetaPrefix + "related-task"

// withoutExecution removes from tools the member that says how they run as tasks of the revision 2025-11-25.
func withoutExecution(list json.RawMessage) json.RawMessage {
	var tools []Object
	if rpc.Unmarshal(list, &tools) != nil {
		return list
	}
	for _, tool := range tools {
		delete(tool, "execution")
	}
	return event.MustJSON(tools)
}

// Discover returns the result of server/discover for the server, whose calls become tasks or not.
func (s ServerInfo) Discover(tasks bool) (json.RawMessage, error) {
	capabilities := maps.Clone(s.Capabilities)
	delete(capabilities, "tasks") // of 2025-11-25: others than the extension's
	r := Object{"supportedVersions": event.MustJSON(mcp.Revisions), "capabilities": WithTasks(event.MustJSON(capabilities), tasks)}
	if s.Instructions != nil {
		r["instructions"] = s.Instructions
	}
	return s.Result(mcp.MethodDiscover, event.MustJSON(r))
}

// WithTasks returns capabilities of a server, which may be empty, with the extension.
func WithTasks(capabilities json.RawMessage, tasks bool) json.RawMessage {
	c, ok := readSome(capabilities)
	if !ok {
		return capabilities
	}
	if extensions, ok := readSome(c["extensions"]); tasks && ok {
		if extensions[mcp.ExtensionTasks] == nil {
			extensions[mcp.ExtensionTasks] = json.RawMessage("{}")
		}
		c["extensions"] = event.MustJSON(extensions)
	}
	return event.MustJSON(c)
}

// Codes of errors that the revision 2026-07-28 does not have any more.
const (
	codeNoResource  = -32002
	codeElicitation = -32042 // a URL has to be visited first (2025-11-25, Elicitation)
)

// Failure is a parsed error.
type Failure struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error returns an error of a server of an earlier revision in the client's form.
func Error(e json.RawMessage) json.RawMessage {
	var f Failure
	if rpc.Unmarshal(e, &f) != nil {
		return e
	}
	switch f.Code {
	case codeNoResource:
		f.Code = rpc.CodeInvalidParams
	case codeElicitation:
		f.Code = rpc.CodeInternal
	default:
		return e
	}
	return event.MustJSON(f)
}

// Question is a request of a server to its client while the server works on the client's request.
type Question struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// Whole returns the question with parameters: go-sdk 1.8 takes none without. See docs/upstream/0030.
func (q Question) Whole() Question {
	if q.Params = some(q.Params); q.Params == nil {
		q.Params = json.RawMessage("{}")
	}
	return q
}

// Fits reports whether the question can be part of a result, or of a task's state, where it stands
// deeper than in the server's request: JSON is read down to 10,000 levels.
func (q Question) Fits() bool {
	params := q.Whole().Params
	return json.Valid(slices.Concat([]byte(`{"result":{"inputRequests":{"":{"params":`), params, []byte(`}}}}`)))
}

// The requests of a server to its client.
const (
	MethodElicit = "elicitation/create"
	MethodSample = "sampling/createMessage"
	MethodRoots  = "roots/list"
	MethodPing   = "ping"
)

// capabilityOf is the capability that a client declares for a request of a server.
var capabilityOf = map[string]string{MethodElicit: "elicitation", MethodSample: "sampling", MethodRoots: "roots"}

// Askable returns the methods that the client of a request can be asked: none where the revision has no
// answer that asks.
func Askable(r mcp.Request) map[string]bool {
	can := map[string]bool{}
	if r.Method != mcp.MethodCallTool && r.Method != mcp.MethodGetPrompt && r.Method != mcp.MethodRead {
		return can
	}
	var declared Object
	if rpc.Unmarshal(r.Capabilities, &declared) == nil {
		for method, capability := range capabilityOf {
			can[method] = declared[capability] != nil
		}
	}
	return can
}

// InputRequired returns the result that asks a client.
func (s ServerInfo) InputRequired(questions map[string]Question, state string) json.RawMessage {
	r := map[string]any{"resultType": "input_required", "requestState": state}
	if len(questions) > 0 {
		whole := map[string]Question{}
		for key, q := range questions {
			whole[key] = q.Whole()
		}
		r["inputRequests"] = whole
	}
	if s.Info != nil {
		r["_meta"] = Object{mcp.MetaServerInfo: s.Info}
	}
	return event.MustJSON(r)
}

// Progress returns a progress notification with the token of the client, or nil when it gave none.
func Progress(m rpc.Message, token json.RawMessage) []byte {
	params, ok := read(m.Params)
	if token == nil || !ok {
		return nil
	}
	params["progressToken"] = token
	return Message(map[string]any{"method": *m.Method, "params": params})
}

// Listened returns a notification for the client that listens with a request, or nil when it did not
// ask for that.
func Listened(m rpc.Message, f Filter, id json.RawMessage) []byte {
	if m.Method == nil || !f.wants(m) {
		return nil
	}
	params, ok := readSome(m.Params)
	if !ok {
		return nil
	}
	meta, ok := readSome(params["_meta"])
	if !ok {
		return nil
	}
	meta[mcp.MetaSubscription] = id
	params["_meta"] = event.MustJSON(meta)
	return Message(map[string]any{"method": *m.Method, "params": params})
}

// Filter selects the notifications that a client listens to.
type Filter struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
	Tasks     []string `json:"taskIds,omitempty"` // of the extension
}

// MethodAcknowledged is the first message to a client that listens.
const MethodAcknowledged = "notifications/subscriptions/acknowledged"

// ParseFilter reads the filter of a client's request to listen.
func ParseFilter(r mcp.Request) (f Filter, err error) {
	if value := r.Params["notifications"]; value == nil || rpc.Unmarshal(value, &f) != nil {
		return f, ErrResult
	}
	return f, nil
}

// Of returns the part of a filter that the server can report.
func (f Filter) Of(s ServerInfo) Filter {
	f.Tools = f.Tools && s.Can("tools", "listChanged")
	f.Prompts = f.Prompts && s.Can("prompts", "listChanged")
	f.Resources = f.Resources && s.Can("resources", "listChanged")
	if !s.Can("resources", "subscribe") {
		f.URIs = nil
	}
	return f
}

// Notifications of changes.
const (
	ToolsChanged     = "notifications/tools/list_changed"
	PromptsChanged   = "notifications/prompts/list_changed"
	ResourcesChanged = "notifications/resources/list_changed"
	ResourceUpdated  = "notifications/resources/updated"
)

// IsChange reports whether a message is one of these.
func IsChange(m rpc.Message) bool {
	return slices.ContainsFunc([]string{ToolsChanged, PromptsChanged, ResourcesChanged, ResourceUpdated}, m.Is)
}

func (f Filter) wants(m rpc.Message) bool {
	switch *m.Method {
	case ToolsChanged:
		return f.Tools
	case PromptsChanged:
		return f.Prompts
	case ResourcesChanged:
		return f.Resources
	case ResourceUpdated:
		return len(f.URIs) > 0 // a server may name a part of a subscribed resource
	default:
		return false
	}
}

// Acknowledged returns the first message to a client that listens.
func Acknowledged(f Filter, id json.RawMessage) []byte {
	return Message(map[string]any{
		"method": MethodAcknowledged,
		"params": map[string]any{"_meta": Object{mcp.MetaSubscription: id}, "notifications": f},
	})
}

// AlsoAcknowledged returns a server's acknowledgement with more tasks, and the filter that the server acknowledges.
func AlsoAcknowledged(data []byte, tasks []string) ([]byte, Filter) {
	m, _ := read(data)
	params, _ := read(m["params"])
	notifications, ok := read(params["notifications"])
	var f Filter
	if !ok || rpc.Unmarshal(params["notifications"], &f) != nil || len(tasks) == 0 {
		return data, f
	}
	notifications[taskIDs] = event.MustJSON(append(f.Tasks, tasks...))
	params["notifications"] = event.MustJSON(notifications)
	m["params"] = event.MustJSON(params)
	return event.MustJSON(m), f
}

// WithoutTasks returns a request to listen without the tasks that are not the server's, however a server
// reads it; see [Plain]. A list of tasks that holds anything but texts names none.
func WithoutTasks(data []byte, ours func(id string) bool) []byte {
	m, _ := read(data)
	params, ok := read(m["params"])
	if !ok {
		return data
	}
	spell(params, "notifications")
	if notifications, ok := read(params["notifications"]); ok {
		spell(notifications, taskIDs)
		var ids []string
		if rpc.Unmarshal(notifications[taskIDs], &ids) != nil {
			ids = nil
		}
		delete(notifications, taskIDs)
		if ids = slices.DeleteFunc(ids, ours); len(ids) > 0 {
			notifications[taskIDs] = event.MustJSON(ids)
		}
		params["notifications"] = event.MustJSON(notifications)
	}
	m["params"] = event.MustJSON(params)
	return event.MustJSON(m)
}

// spell leaves out the members whose names differ from a name in nothing but the case.
func spell(o Object, name string) {
	maps.DeleteFunc(o, func(other string, _ json.RawMessage) bool { return other != name && strings.EqualFold(other, name) })
}

// Plain returns a message that two parsers cannot read in two ways: it has no member twice, or in another
// case than the bridge looks for, and neither have its parameters.
func Plain(data []byte) []byte {
	m, ok := read(data)
	if !ok {
		return data
	}
	maps.DeleteFunc(m, func(name string, _ json.RawMessage) bool { return !slices.Contains(members, name) })
	if params, ok := read(m["params"]); ok {
		spell(params, taskID)
		m["params"] = event.MustJSON(params)
	}
	return event.MustJSON(m)
}

const (
	taskID  = "taskId"
	taskIDs = "taskIds"
)

// members are those of JSON-RPC messages.
var members = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// ListenEnd returns the result of a request to listen.
func ListenEnd(id json.RawMessage) json.RawMessage {
	return event.MustJSON(Object{"resultType": event.MustJSON("complete"), "_meta": event.MustJSON(Object{mcp.MetaSubscription: id})})
}

// Outcome returns the result of a response, or its error. A response that cannot be read is an error.
func Outcome(response []byte) (result, failure json.RawMessage) {
	m, ok := read(response)
	if result, failure = some(m["result"]), some(m["error"]); !ok || result == nil && failure == nil {
		failure = event.MustJSON(Object{"code": json.RawMessage(strconv.Itoa(rpc.CodeInternal)), "message": event.MustJSON("The response cannot be read.")})
	}
	return result, failure
}

// OwnError returns a message that came while the request with this ID was the only open one. An error with the ID null
// is about that request, and gets its ID: a server that cannot read a request has no ID to give (JSON-RPC 2.0,
// section 5).
func OwnError(m rpc.Message, data []byte, id json.RawMessage) (rpc.Message, []byte) {
	if m.Error != nil && string(m.ID) == "null" {
		m.ID, data = id, WithID(data, id)
	}
	return m, data
}

// WithID returns a response with another ID.
func WithID(response []byte, id json.RawMessage) []byte {
	m, ok := read(response)
	if !ok {
		return response
	}
	m["id"] = id
	return event.MustJSON(m)
}
