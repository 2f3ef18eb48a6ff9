package session

import (
	"encoding/json"
	"errors"
	"testing"
)

func TestParseMessages(t *testing.T) {
	for metadata, want := range map[string]bool{
		"":                            false,
		`{}`:                          false,
		`{"a":"messages"}`:            false,
		`{"Messages":"jsonrpc"}`:      false,
		`{"a":{"mcp":1}}`:             false,
		`{"messages":"any"}`:          false,
		`{"messages":"jsonrpc"}`:      true,
		`{"mess\u0061ges":"jsonrpc"}`: true,
		`{"mcp":{"bridge":"b"}}`:      true,
		`{"messages":1,"mcp":{}}`:     true,
	} {
		if got, err := ParseMessages(json.RawMessage(metadata)); got != want || err != nil {
			t.Errorf("%s: %t, %v", metadata, got, err)
		}
	}
	for _, metadata := range []string{`{"messages":"xml"}`, `{"messages":null}`, `{"messages":["jsonrpc"]}`} {
		if got, err := ParseMessages(json.RawMessage(metadata)); got || !errors.Is(err, ErrMessages) {
			t.Errorf("%s: %t, %v", metadata, got, err)
		}
	}
}

// Any metadata has the same meaning with its names spelled in full.
func FuzzParseMessages(f *testing.F) {
	for _, seed := range []string{`{"messages":"jsonrpc"}`, `{"\u006dcp":{}}`, `{"messages":2}`, `[]`, `{"messages"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, metadata []byte) {
		got, err := ParseMessages(metadata)
		if err != nil && (got || !errors.Is(err, ErrMessages)) {
			t.Fatalf("%t, %v", got, err)
		}
		members := map[string]json.RawMessage{}
		if json.Unmarshal(metadata, &members) != nil {
			return // it is checked before
		}
		if want := members["mcp"] != nil || string(members["messages"]) == `"jsonrpc"`; err == nil && got != want {
			t.Fatalf("%q: %t", metadata, got)
		}
	})
}
