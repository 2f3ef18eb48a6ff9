package mcpedge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/inspect"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/presence"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// statelessBody is a request of the revision without sessions.
func statelessBody(id, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, id, method, params)
}

var statelessTool = statelessBody("7", "tools/call", `"name":"x",`)

// newStateless returns a bridge, and a client without a session.
func newStateless(t *testing.T, change func(*config)) (*bridge, *mcpUser) {
	t.Helper()
	b, u, _ := newStatelessEdge(t, change)
	return b, u
}

// newStatelessEdge is newStateless for tests that look into the edge.
func newStatelessEdge(t *testing.T, change func(*config)) (*bridge, *mcpUser, *edge) {
	t.Helper()
	f, b := bridged(t)
	s, _ := f.mcpService(change)
	return b, statelessUser(t, s.url()), s
}

// statelessUser returns a user of the revision without sessions that calls a tool.
func statelessUser(t *testing.T, url string) *mcpUser {
	t.Helper()
	return &mcpUser{t: t, url: url, version: mcp.Stateless, headers: []string{"Mcp-Method", "tools/call", "Mcp-Name", "x"}}
}

// notCancelled fails the test if a bridge was asked to cancel a call that is over.
func (s *edge) notCancelled(t *testing.T, b *bridge) {
	t.Helper()
	// A call that is not counted any more has begun its cancellation, which waits for the bridge's answer.
	waittest.Until(t, "the call is over", func() bool {
		all, _ := s.subs.Admission.Clients(inspect.Question{})
		return all == 0
	})
	s.attached.work.Wait()
	if n := len(b.sent(rpc.Cancel)); n != 0 {
		t.Errorf("the call was cancelled %d times", n)
	}
}

func resumable(c *config) { c.MCP.ResumeStateless = true }

