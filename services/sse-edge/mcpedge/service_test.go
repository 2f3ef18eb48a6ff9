package mcpedge

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/shared/daemon"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

const (
	toolCall = `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"x"}}`
	toolList = `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`
)

// newMCP returns a bridge, and a client that has begun a session at an edge.
func newMCP(t *testing.T, change func(*config)) (*bridge, *mcpUser) {
	t.Helper()
	b, _, u := newMCPEdge(t, nil, change)
	return b, u
}

// newMCPEdge is newMCP for tests that need the edge, or tune it.
func newMCPEdge(t *testing.T, tune func(*edge), change func(*config)) (*bridge, *edge, *mcpUser) {
	t.Helper()
	f := newFixture(t)
	f.tune = tune
	b := f.bridge()
	s, _ := f.mcpService(change)
	return b, s, join(t, s.url(), "2025-11-25")
}

func TestMCP_Call(t *testing.T) {
	b, u := newMCP(t, nil)
	if client := b.sent(rpc.Open)[0].Client; client != "127.0.0.1" { // a bridge divides its processes among clients
		t.Errorf("the bridge was told of %q", client)
	}
	c := u.follow(u.post(toolCall))
	c.primed()
	ask := b.sent(rpc.Post)[0]
	if string(ask.Data) != toolCall || ask.Session != u.session || ask.Header.Get("Mcp-Protocol-Version") != "2025-11-25" || ask.Header.Get("Accept") != "" {
		t.Errorf("the bridge got %+v", ask)
	}
	b.say(u.session, ask.Stream, false, progress(1))
	first := c.says(progress(1))
	b.say(u.session, rpc.Standalone, false, progress(99))
	b.say(u.session, ask.Stream, true, progress(2), result(`"a"`))
	c.ends(progress(2), result(`"a"`))

	again := u.get(first)
	if id := again.primed(); !strings.HasPrefix(id, first+".") {
		t.Errorf("primed with %s, want a place like %s", id, first)
	}
	again.ends(progress(2), result(`"a"`))
}

// A message without an ID is no response: JSON, in which a client receives one message, has the response.
func TestMCP_JSONHasTheResponse(t *testing.T) {
	for _, message := range []string{`{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}`, `{"jsonrpc":"2.0","result":{}}`} {
		b, u := newMCP(t, nil)
		b.post = func(c rpc.Ask) rpc.Answer {
			b.say(c.Session, c.Stream, false, message)
			return rpc.Answer{Status: http.StatusAccepted}
		}
		c := u.follow(u.post(toolList))
		c.primed()
		c.says(message)
		b.say(u.session, b.sent(rpc.Post)[0].Stream, true, result(`"a"`))
		c.ends(result(`"a"`))
	}
}

func TestMCP_ImmediateAnswer(t *testing.T) {
	b, u := newMCP(t, nil)
	b.post = func(c rpc.Ask) rpc.Answer {
		m, _ := rpc.ParseMessage(c.Data)
		b.say(c.Session, c.Stream, true, result(string(m.ID)))
		return rpc.Answer{Status: http.StatusAccepted}
	}
	if a := u.read(u.post(toolList)); a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != "application/json" || a.Text != result("7") {
		t.Errorf("%d %s %s", a.StatusCode, a.Header, a.Text)
	}
	c := u.follow(u.post(toolCall))
	c.primed()
	c.ends(result(`"a"`))
	b.post = func(c rpc.Ask) rpc.Answer {
		b.say(c.Session, c.Stream, true, progress(1), result("7"))
		return rpc.Answer{Status: http.StatusAccepted}
	}
	c = u.follow(u.post(toolList))
	c.primed()
	c.ends(progress(1), result("7"))
}

func TestMCP_Notification(t *testing.T) {
	f, b := bridged(t)
	u := join(t, f.mcpEdge(nil), "2025-06-18")
	for _, body := range []string{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, result("1"), `{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"no"}}`} {
		if a := u.read(u.post(body)); a.StatusCode != http.StatusAccepted || a.Text != "" {
			t.Errorf("%s: %d %s", body, a.StatusCode, a.Text)
		}
	}
	for _, c := range b.sent(rpc.Post) {
		if c.Stream != "" {
			t.Errorf("%s has the stream %s", c.Data, c.Stream)
		}
	}
	b.post = func(rpc.Ask) rpc.Answer {
		return rpc.Answer{Status: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {"Bearer x"}}, Data: []byte(`{"a":1}`)}
	}
	for _, body := range []string{result("1"), toolList} {
		if a := u.read(u.post(body)); a.StatusCode != http.StatusUnauthorized || a.Header.Get("WWW-Authenticate") != "Bearer x" || a.Text != `{"a":1}` {
			t.Errorf("%d %s %s", a.StatusCode, a.Header, a.Text)
		}
	}
}

