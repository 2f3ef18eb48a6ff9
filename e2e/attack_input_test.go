package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/auth/authtest"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// raw sends the edge a request byte for byte.
func (p *proc) raw(request string) answer {
	p.t.Helper()
	conn := p.dial("--edge-addr")
	if _, err := io.WriteString(conn, request); err != nil {
		p.t.Logf("%v: it may have answered before everything was sent", err)
	}
	return readAnswer(p.t, conn)
}

// forged is the text that an intruder would like to have in the log: a line of its own,
// in each format, and control characters for a terminal.
const forged = "\r\n{\"level\":\"ERROR\",\"msg\":\"forged\"}\ntime=2026-01-01T00:00:00Z level=ERROR msg=forged\n\x1b[31m\x1b]0;forged\x07\x7f\u009b31m\u202e"

func TestAttackLogInjection(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "text"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			p := startGuarded(t, "--log-format="+format)
			alice := p.victim("s")
			encoded := encodeAll(forged)
			line := strings.NewReplacer("\r", "", "\n", "").Replace(forged) // as much of it as a header can hold
			head := func(request string, headers ...string) {
				all := []string{request + " HTTP/1.1", "Host: localhost", "Content-Length: 0", "Accept: application/json", "Connection: close"}
				if len(headers) == 0 || !strings.HasPrefix(headers[0], "Authorization") {
					all = append(all, "Authorization: Bearer "+alice)
				}
				p.in(t).raw(strings.Join(append(all, headers...), "\r\n") + "\r\n\r\n")
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
		fmt.Fprintf(&b, "%%%02x", s[i])
	}
	return b.String()
}
