package mcpedge

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/shared/event"
	"rejoin/shared/must"
)

func TestMCP_PostedMessage(t *testing.T) {
	for body, want := range map[string]posted{
		`{"jsonrpc":"2.0","id":1,"method":"a"}`:                            {ids: raws("1"), methods: []string{"a"}},
		`{"jsonrpc":"2.0","id":"x","ID":2,"Method":"b","method":"\u0061"}`: {ids: raws(`"x"`), methods: []string{"a"}},
		`{"jsonrpc":"2.0","method":"a"}`:                                   {},
		`{"jsonrpc":"2.0","id":1,"result":{}}`:                             {},
		" \r\n\t[" + toolList + "," + toolCall + `,{"jsonrpc":"2.0","method":"a"}]`: {
			batch: true, ids: raws("7", `"a"`), methods: []string{"tools/list", "tools/call"},
		},
	} {
		got, err := parsePosted([]byte(body))
		if err != nil || got.batch != want.batch || !bytes.Equal(event.MustJSON(got.ids), event.MustJSON(want.ids)) || !bytes.Equal(event.MustJSON(got.methods), event.MustJSON(want.methods)) {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
}

func raws(ids ...string) (r []json.RawMessage) {
	for _, id := range ids {
		r = append(r, json.RawMessage(id))
	}
	return r
}

// An accepted body is JSON-RPC, message by message, and has an ID for each request; any other
// body is refused, with a refusal and no other error.
func FuzzParsePosted(f *testing.F) {
	for _, body := range []string{toolCall, toolList, "[" + toolCall + "]", "[]", "[[]]", "{", " [", `{"jsonrpc":"2.0","id":1e400,"method":"\ud800"}`, "\xff", `[{"jsonrpc":"2.0","method":"a"},1]`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := parsePosted(body)
		if err != nil {
			if _, ok := errors.AsType[*refusal.Error](err); !ok {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if !p.batch {
			must.NoError(t, event.CheckMessage(body))
		}
		if !json.Valid(body) || len(p.ids) != len(p.methods) {
			t.Fatalf("%+v of %q", p, body)
		}
		for _, id := range p.ids {
			if !json.Valid(id) || id[0] == '{' || id[0] == '[' || id[0] == 'n' {
				t.Fatalf("the ID %s", id)
			}
		}
	})
}
