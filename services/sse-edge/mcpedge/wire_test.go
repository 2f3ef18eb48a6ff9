package mcpedge

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// plainWire replaces the values that are new each time.
func plainWire(text string) string {
	for _, r := range [][2]string{
		{`(?m)^Date: .*$`, "Date: <date>"},
		{`Mcp-Session-Id: \S+`, "Mcp-Session-Id: <session>"},
		{`[0-9a-f]{8}-[0-9a-f-]{27}`, "<session>"},
		{`id: [a-z2-7]{12}-`, "id: <unique>-"},
		{`_[0-9a-z]{7}_`, "_<tag>_"},
		{`(<tag>_\d+)\.\d+`, "$1.<n>"},
		{`retry: \d+`, "retry: <ms>"},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	return strings.ReplaceAll(text, "\r\n", "\n")
}

// rawly sends a request and returns the response up to the end of the connection.
func rawly(t *testing.T, url, request string) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err.Error()
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return err.Error()
	}
	data, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	head, body, _ := strings.Cut(string(data), "\r\n\r\n")
	if strings.Contains(head, "Transfer-Encoding: chunked") {
		whole, err := io.ReadAll(httputil.NewChunkedReader(strings.NewReader(body)))
		if err != nil {
			return err.Error()
		}
		body = string(whole)
	}
	return plainWire(head + "\r\n\r\n" + body)
}

