package rpc_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
)

func raw(ids ...string) (r []json.RawMessage) {
	for _, id := range ids {
		r = append(r, json.RawMessage(id))
	}
	return r
}

func TestStream_NamesItsRequests(t *testing.T) {
	for _, tt := range []struct {
		ids   []string
		batch bool
		name  string
	}{
		{[]string{"7"}, false, "7"},
		{[]string{`"7"`}, false, `"7"`},
		{[]string{"-1.50e3"}, false, "-1.50e3"},
		{[]string{`"a \"b\\ü😀"`}, false, `"a\u0020\"b\\\u00fc\ud83d\ude00"`},
		{[]string{`""`}, false, `""`},
		{[]string{"1"}, true, "[1]"},
		{[]string{"1", `"a,]"`}, true, `[1,"a,]"]`},
	} {
		stream := must.Value(rpc.NewStream(raw(tt.ids...), tt.batch))(t)
		if unique, name, _ := strings.Cut(stream, "-"); name != tt.name || len(unique) != 12 {
			t.Errorf("%s: the stream is %s", tt.ids, stream)
		}
		ids, batch := rpc.RequestIDs(stream)
		if batch != tt.batch || !sameJSON(t, ids, raw(tt.ids...)) {
			t.Errorf("%s came back as %s", tt.ids, ids)
		}
	}
	a, _ := rpc.NewStream(raw("1"), false)
	if b, _ := rpc.NewStream(raw("1"), false); a == b {
		t.Errorf("twice %s", a)
	}
}

func TestStream_InvalidRequestID(t *testing.T) {
	for _, ids := range [][]json.RawMessage{nil, raw(""), raw("null"), raw("true"), raw("[1]"), raw("{}"), raw("1", "x"), raw(`"` + strings.Repeat("a", 120) + `"`)} {
		if stream, err := rpc.NewStream(ids, false); !errors.Is(err, rpc.ErrID) {
			t.Errorf("%s is %s, %v", ids, stream, err)
		}
	}
	for _, stream := range []string{"", "standalone", "abcdefabcdef", "abcdefabcdef-", "abcdefabcdef-x", "abcdefabcdef-null", "abcde-abcdef-1", "abcdefabcdef-1,", `abcdefabcdef-["a"`} {
		if ids, _ := rpc.RequestIDs(stream); len(ids) > 0 {
			t.Errorf("%s has %s", stream, ids)
		}
	}
}

// sameJSON compares numbers as they are written, and strings by their decoded text.
func sameJSON(t *testing.T, a, b []json.RawMessage) bool {
	t.Helper()
	read := func(ids []json.RawMessage) (v []any) {
		for _, id := range ids {
			var s string
			if json.Unmarshal(id, &s) == nil {
				v = append(v, s)
			} else {
				v = append(v, json.Number(id))
			}
		}
		return v
	}
	return reflect.DeepEqual(read(a), read(b))
}

func FuzzStream(f *testing.F) {
	for _, id := range []string{"1", `"a"`, `"\ud800"`, "1e400", "null", "\"\xff\""} {
		f.Add(id, true)
	}
	f.Fuzz(func(t *testing.T, id string, batch bool) {
		stream, err := rpc.NewStream(raw(id), batch)
		if err != nil {
			if !errors.Is(err, rpc.ErrID) {
				t.Fatal(err)
			}
			return
		}
		must.NoError(t, event.CheckStream(stream))
		if ids, b := rpc.RequestIDs(stream); b != batch || !sameJSON(t, ids, raw(strings.TrimSpace(id))) {
			t.Errorf("%s came back as %s", id, ids)
		}
	})
}
