package mcp_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
)

const whole = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"caf\u00e9","arguments":{"n":12345678901234567890},` +
	`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}},` +
	`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/logLevel":"info","progressToken":"t"}}}`

// codeOf returns the code of an error, which is one that a client gets.
func codeOf(t testing.TB, err error) int {
	t.Helper()
	e, ok := errors.AsType[*mcp.Error](err)
	if !ok || e.Status < 400 || e.Status > 599 || e.Message == "" {
		t.Fatalf("the error is %#v", err)
	}
	return e.Code
}

func TestParse_WholeRequest(t *testing.T) {
	r := must.Value(mcp.Parse([]byte(whole)))(t)
	got := []string{string(r.ID), r.Method, r.Name, r.Version, r.LogLevel, string(r.Capabilities), string(r.ClientInfo), string(r.Params["arguments"]), string(r.Meta["progressToken"])}
	want := []string{"7", "tools/call", "caf\u00e9", "2026-07-28", "info", `{"roots":{}}`, `{"name":"x","version":"1"}`, `{"n":12345678901234567890}`, `"t"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParse_Invalid(t *testing.T) {
	for name, tt := range map[string]struct {
		old, replacement string
		code             int
	}{
		"a notification":         {`"id":7,`, ``, -32600},
		"no object":              {`"params":{`, `"params":[{`, -32600},
		"no version":             {`"io.modelcontextprotocol/protocolVersion":"2026-07-28",`, ``, -32602},
		"a version of no text":   {`"2026-07-28"`, `20260728`, -32602},
		"no capabilities":        {`"io.modelcontextprotocol/clientCapabilities":{"roots":{}},`, ``, -32602},
		"capabilities as list":   {`{"roots":{}}`, `["roots"]`, -32602},
		"client info as text":    {`{"name":"x","version":"1"}`, `"x"`, -32602},
		"a log level of no text": {`"info"`, `1`, -32602},
		"a log level too long":   {`"info"`, `"` + strings.Repeat("x", 33) + `"`, -32602},
		"a token as object":      {`"t"}`, `{"t":1}}`, -32602},
		"a token as list":        {`"t"}`, `[1]}`, -32602},
		"a token as truth":       {`"t"}`, `true}`, -32602},
		"a token too long":       {`"t"}`, `"` + strings.Repeat("x", 1<<10) + `"}`, -32602},
		"no name":                {`"name":"caf\u00e9",`, ``, -32602},
		"_meta as list":          {`"_meta":{`, `"_meta":[],"x":{`, -32602},
	} {
		r, err := mcp.Parse([]byte(strings.Replace(whole, tt.old, tt.replacement, 1)))
		if code := codeOf(t, err); code != tt.code {
			t.Errorf("%s: %d, %v", name, code, err)
		}
		if tt.code == -32602 && string(r.ID) != "7" {
			t.Errorf("%s: the ID is %s", name, r.ID)
		}
	}
}

func TestParse_ProgressToken(t *testing.T) {
	for _, token := range []string{`"t"`, `-1.5e3`, `0`, `"` + strings.Repeat("x", 1000) + `"`} {
		r, err := mcp.Parse([]byte(strings.Replace(whole, `"t"}`, token+`}`, 1)))
		if err != nil || string(r.Meta["progressToken"]) != token {
			t.Errorf("%s is read as %s, %v", token, r.Meta["progressToken"], err)
		}
	}
	r, err := mcp.Parse([]byte(strings.Replace(whole, `"t"}`, `null}`, 1)))
	if token, ok := r.Meta["progressToken"]; ok || err != nil {
		t.Errorf("null is read as %s, %v", token, err)
	}
}

func TestClaims_VersionInTheBody(t *testing.T) {
	for body, want := range map[string]bool{
		whole: true,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`:                              false,
		`{"jsonrpc":"2.0","method":"x","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"1900-01-01"}}}`:            true,
		`{"jsonrpc":"2.0","id":1,"method":"x","params":{"arguments":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`: false,
		`{"io.modelcontextprotocol/protocolVersion`:                                                                             false,
	} {
		if got := mcp.Claims([]byte(body)); got != want {
			t.Errorf("%s: %t", body, got)
		}
	}
}

