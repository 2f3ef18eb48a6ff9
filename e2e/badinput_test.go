package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/shared/waittest"
)

const jsonType = "application/json"

// Every refusal is a problem document with a stable code, stores nothing, and
// leaves the service as it was.
func TestBadInput_StoresNothing(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--max-message-bytes=4096")
	events := streamPath("bad", "s")
	good := numbered(1)
	long := strings.Repeat("x", 129)
	cases := []struct {
		name, method, path, body string
		status                   int
		code                     string
		headers                  []string
	}{
		{"unknown route", "GET", "/v2/sessions", "", 404, "not_found", nil},
		{"unknown resource", "POST", "/v1/sessions/bad/streams/s", good, 405, "method_not_allowed", nil},
		{"unknown path below a stream", "GET", "/v1/sessions/bad/streams/s/other", "", 404, "not_found", nil},
		{"wrong method on events", "PUT", events, good, 405, "method_not_allowed", nil},
		{"unknown method", "BREW", events, "", 405, "method_not_allowed", nil},
		{"wrong method on sessions", "DELETE", "/v1/sessions", "", 405, "method_not_allowed", nil},
		{"wrong method on a session", "POST", "/v1/sessions/bad", "{}", 405, "method_not_allowed", nil},
		{"HEAD on an event stream", "HEAD", events, "", 405, "", nil},

		{"no content type", "POST", events, good, 415, "unsupported_media_type", []string{"Content-Type", ""}},
		{"form", "POST", events, "a=b", 415, "unsupported_media_type", []string{"Content-Type", "application/x-www-form-urlencoded"}},
		{"multipart", "POST", events, "--x--", 415, "unsupported_media_type", []string{"Content-Type", "multipart/form-data; boundary=x"}},
		{"text", "POST", events, good, 415, "unsupported_media_type", []string{"Content-Type", "text/plain"}},
		{"another charset", "POST", events, good, 415, "unsupported_media_type", []string{"Content-Type", "application/json; charset=latin1"}},
		{"compressed", "POST", events, good, 415, "unsupported_media_type", []string{"Content-Type", jsonType, "Content-Encoding", "gzip"}},
		{"body too large", "POST", events, `{"jsonrpc":"2.0","method":"` + strings.Repeat("m", 5000) + `"}`, 413, "body_too_large", nil},

		{"no body", "POST", events, "", 400, "invalid_json", nil},
		{"broken JSON", "POST", events, `{"jsonrpc":"2.0",`, 400, "invalid_json", nil},
		{"two documents", "POST", events, good + good, 400, "invalid_json", nil},
		{"not UTF-8", "POST", events, "{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}", 400, "invalid_json", nil},
		{"no array", "POST", events, good, 400, "invalid_body", []string{"Content-Type", "application/vnd.rejoin.messages+json"}},
		{"a NUL", "POST", events, "\x00" + good, 400, "invalid_json", nil},

		{"reserved type", "POST", events, good, 400, "reserved_type", []string{"Content-Type", jsonType, "Event-Type", "gap"}},
		{"type too long", "POST", events, good, 400, "invalid_header", []string{"Content-Type", jsonType, "Event-Type", long}},
		{"key too long", "POST", events, good, 400, "invalid_header", []string{"Content-Type", jsonType, "Idempotency-Key", strings.Repeat("k", 257)}},
		{"key that is not ASCII", "POST", events, good, 400, "invalid_header", []string{"Content-Type", jsonType, "Idempotency-Key", "schlüssel"}},

		{"session too long", "POST", streamPath(long, "s"), good, 400, "invalid_name", nil},
		{"stream too long", "POST", streamPath("bad", long), good, 400, "invalid_name", nil},
		{"session of a space", "POST", streamPath("%20", "s"), good, 400, "invalid_name", nil},
		{"stream with a line break", "POST", streamPath("bad", "a%0Ab"), good, 400, "invalid_name", nil},
		{"stream with a NUL", "POST", streamPath("bad", "%00"), good, 400, "invalid_name", nil},
		{"session that is not ASCII", "POST", streamPath("%C3%A9", "s"), good, 400, "invalid_name", nil},
		{"session of a dot", "POST", streamPath("%2E", "s"), good, 400, "invalid_name", nil},
		{"session of two dots", "POST", streamPath("..", "s"), good, 400, "invalid_name", nil},
		{"stream of two dots", "POST", streamPath("bad", "%2e%2E"), good, 400, "invalid_name", nil},
		{"session of a star", "POST", streamPath("*", "s"), good, 400, "invalid_name", nil},
		{"broken encoding", "POST", streamPath("bad", "%zz"), good, 400, "invalid_name", nil},
		{"empty session", "POST", streamPath("", "s"), good, 404, "not_found", nil},
		{"two slashes first", "GET", "//v1/sessions", "", 404, "not_found", nil},
		{"bad name to read", "GET", streamPath("bad", "%20"), "", 400, "invalid_name", nil},
		{"bad name to read a session", "GET", "/v1/sessions/%20/events", "", 400, "invalid_name", nil},
		{"bad name to look at", "GET", "/v1/sessions/%20", "", 400, "invalid_name", nil},
		{"bad name to close", "DELETE", "/v1/sessions/%20", "", 400, "invalid_name", nil},
		{"bad stream to close", "DELETE", "/v1/sessions/bad/streams/%20", "", 400, "invalid_name", nil},

		{"limit that is no number", "GET", events + "?limit=ten", "", 400, "invalid_parameter", nil},
		{"limit of zero", "GET", events + "?limit=0", "", 400, "invalid_parameter", nil},
		{"limit too large", "GET", events + "?limit=1001", "", 400, "invalid_parameter", nil},
		{"limit beyond numbers", "GET", events + "?limit=99999999999999999999", "", 400, "invalid_parameter", nil},
		{"limit of nothing", "GET", events + "?limit=", "", 400, "invalid_parameter", nil},
		{"two limits", "GET", events + "?limit=1&limit=2", "", 400, "invalid_parameter", nil},
		{"two places", "GET", events + "?after=a&after=b", "", 400, "invalid_parameter", nil},
		{"from of nothing", "GET", events + "?from=", "", 400, "invalid_parameter", nil},
		{"envelope of nothing", "GET", events + "?envelope", "", 400, "invalid_parameter", nil},
		{"two list limits", "GET", "/v1/sessions?limit=1&limit=1", "", 400, "invalid_parameter", nil},
		{"list limit of nothing", "GET", "/v1/sessions?limit=", "", 400, "invalid_parameter", nil},
		{"wait that is no number", "GET", events + "?wait=soon", "", 400, "invalid_parameter", nil},
		{"wait too long", "GET", events + "?wait=61", "", 400, "invalid_parameter", nil},
		{"from nowhere", "GET", events + "?from=there", "", 400, "invalid_parameter", nil},
		{"unknown on_gap", "GET", events + "?on_gap=ignore", "", 400, "invalid_parameter", nil},
		{"envelope of neither", "GET", events + "?envelope=perhaps", "", 400, "invalid_parameter", nil},
		{"method of nothing", "GET", events + "?method=", "", 400, "invalid_parameter", nil},
		{"method with a star inside", "GET", events + "?method=a*b", "", 400, "invalid_parameter", nil},
		{"level that is none", "GET", events + "?level=warn", "", 400, "invalid_parameter", nil},
		{"two levels", "GET", events + "?level=info&level=info", "", 400, "invalid_parameter", nil},
		{"clear of neither", "DELETE", "/v1/sessions/bad?clear=yes", "", 400, "invalid_parameter", nil},
		{"list limit that is no number", "GET", "/v1/sessions?limit=x", "", 400, "invalid_parameter", nil},
		{"list state that is none", "GET", "/v1/sessions?state=gone", "", 400, "invalid_parameter", nil},
		{"list order that is none", "GET", "/v1/sessions?sort=size", "", 400, "invalid_parameter", nil},
		{"place of another order", "GET", "/v1/sessions?sort=bytes&after=bad", "", 400, "invalid_parameter", nil},
		{"a sweep that is neither dry nor real", "POST", "/v1/sweep?dry_run=1", "", 400, "invalid_parameter", nil},
		{"wrong method on a sweep", "GET", "/v1/sweep", "", 405, "method_not_allowed", nil},
		{"an unknown form", "GET", events, "", 406, "not_acceptable", []string{"Accept", "application/xml"}},
		{"another host", "GET", events, "", 403, "host_not_allowed", []string{"Host", "rejoin.example"}},

		{"session that is no string", "POST", "/v1/sessions", `{"session":1}`, 400, "invalid_body", nil},
		{"session in a list", "POST", "/v1/sessions", `[]`, 400, "invalid_body", nil},
		{"session named twice", "POST", "/v1/sessions", `{"session":"a","session":"b"}`, 400, "invalid_body", nil},
		{"session with broken JSON", "POST", "/v1/sessions", `{"session":`, 400, "invalid_json", nil},
		{"session with an unknown member", "POST", "/v1/sessions", `{"sesion":"x"}`, 400, "invalid_body", nil},
		{"session with a bad name", "POST", "/v1/sessions", `{"session":"a b"}`, 400, "invalid_name", nil},
		{"metadata that is no object", "POST", "/v1/sessions", `{"session":"m","metadata":1}`, 400, "invalid_body", nil},
		{"session as a form", "POST", "/v1/sessions", `session=x`, 415, "unsupported_media_type", []string{"Content-Type", "application/x-www-form-urlencoded"}},
		{"close of what is not there", "DELETE", "/v1/sessions/unknown", "", 404, "not_found", nil},
		{"look at what is not there", "GET", "/v1/sessions/unknown", "", 404, "not_found", nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			headers := c.headers
			if headers == nil && c.body != "" || c.method == "POST" && headers == nil {
				headers = []string{"Content-Type", jsonType}
			}
			a := doRaw(t, c.method, p.api(), c.path, c.body, headers...)
			if a.status != c.status {
				t.Fatalf("%d %s, want %d", a.status, a.body, c.status)
			}
			if a.status == 405 && !strings.Contains(a.header.Get("Allow"), "OPTIONS") {
				t.Errorf("Allow is %q", a.header.Get("Allow"))
			}
			if c.method == http.MethodHead {
				return // it has no body
			}
			if got := a.header.Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("the content type is %q", got)
			}
			var problem struct {
				Type, Title, Code string
				Status            int
			}
			if err := json.Unmarshal([]byte(a.body), &problem); err != nil {
				t.Fatalf("%v: %s", err, a.body)
			}
			if problem.Code != c.code || problem.Status != c.status || problem.Title == "" || problem.Type != "urn:rejoin:problem:"+c.code {
				t.Errorf("the problem is %s", a.body)
			}
		})
	}

	// Nothing is stored, and the service continues.
	list := do(t, http.MethodGet, p.api()+"/v1/sessions", "")
	if want := `{"sessions":[],"total":0}`; list.status != http.StatusOK || list.body != want {
		t.Errorf("the sessions are %d %s, want %s", list.status, list.body, want)
	}
	s := p.subscribe(events, "")
	s.connected()
	p.publish("bad", "s", 1, 2)
	s.numbers(1, 2)
}