// accepts has the bridge open the session of each request in the log, and hands the requests over.
func (b *bridge) accepts() <-chan rpc.Ask {
	calls := make(chan rpc.Ask, 10)
	b.request = func(c rpc.Ask) rpc.Answer {
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

func TestStateless_AnsweredAtOnce(t *testing.T) {
	b, u := newStateless(t, nil)
	b.request = func(rpc.Ask) rpc.Answer {
		return rpc.Answer{Status: http.StatusOK, Data: []byte(result("7"))}
	}
	a := u.read(u.post(statelessTool, "Authorization", "Bearer x", "Cookie", "a=b", "Mcp-Param-Region", "north"))
	if a.StatusCode != http.StatusOK || a.Text != result("7") || a.Header.Get("Content-Type") != "application/json" || a.Header.Get("Mcp-Session-Id") != "" {
		t.Errorf("%d %v %s", a.StatusCode, a.Header, a.Text)
	}
	a = u.read(u.post(statelessTool, "Accept", "text/event-stream, application/json"))
	if a.Text != "data: "+result("7")+"\n\n" || a.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("a stream: %v %q", a.Header, a.Text)
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
}

// A request whose response is likely to be its only message has the response's status, however long
// it takes.
func TestStateless_SlowError(t *testing.T) {
	b, u := newStateless(t, nil)
	calls := b.accepts()
	answered := make(chan edgetest.Answered, 1)
	go func() { answered <- u.read(u.post(statelessBody("7", "x/y", ""), "Mcp-Method", "x/y")) }()
	ask := waittest.Receive(t, "the bridge has the request", calls)
	b.say(ask.Session, ask.Stream, true, `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"none"}}`)
	if a := waittest.Receive(t, "the client is answered", answered); a.StatusCode != http.StatusNotFound || a.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v %s", a.StatusCode, a.Header, a.Text)
	}
}

func TestStateless_Stream(t *testing.T) {
	for _, resumes := range []bool{false, true} {
		b, u, s := newStatelessEdge(t, func(c *config) { c.MCP.ResumeStateless = resumes })
		c, ask := b.takesCall(u)
		if resumes {
			id := c.primed()
			if name, _, ok := parseSessionEventID(id); !ok || name != ask.Session {
				t.Errorf("the first ID is %s", id)
			}
		}
		b.say(ask.Session, ask.Stream, false, progress(1))
		if id := c.says(progress(1)); (id != "") != resumes {
			t.Errorf("the ID is %q", id)
		}
		b.say(ask.Session, ask.Stream, true, result("7"))
		c.ends(result("7"))
		s.notCancelled(t, b)
	}
}

func TestStateless_ClientGoes(t *testing.T) {
	for _, resumes := range []bool{false, true} {
		b, u := newStateless(t, func(c *config) { c.MCP.ResumeStateless = resumes })
		c, ask := b.takesCall(u)
		b.say(ask.Session, ask.Stream, false, progress(1))
		if resumes {
			c.primed()
		}
		c.says(progress(1))
		c.Close()
		b.say(ask.Session, ask.Stream, false, progress(2))
		waittest.Until(t, "the bridge is told", func() bool { return len(b.sent(rpc.Cancel)) == 1 })
		if got := b.sent(rpc.Cancel)[0]; got.Session != ask.Session || got.Stream != ask.Stream || got.Resumable != resumes {
			t.Errorf("the bridge was told %+v", got)
		}
	}
}

// A client that resumes receives the messages that it missed, and the bridge learns of it at once.
func TestStateless_Resume(t *testing.T) {
	b, u := newStateless(t, resumable)
	c, ask := b.takesCall(u)
	first := c.primed()
	b.say(ask.Session, ask.Stream, false, progress(1))
	second := c.says(progress(1))
	c.Close()
	b.say(ask.Session, ask.Stream, false, progress(2))

	back := u.follow(u.do(http.MethodGet, "", "Last-Event-ID", second))
	back.primed()
	back.says(progress(2))
	waittest.Until(t, "the bridge is asked about the call, for a newer connection than the one that ended", func() bool {
		ended := b.sent(rpc.Cancel)
		return len(ended) > 0 && !ended[0].Since.IsZero() && slices.ContainsFunc(b.sent(rpc.Check), func(c rpc.Ask) bool { return c.Since.After(ended[0].Since) })
	})
	b.say(ask.Session, ask.Stream, true, result("7"))
	last := back.ends(result("7"))

	again := u.follow(u.do(http.MethodGet, "", "Last-Event-ID", first))
	again.primed()
	again.ends(progress(1), progress(2), result("7"))
	u.read(u.do(http.MethodGet, "", "Last-Event-ID", last)).Got(t, http.StatusNoContent)
	gone := sessionEventID(uuid.NewString(), strings.SplitN(last, ":", 2)[1])
	if a := u.read(u.do(http.MethodGet, "", "Last-Event-ID", gone)); a.StatusCode != http.StatusOK || !strings.Contains(a.Text, `"id":7,"error"`) {
		t.Errorf("a call that is gone: %d %s", a.StatusCode, a.Text)
	}
	for _, id := range []string{"x", strings.SplitN(last, ":", 2)[1]} {
		if a := u.read(u.do(http.MethodGet, "", "Last-Event-ID", id)); a.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d %s", id, a.StatusCode, a.Text)
		}
	}
}

func TestStateless_Refused(t *testing.T) {
	b, u := newStateless(t, nil)
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
		"an unknown version": {strings.Replace(statelessTool, mcp.Stateless, "v9", 1), []string{"Mcp-Protocol-Version", "v9"}, 400, mcp.CodeUnsupportedVersion},
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
		if a.StatusCode != tt.status || !strings.Contains(a.Text, fmt.Sprintf(`"code":%d`, tt.code)) || !strings.Contains(a.Text, id) || strings.Contains(a.Text, `"id":null`) {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.Text)
		}
		if tt.code == mcp.CodeUnsupportedVersion && !strings.Contains(a.Text, `"requested":"v9","supported":["2026-07-28","2025-11-25"`) {
			t.Errorf("%s: %s", name, a.Text)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		if a := u.read(u.do(method, "")); a.StatusCode != http.StatusMethodNotAllowed || a.Header.Get("Allow") != "POST" {
			t.Errorf("%s: %d %v", method, a.StatusCode, a.Header)
		}
	}
	if n := len(b.sent(rpc.Request)); n != 0 {
		t.Errorf("a bridge was asked %d times", n)
	}
}

// The state of a bridge leads to that bridge; that of a server is passed on.
func TestStateless_RepeatedRequest(t *testing.T) {
	b, u := newStateless(t, nil)
	b.request = func(rpc.Ask) rpc.Answer {
		return rpc.Answer{Status: http.StatusOK, Data: []byte(result("7"))}
	}
	state := mcp.State{Session: uuid.NewString(), Life: "abc", Round: "1"}
	b.listen(rpc.Subject(state.Session))
	for text, held := range map[string]bool{
		`"` + state.String() + `"`: true,
		`"the server's"`:           false, `""`: false, `" rejoin.x"`: false, "null": false, "7": false, `{"a":"rejoin.x"}`: false,
	} {
		body := statelessBody("7", "tools/call", `"name":"x","requestState":`+text+`,`)
		u.read(u.post(body)).Got(t, http.StatusOK)
		calls := b.sent(rpc.Request)
		if c := calls[len(calls)-1]; c.Held != held || (c.Session == state.Session) != held || (c.Life == state.Life) != held || string(c.Data) != body {
			t.Errorf("%s: the bridge got %+v", text, c)
		}
	}
}

