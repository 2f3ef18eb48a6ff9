package event_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"unicode/utf8"

	"rejoin/shared/event"
)

func TestHead_Method(t *testing.T) {
	const spaced = ` { "params" : {"method":"x","a":[{"method":"y"}]} , "method" : "ping" } `
	for message, want := range map[string]string{
		spaced: "ping",
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"method":"x"}}`: "notifications/progress",
		`{"method":"notifications\/mess\u0061ge"}`:                                    "notifications/message",
		`{"m\u0065thod":"ping"}`:                                                      "ping",
		`{"id":1,"result":{"method":"x"}}`:                                            "",
		`{"id":1,"result":{},"method":"x"}`:                                           "",
		`{"id":1,"error":{"code":1,"message":"method"},"method":"x"}`:                 "",
		`{"method":7}`:        "",
		`{"method":null}`:     "",
		`{}`:                  "",
		`[{"method":"ping"}]`: "",
		`"method"`:            "",
		`7`:                   "",
		``:                    "",
	} {
		if got := event.MethodOf([]byte(message)); string(got) != want {
			t.Errorf("%s: %q, want %q", message, got, want)
		}
	}
}

func TestHead_LogLevel(t *testing.T) {
	for message, want := range map[string]int{
		`{"method":"notifications/message","params":{"level":"debug","data":{"level":"error"}}}`: 0,
		`{"params":{"data":{"level":"error"},"level":"warning"}}`:                                3,
		`{"params":{"level":"emergenc\u0079"}}`:                                                  7,
		`{"params":{"level":"ERROR"}}`:                                                           -1,
		`{"params":{"level":3}}`:                                                                 -1,
		`{"params":{}}`:                                                                          -1,
		`{"params":["level","error"]}`:                                                           -1,
		`{"level":"error"}`:                                                                      -1,
	} {
		if got, ok := event.LevelOf([]byte(message)); got != want || ok != (want >= 0) {
			t.Errorf("%s: %d, want %d", message, got, want)
		}
	}
}

// first reads an object's members with encoding/json, and returns the first of a name
// before those of other names.
func first(data []byte, name string, until ...string) json.RawMessage {
	dec := json.NewDecoder(bytes.NewReader(data))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil
		}
		if key == name {
			return value
		}
		for _, other := range until {
			if key == other {
				return nil
			}
		}
	}
	return nil
}

func FuzzHead(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}`,
		`{"id":1,"result":{"method":"x"}}`, `{"m\u0065thod":"\ud800"}`, `{"method":"a","method":"b"}`, `[]`, `{"params":{"level":"alert"}}`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if !event.ValidJSON(data) || !utf8.Valid(data) { // an edge shows no other data
			return
		}
		var method, level string
		_ = json.Unmarshal(first(data, "method", "result", "error"), &method) // a value that is no string leaves it empty
		if got := string(event.MethodOf(data)); got != method {
			t.Errorf("%q: method %q, want %q", data, got, method)
		}
		_ = json.Unmarshal(first(first(data, "params"), "level"), &level)
		if at, ok := event.LevelOf(data); ok != slices.Contains(event.Levels, level) || ok && event.Levels[at] != level {
			t.Errorf("%q: level %q, want %q", data, event.Levels[at], level)
		}
	})
}
