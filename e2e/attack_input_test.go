package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/auth/authtest"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// raw sends a request byte for byte; "\n" stands for the line ends of its head.
func (p *proc) raw(flag, head, body string) answer {
	p.t.Helper()
	conn := p.dial(flag)
	if _, err := io.WriteString(conn, strings.ReplaceAll(head, "\n", "\r\n")+"\r\n\r\n"+body); err != nil {
		p.t.Logf("%v: it may have answered before everything was sent", err)
	}
	return readAnswer(p.t, conn)
}

// Whatever is too large is refused for what it is, and no more of it is read than that takes.
func TestAttackOversizedEverything(t *testing.T) {
	p := startProc(t, "--max-message-bytes=65536", "--ack-timeout=9s")
	path := streamPath("big", "s")
	message := numbered(1)
	deep := func(n int) string {
		return `{"jsonrpc":"2.0","method":"m","params":` + strings.Repeat("[", n) + strings.Repeat("]", n) + "}"
	}
	x := func(n int) string { return strings.Repeat("x", n) }
	for name, tt := range map[string]struct {
		method, path, body string
		headers            []string
		status             int
		code               string
	}{
		"header":               {"POST", path, message, []string{"X-Big", x(100_000)}, 431, "headers_too_large"},
		"header's name":        {"POST", path, message, []string{x(100_000), "1"}, 431, "headers_too_large"},
		"cookie":               {"GET", path, "", []string{"Cookie", "rejoin=" + x(100_000)}, 431, "headers_too_large"},
		"URL":                  {"GET", path + "?x=" + x(100_000), "", nil, 431, "headers_too_large"},
		"session":              {"POST", streamPath(x(5000), "s"), message, nil, 400, "invalid_name"},
		"session in a body":    {"POST", "/v1/sessions", `{"session":"` + x(60_000) + `"}`, nil, 400, "invalid_name"},
		"metadata":             {"POST", "/v1/sessions", `{"metadata":{"a":"` + x(1_000_000) + `"}}`, nil, 413, "body_too_large"},
		"stream":               {"POST", streamPath("big", x(5000)), message, nil, 400, "invalid_name"},
		"message":              {"POST", path, `{"jsonrpc":"2.0","method":"` + x(70_000) + `"}`, nil, 413, "body_too_large"},
		"body":                 {"POST", path, `{"jsonrpc":"2.0","method":"` + x(8<<20) + `"}`, nil, 413, "body_too_large"},
		"body without a route": {"POST", "/v1/nothing", x(8 << 20), nil, 404, "not_found"},
		"Idempotency-Key":      {"POST", path, message, []string{"Idempotency-Key", x(5000)}, 400, "invalid_header"},
		"Event-Type":           {"POST", path, message, []string{"Event-Type", x(5000)}, 400, "invalid_header"},
		"nesting":              {"POST", path, deep(30_000), nil, 400, "invalid_json"},
		"nesting of an array":  {"POST", path, strings.Repeat("[", 1_000_000), nil, 413, "body_too_large"},
		"nesting of a session": {"POST", "/v1/sessions", `{"metadata":` + strings.Repeat(`{"a":`, 12_000), nil, 400, "invalid_json"},
		"a number":             {"GET", path + "?limit=" + strings.Repeat("9", 5000), "", nil, 400, "invalid_parameter"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, flag := range []string{"--edge-addr", "--ingest-addr"} {
				if tt.method == http.MethodGet && flag != "--edge-addr" && tt.status == http.StatusBadRequest {
					continue // no such route there
				}
				head := tt.method + " " + tt.path + " HTTP/1.1\nHost: localhost\nContent-Type: application/json\nAccept: application/json"
				if tt.body != "" {
					head += "\nTransfer-Encoding: chunked"
				}
				for i := 0; i+1 < len(tt.headers); i += 2 {
					head += "\n" + tt.headers[i] + ": " + tt.headers[i+1]
				}
				a := p.in(t).raw(flag, head, chunked(tt.body))
				if p.tls && flag == "--edge-addr" && tt.code == "headers_too_large" && a.status == tt.status {
					continue // what is far too large net/http refuses, in a sentence
				}
				if a.status != tt.status || stringIn(t, a.body, "code") != tt.code {
					t.Errorf("%s: %d %.300s", flag, a.status, a.body)
				}
			}
		})
	}
	list := do(t, http.MethodGet, p.api()+"/v1/sessions", "")
	if want := `{"sessions":[],"total":0}`; list.body != want {
		t.Errorf("the sessions are %s", list.body)
	}

	// Of many lines only those that are too large are refused.
	text := strings.Join([]string{message, x(10 << 20), deep(30_000), `{"message":` + strings.Repeat("[", 50_000), numbered(2)}, "\n")
	a := do(t, http.MethodPost, p.api()+path, text, "Content-Type", "application/x-ndjson")
	if a.status != http.StatusOK || !strings.Contains(a.body, `"accepted":2,`) || !strings.Contains(a.body, `"refused":3,`) || !strings.Contains(a.body, `{"index":1,"code":"body_too_large"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	// A place that is none is a gap, however long it is.
	s := p.subscribe(path, x(5000))
	s.connected()
	if g := s.gap(); g.Reason != "unknown" {
		t.Errorf("the gap is %.300v", g)
	}
	s.numbers(1, 2)
}

// chunked returns a body in one chunk.
func chunked(body string) string {
	if body == "" {
		return ""
	}
	return hex(len(body)) + "\r\n" + body + "\r\n0\r\n\r\n"
}

func hex(n int) string {
	const digits = "0123456789abcdef"
	if n < 16 {
		return digits[n : n+1]
	}
	return hex(n/16) + digits[n%16:n%16+1]
}

// forged is what an intruder would like to have in the log: a line of its own, in each
// format, and what a terminal obeys.
const forged = "\r\n{\"level\":\"ERROR\",\"msg\":\"forged\"}\ntime=2026-01-01T00:00:00Z level=ERROR msg=forged\n\x1b[31m\x1b]0;forged\x07\x7f\u009b31m\u202e"

func TestAttackLogInjection(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		t.Run(format, func(t *testing.T) {
			p := startGuarded(t, "--log-format="+format)
			alice, _ := p.victim("s")
			encoded := encodeAll(forged)
			line := strings.NewReplacer("\r", "", "\n", "").Replace(forged) // as much of it as a header can hold
			head := func(request string, headers ...string) {
				all := request + " HTTP/1.1\nHost: localhost\nContent-Length: 0\nAccept: application/json\nConnection: close"
				if len(headers) == 0 || !strings.HasPrefix(headers[0], "Authorization") {
					all += "\nAuthorization: Bearer " + alice
				}
				p.in(t).raw("--edge-addr", strings.Join(append([]string{all}, headers...), "\n"), "")
			}
			head("GET " + streamPath(encoded, "t"))
			head("GET " + streamPath("s", encoded))
			head("POST " + streamPath("s", encoded))
			head("DELETE /v1/sessions/" + encoded)
			head("GET " + streamPath("s", "main") + "?after=" + encoded)
			head("GET " + streamPath("s", "main") + "?limit=" + encoded)
			head("GET " + streamPath("s", "main") + "?" + encoded + "=1&from=" + encoded)
			head("GET "+streamPath("s", "main"), "Last-Event-ID: "+line)
			head("GET "+streamPath("s", "main"), "Authorization: Bearer "+line)
			head("GET "+streamPath("s", "main"), "Authorization: Bearer "+encodedPart(`{"alg":"`+line+`","kid":"`+line+`"}`)+"."+encodedPart(line)+"."+encodedPart(line))
			head("GET "+streamPath("s", "main"), "Origin: "+line, "X-Forwarded-For: "+line, "User-Agent: "+line, "Referer: "+line)
			head("GET "+streamPath("s", "main"), "Accept: "+line, line+": "+line)
			head("POST "+streamPath("s", "main"), "Content-Type: "+line)
			head("POST "+streamPath("s", "main"), "Content-Type: application/json", "Event-Type: "+line)
			head("POST "+streamPath("s", "main"), "Content-Type: application/json", "Idempotency-Key: "+line)
			head("BREW\x1b[31m" + " " + "/")
			head("GET /" + line)
			head("GET /" + strings.ReplaceAll(line, " ", ""))
			head("GET /" + encoded)
			head("GET /forged\u009b31m\u0085\u202e") // the log quotes an unknown path
			p.as(alice, http.MethodPost, streamPath("s", "main"), forged)
			p.as(alice, http.MethodPost, streamPath("s", "main"), `{"jsonrpc":"2.0","method":"m","`+line+`":1}`)
			p.as(alice, http.MethodPost, "/v1/sessions", jsonOf(t, map[string]any{"session": forged}))
			p.as(alice, http.MethodPost, "/v1/sessions", jsonOf(t, map[string]any{forged: 1}))
			for _, secret := range []string{"\"", line} {
				p.as(authtest.Of(t, "alice"+secret, "*"), http.MethodPost, streamPath("s", "main"), numbered(1))
			}
			nc := p.nats(t, nats.Name(forged))
			msg := nats.NewMsg("mcp.ingest." + strings.NewReplacer(" ", "", "\r", "", "\n", "", ".", "").Replace(forged) + ".t")
			msg.Header = nats.Header{"Event-Type": {line}}
			msg.Data = []byte(forged)
			must.Value(nc.RequestMsg(msg, waittest.Timeout))(t)
			must.NoError(t, nc.Publish("mcp.0."+strings.NewReplacer(" ", "", "\r", "", "\n", "", ".", "").Replace(forged)+".=.t", []byte(forged)))
			p.stop() // so that everything has been logged

			if !strings.Contains(p.log.String(), "forged") {
				t.Error("the log says nothing of it: this test proves nothing")
			}
			for line := range strings.Lines(p.log.String()) {
				checkLogLine(t, format, strings.TrimSuffix(line, "\n"))
			}
		})
	}
}

var textLine = regexp.MustCompile(`^time=20\d\d-\S+ level=(DEBUG|INFO|WARN|ERROR) msg=`)

func checkLogLine(t *testing.T, format, line string) {
	t.Helper()
	for _, r := range line {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			t.Errorf("a control character %q in %q", r, line)
			return
		}
	}
	if format == "text" {
		if !textLine.MatchString(line) || strings.HasPrefix(line, "time=2026-01-01T00:00:00Z") {
			t.Errorf("a line that was not logged: %q", line)
		}
		return
	}
	var record struct {
		Time time.Time
		Msg  string
	}
	if err := json.Unmarshal([]byte(line), &record); err != nil || record.Time.IsZero() || record.Msg == "forged" {
		t.Errorf("a line that was not logged: %q, %v", line, err)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b := must.Value(json.Marshal(v))(t)
	return string(b)
}

// encodeAll percent-encodes every byte.
func encodeAll(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteByte('%')
		if s[i] < 16 {
			b.WriteByte('0')
		}
		b.WriteString(hex(int(s[i])))
	}
	return b.String()
}

// A name is a name: it leads neither to a file, nor to another route or session.
func TestAttackPathTraversal(t *testing.T) {
	p := startGuarded(t)
	alice, _ := p.victim("s")
	mallory := authtest.Of(t, "mallory", "*")
	before := files(t, filepath.Dir(p.data))
	for _, path := range []string{
		"/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/playground/../../etc/passwd", "/playground/..%2f..%2fservice.go", "/rejoin.js/../../etc/passwd",
		"/%2e%2e/%2e%2e/etc/passwd", `/..\..\etc\passwd`, "/v1/../../etc/passwd", "/playground/app.js%00.css", "/./v1/sessions", "/v1//sessions", "/.git/config", "/data/LOCK",
		"/v1/sessions/../../../data/LOCK", "/v1/sessions/mine/../s", "/v1/sessions/mine/streams/../../s/streams/main/events",
	} {
		for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPost} {
			a := p.raw("--edge-addr", method+" "+path+" HTTP/1.1\nHost: localhost\nAuthorization: Bearer "+mallory+"\nContent-Type: application/json\nContent-Length: 0\nAccept: application/json", "")
			if a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed && a.status != http.StatusBadRequest || a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %s: %d %.200s", method, path, a.status, a.body)
			}
		}
	}
	// Such a name may be somebody's own. It is no file's, and no other session's.
	var closing sync.WaitGroup
	for _, name := range []string{"../s", "../../etc/passwd", "/etc/passwd", `..\s`, "s/streams/main", "s%2f", "....//s", "C:"} {
		a := p.as(mallory, http.MethodPost, "/v1/sessions", jsonOf(t, map[string]any{"session": name}))
		if a.status != http.StatusCreated || stringIn(t, a.body, "session") != name {
			t.Errorf("%q: %d %s", name, a.status, a.body)
		}
		events := streamPath(encodeAll(name), encodeAll(name))
		if a := p.as(mallory, http.MethodPost, events, numbered(7)); a.status != http.StatusCreated {
			t.Errorf("%q: %d %s", name, a.status, a.body)
		}
		if a := p.as(mallory, http.MethodGet, events+"?wait=30", ""); a.status != http.StatusOK || strings.Count(a.body, `"n":`) != 1 || !strings.Contains(a.body, `"n":7`) {
			t.Errorf("%q: %d %s", name, a.status, a.body)
		}
		closing.Go(func() {
			a, err := try(http.MethodDelete, p.api()+"/v1/sessions/"+encodeAll(name)+"?clear=true", "", "Authorization", "Bearer "+mallory)
			if err != nil || a.status != http.StatusNoContent {
				t.Errorf("%q: %d %s, %v", name, a.status, a.body, err)
			}
		})
	}
	closing.Wait()
	p.unharmed(alice, "s")
	if after := files(t, filepath.Dir(p.data)); after != before {
		t.Errorf("there are other files than before: %s, and before %s", after, before)
	}
}

// files lists what is beside the data folder and directly in it.
func files(t *testing.T, parent string) string {
	t.Helper()
	var names []string
	for _, dir := range []string{parent, filepath.Join(parent, "data")} {
		entries := must.Value(os.ReadDir(dir))(t)
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}