func (u *mcpUser) request(method, body string, headers ...string) string {
	r := fmt.Sprintf("%s /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\nMcp-Session-Id: %s\r\n", method, u.session)
	if u.version != "" {
		r += "MCP-Protocol-Version: " + u.version + "\r\n"
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	if method == http.MethodPost {
		r += fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	return r + "\r\n" + body
}

const wireHead = `HTTP/1.1 200 OK
Date: <date>
Content-Type: text/event-stream
X-Content-Type-Options: nosniff
Cross-Origin-Resource-Policy: same-origin
Cache-Control: no-store, no-transform
Vary: Accept, Origin
X-Accel-Buffering: no
Transfer-Encoding: chunked
Connection: close

`

// The responses to clients, byte for byte except values that are new each time.
func TestProtocol_Text(t *testing.T) {
	f, b := bridged(t)
	edge, _ := f.mcpService(nil)
	url := edge.url()
	u := join(t, url, "2025-11-25")
	old := *u
	old.version = "2025-06-18"
	batch := *u
	batch.version = ""
	foreign := join(t, url, "2025-11-25")
	c := foreign.get("")
	elsewhere := c.primed()
	c.Close()

	// Two openings come before the first message. The first cursor is after them once the
	// edge has received them.
	edge.has(t, 2)
	messages := func(last int, id string) string {
		last += 2
		return fmt.Sprintf("id: <unique>-%s_<tag>_%d\ndata: %s\n\nid: <unique>-%s_<tag>_%d\ndata: %s\n\n", id, last-1, progress(1), id, last, result(`"a"`))
	}
	for _, tt := range []struct{ name, request, want string }{
		{
			"a call", u.request("POST", toolCall),
			wireHead + "retry: <ms>\nid: <unique>-=22a=22_<tag>_2.<n>\ndata:\n\n" + messages(2, "=22a=22"),
		},
		{"a call of an older client", old.request("POST", toolCall), wireHead + messages(4, "=22a=22")},
		{"a batch", batch.request("POST", "["+toolCall+"]"), wireHead + messages(6, "=5B=22a=22=5D")},
		{
			"a cursor of an unknown call", u.request("GET", "", "Last-Event-ID", `abcdefabcdef-7_0000000_1`),
			wireHead + "retry: <ms>\nid: <unique>-7_<tag>_0.<n>\ndata:\n\n" +
				`data: {"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"The answer cannot be continued: unknown."}}` + "\n\n",
		},
	} {
		opened := testutil.ToFloat64(edge.subs.Connections.Metrics.Opened)
		answer := make(chan string, 1)
		go func() { answer <- rawly(t, url, tt.request) }()
		// An answer that is complete at once has a length, and the connection is kept.
		waittest.Until(t, "the stream is open", func() bool { return testutil.ToFloat64(edge.subs.Connections.Metrics.Opened) > opened })
		if strings.HasPrefix(tt.request, "POST") {
			calls := b.sent(rpc.Post)
			b.say(u.session, calls[len(calls)-1].Stream, true, progress(1), result(`"a"`))
		}
		if got := <-answer; got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
	// Another session's cursor is not followed, and does not end the stream either.
	c = u.get(elsewhere)
	c.primed()
	b.say(u.session, rpc.Standalone, false, progress(5))
	c.says(progress(5))
}

// Only a client that understands it is sent away when the connection is old.
func TestMCP_OldConnectionEnds(t *testing.T) {
	t.Parallel()
	b, u := newMCP(t, func(c *config) { c.MaxAge, c.Heartbeat = 7*time.Second, 100*time.Millisecond })
	old := *u
	old.version = "2025-06-18"
	patient := old.follow(old.post(toolCall))
	c := u.follow(u.post(toolCall))
	ids := map[string]bool{c.primed(): true}
	last := c.primed() // with the farewell
	c.WantEnd()
	ids[last] = true
	if c.Decoder.Retry() == 0 {
		t.Error("sent away without a time to come back")
	}
	for range 2 { // idle all the time
		c = u.get(last)
		ids[c.primed()] = true
		last = c.primed()
		ids[last] = true
		c.WantEnd()
	}
	if len(ids) != 6 {
		t.Errorf("%d places are distinct, want 6", len(ids))
	}
	calls := b.sent(rpc.Post)
	b.say(u.session, calls[0].Stream, true, result(`"a"`))
	patient.ends(result(`"a"`))
	b.say(u.session, calls[1].Stream, true, result(`"a"`))
	u.resumes(last, result(`"a"`))
}

func TestMCP_Drain(t *testing.T) {
	f, b := bridged(t)
	one, stop := f.mcpService(func(c *config) { c.Drain = 50 * time.Millisecond })
	two := f.mcpEdge(nil)
	u := join(t, one.url(), "2025-11-25")
	c := u.follow(u.post(toolCall))
	c.primed()
	list := make(chan *client, 1)
	go func() { list <- u.follow(u.post(toolList)) }() // waits for its JSON
	waittest.Until(t, "both are at work", func() bool { return len(b.sent(rpc.Post)) == 2 })
	stop()
	last := c.primed()
	c.WantEnd()
	listed := <-list
	place := listed.primed()
	for _, ask := range b.sent(rpc.Post) {
		m, _ := rpc.ParseMessage(ask.Data)
		b.say(u.session, ask.Stream, true, result(string(m.ID)))
	}
	for id, at := range map[string]string{`"a"`: last, "7": place} {
		u.at(two).resumes(at, result(id))
	}
}

// A call that has lost an event has ended for its client, whatever events are left.
func TestMCP_Gap(t *testing.T) {
	f, b := bridged(t)
	one, stop := f.mcpService(nil)
	u := join(t, one.url(), "2025-11-25")
	c := u.follow(u.post(toolCall))
	first := c.primed()
	stream := b.sent(rpc.Post)[0].Stream
	b.say(u.session, stream, false, progress(1), progress(2))
	last := c.says(progress(1), progress(2))
	stop()
	removed := edgetest.Sequences(edgetest.SequenceOf(t, first)+1, edgetest.SequenceOf(t, last))
	f.AnnounceOf(u.session, stream, eventlog.Trimmed, removed...)
	f.Remove(removed...)
	b.say(u.session, stream, true, result(`"a"`))
	c = u.at(f.mcpEdge(nil)).get(first)
	c.primed()
	c.fails(`"a"`)
}

// Whether a call whose next events have expired has lost any of them can never be known: its client receives
// an error instead of a time to reconnect.
func TestMCP_ExpiredGap(t *testing.T) {
	b, u := newMCP(t, nil)
	c := u.follow(u.post(toolCall))
	first := c.primed()
	stream := b.sent(rpc.Post)[0].Stream
	b.say(u.session, stream, false, progress(1))
	b.f.Purge(edgetest.SequenceOf(t, c.says(progress(1))) + 1)
	c = u.at(b.f.mcpEdge(nil)).get(first)
	c.primed()
	c.fails(`"a"`)
}

// A server's request to its client travels with the call, and the client's answer reaches the bridge.
func TestMCP_RequestsToClient(t *testing.T) {
	f, b := bridged(t)
	const question = `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`
	b.post = func(c rpc.Ask) rpc.Answer {
		if calls := b.sent(rpc.Post); c.Stream == "" {
			b.say(c.Session, calls[0].Stream, true, result(`"a"`))
		} else {
			b.say(c.Session, c.Stream, false, question)
		}
		return rpc.Answer{Status: http.StatusAccepted}
	}
	u := join(t, f.mcpEdge(nil), "2025-11-25")
	c := u.follow(u.post(toolCall))
	c.primed()
	c.says(question)
	u.read(u.post(result("1"))).Got(t, http.StatusAccepted)
	if answer := b.sent(rpc.Post)[1]; string(answer.Data) != result("1") {
		t.Errorf("the bridge got %s", answer.Data)
	}
	c.ends(result(`"a"`))
}
