package mcpedge

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/rpc"
	"rejoin/shared/web/webtest"
)

// M8: the holder of a bridge's key answers with headers and a status that make a second
// response on the client's connection.
func TestAttackResponseSplitting(t *testing.T) {
	b, u := newMCP(t, nil)
	forged := "x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 26\r\n\r\n<script>alert(1)</script>\r"
	b.post = func(rpc.Call) rpc.Answer {
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
	conn, err := net.Dial("tcp", strings.TrimPrefix(u.url, "http://")) //nolint:noctx // to loopback
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	const head = "%s /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: %s\r\nAccept: application/json, text/event-stream\r\n"
	if _, err := fmt.Fprintf(conn, head+"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"+head+"\r\n", "POST", u.session, len(toolList), toolList, "DELETE", u.session); err != nil {
		t.Fatal(err)
	}
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

// A session's ID is the edge's, whatever the bridge says.
func TestAttackForgedSessionID(t *testing.T) {
	f := newFixture(t)
	b := f.bridge()
	b.open = func(rpc.Call) rpc.Answer {
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
		b.post = func(rpc.Call) rpc.Answer { return rpc.Answer{Status: status, Data: []byte(result("7"))} }
		for _, body := range []string{toolList, result("1")} {
			if a := u.read(u.post(body)); a.StatusCode != http.StatusBadGateway || !strings.Contains(a.Text, `"code":-32603`) {
				t.Errorf("%d became %d %s", status, a.StatusCode, a.Text)
			}
		}
	}
}

// A bridge shares its processes out by client, and knows no addresses itself.
func TestMCP_Share(t *testing.T) {
	for _, change := range []func(*config){nil, guarded(t)} {
		f := newFixture(t)
		b := f.bridge()
		join(t, f.mcpEdge(change), "2025-11-25", edgetest.Bearer(authtest.Of(t, "alice", "*"))...)
		if client := b.sent(rpc.Open)[0].Client; client != "127.0.0.1" {
			t.Errorf("the bridge was told of %q", client)
		}
	}
}
