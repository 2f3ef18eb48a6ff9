package translate

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// Client has the parameters of initialize of a client of an earlier revision.
type Client struct {
	Version      string          `json:"version"` // that the client gets
	Info         json.RawMessage `json:"info,omitempty"`
	Capabilities json.RawMessage `json:"capabilities"`
}

// ParseClient reads an initialize request. A version that Rejoin does not speak becomes the newest
// with sessions.
func ParseClient(m rpc.Message) Client {
	c := Client{Version: mcp.WithSessions[0], Info: m.Param("clientInfo"), Capabilities: m.Param("capabilities")}
	var asked string
	if json.Unmarshal(m.Param("protocolVersion"), &asked) == nil && slices.Contains(mcp.WithSessions, asked) {
		c.Version = asked
	}
	if !isObject(c.Capabilities) {
		c.Capabilities = json.RawMessage("{}")
	}
	if !isObject(c.Info) {
		c.Info = nil
	}
	return c
}

func isObject(value json.RawMessage) bool {
	_, ok := read(value)
	return ok
}

// Askable reports whether the client declared a capability for any request of a server.
func (c Client) Askable() bool {
	var declared Object
	_ = rpc.Unmarshal(c.Capabilities, &declared) // it is an object
	for _, capability := range capabilityOf {
		if declared[capability] != nil {
			return true
		}
	}
	return false
}

// meta returns the _meta of each request of the client.
func (c Client) meta(level string) Object {
	meta := Object{mcp.MetaVersion: event.MustJSON(mcp.Stateless), mcp.MetaCapabilities: c.Capabilities}
	if c.Info != nil {
		meta[mcp.MetaClientInfo] = c.Info
	}
	if level != "" {
		meta[mcp.MetaLogLevel] = event.MustJSON(level)
	}
	return meta
}

// Later returns a request in the form for a server without sessions. more are parameters to add.
func (c Client) Later(m rpc.Message, level string, more Object) []byte {
	params, ok := read(m.Params)
	if !ok {
		params = Object{}
	}
	meta, ok := readSome(params["_meta"])
	if !ok {
		meta = Object{}
	}
	maps.Copy(meta, c.meta(level))
	delete(params, "task") // of 2025-11-25
	params["_meta"] = event.MustJSON(meta)
	maps.Copy(params, more)
	return Message(map[string]any{"id": m.ID, "method": *m.Method, "params": params})
}

// Discovered is the result of server/discover of a server without sessions.
type Discovered struct {
	Versions     []string        `json:"supportedVersions"`
	Capabilities Object          `json:"capabilities"`
	Instructions json.RawMessage `json:"instructions,omitempty"`
	Meta         Object          `json:"_meta"`
}

// Can is as that of [ServerInfo].
func (d Discovered) Can(capability, member string) bool {
	return ServerInfo{Capabilities: d.Capabilities}.Can(capability, member)
}

// Initialized returns the response to a client's initialize request.
func (d Discovered) Initialized(id json.RawMessage, c Client) []byte {
	capabilities := maps.Clone(d.Capabilities)
	delete(capabilities, "extensions")
	if capabilities == nil {
		capabilities = Object{}
	}
	info := d.Meta[mcp.MetaServerInfo]
	if info == nil {
		info = json.RawMessage(`{"name":"unknown","version":"unknown"}`)
	}
	result := Object{"protocolVersion": event.MustJSON(c.Version), "capabilities": event.MustJSON(capabilities), "serverInfo": info}
	if d.Instructions != nil {
		result["instructions"] = d.Instructions
	}
	return Message(map[string]any{"id": id, "result": result})
}

// Required is the input that a result asks of a client before the request can be answered.
type Required struct {
	Questions map[string]Question
	State     json.RawMessage // nil for none
}

// ParseRequired reads a result that asks; asks is false for a complete one.
func ParseRequired(result json.RawMessage) (r Required, asks bool, err error) {
	var m struct {
		Type      string              `json:"resultType"`
		Questions map[string]Question `json:"inputRequests"`
		State     json.RawMessage     `json:"requestState"`
	}
	if rpc.Unmarshal(result, &m) != nil {
		return r, false, ErrResult
	}
	switch m.Type {
	case "", "complete":
		return r, false, nil
	case "input_required":
	default:
		return r, false, ErrResult // no client has declared that extension
	}
	if m.State = some(m.State); len(m.Questions) == 0 && m.State == nil {
		return r, true, ErrResult
	}
	return Required{m.Questions, m.State}, true, nil
}

