package edge

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/shared/auth/authtest"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// statelessBody is a request of the revision without sessions.
func statelessBody(id, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, id, method, params)
}

var statelessTool = statelessBody("7", "tools/call", `"name":"x",`)

// newModern returns a bridge, and a client without a session.
func newModern(t *testing.T, change func(*Config)) (*bridge, *mcpUser) {
	t.Helper()
	f := newFixture(t)
	b := f.bridge()
	return b, &mcpUser{t: t, url: f.mcpEdge(change), version: mcp.Modern, headers: []string{"Mcp-Method", "tools/call", "Mcp-Name", "x"}}
}

func resumable(c *Config) { c.MCPResumeStateless = true }

// accepts has the bridge open the session of each request in the log, and hands the requests over.
func (b *bridge) accepts() <-chan rpc.Call {
	calls := make(chan rpc.Call, 10)
	b.request = func(c rpc.Call) rpc.Answer {
		rec := session.New(c.Session, c.Owner, nil, time.Now())
		rec.Life = c.Life
		if _, err := b.f.Backend.Sessions.Create(context.Background(), rec); err != nil {
			b.f.t.Error(err)
		}
		b.listen(rpc.Subject(c.Session))
		calls <- c
		return rpc.Answer{Status: http.StatusAccepted}
	}
	return calls
}

func TestModern_AnsweredAtOnce(t *testing.T) {
	b, u := newModern(t, nil)
	b.request = func(rpc.Call) rpc.Answer {
		return rpc.Answer{Status: http.StatusOK, Data: []byte(result("7"))}
	}
	a := u.read(u.post(statelessTool, "Authorization", "Bearer x", "Cookie", "a=b", "Mcp-Param-Region", "north"))
	if a.StatusCode != http.StatusOK || a.body != result("7") || a.Header.Get("Content-Type") != "application/json" || a.Header.Get("Mcp-Session-Id") != "" {
		t.Errorf("%d %v %s", a.StatusCode, a.Header, a.body)
	}
	a = u.read(u.post(statelessTool, "Accept", "text/event-stream, application/json"))
	if a.body != "data: "+result("7")+"\n\n" || a.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("a stream: %v %q", a.Header, a.body)
	}
	calls := b.sent(rpc.Request)
	c := calls[0]
	ids, _ := rpc.RequestIDs(c.Stream)
	if string(c.Data) != statelessTool || uuid.Validate(c.Session) != nil || c.Life == "" || len(ids) != 1 || string(ids[0]) != "7" || c.Held {
		t.Errorf("the bridge got %+v", c)
	}
	if c.Header.Get("Authorization") != "" || c.Header.Get("Cookie") != "" || c.Header.Get("Mcp-Param-Region") != "north" || c.Header.Get("Mcp-Name") != "x" {
		t.Errorf("the bridge got the header %v", c.Header)
	}
	if calls[1].Session == c.Session || calls[1].Life == c.Life {
		t.Error("two requests have one session")
	}
	b.request = func(rpc.Call) rpc.Answer {
		return rpc.Answer{Status: http.StatusNotFound, Data: rpc.ErrorMessage(nil, rpc.CodeMethodNotFound, "none", nil)}
	}
	if a := u.read(u.post(statelessTool)); a.StatusCode != http.StatusNotFound || !strings.Contains(a.body, "-32601") {
		t.Errorf("an error: %d %s", a.StatusCode, a.body)
	}
}

// A request whose response is likely to be all that there is has the response's status, however long
// it takes.
func TestModern_SlowError(t *testing.T) {
	b, u := newModern(t, nil)
	calls := b.accepts()
	answered := make(chan answered, 1)
	go func() { answered <- u.read(u.post(statelessBody("7", "x/y", ""), "Mcp-Method", "x/y")) }()
	call := waittest.Receive(t, "the bridge has the request", calls)
	b.say(call.Session, call.Stream, true, `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"none"}}`)
	if a := waittest.Receive(t, "the client is answered", answered); a.StatusCode != http.StatusNotFound || a.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v %s", a.StatusCode, a.Header, a.body)
	}
}

