package edge

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"rejoin/shared/event"
)

// posted is the body of a POST to /mcp: one JSON-RPC message, or an array of them.
type posted struct {
	batch bool
	// ids and methods are those of the requests, in their order.
	ids     []json.RawMessage
	methods []string
}

// members are those of a JSON-RPC message that the edge looks at. Names count as they
// are written, which encoding/json does not see to.
type members struct {
	ID     jsontext.Value `json:"id"`
	Method *string        `json:"method"`
	Error  jsontext.Value `json:"error"`
}

// readMembers reads a message that is valid.
func readMembers(message []byte) (m members, err error) {
	err = jsonv2.Unmarshal(message, &m, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return m, err
}

// isResponse reports whether a message is a result or an error.
func isResponse(message []byte) bool {
	m, err := readMembers(message)
	return err == nil && m.Method == nil
}

// isError reports whether a message is an error.
func isError(message []byte) bool {
	m, err := readMembers(message)
	return err == nil && m.Error != nil
}

// messageOf returns an event's message.
func messageOf(it item) []byte {
	_, data := frameParts(it.frame)
	return data
}

// parsePosted reads a body. The result holds no part of it.
func parsePosted(body []byte) (p posted, err error) {
	messages := []jsontext.Value{body}
	if p.batch = strings.HasPrefix(strings.TrimLeft(string(body[:min(len(body), 64)]), " \t\r\n"), "["); p.batch {
		if messages, err = elements(body); err != nil {
			return p, err
		}
	}
	for _, message := range messages {
		if err := event.CheckMessage(message); err != nil {
			return p, refuseMessage(err)
		}
		m, err := readMembers(message)
		if err != nil {
			return p, refuseMessage(err)
		}
		if m.Method != nil && m.ID != nil {
			p.ids = append(p.ids, json.RawMessage(m.ID.Clone()))
			p.methods = append(p.methods, *m.Method)
		}
	}
	return p, nil
}

// elements returns the elements of an array, of which there must be some.
func elements(body []byte) (all []jsontext.Value, err error) {
	if !utf8.Valid(body) || !event.ValidJSON(body) {
		return nil, refuseMessage(event.ErrInvalidJSON)
	}
	if err := jsonv2.Unmarshal(body, &all, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return nil, refuseMessage(err)
	}
	if len(all) == 0 {
		return nil, refuseInvalid("A batch must not be empty.")
	}
	return all, nil
}

func refuseMessage(err error) error {
	r := &refusal{status: http.StatusBadRequest, code: codeInvalid, message: "Invalid request: " + err.Error()}
	if errors.Is(err, event.ErrInvalidJSON) {
		r.code, r.message = codeParse, "Parse error: "+err.Error()
	}
	return r
}

// check returns an error unless a client of this version may post this.
func (p posted) check(version string) error {
	if !p.batch {
		return nil
	}
	if version != revisionAssumed {
		return refuseInvalid("Only revision " + revisionAssumed + " has batches.")
	}
	for _, method := range p.methods {
		if method == methodInitialize {
			return refuseInvalid("initialize must not be in a batch.")
		}
	}
	return nil
}

// methodInitialize begins a session.
const methodInitialize = "initialize"

// opens reports whether a client begins a session.
func (p posted) opens() bool {
	return !p.batch && len(p.methods) == 1 && p.methods[0] == methodInitialize
}

// only returns the ID of the one request, or nothing.
func (p posted) only() json.RawMessage {
	if p.batch || len(p.ids) != 1 {
		return nil
	}
	return p.ids[0]
}
