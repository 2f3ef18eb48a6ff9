package ingest_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/services/ingest"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

// Every invalid request gets a problem document with a stable code, leaves no
// trace in log and registry, and does the service no harm.
func TestPublish_BadInput(t *testing.T) {
	const (
		events = "/v1/sessions/s/streams/t/events"
		start  = "/v1/sessions"
		plain  = "text/plain"
	)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	must.Value(w.Write(ping("1")))(t)
	must.NoError(t, w.Close())
	long := strings.Repeat("x", 129)
	good := string(ping("1"))
	big := func(size int) string { return `{"jsonrpc":"2.0","method":"` + strings.Repeat("m", size) + `"}` }
	type row struct {
		method, path, kind, body string
		headers                  []string
		status                   int
		code                     string
	}
	event := func(body string, status int, code string, headers ...string) row {
		return row{"POST", events, asJSON, body, headers, status, code}
	}
	named := func(method, path string) row {
		return row{method, path, asJSON, good, nil, 400, "invalid_name"}
	}
	session := func(body string, status int, code string) row {
		return row{"POST", start, asJSON, body, nil, status, code}
	}
	tests := map[string]row{
		"unknown route":            {"POST", "/v1/session", asJSON, good, nil, 404, "not_found"},
		"no stream":                {"POST", "/v1/sessions/s/streams//events", asJSON, good, nil, 404, "not_found"},
		"no version":               {"POST", "/sessions", asJSON, good, nil, 404, "not_found"},
		"method of events":         {"PUT", events, asJSON, good, nil, 405, "method_not_allowed"},
		"method of sessions":       {"PATCH", start, asJSON, "{}", nil, 405, "method_not_allowed"},
		"method of a session":      {"POST", "/v1/sessions/s", asJSON, "{}", nil, 405, "method_not_allowed"},
		"host":                     event(good, 403, "host_not_allowed", "Host", "evil.example"),
		"no type":                  {"POST", events, "", good, nil, 415, "unsupported_media_type"},
		"plain text":               {"POST", events, plain, good, nil, 415, "unsupported_media_type"},
		"type is a prefix":         {"POST", events, "application/json2", good, nil, 415, "unsupported_media_type"},
		"type is broken":           {"POST", events, "application/json; =", good, nil, 415, "unsupported_media_type"},
		"other charset":            {"POST", events, "application/json; charset=latin1", good, nil, 415, "unsupported_media_type"},
		"form":                     {"POST", events, "application/x-www-form-urlencoded", good, nil, 415, "unsupported_media_type"},
		"compressed":               event(zipped.String(), 415, "unsupported_media_type", "Content-Encoding", "gzip"),
		"large":                    event(big(1000), 413, "body_too_large"),
		"empty":                    event("", 400, "invalid_json"),
		"broken":                   event(`{"jsonrpc":"2.0"`, 400, "invalid_json"),
		"not UTF-8":                event("{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}", 400, "invalid_json"),
		"byte order mark":          event("\ufeff"+good, 400, "invalid_json"),
		"an empty array":           {"POST", events, asMessages, ` [ ]`, nil, 400, "invalid_body"},
		"too many in an array":     {"POST", events, asMessages, "[" + strings.Repeat("0,", 50_000) + "0]", nil, 413, "body_too_large"},
		"no array":                 {"POST", events, asMessages, good, nil, 400, "invalid_body"},
		"a broken array":           {"POST", events, asMessages, `[` + good + `,]`, nil, 400, "invalid_json"},
		"broken, one message":      event(`[`+good+`,]`, 400, "invalid_json"),
		"an array not UTF-8":       event("[\"\xff\"]", 400, "invalid_json"),
		"results of another kind":  {"POST", events + "?results=all", asJSON, good, nil, 400, "invalid_parameter"},
		"empty key":                event(good, 400, "invalid_header", "Idempotency-Key", ""),
		"long key":                 event(good, 400, "invalid_header", "Idempotency-Key", strings.Repeat("k", 257)),
		"key not ASCII":            event(good, 400, "invalid_header", "Idempotency-Key", "k\u00e9"),
		"key with tab":             event(good, 400, "invalid_header", "Idempotency-Key", "a\tb"),
		"two keys":                 event(good, 400, "invalid_header", "Idempotency-Key", "a", "Idempotency-Key", "b"),
		"empty event type":         event(good, 400, "invalid_header", "Event-Type", ""),
		"long event type":          event(good, 400, "invalid_header", "Event-Type", long),
		"event type with tab":      event(good, 400, "invalid_header", "Event-Type", "a\tb"),
		"event type not UTF-8":     event(good, 400, "invalid_header", "Event-Type", "a\xff"),
		"two event types":          event(good, 400, "invalid_header", "Event-Type", "a", "Event-Type", "a"),
		"event type gap":           event(good, 400, "reserved_type", "Event-Type", "gap"),
		"headers too large":        event(good, 431, "headers_too_large", "Idempotency-Key", strings.Repeat("k", 9000)),
		"session with space":       named("POST", "/v1/sessions/a%20b/streams/t/events"),
		"session dot":              named("POST", "/v1/sessions/%2e/streams/t/events"),
		"session dots":             named("POST", "/v1/sessions/%2e%2E/streams/t/events"),
		"session star":             named("POST", "/v1/sessions/*/streams/t/events"),
		"session encoded star":     named("POST", "/v1/sessions/%2A/streams/t/events"),
		"session with line break":  named("POST", "/v1/sessions/a%0d%0a/streams/t/events"),
		"stream with space":        named("POST", "/v1/sessions/s/streams/a%20b/events"),
		"stream dots":              named("POST", "/v1/sessions/s/streams/%2E%2e/events"),
		"stream not ASCII":         named("POST", "/v1/sessions/s/streams/%ff/events"),
		"closed star":              named("DELETE", "/v1/sessions/*"),
		"closed with space":        named("DELETE", "/v1/sessions/a%20b/streams/t"),
		"closed stream, long":      named("DELETE", "/v1/sessions/s/streams/"+long),
		"clear is 1":               {"DELETE", "/v1/sessions/s?clear=1", "", "", nil, 400, "invalid_parameter"},
		"clear is TRUE":            {"DELETE", "/v1/sessions/s/streams/t?clear=TRUE", "", "", nil, 400, "invalid_parameter"},
		"clear is empty":           {"DELETE", "/v1/sessions/s?clear=", "", "", nil, 400, "invalid_parameter"},
		"clear without value":      {"DELETE", "/v1/sessions/s?clear", "", "", nil, 400, "invalid_parameter"},
		"two clears":               {"DELETE", "/v1/sessions/s?clear=true&clear=true", "", "", nil, 400, "invalid_parameter"},
		"no such session":          {"DELETE", "/v1/sessions/s?clear=true", "", "", nil, 404, "not_found"},
		"session: plain text":      {"POST", start, plain, "{}", nil, 415, "unsupported_media_type"},
		"session: lines":           {"POST", start, asNDJSON, "{}", nil, 415, "unsupported_media_type"},
		"session: no type":         {"POST", start, "", "{}", nil, 415, "unsupported_media_type"},
		"session: empty, plain":    {"POST", start, plain, "", nil, 415, "unsupported_media_type"},
		"session: broken":          session(`{`, 400, "invalid_json"),
		"session: array":           session(`[]`, 400, "invalid_body"),
		"session: null":            session(`null`, 400, "invalid_body"),
		"session: unknown":         session(`{"owner":"me"}`, 400, "invalid_body"),
		"session: two names":       session(`{"session":"a","s\u0065ssion":"b"}`, 400, "invalid_body"),
		"session: two metadata":    session(`{"metadata":{},"metadata":{}}`, 400, "invalid_body"),
		"session: other case":      session(`{"Session":"a"}`, 400, "invalid_body"),
		"session: number":          session(`{"session":1}`, 400, "invalid_body"),
		"session: name is null":    session(`{"session":null}`, 400, "invalid_body"),
		"session: metadata list":   session(`{"metadata":[]}`, 400, "invalid_body"),
		"session: metadata string": session(`{"metadata":"{}"}`, 400, "invalid_body"),
		"session: retention":       session(`{"metadata":{"retention":{"maxEvents":"5"}}}`, 400, "invalid_body"),
		"session: messages":        session(`{"metadata":{"messages":"xml"}}`, 400, "invalid_body"),
		"session: retention typo":  session(`{"metadata":{"retention":{"max_events":5}}}`, 400, "invalid_body"),
		"session: a bridge's":      session(`{"metadata":{"a":1,"Mcp":{"bridge":"b","upstream":"x"}}}`, 400, "invalid_body"),
		"session: not UTF-8":       session("{\"metadata\":{\"a\":\"\xff\"}}", 400, "invalid_json"),
		"session: large metadata":  session(`{"metadata":{"a":"`+strings.Repeat("x", 16<<10-7)+`"}}`, 413, "body_too_large"),
		"session: name empty":      session(`{"session":""}`, 400, "invalid_name"),
		"session: name star":       session(`{"session":"*"}`, 400, "invalid_name"),
	}
	s := newSystem(t, eventlog.Settings{Partitions: 2, MaxMessageBytes: 1000})
	in := s.start(t, testConfig())
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			headers := tt.headers
			if tt.kind != "" {
				headers = append(headers, "Content-Type", tt.kind)
			}
			a := in.send(t, tt.method, tt.path, []byte(tt.body), headers...)
			a.expect(t, tt.status, tt.code)
			if tt.status == 415 && tt.path != events && !strings.Contains(string(a.body), "The Content-Type must be application/json.") {
				t.Errorf("the detail names types that are not taken: %s", a.body)
			}
		})
	}
	t.Run("larger than any body", func(t *testing.T) {
		conn := webtest.Dial(t, in.Addr().String(), "POST "+events+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+asJSON+"\r\nContent-Length: 100000000\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		read(t, resp).expect(t, 413, "body_too_large")
	})
	if all := s.entries(t); len(all) != 0 {
		t.Errorf("stored: %+v", all)
	}
	if all := in.b.Sessions.Sessions(); len(all) != 0 {
		t.Errorf("registered: %+v", all)
	}
	for _, kind := range []string{asJSON, "application/json; charset=utf-8", "Application/JSON;charset=\"UTF-8\"; x=y"} {
		in.send(t, http.MethodPost, events, ping("1"), "Content-Type", kind).stored(t, false)
	}
}