func TestModern_Stream(t *testing.T) {
	for _, resumes := range []bool{false, true} {
		b, u := newModern(t, func(c *Config) { c.MCPResumeStateless = resumes })
		calls := b.accepts()
		c := u.follow(u.post(statelessTool))
		call := waittest.Receive(t, "the bridge has the request", calls)
		if resumes {
			id := c.primed()
			if name, _, ok := parseLegacyID(id); !ok || name != call.Session {
				t.Errorf("the first ID is %s", id)
			}
		}
		b.say(call.Session, call.Stream, false, progress(1))
		if id := c.says(progress(1)); (id != "") != resumes {
			t.Errorf("the ID is %q", id)
		}
		b.say(call.Session, call.Stream, true, result("7"))
		c.says(result("7"))
		c.over()
		if n := len(b.sent(rpc.Cancel)); n != 0 {
			t.Errorf("the call was cancelled %d times", n)
		}
	}
}

func TestModern_ClientGoes(t *testing.T) {
	for _, resumes := range []bool{false, true} {
		b, u := newModern(t, func(c *Config) { c.MCPResumeStateless = resumes })
		calls := b.accepts()
		c := u.follow(u.post(statelessTool))
		call := waittest.Receive(t, "the bridge has the request", calls)
		b.say(call.Session, call.Stream, false, progress(1))
		if resumes {
			c.primed()
		}
		c.says(progress(1))
		c.close()
		b.say(call.Session, call.Stream, false, progress(2))
		waittest.Until(t, "the bridge is told", func() bool { return len(b.sent(rpc.Cancel)) == 1 })
		if got := b.sent(rpc.Cancel)[0]; got.Session != call.Session || got.Stream != call.Stream || got.Resumable != resumes {
			t.Errorf("the bridge was told %+v", got)
		}
	}
}