func TestMCP_Listen(t *testing.T) {
	b, s, u := newMCPEdge(t, nil, func(c *config) { c.Heartbeat = 20 * time.Millisecond })
	b.say(u.session, rpc.Standalone, false, progress(1))
	waittest.Until(t, "the edge has it", func() bool { return s.subs.Parts.Of(u.session).Stats().Events == 1 })
	c := u.get("")
	c.primed()
	b.say(u.session, rpc.Standalone, false, progress(2))
	id := c.says(progress(2))
	c.Close()
	b.say(u.session, rpc.Standalone, false, progress(3))
	c = u.get(id)
	first := c.primed()
	c.says(progress(3))
	c = u.get(id)
	if second := c.primed(); second == first {
		t.Errorf("primed with %s again", first)
	}
}

func TestMCP_Delete(t *testing.T) {
	b, s, u := newMCPEdge(t, nil, nil)
	c := u.get("")
	c.primed()
	call := u.follow(u.post(toolCall))
	call.primed()
	u.read(u.do(http.MethodDelete, "")).Got(t, http.StatusNoContent)
	c.WantEnd()
	call.fails(`"a"`)
	waittest.Until(t, "the edge's copy says so too", func() bool {
		rec, ok := s.sessions.Session(u.session)
		return ok && rec.State != session.Open
	})
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		body := ""
		if method == http.MethodPost {
			body = toolList
		}
		a := u.read(u.do(method, body))
		if a.StatusCode != http.StatusNotFound || !strings.Contains(a.Text, `"id":null`) {
			t.Errorf("%s: %d %s", method, a.StatusCode, a.Text)
		}
	}
	if n := len(b.sent(rpc.End)); n != 1 {
		t.Errorf("ended %d times", n)
	}
}

