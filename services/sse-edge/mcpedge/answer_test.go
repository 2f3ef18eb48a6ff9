package mcpedge

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/shared/daemon"
	"rejoin/shared/inspect"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

// M8: the holder of a bridge's key answers with headers and a status that make a second
// response on the client's connection.
func TestAttackResponseSplitting(t *testing.T) {
	b, u := newMCP(t, nil)
	forged := "x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 26\r\n\r\n<script>alert(1)</script>\r"
	b.post = func(rpc.Ask) rpc.Answer {
		return rpc.Answer{Status: http.StatusUnauthorized, Data: []byte(result("7")), Header: http.Header{
			"Www-Authenticate":            {forged, "Bearer x", "Bearer \x00", "Bearer \x7f"},
			"Retry-After":                 {"5"},
			"X: y\r\nSet-Cookie":          {"a=b"},
			"Set-Cookie":                  {"a=b"},
			"Access-Control-Allow-Origin": {"https://evil.example"},
			"Location":                    {"https://evil.example"},
			"Content-Security-Policy":     {"sandbox"},
			"Content-Length":              {"1"},
			"Transfer-Encoding":           {"chunked"},
			"Content-Type":                {"text/html"},
			"Mcp-Session-Id":              {"of-somebody-else"},
		}}
	}
	conn := must.Value(net.Dial("tcp", strings.TrimPrefix(u.url, "http://")))(t) //nolint:noctx // to loopback
	defer func() { _ = conn.Close() }()
	must.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	const head = "%s /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: %s\r\nAccept: application/json, text/event-stream\r\n"
	must.Value(fmt.Fprintf(conn, head+"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"+head+"\r\n", "POST", u.session, len(toolList), toolList, "DELETE", u.session))(t)
	r := bufio.NewReader(conn)
	first := webtest.ReadAnswer(t, r, http.MethodPost)
	if first.Status != http.StatusUnauthorized || first.Text != result("7") || first.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %s %s", first.Status, first.Header, first.Text)
	}
	if got := first.Header["Www-Authenticate"]; !slices.Equal(got, []string{"Bearer x"}) {
		t.Errorf("WWW-Authenticate is %q", got)
	}
	if got := first.Header.Get("Retry-After"); got != "5" {
		t.Errorf("Retry-After is %q", got)
	}
	for _, name := range []string{"Set-Cookie", "Access-Control-Allow-Origin", "Location", "Content-Security-Policy", "Mcp-Session-Id"} {
		if got := first.Header[name]; len(got) > 0 {
			t.Errorf("%s is %q", name, got)
		}
	}
	if a := webtest.ReadAnswer(t, r, http.MethodDelete); a.Status != http.StatusNoContent || a.Text != "" {
		t.Errorf("the second response is %d %q", a.Status, a.Text)
	}
}

// The edge names the session, whatever ID the bridge answers with.
func TestAttackForgedSessionID(t *testing.T) {
	f, b := bridged(t)
	b.open = func(rpc.Ask) rpc.Answer {
		return rpc.Answer{Status: http.StatusOK, Header: http.Header{"Mcp-Session-Id": {"forged"}}, Data: []byte(initialized)}
	}
	u := &mcpUser{t: t, url: f.mcpEdge(nil)}
	a := u.read(u.post(`{"jsonrpc":"2.0","id":0,"method":"initialize"}`))
	if got := a.Header["Mcp-Session-Id"]; len(got) != 1 || got[0] != b.sent(rpc.Open)[0].Session {
		t.Errorf("the session is %q", got)
	}
}

func TestAttackForgedStatus(t *testing.T) {
	b, u := newMCP(t, nil)
	for _, status := range []int{-1, 0, 99, 100, 101, 199, 600, 99999} {
		b.post = func(rpc.Ask) rpc.Answer { return rpc.Answer{Status: status, Data: []byte(result("7"))} }
		for _, body := range []string{toolList, result("1")} {
			if a := u.read(u.post(body)); a.StatusCode != http.StatusBadGateway || !strings.Contains(a.Text, `"code":-32603`) {
				t.Errorf("%d became %d %s", status, a.StatusCode, a.Text)
			}
		}
	}
}

// stalled is a listener whose connections write nothing while it is locked.
type stalled struct {
	net.Listener
	sync.RWMutex
}

type stalledConn struct {
	*net.TCPConn
	all *stalled
}

func (l *stalled) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return stalledConn{conn.(*net.TCPConn), l}, nil //nolint:errcheck,forcetypeassert // it is one
}

