package mcpedge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// repeated is the request of a client that a call was handed over to.
func repeated(id, token, state, more string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"x","requestState":%q%s,"_meta":{%s"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, id, state, more, token)
}

// handsOver reads the result by which a call is handed over, and the end, and returns its state.
func (c *client) handsOver(id string) (state string) {
	c.T.Helper()
	var m struct {
		ID     json.RawMessage
		Result map[string]any
	}
	e := c.Next("message")
	if err := json.Unmarshal(e.Data, &m); err != nil || string(m.ID) != id || len(m.Result) != 3 || m.Result["resultType"] != "input_required" {
		c.T.Fatalf("got %s, want the state of %s", e.Data, id)
	}
	if requests, ok := m.Result["inputRequests"].(map[string]any); !ok || len(requests) != 0 {
		c.T.Errorf("the client is asked %v", m.Result["inputRequests"])
	}
	c.WantEnd()
	state, _ = m.Result["requestState"].(string)
	return state
}

// limited has streams end long before a test does.
func limited(c *config) { c.ProxyRequestLimit, c.Retry = time.Second, time.Minute }

// The next request of a client, at any edge, receives the following messages, under its own ID.
func TestHandOver_Drain(t *testing.T) {
	f, b := bridged(t)
	one, stop := f.mcpService(nil)
	u := statelessUser(t, one.url())
	c, ask := b.takesCall(u)
	b.say(ask.Session, ask.Stream, false, progress(1))
	c.says(progress(1))
	stop()
	state := c.handsOver("7")
	b.say(ask.Session, ask.Stream, false, progress(2), `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`)

	again := u.at(f.mcpEdge(nil))
	c = again.follow(again.post(repeated(`"b"`, `"progressToken":"mine",`, state, `,"inputResponses":{"q":{}}`)))
	c.says(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":2,"progressToken":"mine"}}`, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`)
	waittest.Until(t, "the bridge is asked about the call", func() bool { return len(b.sent(rpc.Check)) > 0 })
	b.say(ask.Session, ask.Stream, false, progress(3))
	c.says(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":3,"progressToken":"mine"}}`)
	silent := again.follow(again.post(repeated("9", "", state, "")))
	b.say(ask.Session, ask.Stream, true, `{"jsonrpc":"2.0","id":7,"result":{"x":1}}`)
	c.ends(`{"id":"b","jsonrpc":"2.0","result":{"x":1}}`)
	silent.ends(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`, `{"id":9,"jsonrpc":"2.0","result":{"x":1}}`)
	late := again.follow(again.post(repeated("10", "", state, "")))
	late.ends(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`, `{"id":10,"jsonrpc":"2.0","result":{"x":1}}`)
	if n, cancelled := len(b.sent(rpc.Request)), len(b.sent(rpc.Cancel)); n != 1 || cancelled != 0 {
		t.Errorf("the bridge has %d requests, and %d were cancelled", n, cancelled)
	}
}

// The call of a client that reconnects to the stopping edge, before its proxy notices, is handed over again.
func TestHandOver_BackAtTheStoppingEdge(t *testing.T) {
	t.Parallel()
	f, b := bridged(t)
	one, stop := f.mcpService(func(c *config) { c.Retry = time.Millisecond })
	u := statelessUser(t, one.url())
	c, ask := b.takesCall(u)
	visit := admission.Visit{Sessions: []string{"another"}} // keeps the edge from its end
	if refused := one.subs.Admission.Enter(visit); refused != "" {
		t.Fatal(refused)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	state := c.handsOver("7")
	for i := 2; i <= mcp.MaxHandOvers; i++ {
		id := strconv.Itoa(i)
		state = u.follow(u.post(repeated(id, "", state, ""))).handsOver(id)
	}
	u.read(u.post(repeated("9", "", state, ""))).Got(t, http.StatusServiceUnavailable)
	one.subs.Admission.Leave(visit)
	<-stopped
	again := u.at(f.mcpEdge(nil))
	c = again.follow(again.post(repeated("10", "", state, "")))
	b.say(ask.Session, ask.Stream, true, result("7"))
	c.ends(`{"id":10,"jsonrpc":"2.0","result":{}}`)
	if n, cancelled := len(b.sent(rpc.Request)), len(b.sent(rpc.Cancel)); n != 1 || cancelled != 0 {
		t.Errorf("the bridge has %d requests, and %d were cancelled", n, cancelled)
	}
}

// A call is handed over before a proxy cuts its response: three times, and not a fourth time.
func TestHandOver_ProxyRequestLimit(t *testing.T) {
	t.Parallel()
	b, u := newStateless(t, limited)
	c, ask := b.takesCall(u)
	id := "7"
	for i := range mcp.MaxHandOvers {
		state := c.handsOver(id)
		id = strconv.Itoa(i + 20)
		c = u.follow(u.post(repeated(id, "", state, "")))
	}
	other := u.follow(u.post(statelessTool)) // this stream is older than the limit when the call ends
	other.handsOver("7")
	b.say(ask.Session, ask.Stream, true, result("7"))
	c.ends(`{"id":` + id + `,"jsonrpc":"2.0","result":{}}`)
}

// A request that waits for its response alone is handed over as well.
func TestHandOver_Plain(t *testing.T) {
	t.Parallel()
	b, u := newStateless(t, func(c *config) { limited(c); c.MCP.StreamMethods = nil })
	c, _ := b.takesCall(u)
	c.handsOver("7")
}

// A method without a result of that kind is not handed over.
func TestHandOver_OtherMethod(t *testing.T) {
	f, b := bridged(t)
	one, stop := f.mcpService(nil)
	u := &mcpUser{t: t, url: one.url(), version: mcp.Stateless, headers: []string{"Mcp-Method", mcp.MethodListen}}
	calls := b.accepts()
	c := u.follow(u.post(statelessBody("7", mcp.MethodListen, "")))
	ask := waittest.Receive(t, "the bridge has the request", calls)
	b.say(ask.Session, ask.Stream, false, progress(1))
	c.says(progress(1))
	stop()
	c.WantEnd()
	waittest.Until(t, "the call is cancelled", func() bool { return len(b.sent(rpc.Cancel)) == 1 })
}

// A block that the client has received in part is completed first, however late.
func TestHandOver_SlowClient(t *testing.T) {
	t.Parallel()
	f, b := bridged(t)
	large := func(c *config) { c.WindowBytes, c.WriteTimeout = 64<<20, time.Minute }
	one, stop := f.mcpService(large)
	u := statelessUser(t, one.url())
	c, ask := b.takesCall(u)
	const n = 12 // more than sockets hold
	for i := range n {
		b.say(ask.Session, ask.Stream, false, fmt.Sprintf(`{"jsonrpc":"2.0","method":"m","params":{"n":%d,"x":%q}}`, i, strings.Repeat("x", 900<<10)))
	}
	waittest.Until(t, "the socket is full", func() bool { return testutil.ToFloat64(one.subs.Connections.Metrics.Blocked) == 1 })
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	<-one.subs.Connections.Draining()
	got, state := 0, ""
	for state == "" {
		e := c.Next("message")
		var m struct {
			Params struct{ N int }
			Result struct{ RequestState string }
		}
		must.NoError(t, json.Unmarshal(e.Data, &m))
		if state = m.Result.RequestState; state == "" {
			if m.Params.N != got {
				t.Fatalf("message %d came as number %d", m.Params.N, got)
			}
			got++
		}
	}
	c.WantEnd()
	<-stopped
	again := u.at(f.mcpEdge(large))
	c = again.follow(again.post(repeated("8", "", state, "")))
	for ; got < n; got++ {
		if e := c.Next("message"); !strings.HasPrefix(string(e.Data), fmt.Sprintf(`{"jsonrpc":"2.0","method":"m","params":{"n":%d,`, got)) {
			t.Fatalf("message %d is %.80s", got, e.Data)
		}
	}
	b.say(ask.Session, ask.Stream, true, result("7"))
	c.ends(`{"id":8,"jsonrpc":"2.0","result":{}}`)
}

// No state repeats a call, and none shows a call to another client.
func TestHandOver_Refused(t *testing.T) {
	f, b := bridged(t)
	guard := guarded(t)
	one, stop := f.mcpService(guard)
	alice, bob := edgetest.Bearer(authtest.Of(t, "alice", "*")), edgetest.Bearer(authtest.Of(t, "bob", "*"))
	u := statelessUser(t, one.url())
	c, ask := b.takesCall(u, alice...)
	stop()
	state := c.handsOver("7")
	u = u.at(f.mcpEdge(guard))
	refused := func(name, body string, headers []string) {
		t.Helper()
		a := u.read(u.post(body, headers...))
		if a.StatusCode != http.StatusBadRequest || !strings.Contains(a.Text, `"code":-32602`) || !strings.Contains(a.Text, `"id":8,`) {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.Text)
		}
	}
	parts := strings.SplitN(state, ".", 6)
	with := func(i int, value string) string {
		changed := append([]string(nil), parts...)
		changed[i] = value
		return strings.Join(changed, ".")
	}
	for name, text := range map[string]string{
		"another session": with(2, uuid.NewString()), "no session": with(2, "x"), "too often": with(3, "4"), "no number": with(3, "x"),
		"another request": with(4, strings.Repeat("0", 32)), "no event ID": with(5, "x"), "another stream": with(5, "task_0000000_1"), "half of it": strings.Join(parts[:4], "."),
	} {
		refused(name, repeated("8", "", text, ""), alice)
	}
	for name, body := range map[string]string{
		"a long ID": repeated(`"`+strings.Repeat("8", 200)+`"`, "", state, ""), "a long token": repeated("8", `"progressToken":"`+strings.Repeat("x", 2000)+`",`, state, ""),
	} {
		if a := u.read(u.post(body, alice...)); a.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.Text)
		}
	}
	refused("another user", repeated("8", "", state, ""), bob)
	other := strings.Replace(repeated("8", "", state, ""), `"name":"x"`, `"name":"x","arguments":{"n":1}`, 1)
	refused("other arguments", other, alice)
	c = u.follow(u.post(repeated("8", "", state, ""), alice...))
	must.NoError(t, b.f.Backend.Sessions.End(waittest.Context(t), ask.Session, "", false))
	c.fails("8")
	waittest.Until(t, "the edge knows of the end", func() bool {
		rec, err := b.f.Backend.Sessions.Get(waittest.Context(t), ask.Session)
		return err == nil && rec.State != session.Open
	})
	refused("a call that is gone", repeated("8", "", state, ""), alice)
	if n := len(b.sent(rpc.Request)); n != 1 {
		t.Errorf("the bridge has %d requests", n)
	}
}

// A stream that its client resumes ends before a proxy cuts it, and the client reconnects at once: here
// at an edge without a limit, which sends the rest however long that takes.
func TestProxyRequestLimit_Resumes(t *testing.T) {
	t.Parallel()
	f, b := bridged(t)
	url, unlimited := f.mcpEdge(func(c *config) { limited(c); resumable(c) }), f.mcpEdge(resumable)
	u := statelessUser(t, url)
	c, ask := b.takesCall(u)
	last := c.primedUntilEnd()
	if c.Decoder.Retry() > time.Second {
		t.Errorf("the client comes back after %s", c.Decoder.Retry())
	}
	b.say(ask.Session, ask.Stream, true, result("7"))
	c = u.at(unlimited).follow(u.at(unlimited).do(http.MethodGet, "", "Last-Event-ID", last))
	c.primed()
	c.ends(result("7"))

	old := join(t, url, "2025-11-25")
	last = old.follow(old.post(toolCall)).primedUntilEnd()
	b.say(old.session, b.sent(rpc.Post)[0].Stream, true, result(`"a"`))
	old.at(unlimited).resumes(last, result(`"a"`))
}

func TestProxyRequestLimit_Events(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Create("s", "")
	c := eventsAt(t, f.mcpEdge(func(c *config) { limited(c); withMCPEvents(c) })).stream("")
	c.notified("active")
	c.responds()
}