// Again returns the parameters of a request that is made again with answers.
func (r Required) Again(answers Object) Object {
	more := Object{}
	if r.Questions != nil {
		more["inputResponses"] = event.MustJSON(answers)
	}
	if r.State != nil {
		more["requestState"] = r.State
	}
	return more
}

// Earlier returns a complete result in the form for a client of an earlier revision.
func Earlier(method string, result json.RawMessage) json.RawMessage {
	r, ok := read(result)
	if !ok {
		return result
	}
	delete(r, "resultType")
	if Cacheable[method] {
		delete(r, "ttlMs")
		delete(r, "cacheScope")
	}
	if content := r["structuredContent"]; content != nil && !isObject(content) {
		delete(r, "structuredContent") // earlier revisions have objects only; the text has the same
	}
	return event.MustJSON(r)
}

// EarlierNotification returns a notification without the name of a subscription.
func EarlierNotification(m rpc.Message) []byte {
	params, ok := read(m.Params)
	if !ok {
		params = Object{}
	}
	if meta, ok := readSome(params["_meta"]); ok {
		delete(meta, mcp.MetaSubscription)
		if delete(params, "_meta"); len(meta) > 0 {
			params["_meta"] = event.MustJSON(meta)
		}
	}
	return Message(map[string]any{"method": *m.Method, "params": params})
}

// Listen returns the request of a client that listens.
func (c Client) Listen(id string, f Filter) []byte {
	return Message(map[string]any{
		"id": id, "method": mcp.MethodListen,
		"params": map[string]any{"_meta": c.meta(""), "notifications": f},
	})
}

// All returns the filter of the notifications that a client of an earlier revision gets without asking.
func (d Discovered) All() Filter {
	return Filter{Tools: true, Prompts: true, Resources: true}.Of(ServerInfo{Capabilities: d.Capabilities})
}

// Empty reports whether the filter selects no changes.
func (f Filter) Empty() bool { return !f.Tools && !f.Prompts && !f.Resources && len(f.URIs) == 0 }

// Changes returns a notification for each kind of change that the filter selects: the changes while no client
// listened are unknown.
func (f Filter) Changes() (all [][]byte) {
	for _, n := range []struct {
		on     bool
		method string
	}{{f.Tools, ToolsChanged}, {f.Prompts, PromptsChanged}, {f.Resources, ResourcesChanged}} {
		if n.on {
			all = append(all, Message(map[string]any{"method": n.method}))
		}
	}
	for _, uri := range f.URIs {
		all = append(all, Message(map[string]any{"method": ResourceUpdated, "params": map[string]string{"uri": uri}}))
	}
	return all
}

// Headers returns the arguments of a tool that its calls repeat in header fields: by the field's name
// after Mcp-Param-, the path to the argument. The tool's schema names them.
func Headers(schema json.RawMessage) map[string][]string {
	all := map[string][]string{}
	addHeaders(all, schema, nil)
	return all
}

// maxDepth bounds how deep a tool's schema is read.
const maxDepth = 16

func addHeaders(to map[string][]string, schema json.RawMessage, path []string) {
	var s struct {
		Header     string                     `json:"x-mcp-header"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if len(path) > maxDepth || rpc.Unmarshal(schema, &s) != nil {
		return
	}
	if s.Header != "" && len(path) > 0 {
		to[s.Header] = path
	}
	for name, property := range s.Properties {
		addHeaders(to, property, append(slices.Clone(path), name))
	}
}

// Argument returns the text of an argument for a header field; false when there is none.
func Argument(arguments json.RawMessage, path []string) (string, bool) {
	for _, name := range path {
		var members Object
		if rpc.Unmarshal(arguments, &members) != nil {
			return "", false
		}
		arguments = members[name]
	}
	var value any
	if len(arguments) == 0 || json.Unmarshal(arguments, &value) != nil {
		return "", false
	}
	switch value := value.(type) {
	case string:
		return value, true
	case bool:
		return strconv.FormatBool(value), true
	case float64:
		return string(arguments), true
	default:
		return "", false
	}
}