// A request that names the session of a call counts neither as its connection nor as its use: only the bridge knows
// whether the call is its client's.
func TestStateless_StateOfAnotherClient(t *testing.T) {
	b, u, s := newStatelessEdge(t, nil)
	name := newTask(t, b, u, "").name // a session
	waittest.Until(t, "the edge knows the session", func() bool {
		_, ok := s.sessions.Session(name)
		return ok
	})
	b.listen(rpc.Subject(name))
	asked, over := make(chan rpc.Ask, 1), make(chan struct{})
	b.request = func(c rpc.Ask) rpc.Answer {
		asked <- c
		<-over
		return rpc.Answer{Status: http.StatusBadRequest, Data: rpc.ErrorMessage(nil, rpc.CodeInvalidParams, "no", nil)}
	}
	answered := make(chan edgetest.Answered, 1)
	go func() {
		state := mcp.State{Session: name, Life: "abc", Round: "1"}
		answered <- u.read(u.post(statelessBody("7", "tools/call", `"name":"x","requestState":"`+state.String()+`",`)))
	}()
	waittest.Receive(t, "the bridge is asked", asked)
	if all, of := s.subs.Admission.Clients(inspect.Question{Sessions: []string{name}}); all != 1 || of[0] != 0 {
		t.Errorf("%d connections, %d of them of the session", all, of[0])
	}
	close(over)
	waittest.Receive(t, "the client is answered", answered)
	idle := presence.Question{Sessions: []presence.Session{{Name: name, Within: 3600}}}
	if a := s.subs.Admission.Answerer()(idle); len(a.Present) > 0 {
		t.Errorf("the session was used: %+v", a)
	}
}

// Another user cannot resume a call.
func TestStateless_ResumeOfAnother(t *testing.T) {
	guard := guarded(t)
	b, u := newStateless(t, func(c *config) { guard(c); resumable(c) })
	calls := b.accepts()
	alice, bob := edgetest.Bearer(authtest.Of(t, "alice", "*")), edgetest.Bearer(authtest.Of(t, "bob", "*"))
	c := u.follow(u.post(statelessTool, alice...))
	if call := waittest.Receive(t, "the bridge has the request", calls); call.Owner != "alice" {
		t.Errorf("the owner is %q", call.Owner)
	}
	id := c.primed()
	if a := u.read(u.do(http.MethodGet, "", append(bob, "Last-Event-ID", id)...)); a.StatusCode == http.StatusOK && !strings.Contains(a.Text, `"error"`) || strings.Contains(a.Text, "progress") {
		t.Errorf("another user: %d %s", a.StatusCode, a.Text)
	}
	u.follow(u.do(http.MethodGet, "", append(alice, "Last-Event-ID", id)...)).primed()
}

func TestStateless_NoRequest(t *testing.T) {
	b, u := newStateless(t, nil)
	for name, tt := range map[string]struct {
		body   string
		status int
	}{
		"notification":            {`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`, http.StatusAccepted},
		"notification with _meta": {strings.Replace(statelessTool, `"id":7,`, "", 1), http.StatusAccepted},
		"result":                  {result("1"), http.StatusBadRequest},
		"error":                   {`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}`, http.StatusBadRequest},
		"error without ID":        {`{"jsonrpc":"2.0","error":{"code":1,"message":"no"}}`, http.StatusBadRequest},
		"batch":                   {"[" + statelessTool + "]", http.StatusBadRequest},
		"no JSON":                 {`{"jsonrpc":`, http.StatusBadRequest},
		"no UTF-8":                {strings.Replace(statelessTool, `"x"`, "\"\xff\"", 1), http.StatusBadRequest},
		"ID is null":              {strings.Replace(statelessTool, `"id":7`, `"id":null`, 1), http.StatusBadRequest},
		"nothing":                 {"", http.StatusBadRequest},
		"empty batch":             {"[]", http.StatusBadRequest},
	} {
		a := u.read(u.post(tt.body))
		if strings.Contains(a.Text, "-32022") { // the client would begin a session
			t.Errorf("%s: the revision is refused: %s", name, a.Text)
		}
		if a.StatusCode != tt.status || (a.Text == "") != (tt.status == http.StatusAccepted) {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.Text)
		}
	}
	if n := len(b.sent(rpc.Request)) + len(b.sent(rpc.Post)) + len(b.sent(rpc.Cancel)); n != 0 {
		t.Errorf("a bridge was asked %d times", n)
	}
}