// Where messages must be JSON-RPC 2.0, no others are stored: by the flag, in a session that asks for
// it, and in one of an MCP server. Elsewhere any JSON value is a message.
func TestPublish_OnlyJSONRPC(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	everywhere := testConfig()
	everywhere.Messages = ingest.MessagesJSONRPC
	strict, in := s.start(t, everywhere), s.start(t, testConfig())
	in.send(t, http.MethodPost, "/v1/sessions", []byte(`{"session":"asks","metadata":{"messages":"jsonrpc"}}`), "Content-Type", asJSON).got(t, http.StatusCreated)
	must.Value(s.b.Sessions.Create(waittest.Context(t), session.New("bridged", "", json.RawMessage(`{"mcp":{"bridge":"b"}}`), time.Now())))(t)
	for name, body := range map[string]string{
		"a string":  `"ping"`,
		"no method": `{"jsonrpc":"2.0","id":1}`,
		"an array":  "[" + string(ping("1")) + "]",
	} {
		strict.post(t, "new", "t", []byte(body)).expect(t, http.StatusBadRequest, "invalid_message")
		for _, asked := range []string{"asks", "bridged"} {
			in.post(t, asked, "t", []byte(body)).expect(t, http.StatusBadRequest, "invalid_message")
		}
		if a := in.post(t, "any", "t", []byte(body)); a.status != http.StatusCreated {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	for _, asked := range []string{"asks", "bridged"} {
		in.post(t, asked, "t", ping("1")).stored(t, false)
	}
	strict.post(t, "new", "t", ping("1")).stored(t, false)
}

// A message of 10,000 levels would have one more in an envelope than Go's subscribers read.
func TestPublish_Levels(t *testing.T) {
	_, in := started(t)
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	deepest, tooDeep := nested(9_999), nested(10_000)
	in.post(t, "s", "t", []byte(deepest)).stored(t, false)
	in.post(t, "s", "t", []byte(tooDeep)).expect(t, http.StatusBadRequest, "invalid_json")
	for kind, body := range map[string]string{
		asNDJSON:        deepest + "\n" + tooDeep,
		asEnvelopeLines: `{"message":` + deepest + "}\n" + `{"message":` + tooDeep + "}",
	} {
		got := in.postBatch(t, kind, batchPath, body)
		if got.Accepted != 1 || len(got.Errors) != 1 || got.Errors[0].Index != 1 || got.Errors[0].Code != "invalid_json" {
			t.Errorf("%s: %+v", kind, got)
		}
	}
}
