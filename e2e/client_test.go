package e2e

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/must"
	"rejoin/shared/sse"
	"rejoin/shared/waittest"
)

const jsonType = "application/json"

// client keeps no connections, so that none is left when a test ends.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: trusting(), ForceAttemptHTTP2: true}, Timeout: waittest.Timeout}

// answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   string
}

// got fails the test unless the answer has a status.
func (a answer) got(t testing.TB, status int) {
	t.Helper()
	if a.status != status {
		t.Fatalf("%d %s, want %d", a.status, a.body, status)
	}
}

// do sends a request, and reads the answer.
func do(t testing.TB, method, url, body string, headers ...string) answer {
	t.Helper()
	return must.Value(try(method, url, body, headers...))(t)
}

func try(method, url, body string, headers ...string) (answer, error) {
	req, err := newRequest(method, url, body, headers...)
	if err != nil {
		return answer{}, err
	}
	return trySend(client, req)
}

// newRequest makes a request; headers are name, value, name, value, also of Host.
func newRequest(method, url, body string, headers ...string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	req.Host = req.Header.Get("Host") // empty: that of the URL
	return req, nil
}

func trySend(client *http.Client, req *http.Request) (answer, error) {
	return whole(client.Do(req)) //nolint:bodyclose // whole closes it
}

// whole reads a response.
func whole(resp *http.Response, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(data)}, err
}

func streamPath(session, stream string) string {
	return "/v1/sessions/" + session + "/streams/" + stream + "/events"
}

