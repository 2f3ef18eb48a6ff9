package mcpedge

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/rpc"
)

// posted is the body of a POST to /mcp: one JSON-RPC message, or an array of them.
type posted struct {
	batch bool
	// stateless says that it is of a revision without sessions.
	stateless bool
	// ids and methods are those of the requests, in their order.
	ids     []json.RawMessage
	methods []string
}

// isResponse reports whether an event is the response to a request: bridges give it the request's ID.
func isResponse(message []byte) bool { return responseID(message) != "" }

// responseID returns [rpc.IDKey] of the request that a message responds to; empty for a message that is no response.
func responseID(message []byte) string {
	var m struct { // an rpc.Message would hold a copy of the result
		ID     json.RawMessage `json:"id"`
		Method *string         `json:"method"`
	}
	if rpc.Unmarshal(message, &m) != nil || m.Method != nil {
		return ""
	}
	return rpc.IDKey(m.ID)
}

// isError reports whether a message is an error.
func isError(message []byte) bool {
	var m rpc.Message
	return rpc.Unmarshal(message, &m) == nil && m.Error != nil
}

// messageOf returns an event's message.
func messageOf(it window.Item) []byte {
	_, data := window.FrameParts(it.Frame)
	return data
}

// parsePosted reads a body. The result holds no part of it.
func parsePosted(body []byte) (p posted, err error) {
	messages, batch, err := rpc.Messages(body)
	p.batch = batch
	switch {
	case err != nil:
		return p, refuseMessage(err)
	case len(messages) == 0:
		return p, refusal.Invalid("A batch must not be empty.")
	}
	for _, message := range messages {
		m, err := rpc.ParseMessage(message)
		if err != nil {
			return p, refuseMessage(err)
		}
		if m.IsRequest() {
			p.ids = append(p.ids, m.ID)
			p.methods = append(p.methods, *m.Method)
		}
	}
	return p, nil
}

func refuseMessage(err error) error {
	r := &refusal.Error{Status: http.StatusBadRequest, Code: rpc.CodeInvalid, Message: "Invalid request: " + err.Error()}
	if errors.Is(err, event.ErrInvalidJSON) {
		r.Code, r.Message = rpc.CodeParse, "Parse error: "+err.Error()
	}
	return r
}

// check returns an error unless a client of this version may post this body.
func (p posted) check(version string) error {
	if !p.batch {
		return nil
	}
	if version != revisionAssumed {
		return refusal.Invalid("Only revision " + revisionAssumed + " has batches.")
	}
	if slices.Contains(p.methods, rpc.MethodInitialize) {
		return refusal.Invalid("initialize must not be in a batch.")
	}
	return nil
}

// opens reports whether a client begins a session.
func (p posted) opens() bool {
	return !p.batch && len(p.methods) == 1 && p.methods[0] == rpc.MethodInitialize
}

// only returns the ID of the one request, or nothing.
func (p posted) only() json.RawMessage {
	if p.batch || len(p.ids) != 1 {
		return nil
	}
	return p.ids[0]
}
