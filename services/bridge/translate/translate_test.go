package translate_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rejoin/services/bridge/translate"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
)

func request(t testing.TB, method, params string) mcp.Request {
	t.Helper()
	r, err := mcp.Parse([]byte(`{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"x":{}}},"progressToken":"t","traceparent":"00"}}}`))
	must.NoError(t, err)
	return r
}

func message(t testing.TB, text string) rpc.Message {
	t.Helper()
	return must.Value(rpc.ParseMessage([]byte(text)))(t)
}

func same(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if string(got) != want {
		t.Errorf("%s is\n%s, want\n%s", what, got, want)
	}
}

var server = translate.ServerInfo{
	Version: "2025-11-25", Info: json.RawMessage(`{"name":"s"}`), Instructions: json.RawMessage(`"do"`),
	Capabilities: translate.Object{
		"tools": json.RawMessage(`{"listChanged":true}`), "resources": json.RawMessage(`{"subscribe":false,"listChanged":true}`), "tasks": json.RawMessage(`{}`),
	},
}

func TestInitialize_OfARequest(t *testing.T) {
	same(t, "initialize", translate.Initialize(request(t, "tools/list", ""), "i"),
		`{"id":"i","jsonrpc":"2.0","method":"initialize","params":{"capabilities":{"elicitation":{}},"clientInfo":{"name":"rejoin","version":"1"},"protocolVersion":"2025-11-25"}}`)
}

func TestRequest_ForEarlierServer(t *testing.T) {
	r := request(t, "tools/call", `"name":"x","arguments":{"n":12345678901234567890,"b":[ 1 ]},"inputResponses":{},"requestState":"s","task":{},`)
	same(t, "the request", translate.Request(r, "id", nil),
		`{"id":"id","jsonrpc":"2.0","method":"tools/call","params":{"_meta":{"progressToken":"id","traceparent":"00"},"arguments":{"n":12345678901234567890,"b":[1]},"name":"x"}}`)
}

func TestResult_ForClientWithoutSessions(t *testing.T) {
	for _, tt := range []struct{ method, result, want string }{
		{"tools/call", `{"content":["<&>"]}`, `{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}},"content":["<&>"],"resultType":"complete"}`},
		{"tools/call", `{"_meta":{"a":1}}`, `{"_meta":{"a":1,"io.modelcontextprotocol/serverInfo":{"name":"s"}},"resultType":"complete"}`},
		{"tools/call", `{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}`, `{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}},"resultType":"complete"}`},
		{"tools/call", `{"_meta":null}`, `{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}},"resultType":"complete"}`},
		{"tools/list", `{}`, `{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}},"cacheScope":"private","resultType":"complete","ttlMs":0}`},
		{"tools/list", `{"tools":[{"name":"<&>","execution":{"taskSupport":"required"}}]}`, `{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}},"cacheScope":"private","resultType":"complete","tools":[{"name":"<&>"}],"ttlMs":0}`},
	} {
		got := must.Value(server.Result(tt.method, json.RawMessage(tt.result)))(t)
		same(t, tt.method, got, tt.want)
	}
	for _, result := range []string{`[]`, `null`, `1`, `{"_meta":[]}`} {
		if got, err := server.Result("tools/call", json.RawMessage(result)); !errors.Is(err, translate.ErrResult) {
			t.Errorf("%s became %s, %v", result, got, err)
		}
	}
}

func TestDiscover_OfEarlierServer(t *testing.T) {
	got := must.Value(server.Discover(false))(t)
	same(t, "the result", got, `{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}},"cacheScope":"private","capabilities":{"resources":{"subscribe":false,"listChanged":true},"tools":{"listChanged":true}},"instructions":"do","resultType":"complete",`+
		`"supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"ttlMs":0}`)
	must.Value((translate.ServerInfo{}).Discover(false))(t)
}