func TestStateless_ErrorStatus(t *testing.T) {
	b, u := newStateless(t, nil)
	for _, tt := range []struct{ status, code int }{
		{http.StatusBadRequest, mcp.CodeMissingCapability},
		{http.StatusBadRequest, rpc.CodeInvalidParams},
		{http.StatusUnauthorized, rpc.CodeInvalid},
		{http.StatusNotFound, rpc.CodeMethodNotFound},
		{http.StatusServiceUnavailable, rpc.CodeInternal},
	} {
		data := rpc.ErrorMessage(json.RawMessage("7"), tt.code, "no", nil)
		b.request = func(rpc.Ask) rpc.Answer {
			return rpc.Answer{Status: tt.status, Data: data, Header: http.Header{"Www-Authenticate": {"Bearer x"}, "Mcp-Session-Id": {"forged"}}}
		}
		for _, accept := range []string{"application/json, text/event-stream", "text/event-stream, application/json"} {
			a := u.read(u.post(statelessTool, "Accept", accept))
			if a.StatusCode != tt.status || a.Text != string(data) || a.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%d with %s: %d %v %s", tt.status, accept, a.StatusCode, a.Header, a.Text)
			}
			if a.Header.Get("WWW-Authenticate") != "Bearer x" || a.Header.Get("Mcp-Session-Id") != "" {
				t.Errorf("%d: the header is %v", tt.status, a.Header)
			}
		}
	}
}

func TestStateless_StoredBeforeAnswer(t *testing.T) {
	failed := `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"none"}}`
	for name, tt := range map[string]struct {
		method, accept string
		messages       []string
		status         int
		media, body    string
	}{
		"stream method":           {"x/stream", "", []string{result("7")}, 200, "text/event-stream", "data: " + result("7") + "\n\n"},
		"response":                {"x/y", "", []string{result("7")}, 200, "application/json", result("7")},
		"error":                   {"x/y", "", []string{failed}, 404, "application/json", failed},
		"messages before":         {"x/y", "", []string{progress(1), result("7")}, 200, "text/event-stream", "data: " + progress(1) + "\n\ndata: " + result("7") + "\n\n"},
		"client prefers a stream": {"x/y", "text/event-stream, application/json", []string{result("7")}, 200, "text/event-stream", "data: " + result("7") + "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			b, u, s := newStatelessEdge(t, func(c *config) { c.MCP.StreamMethods = []string{"x/stream"} })
			b.accepts()
			open := b.request
			b.request = func(c rpc.Ask) rpc.Answer {
				answer := open(c)
				b.say(c.Session, c.Stream, true, tt.messages...)
				return answer
			}
			headers := []string{"Mcp-Method", tt.method}
			if tt.accept != "" {
				headers = append(headers, "Accept", tt.accept)
			}
			a := u.read(u.post(statelessBody("7", tt.method, ""), headers...))
			if a.StatusCode != tt.status || a.Header.Get("Content-Type") != tt.media || a.Text != tt.body || a.Header.Get("Mcp-Session-Id") != "" {
				t.Errorf("%d %v %q", a.StatusCode, a.Header, a.Text)
			}
			s.notCancelled(t, b)
		})
	}
}

func TestStateless_Listen(t *testing.T) {
	b, u := newStateless(t, func(c *config) { c.Heartbeat = time.Hour })
	calls := b.accepts()
	replies := make(chan reply, 1)
	go func() { replies <- u.post(statelessBody("7", mcp.MethodListen, ""), "Mcp-Method", mcp.MethodListen) }()
	ask := waittest.Receive(t, "the bridge has the request", calls)
	c := u.follow(waittest.Receive(t, "the stream begins", replies))
	changed := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	b.say(ask.Session, ask.Stream, false, changed)
	c.says(changed)
}