func TestMCP_BadRequest(t *testing.T) {
	f := newFixture(t)
	f.bridge()
	url := f.mcpEdge(nil)
	u := join(t, url, "2025-11-25")
	type code struct {
		Error struct {
			Code int
			Data struct{ Supported []string }
		}
	}
	for name, tt := range map[string]struct {
		method, body string
		headers      []string
		status, code int
	}{
		"not JSON":            {"POST", `{"jsonrpc":`, nil, 400, rpc.CodeParse},
		"no JSON-RPC":         {"POST", `{"id":1}`, nil, 400, rpc.CodeInvalid},
		"a batch":             {"POST", "[" + toolList + "]", nil, 400, rpc.CodeInvalid},
		"an empty batch":      {"POST", "[]", []string{"Mcp-Protocol-Version", ""}, 400, rpc.CodeInvalid},
		"initialize in one":   {"POST", `[{"jsonrpc":"2.0","id":1,"method":"initialize"}]`, []string{"Mcp-Protocol-Version", ""}, 400, rpc.CodeInvalid},
		"a long ID":           {"POST", `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 200) + `","method":"m"}`, nil, 400, rpc.CodeInvalid},
		"too large":           {"POST", `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", 8<<20) + `"}`, nil, 413, 0}, // as an announced length, before MCP checks it
		"no version within":   {"POST", toolList, []string{"Mcp-Protocol-Version", "2026-07-28"}, 400, rpc.CodeInvalidParams},
		"a made-up version":   {"POST", toolList, []string{"Mcp-Protocol-Version", "x"}, 400, mcp.CodeUnsupportedVersion},
		"GET in another":      {"GET", "", []string{"Mcp-Protocol-Version", "x"}, 400, mcp.CodeUnsupportedVersion},
		"DELETE in another":   {"DELETE", "", []string{"Mcp-Protocol-Version", "x"}, 400, mcp.CodeUnsupportedVersion},
		"no session":          {"POST", toolList, []string{"Mcp-Session-Id", ""}, 400, rpc.CodeInvalid},
		"GET without":         {"GET", "", []string{"Mcp-Session-Id", ""}, 400, rpc.CodeInvalid},
		"DELETE without":      {"DELETE", "", []string{"Mcp-Session-Id", ""}, 400, rpc.CodeInvalid},
		"an unknown session":  {"POST", toolList, []string{"Mcp-Session-Id", "x"}, 404, refusal.CodeNoSession},
		"a bad session":       {"POST", toolList, []string{"Mcp-Session-Id", "x y"}, 404, refusal.CodeNoSession},
		"GET of an unknown":   {"GET", "", []string{"Mcp-Session-Id", "x"}, 404, refusal.CodeNoSession},
		"JSON alone":          {"POST", toolList, []string{"Accept", "application/json"}, 406, rpc.CodeInvalid},
		"events alone":        {"POST", toolList, []string{"Accept", "text/event-stream"}, 406, rpc.CodeInvalid},
		"GET of JSON":         {"GET", "", []string{"Accept", "application/json"}, 406, rpc.CodeInvalid},
		"text":                {"POST", toolList, []string{"Content-Type", "text/plain"}, 415, rpc.CodeInvalid},
		"a page of others":    {"POST", toolList, []string{"Origin", "https://evil.example"}, 403, 0}, // before MCP checks it, as for all services
		"GET of such a page":  {"GET", "", []string{"Origin", "null"}, 403, rpc.CodeInvalid},
		"a page of this edge": {"POST", "{", []string{"Origin", url}, 400, rpc.CodeParse},
	} {
		a := u.read(u.do(tt.method, tt.body, tt.headers...))
		var got code
		if err := json.Unmarshal([]byte(a.Text), &got); err != nil || a.StatusCode != tt.status || got.Error.Code != tt.code {
			t.Errorf("%s: %d %s, want %d and code %d", name, a.StatusCode, a.Text, tt.status, tt.code)
		}
		if (tt.code == mcp.CodeUnsupportedVersion) != (len(got.Error.Data.Supported) > 0) {
			t.Errorf("%s: %s", name, a.Text)
		}
	}
	if a := u.read(u.do(http.MethodPut, "{}")); a.StatusCode != http.StatusMethodNotAllowed || a.Header.Get("Allow") != "DELETE, GET, OPTIONS, POST" {
		t.Errorf("PUT: %d %s", a.StatusCode, a.Header)
	}
}

// waitsFor sets how long an edge waits for a bridge.
func waitsFor(d time.Duration) func(*edge) { return func(s *edge) { s.bridgeWait = d } }

func TestMCP_NoBridge(t *testing.T) {
	b, _, u := newMCPEdge(t, waitsFor(0), nil)
	stateless := statelessUser(t, u.url)
	b.leave()
	for _, body := range []string{toolList, result("1"), `{"jsonrpc":"2.0","id":1,"method":"initialize"}`} {
		if a := u.read(u.post(body)); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") != "3" {
			t.Errorf("%s: %d %s", body, a.StatusCode, a.Text)
		}
	}
	if a := u.read(stateless.post(statelessTool)); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") != "3" || !strings.Contains(a.Text, `"id":7`) {
		t.Errorf("without a session: %d %s", a.StatusCode, a.Text)
	}
}

// A request waits for a bridge that is replaced: the stopping one answers that it has not begun it, then no bridge
// listens, then the next one does.
func TestMCP_BridgeIsReplaced(t *testing.T) {
	b, s, u := newMCPEdge(t, func(s *edge) { // whatever the machine does
		s.requestTimeout, s.takenTimeout, s.bridgeWait = waittest.Timeout, waittest.Timeout, waittest.Timeout
	}, nil)
	stateless := statelessUser(t, u.url)
	var stops atomic.Bool
	take := func(ask rpc.Ask) rpc.Answer {
		switch {
		case stops.CompareAndSwap(true, false):
			b.leave()
			return rpc.Answer{Status: http.StatusServiceUnavailable, NotTaken: true}
		case ask.Action == rpc.Open:
			return b.make(waittest.Context(t), ask)
		}
		return rpc.Answer{Status: http.StatusAccepted}
	}
	b.open, b.post, b.request = take, take, take
	for name, send := range map[string]func() reply{
		"initialize":        func() reply { return u.post(`{"jsonrpc":"2.0","id":1,"method":"initialize"}`) },
		"a notification":    func() reply { return u.post(`{"jsonrpc":"2.0","method":"x"}`) },
		"a call":            func() reply { return u.post(toolCall) },
		"without a session": func() reply { return stateless.post(statelessTool) },
	} {
		stops.Store(true)
		answer, sent := make(chan reply, 1), s.nc.Stats().OutMsgs
		go func() { answer <- send() }()
		waittest.Until(t, name+" finds no bridge", func() bool { return s.nc.Stats().OutMsgs >= sent+3 })
		b.listen(rpc.OpenSubject)
		b.listen(rpc.Subject(u.session))
		a := waittest.Receive(t, name+" is answered", answer)
		if a.StatusCode >= http.StatusMultipleChoices {
			t.Errorf("%s is answered %d", name, a.StatusCode)
		}
		_ = a.Body.Close()
	}
}

