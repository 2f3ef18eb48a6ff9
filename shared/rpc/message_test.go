package rpc_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/rpc"
)

func TestParseMessage(t *testing.T) {
	for text, want := range map[string]struct {
		request, response bool
		id, token         string
	}{
		`{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"token":"t"}}}`:                   {request: true, id: "1", token: `"t"`},
		`{"jsonrpc":"2.0","id":"x","ID":2,"Method":"b","method":"\u0061","params":{"_META":{}}}`:   {request: true, id: `"x"`},
		`{"jsonrpc":"2.0","method":"a","params":{"_meta":{"token":1,"Token":2,"token":[ 3 ]}}}`:    {token: "[ 3 ]"},
		`{"jsonrpc":"2.0","method":"a","params":[]}`:                                               {},
		`{"jsonrpc":"2.0","method":"a","params":{"_meta":"token"}}`:                                {},
		`{"jsonrpc":"2.0","id":1e2,"result":null}`:                                                 {response: true, id: "1e2"},
		`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"\ud800"}}`:                        {response: true, id: "null"},
		`{"jsonrpc":"2.0","error":{"code":1,"message":""},"params":{"_meta":{"token":{"a":"b"}}}}`: {response: true, id: "null", token: `{"a":"b"}`},
	} {
		m, err := rpc.ParseMessage([]byte(text))
		if err != nil || m.IsRequest() != want.request || m.IsResponse() != want.response || string(m.ID) != want.id || string(m.Param("_meta", "token")) != want.token {
			t.Errorf("%s: %+v, %v", text, m, err)
		}
		if want.request && !m.Is("a") || m.Is("") {
			t.Errorf("%s has the method %v", text, m.Method)
		}
	}
}

func TestParseMessages(t *testing.T) {
	for body, want := range map[string]struct {
		all   []string
		batch bool
		err   error
	}{
		" {}\r\n":        {all: []string{"{}"}},
		"rubbish":        {all: []string{"rubbish"}},
		"":               {all: []string{""}},
		"\t[ {} , 1 ]\n": {all: []string{"{}", "1"}, batch: true},
		"[]":             {batch: true},
		"[{}":            {batch: true, err: event.ErrInvalidJSON},
		"[{}] x":         {batch: true, err: event.ErrInvalidJSON},
	} {
		all, batch, err := rpc.Messages([]byte(body))
		if len(all) != len(want.all) || batch != want.batch || !errors.Is(err, want.err) {
			t.Errorf("%q: %s, %t, %v", body, all, batch, err)
		}
		for i := range all {
			if string(all[i]) != want.all[i] {
				t.Errorf("%q: message %d is %q", body, i, all[i])
			}
		}
	}
}

// Decoded values have few members, so that a body takes no more memory than by its size. Values that are passed
// on unchanged may have many.
func TestParseMessage_ManyMembers(t *testing.T) {
	object := func(n int) string { return `{"a":0` + strings.Repeat(`,"a":0`, n-1) + "}" }
	array := func(n int) string { return "[0" + strings.Repeat(",0", n-1) + "]" }
	for _, tt := range []struct {
		format string
		fits   bool // with many
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"a","params":%s}`, false},
		{`{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":%s}}`, false},
		{`{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"capabilities":%s}}}`, false},
		{`{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"capabilities":{"b":%s}}}}`, true},
		{`{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":%s}}`, true},
		{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%s}}`, true},
		{`{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"a","result":%s}}`, true},
		{`{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"a","result":{"content":%s}}}`, true},
		{`{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"a","error":{"code":1,"message":"","data":%s}}}`, true},
		{`{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"a","inputRequests":%s}}`, false},
		{`{"jsonrpc":"2.0","id":1,"result":%s}`, true},
	} {
		for _, value := range []func(int) string{object, array} {
			if _, err := rpc.ParseMessage(fmt.Appendf(nil, tt.format, value(10_000))); err != nil {
				t.Errorf("%s with 10,000: %v", tt.format, err)
			}
			fits := tt.fits || tt.format == `{"jsonrpc":"2.0","id":1,"method":"a","params":%s}` && value(1)[0] == '[' // which is not decoded
			if _, err := rpc.ParseMessage(fmt.Appendf(nil, tt.format, value(10_001))); (err == nil) != fits || !fits && !errors.Is(err, rpc.ErrTooMany) {
				t.Errorf("%s with 10,001: %v", tt.format, err)
			}
		}
	}
	message := `{"jsonrpc":"2.0","id":1,"method":"a"` + strings.Repeat(`,"a":0`, 10_000) + "}"
	if _, err := rpc.ParseMessage([]byte(message)); !errors.Is(err, rpc.ErrTooMany) {
		t.Errorf("a message of 10,003 members: %v", err)
	}
	if all, _, err := rpc.Messages([]byte(array(10_000))); err != nil || len(all) != 10_000 {
		t.Errorf("%d messages, %v", len(all), err)
	}
	if all, batch, err := rpc.Messages([]byte(array(10_001))); !batch || len(all) > 0 || !errors.Is(err, rpc.ErrTooMany) {
		t.Errorf("%d messages of too many, %v", len(all), err)
	}
}

func TestAppendError(t *testing.T) {
	for _, tt := range []struct {
		id   string
		data any
		want string
	}{
		{"", nil, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}`},
		{`"a"`, []int{1}, `{"jsonrpc":"2.0","id":"a","error":{"code":-32600,"message":"no","data":[1]}}`},
	} {
		var id json.RawMessage
		if tt.id != "" {
			id = json.RawMessage(tt.id)
		}
		got := rpc.ErrorMessage(id, rpc.CodeInvalid, "no", tt.data)
		if string(got) != tt.want || event.CheckMessage(got) != nil {
			t.Errorf("the error is %s", got)
		}
	}
}

// Accepted messages are JSON-RPC, and keep no part of the body; an array's messages are its elements.
func FuzzMessages(f *testing.F) {
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":{"c":1}}}`, `[{"jsonrpc":"2.0","method":"a"},1]`, "[]", "[[]]", "{", " [", "\xff", "\u0085[1]",
		`{"jsonrpc":"2.0","id":1e400,"method":"\ud800"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 20_000 {
			return // it may have too many members
		}
		all, batch, err := rpc.Messages(bytes.Clone(body))
		if err != nil {
			if !batch || json.Valid(body) || !errors.Is(err, event.ErrInvalidJSON) {
				t.Fatalf("%q: %t, %v", body, batch, err)
			}
			return
		}
		var elements []json.RawMessage
		if batch != (json.Unmarshal(body, &elements) == nil && elements != nil) || batch && len(all) != len(elements) || !batch && len(all) != 1 {
			t.Fatalf("%q has %d messages", body, len(all))
		}
		for i, data := range all {
			if batch && !bytes.Equal(data, elements[i]) {
				t.Fatalf("message %d of %q is %q", i, body, data)
			}
			m, err := rpc.ParseMessage(data)
			if (err == nil) != (event.CheckMessage(data) == nil) {
				t.Fatalf("%q is read with %v", data, err)
			}
			if err != nil {
				continue
			}
			clear(data)
			for _, member := range []json.RawMessage{m.ID, m.Params, m.Result, m.Error, m.Param("b", "c")} {
				if member != nil && !json.Valid(member) {
					t.Fatalf("%q holds %q", body, member)
				}
			}
		}
	})
}