func TestCheck_HeaderRepeatsTheBody(t *testing.T) {
	for name, tt := range map[string]struct {
		body         string
		header       map[string]string // changes
		code, status int
	}{
		"all":                   {code: 0},
		"plain name":            {header: map[string]string{mcp.HeaderName: "caf\u00e9"}, code: 0},
		"no version":            {header: map[string]string{mcp.HeaderVersion: ""}, code: -32020, status: 400},
		"another version":       {header: map[string]string{mcp.HeaderVersion: "2025-11-25"}, code: -32020, status: 400},
		"no method":             {header: map[string]string{mcp.HeaderMethod: ""}, code: -32020, status: 400},
		"another method":        {header: map[string]string{mcp.HeaderMethod: "TOOLS/call"}, code: -32020, status: 400},
		"no name":               {header: map[string]string{mcp.HeaderName: ""}, code: -32020, status: 400},
		"another name":          {header: map[string]string{mcp.HeaderName: "cafe"}, code: -32020, status: 400},
		"no Base64":             {header: map[string]string{mcp.HeaderName: "=?base64?!?="}, code: -32020, status: 400},
		"an unknown version":    {body: strings.Replace(whole, "2026-07-28", "v9", 1), header: map[string]string{mcp.HeaderVersion: "v9"}, code: -32022, status: 400},
		"a version of sessions": {body: strings.Replace(whole, "2026-07-28", "2025-11-25", 1), header: map[string]string{mcp.HeaderVersion: "2025-11-25"}, code: -32022, status: 400},
		"a removed method":      {body: strings.Replace(whole, "tools/call", "ping", 1), header: map[string]string{mcp.HeaderMethod: "ping"}, code: -32601, status: 404},
	} {
		if tt.body == "" {
			tt.body = whole
		}
		r, err := mcp.Parse([]byte(tt.body))
		must.NoError(t, err)
		err = r.Check(func(field string) string {
			if value, ok := tt.header[field]; ok {
				return value
			}
			return map[string]string{mcp.HeaderVersion: mcp.Stateless, mcp.HeaderMethod: "tools/call", mcp.HeaderName: "=?base64?Y2Fmw6k=?="}[field]
		})
		if tt.code == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		e := &mcp.Error{}
		if codeOf(t, err) != tt.code || !errors.As(err, &e) || e.Status != tt.status {
			t.Errorf("%s: %v", name, err)
		}
		want := map[string]any{"supported": mcp.Revisions, "requested": "v9"}
		if r.Version == "2025-11-25" {
			want = map[string]any{"supported": []string{mcp.Stateless}, "requested": "2025-11-25"}
		}
		if tt.code == -32022 && !reflect.DeepEqual(e.Data, want) {
			t.Errorf("%s: the data is %v", name, e.Data)
		}
	}
}

// The examples are those of MCP 2026-07-28, Streamable HTTP, Value Encoding.
func TestEncode_Examples(t *testing.T) {
	for text, want := range map[string]string{
		"us-west1":            "us-west1",
		"Hello, \u4e16\u754c": "=?base64?SGVsbG8sIOS4lueVjA==?=",
		" padded ":            "=?base64?IHBhZGRlZCA=?=",
		"line1\nline2":        "=?base64?bGluZTEKbGluZTI=?=",
		"=?base64?literal?=":  "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
		"":                    "",
	} {
		if got := mcp.Encode(text); got != want {
			t.Errorf("%q is %s", text, got)
		}
		if got, ok := mcp.Decode(want); got != text || !ok {
			t.Errorf("%s is %q", want, got)
		}
	}
}

