package event_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/must"
)

func TestMessages(t *testing.T) {
	for _, m := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":[1]}`,
		`{"jsonrpc":"2.0","id":-1.5e3,"result":null}`,
		`{"jsonrpc":"2.0","id":1,"result":{"a":[{"b":"}"}]},"extra":true}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`,
		`{"jsonrpc":"2.0","error":{"code":-32600,"message":"","data":{}}}`,
		" \r\n{ \"jsonrpc\" :\n\"2.0\" , \"method\":\"m\\\"\\u0000\" }\t",
		`{"jsonrpc":"2.0","method":"m","nested":{"method":1,"id":null}}`,
	} {
		if err := event.CheckMessage([]byte(m)); err != nil {
			t.Errorf("CheckMessage(%s) = %v, want nil", m, err)
		}
	}
	notJSON := []string{"", " ", "{", "nope", `{"jsonrpc":"2.0","method":"m"} {}`, `{"a":"` + "\xff" + `"}`, "{\"a\":\"\n\"}", `{"jsonrpc":"2.0","method":"m"},`}
	for _, m := range notJSON {
		if err := event.CheckMessage([]byte(m)); !errors.Is(err, event.ErrInvalidJSON) {
			t.Errorf("CheckMessage(%q) = %v, want ErrInvalidJSON", m, err)
		}
	}
	for _, m := range []string{
		`[]`, `1`, `"x"`, `null`, `{}`,
		`{"method":"m"}`,
		`{"jsonrpc":"1.0","method":"m"}`,
		`{"jsonrpc":2.0,"method":"m"}`,
		`{"jsonrpc":"2.0"}`,
		`{"jsonrpc":"2.0","id":1}`,
		`{"jsonrpc":"2.0","id":null,"method":"m"}`,
		`{"jsonrpc":"2.0","id":{},"method":"m"}`,
		`{"jsonrpc":"2.0","id":true,"method":"m"}`,
		`{"jsonrpc":"2.0","method":1}`,
		`{"jsonrpc":"2.0","method":"m","params":"x"}`,
		`{"jsonrpc":"2.0","method":"m","result":1}`,
		`{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}`,
		`{"jsonrpc":"2.0","result":1}`,
		`{"jsonrpc":"2.0","id":null,"result":1}`,
		`{"jsonrpc":"2.0","id":1,"error":1}`,
		`{"jsonrpc":"2.0","id":1,"error":{}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1.5,"message":""}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1}}`,
		`{"jsonrpc":"2.0","method":"a","method":"b"}`,
		`{"jsonrpc":"2.0","method":"a","\u006dethod":"b"}`,
		`[{"jsonrpc":"2.0","method":"m"}]`,
	} {
		if err := event.CheckMessage([]byte(m)); !errors.Is(err, event.ErrInvalidMessage) {
			t.Errorf("CheckMessage(%s) = %v, want ErrInvalidMessage", m, err)
		}
	}
}

func TestEventTypes(t *testing.T) {
	for _, typ := range []string{"message", "progress", "a b", "é", "rejoinder", "rejoin", strings.Repeat("x", 128)} {
		if err := event.CheckType(typ); err != nil {
			t.Errorf("CheckType(%q) = %v, want nil", typ, err)
		}
	}
	for _, typ := range []string{"", "a\nb", "a\rb", "a\x00b", "\x7f", " a", "a ", "\xff", strings.Repeat("x", 129)} {
		if err := event.CheckType(typ); !errors.Is(err, event.ErrInvalidType) {
			t.Errorf("CheckType(%q) = %v, want ErrInvalidType", typ, err)
		}
	}
	for _, typ := range []string{"connect", "cursor", "gap", "close", "expiring", "open", "error", "rejoin.later", "rejoin."} {
		if err := event.CheckType(typ); !errors.Is(err, event.ErrReservedType) {
			t.Errorf("CheckType(%q) = %v, want ErrReservedType", typ, err)
		}
	}
}

// FuzzCheckMessage compares the scanner with encoding/json: what is accepted must
// decode as an object with jsonrpc 2.0.
func FuzzCheckMessage(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,2,{"b":"\\\""}]}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`,
		`{"jsonrpc":"2.0","id":1,"result":-1e9}`, `[]`, `{`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if event.CheckMessage(data) != nil {
			return
		}
		var m map[string]json.RawMessage
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatalf("accepted, but encoding/json says %v", err)
		}
		if string(m["jsonrpc"]) != `"2.0"` {
			t.Fatalf("accepted with jsonrpc %s", m["jsonrpc"])
		}
		kinds := 0
		for _, k := range []string{"method", "result", "error"} {
			if m[k] != nil {
				kinds++
			}
		}
		if kinds != 1 {
			t.Fatalf("accepted with %d of method, result and error", kinds)
		}
	})
}

func BenchmarkCheckMessage(b *testing.B) {
	m := []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + strings.Repeat("x", 440) + `"}}`)
	b.SetBytes(int64(len(m)))
	b.ReportAllocs()
	for b.Loop() {
		must.NoError(b, event.CheckMessage(m))
	}
}

func FuzzCompact(f *testing.F) {
	for _, s := range []string{" {\n\"a b\" : [ 1 , -2.5e3,\"\\\" \\\\\"\r\n] , \"\":{ } }\t", "null", "[]", "\"\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want bytes.Buffer
		if json.Compact(&want, data) != nil {
			return
		}
		if got := event.Compact(data); !bytes.Equal(got, want.Bytes()) || &got[0] != &data[0] {
			t.Fatalf("%q, want %q in its place", got, want.Bytes())
		}
	})
}
