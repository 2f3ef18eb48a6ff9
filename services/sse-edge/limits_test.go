package edge

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
	"rejoin/shared/web/webtest"
)

// A client that connects too often is refused before anything else, and served again when its rate
// allows it. Others are not concerned. Clients of one IPv6 network count as one, whatever addresses they
// claim to forward for.
func TestAddress_Rate(t *testing.T) {
	t.Parallel()
	proxy := must.Value(web.NewClients(web.ClientsConfig{TrustedProxies: []string{"127.0.0.1"}}))(t)
	f := newFixture(t)
	s, _ := f.startService(func(c *Config) { c.MaxAddressConnectRate, c.Clients = 1, proxy })
	url := s.url() + streamPath
	ask := func(accept, from string) (status int, header http.Header, body string) {
		t.Helper()
		c := subscribe(t, url, "Accept", accept, "X-Forwarded-For", from)
		defer c.Close()
		if accept != "application/json" && c.Response.Header.Get("Content-Length") == "" {
			return c.Response.StatusCode, c.Response.Header, "a stream"
		}
		text := must.Value(io.ReadAll(c.Response.Body))(t)
		return c.Response.StatusCode, c.Response.Header, string(text)
	}
	const client, same, other = "2001:db8:0:1::1", "203.0.113.1, 2001:db8:0:1:ffff::", "2001:db8:0:2::1"
	for i := 0; ; i++ {
		status, _, _ := ask("application/json", client)
		if status == http.StatusTooManyRequests {
			break
		}
		if status != http.StatusOK || i > 1000 {
			t.Fatalf("poll %d: %d", i, status)
		}
	}
	waittest.Until(t, "a stream is refused with a retry", func() bool {
		status, header, body := ask("text/event-stream", same)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		return strings.HasPrefix(body, "retry: ") && header.Get("Cache-Control") == "no-store, no-transform"
	})
	waittest.Until(t, "a poll is refused with Retry-After", func() bool {
		status, header, body := ask("application/json", same)
		return status == http.StatusTooManyRequests && header.Get("Retry-After") == "1" && strings.Contains(body, `"code":"rate_limited"`)
	})
	if status, _, body := ask("text/event-stream", other); status != http.StatusOK || body != "a stream" {
		t.Errorf("another client: %d %s", status, body)
	}
	if n := testutil.ToFloat64(s.subs.Connections.Metrics.Refused.WithLabelValues("address_rate")); n < 3 {
		t.Errorf("%v refusals are counted", n)
	}
	waittest.Until(t, "it is served again", func() bool {
		_, _, body := ask("text/event-stream", same)
		return body == "a stream"
	})
}

// Requests for events may have a body, which is not read. Their streams are served, and end with their clients.
func TestLimits_RequestsWithBodies(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Publish("a", 1)
	s, _ := f.startService(func(c *Config) { c.MaxAddressConnections = 1 })
	for _, path := range []string{streamPath, flowPath, "/v1/events?session=s"} {
		for name, body := range map[string]string{
			"no chunks":  "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
			"half a one": "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
			"large":      "Content-Length: 100000\r\n\r\nab",
		} {
			if name == "large" { // the server waits for the first 8 KiB
				body += strings.Repeat("x", 10_000)
			}
			conn := webtest.Dial(t, s.Addr().String(), "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"+body)
			line := make([]byte, len("HTTP/1.1 200 OK\r\n"))
			if _, err := io.ReadFull(conn, line); err != nil && name != "half a one" || err == nil && string(line) != "HTTP/1.1 200 OK\r\n" {
				t.Errorf("%s, %s: %q, %v", path, name, line, err)
			}
			_ = conn.Close()
			waittest.Until(t, "its place is free", func() bool {
				return testutil.ToFloat64(s.subs.Connections.Metrics.Connections) == 0
			})
		}
	}
	connect(t, s.url()+streamPath)
}