func TestParseServer_Result(t *testing.T) {
	s, err := translate.ParseServer(json.RawMessage(`{"protocolVersion":"2025-06-18","serverInfo":{"name":"a"},"capabilities":{"tools":{"listChanged":true}},"instructions":"x"}`))
	if err != nil || s.Version != "2025-06-18" || !s.Can("tools", "listChanged") || !s.Can("tools", "") || s.Can("prompts", "") || s.Can("tools", "other") {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := translate.ParseServer(json.RawMessage(`{"protocolVersion":"2025-06-18","serverInfo":null,"capabilities":null,"instructions":null}`)); err != nil || s.Info != nil || s.Instructions != nil {
		t.Errorf("%+v, %v", s, err)
	}
	for _, result := range []string{`{}`, `[]`, `{"protocolVersion":1}`} {
		if _, err := translate.ParseServer(json.RawMessage(result)); !errors.Is(err, translate.ErrResult) {
			t.Errorf("%s: %v", result, err)
		}
	}
}

func TestError_OfEarlierServer(t *testing.T) {
	for e, want := range map[string]string{
		`{"code":-32002,"message":"<&>","data":{"uri":"?x&y"}}`: `{"code":-32602,"message":"<&>","data":{"uri":"?x&y"}}`,
		`{"code":-32042,"message":"visit","data":{"a":1}}`:      `{"code":-32603,"message":"visit","data":{"a":1}}`,
		`{"code": -32603, "message":"m"}`:                       `{"code": -32603, "message":"m"}`,
		`"x"`:                                                   `"x"`,
	} {
		same(t, e, translate.Error(json.RawMessage(e)), want)
	}
}

func TestAskable_WhatIsDeclared(t *testing.T) {
	if can := translate.Askable(request(t, "tools/call", `"name":"x",`)); !can["elicitation/create"] || can["roots/list"] || can["sampling/createMessage"] {
		t.Errorf("a call can be asked %v", can)
	}
	if can := translate.Askable(request(t, "tools/list", "")); len(can) > 0 {
		t.Errorf("a list can be asked %v", can)
	}
}

func TestInputRequired_Questions(t *testing.T) {
	same(t, "the result", server.InputRequired(map[string]translate.Question{"q": {Method: "roots/list"}}, "s"),
		`{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}},"inputRequests":{"q":{"method":"roots/list","params":{}}},"requestState":"s","resultType":"input_required"}`)
	same(t, "without questions", translate.ServerInfo{}.InputRequired(nil, "s"), `{"requestState":"s","resultType":"input_required"}`)
}

func TestProgress_TokenOfTheClient(t *testing.T) {
	m := message(t, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"id","progress":0.5}}`)
	same(t, "the notification", translate.Progress(m, json.RawMessage(`"t"`)), `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":0.5,"progressToken":"t"}}`)
	if got := translate.Progress(m, nil); got != nil {
		t.Errorf("without a token it is %s", got)
	}
}

func TestListened_WhatWasAskedFor(t *testing.T) {
	r := request(t, "subscriptions/listen", `"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["x:"]},`)
	f := must.Value(translate.ParseFilter(r))(t)
	honoured := f.Of(server)
	same(t, "the acknowledgement", translate.Acknowledged(honoured, r.ID),
		`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"notifications":{"toolsListChanged":true}}}`)
	for text, want := range map[string]string{
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`:                         `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}`,
		`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`:                       "",
		`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:"}}`:    "",
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`: "",
	} {
		same(t, text, translate.Listened(message(t, text), honoured, r.ID), want)
	}
	for _, params := range []string{`{}`, `{"_meta":null}`} {
		m := message(t, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":`+params+`}`)
		same(t, params, translate.Listened(m, honoured, r.ID), `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}`)
		same(t, params, translate.EarlierNotification(m), `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{}}`)
	}
	updated := message(t, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:/y","_meta":{"a":1}}}`)
	same(t, "an update", translate.Listened(updated, f, r.ID), `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"a":1,"io.modelcontextprotocol/subscriptionId":7},"uri":"x:/y"}}`)
	same(t, "the end", translate.ListenEnd(r.ID), `{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"resultType":"complete"}`)
	if _, err := translate.ParseFilter(request(t, "subscriptions/listen", "")); err == nil {
		t.Error("a request without a filter is read")
	}
}