func TestStatusOf_Response(t *testing.T) {
	for code, want := range map[string]int{"-32601": 404, "-32020": 400, "-32021": 400, "-32022": 400, "-32602": 200, "-32603": 200} {
		if got := mcp.StatusOf([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":` + code + `,"message":"m"}}`)); got != want {
			t.Errorf("%s has %d", code, got)
		}
	}
	if got := mcp.StatusOf([]byte(`{"jsonrpc":"2.0","id":1,"result":{"error":{"code":-32601}}}`)); got != http.StatusOK {
		t.Errorf("a result has %d", got)
	}
}

func TestState_OfABridgeOrAnother(t *testing.T) {
	const session = "0b5e8c6e-31f0-4a55-9d5f-9a6f8f0f5a11"
	s := mcp.State{Session: session, Life: "abc", Round: "X1"}
	if got, ours, err := mcp.ParseState(s.String()); got != s || !ours || err != nil {
		t.Errorf("%+v, %t, %v", got, ours, err)
	}
	if _, ours, err := mcp.ParseState("another server's"); ours || err != nil {
		t.Errorf("the state of another is ours: %v", err)
	}
	for _, text := range []string{"rejoin.", "rejoin.x.abc.1", "rejoin." + session, "rejoin." + session + ".abc", "rejoin." + session + ".ABC.1", "rejoin." + session + "..1"} {
		if _, ours, err := mcp.ParseState(text); !ours || codeOf(t, err) != -32602 {
			t.Errorf("%s: %t, %v", text, ours, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(whole)
	f.Add(strings.Replace(whole, "tools/call", "resources/read", 1))
	f.Add(`{"jsonrpc":"2.0","id":1,"method":"x","params":[]}`)
	f.Fuzz(func(t *testing.T, body string) {
		r, err := mcp.Parse([]byte(body))
		if err != nil {
			codeOf(t, err)
			return
		}
		err = r.Check(func(field string) string {
			return map[string]string{mcp.HeaderVersion: r.Version, mcp.HeaderMethod: r.Method, mcp.HeaderName: mcp.Encode(r.Name)}[field]
		})
		if err == nil {
			return
		}
		empty := r.Version == "" || r.Method == "" || mcp.NameOf(r.Method) != "" && r.Name == "" // such a header counts as missing
		if code := codeOf(t, err); code != rpc.CodeMethodNotFound && (code != mcp.CodeUnsupportedVersion || r.Version == mcp.Stateless) && !empty {
			t.Errorf("a header that repeats the body is refused: %v", err)
		}
	})
}

func FuzzState(f *testing.F) {
	f.Add("rejoin.0b5e8c6e-31f0-4a55-9d5f-9a6f8f0f5a11.abc.X")
	f.Fuzz(func(t *testing.T, text string) {
		s, ours, err := mcp.ParseState(text)
		if ours && err == nil && s.String() != text {
			t.Errorf("%q came back as %q", text, s)
		}
		if err != nil && codeOf(t, err) != -32602 {
			t.Error(err)
		}
	})
}

func FuzzEncode(f *testing.F) {
	f.Add("=?base64?x?=")
	f.Add("\ttab\t")
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			return
		}
		value := mcp.Encode(text)
		if got, ok := mcp.Decode(value); got != text || !ok {
			t.Errorf("%q came back as %q", text, got)
		}
		h := http.Header{}
		h.Set("X", value)
		if strings.Trim(value, " \t") != value || strings.ContainsFunc(value, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') }) {
			t.Errorf("%q cannot be a header's value", value)
		}
		must.Value(json.Marshal(value))(t)
	})
}

// stated returns a request with a requestState.
func stated(t testing.TB, state, more string) mcp.Request {
	t.Helper()
	b := must.Value(json.Marshal(state))(t)
	return must.Value(mcp.Parse([]byte(strings.Replace(whole, `"arguments"`, `"requestState":`+string(b)+more+`,"arguments"`, 1))))(t)
}

func TestHandOver_OfTheSameRequest(t *testing.T) {
	r := must.Value(mcp.Parse([]byte(whole)))(t)
	h := mcp.HandOver{Session: "0b5e8c6e-31f0-4a55-9d5f-9a6f8f0f5a11", Times: 2, Content: r.Content(), After: `abcdefabcdef-=22a.b=22_0000000_17`}
	got, ours, err := stated(t, h.String(), `,"inputResponses":{"q":1}`).HandOver()
	if got != h || !ours || err != nil {
		t.Errorf("%+v, %t, %v", got, ours, err)
	}
	if _, _, err := stated(t, h.String(), "").State(); err == nil {
		t.Error("a program that does not know the state would make the call again")
	}
	if _, ours, err := stated(t, "another server's", "").HandOver(); ours || err != nil {
		t.Errorf("the state of another is ours: %v", err)
	}
	for name, text := range map[string]string{
		"half of it": "rejoin.at.0b5e8c6e-31f0-4a55-9d5f-9a6f8f0f5a11.1", "another request": strings.Replace(h.String(), h.Content, strings.Repeat("0", 32), 1),
		"too often": strings.Replace(h.String(), ".2.", ".4.", 1), "never": strings.Replace(h.String(), ".2.", ".0.", 1), "no session": strings.Replace(h.String(), h.Session, "x", 1),
	} {
		if _, ours, err := stated(t, text, "").HandOver(); !ours || codeOf(t, err) != -32602 {
			t.Errorf("%s: %t, %v", name, ours, err)
		}
	}
}

func TestRenamed_ForTheNewestRequest(t *testing.T) {
	r := must.Value(mcp.Parse([]byte(whole)))(t)
	for message, want := range map[string]string{
		`{"jsonrpc":"2.0","id":"a","result":{"n":12345678901234567890,"html":"<&>"}}`:                             `{"id":7,"jsonrpc":"2.0","result":{"n":12345678901234567890,"html":"<&>"}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}`:                                            `{"error":{"code":1,"message":"m"},"id":7,"jsonrpc":"2.0"}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":2,"total":3}}`: `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":2,"progressToken":"t","total":3}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"progressToken":1}}`:                         `{"jsonrpc":"2.0","method":"notifications/message","params":{"progressToken":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress"}`:                                                     `{"jsonrpc":"2.0","method":"notifications/progress"}`,
		`{"jsonrpc":"2.0","method":"notifications\/progress","params":{"progressToken":1,"progress":2}}`:          `{"jsonrpc":"2.0","method":"notifications\/progress","params":{"progress":2,"progressToken":"t"}}`,
		"rubbish": "rubbish",
	} {
		if got := string(r.Renamed([]byte(message))); got != want {
			t.Errorf("%s is %s, want %s", message, got, want)
		}
	}
	r.Meta = nil
	if got := r.Renamed([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":2}}`)); got != nil {
		t.Errorf("a client without a token receives %s", got)
	}
}

func TestStoredTask_EventDoesNotGrow(t *testing.T) {
	data, err := mcp.StoredTask{Task: mcp.Task{ID: "t", Status: mcp.TaskCompleted, Result: json.RawMessage(`{"html":"<&>"}`)}}.Event()
	if err != nil || !strings.Contains(string(data), `"result":{"html":"<&>"}`) {
		t.Errorf("%s, %v", data, err)
	}
}