// doRaw is do for paths and headers that Go's own URL parser and client would
// change or refuse.
func doRaw(t *testing.T, method, base, path, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, base, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.URL.Opaque = path
	if strings.HasPrefix(path, "//") {
		req.URL.Opaque = base + path
	}
	for i := 0; i+1 < len(headers); i += 2 {
		switch {
		case headers[i] == "Host":
			req.Host = headers[i+1]
		case headers[i+1] != "":
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	return send(t, req)
}

// A body that is announced to be far too large is refused before it is sent.
func TestBadInput_HugeBodyIsRefusedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	for _, flag := range []string{"--edge-addr", "--ingest-addr"} {
		addr := p.addrs[flag]
		var dialer net.Dialer
		conn, err := dialer.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(waittest.Timeout))
		_, err = io.WriteString(conn, "POST "+streamPath("huge", "s")+" HTTP/1.1\r\nHost: "+addr+"\r\nContent-Type: application/json\r\nContent-Length: 1099511627776\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_, _ = resp.Body.Close(), conn.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge || stringIn(t, string(body), "code") != "body_too_large" {
			t.Errorf("%s answered %s %s", flag, resp.Status, body)
		}
	}
}

func TestMessage_ArrivesAsTheSameJSON(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--ack-timeout=9s")
	for name, message := range map[string]string{
		"line breaks":       "{\n\t\"jsonrpc\": \"2.0\",\r\n  \"method\":\r\"m\",\n\n \"params\": {\n}\n}\n",
		"text of all kinds": `{"jsonrpc":"2.0","method":"m","params":{"a":"\n\r\u2028 \u0000 ü 漢 🜁 data: x\n\nid: 1","b":" "}}`,
		"large numbers":     `{"jsonrpc":"2.0","id":12345678901234567890,"method":"m","params":[1e400,0.1000]}`,
		"deep":              `{"jsonrpc":"2.0","id":"1","result":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`,
		"an error":          `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			path := streamPath("same", strings.ReplaceAll(name, " ", "-"))
			if a := do(t, http.MethodPost, p.api()+path, message, "Content-Type", jsonType); a.status != http.StatusCreated {
				t.Fatalf("%d %s", a.status, a.body)
			}
			want := compact(t, message)
			s := p.subscribe(path, "")
			s.connected()
			if got := compact(t, string(s.next("message").Data)); got != want {
				t.Errorf("the stream has %s, want %s", got, want)
			}
			var page struct {
				Events []struct {
					Message json.RawMessage `json:"message"`
				} `json:"events"`
			}
			a := do(t, http.MethodGet, p.api()+path, "", "Accept", jsonType)
			if err := json.Unmarshal([]byte(a.body), &page); err != nil || len(page.Events) != 1 {
				t.Fatalf("%v: %s", err, a.body)
			}
			if got := compact(t, string(page.Events[0].Message)); got != want {
				t.Errorf("the page has %s, want %s", got, want)
			}
		})
	}
}

// compact takes out the white space between tokens and changes nothing else.
func compact(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return b.String()
}