func TestWithID_OfAResponse(t *testing.T) {
	same(t, "the response", translate.WithID([]byte(`{"jsonrpc":"2.0","id":null,"result":{"n":1.50}}`), json.RawMessage(`"a"`)), `{"id":"a","jsonrpc":"2.0","result":{"n":1.50}}`)
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"sampling":{}},"clientInfo":{"name":"c","version":"1"}}}`

func TestParseClient_Version(t *testing.T) {
	for asked, want := range map[string]string{"2025-06-18": "2025-06-18", "2024-11-05": "2024-11-05", "2026-07-28": "2025-11-25", "x": "2025-11-25"} {
		c := translate.ParseClient(message(t, strings.Replace(initialize, "2025-06-18", asked, 1)))
		if c.Version != want || !c.Askable() || string(c.Info) != `{"name":"c","version":"1"}` {
			t.Errorf("%s: %+v", asked, c)
		}
	}
	if c := translate.ParseClient(message(t, `{"jsonrpc":"2.0","id":0,"method":"initialize"}`)); c.Askable() || string(c.Capabilities) != "{}" {
		t.Errorf("without parameters: %+v", c)
	}
}

func TestLater_Request(t *testing.T) {
	c := translate.ParseClient(message(t, initialize))
	m := message(t, `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"x","task":{"ttl":1},"_meta":{"progressToken":1}}}`)
	same(t, "the request", c.Later(m, "error", translate.Required{Questions: map[string]translate.Question{"q": {}}, State: json.RawMessage(`"s"`)}.Again(translate.Object{"q": json.RawMessage(`{}`)})),
		`{"id":5,"jsonrpc":"2.0","method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"sampling":{}},"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/logLevel":"error",`+
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":1},"inputResponses":{"q":{}},"name":"x","requestState":"s"}}`)
	if r, err := mcp.Parse(c.Listen("l", translate.Filter{Tools: true})); err != nil || r.Method != "subscriptions/listen" {
		t.Errorf("the request to listen is %+v, %v", r, err)
	}
}

func TestParseRequired_Result(t *testing.T) {
	for result, want := range map[string]struct{ asks, fails bool }{
		`{"resultType":"input_required","inputRequests":{"a":null}}`: {true, false},
		`{"content":[]}`:                                      {false, false},
		`{"resultType":"complete"}`:                           {false, false},
		`{"resultType":"input_required"}`:                     {true, true},
		`{"resultType":"input_required","requestState":""}`:   {true, false},
		`{"resultType":"input_required","requestState":null}`: {true, true},
		`{"resultType":"task"}`:                               {false, true},
		`[]`:                                                  {false, true},
	} {
		if _, asks, err := translate.ParseRequired(json.RawMessage(result)); asks != want.asks || (err != nil) != want.fails {
			t.Errorf("%s: %t, %v", result, asks, err)
		}
	}
}

func TestEarlier_Result(t *testing.T) {
	same(t, "a list", translate.Earlier("tools/list", json.RawMessage(`{"resultType":"complete","ttlMs":5,"cacheScope":"public","tools":[]}`)), `{"tools":[]}`)
	same(t, "a call", translate.Earlier("tools/call", json.RawMessage(`{"resultType":"complete","ttlMs":5,"structuredContent":"x"}`)), `{"ttlMs":5}`)
	same(t, "a notification", translate.EarlierNotification(message(t, `{"jsonrpc":"2.0","method":"n","params":{"a":1,"_meta":{"io.modelcontextprotocol/subscriptionId":1,"b":2}}}`)),
		`{"jsonrpc":"2.0","method":"n","params":{"_meta":{"b":2},"a":1}}`)
}

func TestHeaders_OfATool(t *testing.T) {
	got := translate.Headers(json.RawMessage(`{"x-mcp-header":"No","properties":{"a":{"x-mcp-header":"A"},"b":{"properties":{"c":{"x-mcp-header":"C"}}},"d":1}}`))
	if diff := cmp.Diff(map[string][]string{"A": {"a"}, "C": {"b", "c"}}, got); diff != "" {
		t.Error(diff)
	}
	arguments := json.RawMessage(`{"text":"x","yes":true,"n":42,"none":null,"list":[1],"deep":{"er":"y"}}`)
	for path, want := range map[string]string{"text": "x", "yes": "true", "n": "42", "deep er": "y", "none": "", "list": "", "missing": "", "text er": ""} {
		if value, ok := translate.Argument(arguments, strings.Fields(path)); value != want || ok != (want != "") {
			t.Errorf("%s is %q, %t", path, value, ok)
		}
	}
}