func (c stalledConn) Write(b []byte) (int, error) {
	c.all.RLock()
	defer c.all.RUnlock()
	return c.TCPConn.Write(b)
}

// An answer counts against the client's memory, and as a connection, until its last byte is written.
func TestMCP_UnreadAnswers(t *testing.T) {
	const size, budget = 64 << 10, 256 << 10
	f := newFixture(t)
	memory, stall := quota.NewPool(budget), &stalled{}
	f.env = func(env *daemon.Env) {
		env.Memory = memory
		env.Listen = func(addr, flag string) (_ net.Listener, err error) {
			stall.Listener, err = daemon.Listen(addr, flag)
			return stall, err
		}
	}
	b := f.bridge()
	s, _ := f.mcpService(nil)
	stateless := statelessUser(t, s.url())
	task := newTask(t, b, stateless, "")
	task.becomes(t, mcp.TaskCompleted, func(is *mcp.StoredTask) { is.Result = []byte(`"` + strings.Repeat("x", size) + `"`) })
	u, earlier := join(t, s.url(), "2025-11-25"), join(t, s.url(), "2025-06-18")
	large := func(id string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"result":"` + strings.Repeat("x", size) + `"}`
	}
	b.post = func(c rpc.Ask) rpc.Answer {
		m, _ := rpc.ParseMessage(c.Data)
		b.say(c.Session, c.Stream, true, large(string(m.ID)))
		state, err := f.Backend.Log.Look(waittest.Context(t), 0)
		if err != nil {
			t.Error(err)
		}
		s.has(t, state.Last) // or the answer is a stream
		return rpc.Answer{Status: http.StatusAccepted}
	}
	says := func(status int) func(rpc.Ask) rpc.Answer {
		return func(rpc.Ask) rpc.Answer { return rpc.Answer{Status: status, Data: []byte(large("7"))} }
	}
	b.open = says(http.StatusOK)
	connections := func() int {
		all, _ := s.subs.Admission.Clients(inspect.Question{})
		return all
	}
	call := func(u *mcpUser, body string, headers ...string) func() reply {
		return func() reply { return u.post(body, headers...) }
	}
	for name, tt := range map[string]struct {
		request     func() reply
		answer      int // of the bridge, at once
		connections int
		without     int // the status without memory for the answer; 200 if the client resumes
	}{
		"response":           {call(u, toolList), 0, 1, http.StatusOK},
		"whole stream":       {call(u, toolCall), 0, 1, http.StatusOK},
		"it does not resume": {call(earlier, toolCall), 0, 1, http.StatusGatewayTimeout},
		"initialize":         {call(u, `{"jsonrpc":"2.0","id":7,"method":"initialize"}`), 0, 0, http.StatusServiceUnavailable},
		"without a session":  {call(stateless, statelessTool), http.StatusOK, 1, http.StatusGatewayTimeout},
		"as a stream":        {call(stateless, statelessTool, "Accept", "text/event-stream, application/json"), http.StatusOK, 1, http.StatusGatewayTimeout},
		"an error":           {call(stateless, statelessTool), http.StatusBadRequest, 1, http.StatusServiceUnavailable},
		"an unknown outcome": {call(stateless, statelessTool), http.StatusGatewayTimeout, 1, http.StatusGatewayTimeout},
		"a task":             {func() reply { return task.send(mcp.MethodGetTask, "") }, 0, 1, http.StatusServiceUnavailable},
	} {
		b.request = says(tt.answer)
		answered := make(chan reply, 1)
		stall.Lock()
		go func() { answered <- tt.request() }()
		waittest.Until(t, name+" is counted", func() bool { return memory.Used() > size && connections() == tt.connections })
		stall.Unlock()
		if a := u.read(waittest.Receive(t, "the client is answered", answered)); len(a.Text) < size {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.Text)
		}
		waittest.Until(t, name+" is not counted any more", func() bool { return memory.Used() == 0 && connections() == 0 })

		others := int64(budget - size)
		memory.Take("", others)
		resp := tt.request()
		memory.Give("", others)
		if tt.without == http.StatusOK { // the log has the response
			c := u.follow(resp)
			again := u.get(c.primed())
			c.WantEnd()
			again.primed()
			again.Next("message")
			again.WantEnd()
		} else if a := u.read(resp); a.StatusCode != tt.without || (a.Header.Get("Retry-After") == "") != (tt.without == http.StatusGatewayTimeout) {
			t.Errorf("%s without memory for it: %d %.100s", name, a.StatusCode, a.Text)
		}
		waittest.Until(t, name+" has left nothing", func() bool { return memory.Used() == 0 && connections() == 0 })
	}
}