// A client that comes back gets what it missed, and the bridge hears of it at once.
func TestModern_Resume(t *testing.T) {
	b, u := newModern(t, resumable)
	calls := b.accepts()
	c := u.follow(u.post(statelessTool))
	call := waittest.Receive(t, "the bridge has the request", calls)
	first := c.primed()
	b.say(call.Session, call.Stream, false, progress(1))
	second := c.says(progress(1))
	c.close()
	b.say(call.Session, call.Stream, false, progress(2))

	back := u.follow(u.do(http.MethodGet, "", "Last-Event-ID", second))
	back.primed()
	back.says(progress(2))
	waittest.Until(t, "the bridge is asked about the call", func() bool { return len(b.sent(rpc.Check)) > 0 })
	b.say(call.Session, call.Stream, true, result("7"))
	last := back.says(result("7"))
	back.over()

	again := u.follow(u.do(http.MethodGet, "", "Last-Event-ID", first))
	again.primed()
	again.says(progress(1), progress(2), result("7"))
	again.over()
	if a := u.read(u.do(http.MethodGet, "", "Last-Event-ID", last)); a.StatusCode != http.StatusNoContent {
		t.Errorf("behind the response: %d %s", a.StatusCode, a.body)
	}
	gone := legacyID(uuid.NewString(), strings.SplitN(last, ":", 2)[1])
	if a := u.read(u.do(http.MethodGet, "", "Last-Event-ID", gone)); a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"id":7,"error"`) {
		t.Errorf("a call that is gone: %d %s", a.StatusCode, a.body)
	}
	for _, id := range []string{"x", strings.SplitN(last, ":", 2)[1]} {
		if a := u.read(u.do(http.MethodGet, "", "Last-Event-ID", id)); a.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d %s", id, a.StatusCode, a.body)
		}
	}
}

func TestModern_Refused(t *testing.T) {
	b, u := newModern(t, nil)
	for name, tt := range map[string]struct {
		body         string
		headers      []string
		status, code int
	}{
		"no version header":  {statelessTool, []string{"Mcp-Protocol-Version", ""}, 400, mcp.CodeHeaderMismatch},
		"another version":    {statelessTool, []string{"Mcp-Protocol-Version", "2025-11-25"}, 400, mcp.CodeHeaderMismatch},
		"no method":          {statelessTool, []string{"Mcp-Method", ""}, 400, mcp.CodeHeaderMismatch},
		"another name":       {statelessTool, []string{"Mcp-Name", "y"}, 400, mcp.CodeHeaderMismatch},
		"no _meta":           {toolList, nil, 400, rpc.CodeInvalidParams},
		"an unknown version": {strings.Replace(statelessTool, mcp.Modern, "v9", 1), []string{"Mcp-Protocol-Version", "v9"}, 400, mcp.CodeUnsupportedVersion},
		"initialize":         {statelessBody("7", "initialize", ""), []string{"Mcp-Method", "initialize"}, 404, rpc.CodeMethodNotFound},
		"ping":               {statelessBody("7", "ping", ""), []string{"Mcp-Method", "ping"}, 404, rpc.CodeMethodNotFound},
		"a state":            {statelessBody("7", "tools/call", `"name":"x","requestState":"rejoin.x",`), nil, 400, rpc.CodeInvalidParams},
		"a call that is gone": {
			statelessBody("7", "tools/call", `"name":"x","requestState":"`+mcp.State{Session: uuid.NewString(), Life: "abc", Round: "1"}.String()+`",`), nil, 400, rpc.CodeInvalidParams,
		},
	} {
		a := u.read(u.post(tt.body, tt.headers...))
		id := `"id":7,`
		if tt.body == toolList {
			id = `"id":`
		}
		if a.StatusCode != tt.status || !strings.Contains(a.body, fmt.Sprintf(`"code":%d`, tt.code)) || !strings.Contains(a.body, id) || strings.Contains(a.body, `"id":null`) {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
		if tt.code == mcp.CodeUnsupportedVersion && !strings.Contains(a.body, `"requested":"v9","supported":["2026-07-28","2025-11-25"`) {
			t.Errorf("%s: %s", name, a.body)
		}
	}
	if a := u.read(u.post(`{"jsonrpc":"2.0","method":"notifications/cancelled"}`)); a.StatusCode != http.StatusAccepted {
		t.Errorf("a notification: %d %s", a.StatusCode, a.body)
	}
	if a := u.read(u.post(result("1"))); a.StatusCode != http.StatusBadRequest {
		t.Errorf("a response: %d %s", a.StatusCode, a.body)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		if a := u.read(u.do(method, "")); a.StatusCode != http.StatusMethodNotAllowed || a.Header.Get("Allow") != "POST" {
			t.Errorf("%s: %d %v", method, a.StatusCode, a.Header)
		}
	}
	if n := len(b.sent(rpc.Request)); n != 0 {
		t.Errorf("a bridge was asked %d times", n)
	}
	b.leave()
	if a := u.read(u.post(statelessTool)); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || !strings.Contains(a.body, `"id":7`) {
		t.Errorf("without a bridge: %d %s", a.StatusCode, a.body)
	}
}

// The state of a bridge leads to that bridge; that of a server is passed on.
func TestModern_RepeatedRequest(t *testing.T) {
	b, u := newModern(t, nil)
	b.request = func(rpc.Call) rpc.Answer {
		return rpc.Answer{Status: http.StatusOK, Data: []byte(result("7"))}
	}
	state := mcp.State{Session: uuid.NewString(), Life: "abc", Round: "1"}
	b.listen(rpc.Subject(state.Session))
	for text, held := range map[string]bool{state.String(): true, "the server's": false} {
		if a := u.read(u.post(statelessBody("7", "tools/call", `"name":"x","requestState":"`+text+`",`))); a.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", text, a.StatusCode, a.body)
		}
		calls := b.sent(rpc.Request)
		if c := calls[len(calls)-1]; c.Held != held || (c.Session == state.Session) != held || (c.Life == state.Life) != held {
			t.Errorf("%s: the bridge got %+v", text, c)
		}
	}
}

func TestModern_AccessControl(t *testing.T) {
	b, u := newModern(t, guarded(t))
	calls := b.accepts()
	if a := u.read(u.post(statelessTool)); a.StatusCode != http.StatusUnauthorized || a.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("without a token: %d %s", a.StatusCode, a.body)
	}
	resp := u.post(statelessTool, bearer(authtest.Of(t, "alice", "*"))...)
	if call := waittest.Receive(t, "the bridge has the request", calls); resp.StatusCode != http.StatusOK || call.Owner != "alice" {
		t.Errorf("%d, the owner is %q", resp.StatusCode, call.Owner)
	}
}

// Another user cannot resume a call.
func TestModern_ResumeOfAnother(t *testing.T) {
	guard := guarded(t)
	b, u := newModern(t, func(c *Config) { guard(c); resumable(c) })
	calls := b.accepts()
	alice, bob := bearer(authtest.Of(t, "alice", "*")), bearer(authtest.Of(t, "bob", "*"))
	c := u.follow(u.post(statelessTool, alice...))
	waittest.Receive(t, "the bridge has the request", calls)
	id := c.primed()
	if a := u.read(u.do(http.MethodGet, "", append(bob, "Last-Event-ID", id)...)); a.StatusCode == http.StatusOK && !strings.Contains(a.body, `"error"`) || strings.Contains(a.body, "progress") {
		t.Errorf("another user: %d %s", a.StatusCode, a.body)
	}
	u.follow(u.do(http.MethodGet, "", append(alice, "Last-Event-ID", id)...)).primed()
}