func FuzzResult(f *testing.F) {
	f.Add("tools/list", `{"tools":[{"execution":1}],"_meta":{}}`)
	f.Add("tools/call", `{"_meta":null}`)
	f.Add("tools/list", `null`)
	f.Add("tools/call", `{"structuredContent":1,"resultType":"input_required","inputRequests":{"a":{"method":"x"}}}`)
	f.Fuzz(func(t *testing.T, method, result string) {
		if !json.Valid([]byte(result)) {
			return
		}
		if got, err := server.Result(method, json.RawMessage(result)); err == nil && !json.Valid(got) {
			t.Errorf("%s became %s", result, got)
		}
		if got := translate.Earlier(method, json.RawMessage(result)); !json.Valid(got) {
			t.Errorf("%s became %s", result, got)
		}
		_, _, _ = translate.ParseRequired(json.RawMessage(result))
		_ = translate.Headers(json.RawMessage(result))
		if got := translate.WithID([]byte(result), json.RawMessage("1")); !json.Valid(got) {
			t.Errorf("%s became %s", result, got)
		}
	})
}

func TestWithoutTasks(t *testing.T) {
	ours := func(id string) bool { return id == "ours" }
	for in, want := range map[string]string{
		`{"id":1,"params":{"notifications":{"taskIds":["ours"],"toolsListChanged":true}}}`: `{"id":1,"params":{"notifications":{"toolsListChanged":true}}}`,
		`{"id":1,"params":{"notifications":{"taskIds":["ours","theirs"]}}}`:                `{"id":1,"params":{"notifications":{"taskIds":["theirs"]}}}`,
		`{"id":1,"params":{"notifications":{}}}`:                                           `{"id":1,"params":{"notifications":{}}}`,
		`{"id":1,"params":{"notifications":null}}`:                                         `{"id":1,"params":{"notifications":null}}`,
		`{"id":1}`: `{"id":1}`,
		// A server may read a list with something else in it, another case, or the first of two.
		`{"params":{"notifications":{"taskIds":["ours",1],"toolsListChanged":true}}}`:                 `{"params":{"notifications":{"toolsListChanged":true}}}`,
		`{"params":{"notifications":{"taskIds":["theirs"],"TaskIDs":["ours"]}}}`:                      `{"params":{"notifications":{"taskIds":["theirs"]}}}`,
		`{"params":{"notifications":{"taskIds":["ours"],"taskIds":[]}}}`:                              `{"params":{"notifications":{}}}`,
		`{"params":{"Notifications":{"taskIds":["ours"]},"notifications":{"toolsListChanged":true}}}`: `{"params":{"notifications":{"toolsListChanged":true}}}`,
	} {
		same(t, in, translate.WithoutTasks([]byte(in), ours), want)
	}
}

func TestAlsoAcknowledged(t *testing.T) {
	for in, want := range map[string]string{
		`{"params":{"notifications":{"taskIds":["theirs"],"x":1}}}`: `{"params":{"notifications":{"taskIds":["theirs","ours"],"x":1}}}`,
		`{"params":{"notifications":{}}}`:                           `{"params":{"notifications":{"taskIds":["ours"]}}}`,
		`{"params":{"notifications":1}}`:                            `{"params":{"notifications":1}}`,
		`{}`:                                                        `{}`,
	} {
		got, _ := translate.AlsoAcknowledged([]byte(in), []string{"ours"})
		same(t, in, got, want)
	}
	in := []byte(`{"params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["a"]}}}`)
	got, f := translate.AlsoAcknowledged(in, nil)
	if same(t, string(in), got, string(in)); !f.Tools || f.Prompts || len(f.URIs) != 1 {
		t.Errorf("the server acknowledges %+v", f)
	}
}