// numbered is a message that carries a number.
func numbered(n int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"count","params":{"n":%d}}`, n)
}

func numberOf(t testing.TB, data []byte) int {
	t.Helper()
	var m struct {
		Params struct {
			N int `json:"n"`
		} `json:"params"`
	}
	if err := json.Unmarshal(data, &m); err != nil || m.Params.N == 0 {
		t.Fatalf("no numbered message: %s", data)
	}
	return m.Params.N
}

// publish stores messages from to up to to, each tried under the same key while the log
// does not answer in time, and returns the last event's id.
func (p *proc) publish(session, stream string, from, to int) (id string) {
	p.t.Helper()
	for n := from; n <= to; n++ {
		id = p.store(streamPath(session, stream), numbered(n))
	}
	return id
}

// inTime repeats a request while the log does not answer in time, and returns the first
// other answer and the number of requests: an unanswered one may have been carried out.
func inTime(t testing.TB, what string, ask func() answer) (a answer, asked int) {
	t.Helper()
	waittest.Until(t, what, func() bool {
		a = ask()
		asked++
		return a.status != http.StatusServiceUnavailable
	})
	return a, asked
}

// store stores one message, tried under the same key while the log does not answer in
// time, and returns its id.
func (p *proc) store(path, message string, headers ...string) (id string) {
	p.t.Helper()
	headers = append([]string{"Content-Type", "application/json", "Idempotency-Key", rand.Text()}, headers...)
	a, _ := inTime(p.t, message+" is stored", func() answer { return do(p.t, http.MethodPost, p.api()+path, message, headers...) })
	if a.status != http.StatusCreated {
		p.t.Fatalf("publishing %s: %d %s", message, a.status, a.body)
	}
	return stringIn(p.t, a.body, "id")
}

// create makes a session.
func (p *proc) create(body string) {
	p.t.Helper()
	a, asked := inTime(p.t, "the session is made", func() answer {
		return do(p.t, http.MethodPost, p.api()+"/v1/sessions", body, "Content-Type", "application/json")
	})
	if a.status != http.StatusCreated && (asked == 1 || a.status != http.StatusConflict) {
		p.t.Fatalf("creating %s: %d %s", body, a.status, a.body)
	}
}

func (p *proc) close(path string) {
	p.t.Helper()
	closeAt(p.t, p.api()+path)
}

// closeAt closes the stream or session of a URL.
func closeAt(t testing.TB, url string) {
	t.Helper()
	a, _ := inTime(t, url+" is closed", func() answer { return do(t, http.MethodDelete, url, "") })
	if a.status != http.StatusNoContent {
		t.Fatalf("closing %s: %d %s", url, a.status, a.body)
	}
}

func stringIn(t testing.TB, body, name string) string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	value, _ := m[name].(string)
	return value
}

// tap is one connection to an event stream, on a socket of its own.
type tap struct {
	t    testing.TB
	conn net.Conn
	resp *http.Response
	dec  *sse.Decoder
}

// subscribe connects; lastID may be empty.
func (p *proc) subscribe(path, lastID string, headers ...string) *tap {
	p.t.Helper()
	s := must.Value(p.tryTap(path, lastID, headers...))(p.t)
	if s.resp.StatusCode != http.StatusOK {
		p.t.Fatalf("%s after %q: %s", path, lastID, s.resp.Status)
	}
	return s
}

func (p *proc) tryTap(path, lastID string, headers ...string) (*tap, error) {
	headers = append(headers, "Accept", "text/event-stream")
	if lastID != "" {
		headers = append(headers, "Last-Event-ID", lastID)
	}
	req, err := newRequest(http.MethodGet, p.api()+path, "", headers...)
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(p.t.Context(), "tcp", p.addrs["--edge-addr"])
	if err != nil {
		return nil, err
	}
	conn = p.secure("--edge-addr", conn)
	_ = conn.SetDeadline(time.Now().Add(waittest.Timeout))
	if err := req.Write(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // its body is the connection, closed by cut
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	s := &tap{t: p.t, conn: conn, resp: resp, dec: sse.NewDecoder(resp.Body, 4<<20)}
	p.t.Cleanup(s.cut)
	return s, nil
}

// cut closes the connection.
func (s *tap) cut() { _ = s.conn.Close() }

// tryNext returns the next event, of any type.
func (s *tap) tryNext() (sse.Event, error) {
	_ = s.conn.SetReadDeadline(time.Now().Add(waittest.Timeout)) // on a closed connection the read fails as well
	return s.dec.Next()
}

// next returns the next event that is no cursor, which must be of a type.
func (s *tap) next(typ string) sse.Event {
	s.t.Helper()
	for {
		e, err := s.tryNext()
		if err != nil {
			s.t.Fatalf("waiting for a %s: %v", typ, err)
		}
		if e.Type == "cursor" && typ != "cursor" {
			continue
		}
		if e.Type != typ {
			s.t.Fatalf("got %s %s, want a %s", e.Type, e.Data, typ)
		}
		return e
	}
}

// numbers expects messages from up to to and returns the last one's id.
func (s *tap) numbers(from, to int) (id string) {
	s.t.Helper()
	for want := from; want <= to; want++ {
		e := s.next("message")
		if n := numberOf(s.t, e.Data); n != want {
			s.t.Fatalf("got number %d (%s), want %d", n, e.ID, want)
		}
		id = e.ID
	}
	return id
}

// procGap is the data of a gap event.
type procGap struct {
	Reason    string  `json:"reason"`
	Certain   bool    `json:"certain"`
	Stream    *string `json:"stream"`
	Requested string  `json:"requested"`
	ResumesAt string  `json:"resumesAt"`
}

func (s *tap) gap() procGap {
	s.t.Helper()
	var g procGap
	must.NoError(s.t, json.Unmarshal(s.next("gap").Data, &g))
	return g
}

// connected reads the first event.
func (s *tap) connected() (resumed bool) {
	s.t.Helper()
	var c struct {
		Resumed bool `json:"resumed"`
	}
	must.NoError(s.t, json.Unmarshal(s.next("connect").Data, &c))
	return c.Resumed
}

// retained asks the janitor how many events of a stream the log holds.
func (p *proc) retained(session, stream string) int {
	a := do(p.t, http.MethodGet, p.api()+"/v1/sessions/"+session, "")
	if a.status == http.StatusNotFound {
		return 0
	}
	var detail struct {
		Streams []struct {
			Stream string `json:"stream"`
			Events int    `json:"events"`
		} `json:"streams"`
	}
	if err := json.Unmarshal([]byte(a.body), &detail); err != nil || a.status != http.StatusOK {
		p.t.Fatalf("%d %s", a.status, a.body)
	}
	for _, s := range detail.Streams {
		if s.Stream == stream {
			return s.Events
		}
	}
	return 0
}

// sequenceOf returns an id's sequence, 0 for no id.
func sequenceOf(t testing.TB, id string) uint64 {
	t.Helper()
	if id == "" {
		return 0
	}
	parsed := must.Value(event.ParseID(id))(t)
	return parsed.Sequence
}
