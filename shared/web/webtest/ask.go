package webtest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// Answer is a response with its body read.
type Answer struct {
	Status int
	Header http.Header
	Text   string
}

// client keeps no connections, so that a test leaks none, and follows no redirects.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       waittest.Timeout,
}

// Ask makes a request and reads the answer. headers are pairs of names and values, also of Host.
func Ask(t testing.TB, method, url, body string, headers ...string) Answer {
	t.Helper()
	req := must.Value(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body)))(t)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	req.Host = req.Header.Get("Host")     // empty: that of the URL
	resp := must.Value(client.Do(req))(t) //nolint:bodyclose // read closes it
	return read(t, resp)
}

// Dial opens a connection that ends with the test, or after [waittest.Timeout], and writes a request.
func Dial(t testing.TB, addr, request string) net.Conn {
	t.Helper()
	conn := must.Value(new(net.Dialer).DialContext(t.Context(), "tcp", addr))(t)
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(waittest.Timeout)) // fails on a closed connection only
	must.Value(io.WriteString(conn, request))(t)
	return conn
}

// ReadAnswer reads the answer to a request of a method from a connection.
func ReadAnswer(t testing.TB, from *bufio.Reader, method string) Answer {
	t.Helper()
	resp := must.Value(http.ReadResponse(from, &http.Request{Method: method}))(t) //nolint:bodyclose // read closes it
	return read(t, resp)
}

// read reads an answer, and closes it.
func read(t testing.TB, resp *http.Response) Answer {
	t.Helper()
	defer func() { _ = resp.Body.Close() }()
	data := must.Value(io.ReadAll(resp.Body))(t)
	return Answer{resp.StatusCode, resp.Header, string(data)}
}