func TestStateless_ClientClosesBeforeBridgeAnswers(t *testing.T) {
	for _, method := range []string{"tools/call", "tools/list"} {
		t.Run(method, func(t *testing.T) {
			b, u := newStateless(t, func(c *config) { c.Heartbeat = 20 * time.Millisecond })
			calls, closed := b.accepts(), make(chan struct{})
			open := b.request
			b.request = func(c rpc.Ask) rpc.Answer {
				answer := open(c)
				<-closed
				return answer
			}
			conn, err := net.Dial("tcp", strings.TrimPrefix(u.url, "http://")) //nolint:noctx // to loopback
			must.NoError(t, err)
			body := statelessBody("7", method, `"name":"x",`)
			_, err = fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"+
				"Mcp-Protocol-Version: %s\r\nMcp-Method: %s\r\nMcp-Name: x\r\nContent-Length: %d\r\n\r\n%s", mcp.Stateless, method, len(body), body)
			ask := waittest.Receive(t, "the bridge has the request", calls)
			must.NoError(t, conn.Close())
			close(closed)
			must.NoError(t, err)
			waittest.Until(t, "the bridge receives the cancellation", func() bool { return len(b.sent(rpc.Cancel)) > 0 })
			if got := b.sent(rpc.Cancel); len(got) != 1 || got[0].Session != ask.Session || got[0].Stream != ask.Stream {
				t.Errorf("the bridge received %+v", got)
			}
		})
	}
}

func TestStateless_InsufficientToken(t *testing.T) {
	b, u := newStateless(t, guarded(t))
	reading := authtest.Token(t, "alice", func(token *auth.Token) { token.Subscribe = []auth.Pattern{auth.All} })
	for name, tt := range map[string]struct {
		headers []string
		status  int
	}{
		"no token":       {nil, http.StatusUnauthorized},
		"invalid token":  {edgetest.Bearer("x"), http.StatusUnauthorized},
		"one session":    {edgetest.Bearer(authtest.Of(t, "alice", "s")), http.StatusForbidden},
		"subscribe only": {edgetest.Bearer(reading), http.StatusForbidden},
	} {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			body := ""
			if method == http.MethodPost {
				body = statelessTool
			}
			status := tt.status
			if method == http.MethodGet && status == http.StatusForbidden {
				status = http.StatusMethodNotAllowed // it names no session that the token could lack
			}
			if a := u.read(u.do(method, body, tt.headers...)); a.StatusCode != status || (status != http.StatusMethodNotAllowed) != (a.Header.Get("WWW-Authenticate") != "") {
				t.Errorf("%s: %s: %d %v %s", name, method, a.StatusCode, a.Header, a.Text)
			}
		}
	}
	if n := len(b.sent(rpc.Request)); n != 0 {
		t.Errorf("a bridge was asked %d times", n)
	}
}

// A call that was cancelled while its client was disconnected ends in an error when the client resumes:
// 204 would let it wait for its time-out.
func TestStateless_ResumeAfterCancel(t *testing.T) {
	b, u := newStateless(t, resumable)
	c, ask := b.takesCall(u)
	first := c.primed()
	b.say(ask.Session, ask.Stream, false, progress(1))
	second := c.says(progress(1))
	c.Close()
	must.NoError(t, b.f.Backend.Log.EndStream(t.Context(), ask.Session, ask.Life, ask.Stream))
	for range 2 {
		a := u.read(u.do(http.MethodGet, "", "Last-Event-ID", second))
		if a.StatusCode != http.StatusOK || !strings.Contains(a.Text, `"id":7,"error"`) || strings.Contains(a.Text, `"progress"`) {
			t.Errorf("after the last message: %d %q", a.StatusCode, a.Text)
		}
	}
	again := u.follow(u.do(http.MethodGet, "", "Last-Event-ID", first))
	again.primed()
	again.says(progress(1))
	again.fails("7")
}

func TestStateless_ResumeAfterStoredResponse(t *testing.T) {
	b, u := newStateless(t, resumable)
	b.accepts()
	open := b.request
	b.request = func(c rpc.Ask) rpc.Answer {
		answer := open(c)
		b.say(c.Session, c.Stream, true, result("7"))
		return answer
	}
	c := u.follow(u.post(statelessTool))
	c.primed()
	last := c.ends(result("7"))
	if a := u.read(u.do(http.MethodGet, "", "Last-Event-ID", last)); a.StatusCode != http.StatusNoContent {
		t.Errorf("%s: %d %s", last, a.StatusCode, a.Text)
	}
}