// The number of requests does not decide how much is logged.
func TestMCP_FailuresAreSummedUp(t *testing.T) {
	f := newFixture(t)
	f.tune = waitsFor(0)
	var out waittest.Buffer
	f.env = func(env *daemon.Env) {
		env.Log = slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	b := f.bridge()
	s, stop := f.mcpService(nil)
	u := join(t, s.url(), "2025-11-25")
	b.leave()
	const requests = 10
	for range requests {
		u.read(u.post(toolList)).Got(t, http.StatusServiceUnavailable)
	}
	stop() // now all is logged
	lines, n := 0, 0
	for line := range strings.Lines(out.String()) {
		var is struct {
			Msg   string
			Count int
		}
		must.NoError(t, json.Unmarshal([]byte(line), &is))
		if is.Msg == "an MCP client is refused" {
			is.Count = 1
		}
		if is.Count > 0 {
			lines, n = lines+1, n+is.Count
		}
	}
	if n != requests || lines == requests { // two in ten seconds
		t.Errorf("%d refusals in %d lines:\n%s", n, lines, out.String())
	}
}

// The SDKs give a call up after anything but a 200, and one of them its session.
func TestMCP_ServerIsFull(t *testing.T) {
	f := newFixture(t)
	f.bridge()
	for name, change := range map[string]func(*config){
		"no room":   func(c *config) { c.MaxConnections = 1 },
		"too often": func(c *config) { c.MaxAddressConnectRate = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			u := join(t, f.mcpEdge(change), "2025-11-25")
			c := u.get("")
			id := c.primed()
			crowd := func() (wait func()) { // or one at a time may be slow enough
				var others sync.WaitGroup
				for range 20 {
					others.Go(func() { u.read(u.do(http.MethodGet, "", "Last-Event-ID", "x", "Content-Type", "")) })
				}
				return others.Wait
			}
			for refused := false; !refused; {
				wait := crowd()
				again := u.get(id)
				wait()
				next := again.primed()
				if edgetest.SequenceOf(t, next) != edgetest.SequenceOf(t, id) || next == id || again.Decoder.Retry() < time.Second {
					t.Errorf("%s, was %s", next, id)
				}
				id, refused = next, again.Response.ContentLength >= 0
				again.Close()
			}
			var call edgetest.Answered
			waittest.Until(t, "a call is refused", func() bool {
				defer crowd()()
				resp := u.post(toolCall)
				if resp.StatusCode == http.StatusOK { // so much time has passed that one more was accepted
					_ = resp.Body.Close()
					return false
				}
				call = u.read(resp)
				return true
			})
			if (call.StatusCode != http.StatusServiceUnavailable || call.Header.Get("Retry-After") == "") && call.StatusCode != http.StatusTooManyRequests {
				t.Errorf("%d %s", call.StatusCode, call.Text)
			}
		})
	}
}

// A client that resumes after the last event of a call has all of it: any stream would
// have it ask again and again.
func TestMCP_ResumeAfterResponse(t *testing.T) {
	b, u := newMCP(t, nil)
	c := u.follow(u.post(toolCall))
	c.primed()
	failed := `{"jsonrpc":"2.0","id":"a","error":{"code":-32602,"message":"no such tool"}}`
	b.say(u.session, b.sent(rpc.Post)[0].Stream, true, failed)
	last := c.ends(failed)
	for _, id := range []string{last, last + ".7"} {
		if a := u.read(u.do(http.MethodGet, "", "Last-Event-ID", id, "Content-Type", "")); a.StatusCode != http.StatusNoContent || a.Text != "" {
			t.Errorf("%s: %d %s", id, a.StatusCode, a.Text)
		}
	}
}

// The messages stored for a call before its session ended can still be fetched, or the reason why not.
func TestMCP_ResumeInEndedSession(t *testing.T) {
	for name, cleared := range map[string]bool{"closed": false, "cleared": true} {
		t.Run(name, func(t *testing.T) {
			b, s, u := newMCPEdge(t, nil, nil)
			c := u.follow(u.post(toolCall))
			at := c.primed()
			c.Close()
			listening := u.get("")
			standalone := listening.primed()
			listening.Close()
			failed := `{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"the MCP server has ended"}}`
			b.say(u.session, b.sent(rpc.Post)[0].Stream, true, failed)
			must.NoError(t, b.f.Backend.Sessions.End(waittest.Context(t), u.session, "", cleared))
			waittest.Until(t, "the edge's copy says so too", func() bool {
				rec, ok := s.sessions.Session(u.session)
				return ok && rec.State != session.Open
			})
			again := u.get(at)
			again.primed()
			last := at
			if cleared {
				again.fails(`"a"`)
			} else {
				last = again.ends(failed)
			}
			for _, id := range []string{last, standalone, ""} {
				if cleared && id == at {
					continue
				}
				if a := u.read(u.do(http.MethodGet, "", "Last-Event-ID", id, "Content-Type", "")); a.StatusCode != http.StatusNotFound {
					t.Errorf("%q: %d %s", id, a.StatusCode, a.Text)
				}
			}
		})
	}
}

func TestMCP_InvalidEventID(t *testing.T) {
	_, u := newMCP(t, nil)
	for _, id := range []string{"x", "_1", "*_aaaaaaa_1", "made-up_aaaaaaa_1"} {
		if a := u.read(u.do(http.MethodGet, "", "Last-Event-ID", id, "Content-Type", "")); a.StatusCode != http.StatusBadRequest || !strings.Contains(a.Text, `"code":-32600`) {
			t.Errorf("%s: %d %s", id, a.StatusCode, a.Text)
		}
	}
}

func TestMCP_PrefersEventStream(t *testing.T) {
	b, u := newMCP(t, nil)
	b.post = func(c rpc.Ask) rpc.Answer {
		m, _ := rpc.ParseMessage(c.Data)
		b.say(c.Session, c.Stream, true, result(string(m.ID)))
		return rpc.Answer{Status: http.StatusAccepted}
	}
	for accept, want := range map[string]string{
		"text/event-stream, application/json":               "text/event-stream",
		"application/json;q=0.5, text/event-stream":         "text/event-stream",
		"application/json; q=0.9, text/event-stream; q=1.0": "text/event-stream",
		"application/json, text/event-stream":               "application/json",
		"text/event-stream;q=0.1, application/json":         "application/json",
		"*/*":                          "application/json",
		"text/event-stream, */*;q=0.1": "text/event-stream",
		"text/event-stream;q=x, application/json": "application/json",
	} {
		if a := u.read(u.post(toolList, "Accept", accept)); a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != want {
			t.Errorf("%s: %d %s", accept, a.StatusCode, a.Header.Get("Content-Type"))
		}
	}
}

// Clients' tokens must not pass over NATS, and a bridge has no use for them.
func TestForwarded_NoCredentials(t *testing.T) {
	f, b := bridged(t)
	u := join(t, f.mcpEdge(nil), "2025-11-25", "Authorization", "Bearer secret", "Cookie", "rejoin=secret", "X-Own", "mine")
	u.follow(u.post(toolCall))
	if resp := u.do(http.MethodDelete, ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("the end is answered %d", resp.StatusCode)
	}
	for _, action := range []rpc.Action{rpc.Open, rpc.Post, rpc.End} {
		for _, call := range b.sent(action) {
			if h := call.Header; h.Get("Authorization") != "" || h.Get("Cookie") != "" || h.Get("X-Own") != "mine" {
				t.Errorf("%s has %v", action, h)
			}
		}
	}
	if len(b.sent(rpc.Open)) == 0 || len(b.sent(rpc.Post)) == 0 || len(b.sent(rpc.End)) == 0 {
		t.Error("the bridge was not asked all of it")
	}
}

// A call that cannot have reached a bridge is refused, and waits for no answer.
func TestProtocol_Refused(t *testing.T) {
	t.Parallel()
	b, s, u := newMCPEdge(t, waitsFor(0), nil)
	head, tail := `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"x":"`, `"}}`
	large := head + strings.Repeat("x", b.f.Backend.Log.Settings().MaxMessageBytes-len(head)-len(tail)) + tail
	u.read(u.post(large, "X-Padding", strings.Repeat("x", 6<<10))).Got(t, http.StatusRequestEntityTooLarge)
	b.f.Server.Stop()
	waittest.Until(t, "NATS is away", func() bool { return !s.nc.IsConnected() })
	if a := u.read(u.post(toolCall)); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("without NATS: %d %s", a.StatusCode, a.Text)
	}
	b.f.Server.Start()
}
