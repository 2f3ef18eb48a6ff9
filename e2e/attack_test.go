package e2e

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"rejoin/shared/auth/authtest"
)

const listedOrigin = "https://app.example"

// guarded are the flags with which a program accepts the tokens of the tests alone.
func guarded(t testing.TB) []string {
	t.Helper()
	cfg := authtest.Config(t)
	return []string{"--auth=jwt", "--jwt-secret-file=" + cfg.SecretFile, "--jwt-audience=" + cfg.Audience}
}

// startGuarded starts the program with access control and one listed origin.
func startGuarded(t testing.TB, args ...string) *proc {
	t.Helper()
	return startProc(t, slices.Concat(guarded(t), []string{"--cors-origins=" + listedOrigin, "--ack-timeout=9s", "--log-level=debug"}, args)...)
}

// as makes a request with a token, and asks for JSON.
func (p *proc) as(token, method, path, body string, headers ...string) answer {
	p.t.Helper()
	return do(p.t, method, p.api()+path, body, append([]string{
		"Authorization", "Bearer " + token, "Content-Type", jsonType, "Accept", jsonType,
	}, headers...)...)
}

// victim makes a session of alice's that holds one event.
func (p *proc) victim(session string) (token string) {
	p.t.Helper()
	token = authtest.Of(p.t, "alice", "*")
	p.as(token, http.MethodPost, "/v1/sessions", `{"session":"`+session+`"}`).got(p.t, http.StatusCreated)
	p.as(token, http.MethodPost, streamPath(session, "main"), numbered(1)).got(p.t, http.StatusCreated)
	return token
}

// unharmed checks that the session still holds its one event, and is open.
func (p *proc) unharmed(token, session string) {
	p.t.Helper()
	a := p.as(token, http.MethodGet, streamPath(session, "main")+"?wait=30", "")
	var page struct {
		Events []json.RawMessage
		Closed bool
	}
	if err := json.Unmarshal([]byte(a.body), &page); err != nil || a.status != http.StatusOK || len(page.Events) != 1 || page.Closed {
		p.t.Errorf("the session is not what it was: %d %s", a.status, a.body)
	}
}

func encodedPart(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func TestAttackHeaderInjection(t *testing.T) {
	t.Parallel()
	p := startGuarded(t)
	alice := p.victim("s")
	const line = "\r\nX-Injected: yes"
	for name, request := range map[string]string{
		"in a name":            "POST /v1/sessions HTTP/1.1\r\nContent-Length: 34\r\n\r\n" + `{"session":"a\r\nX-Injected: yes"}`,
		"in a path":            "POST /v1/sessions/a%0d%0aX-Injected:%20yes/streams/main/events HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
		"in an event type":     "POST " + streamPath("s", "main") + " HTTP/1.1\r\nEvent-Type: a\rdata: b\r\nContent-Length: 2\r\n\r\n{}",
		"in an event ID":       "GET " + streamPath("s", "main") + "?after=a%0d%0aX-Injected:%20yes&on_gap=error HTTP/1.1\r\n\r\n",
		"in an origin":         "GET " + streamPath("s", "main") + "?limit=x HTTP/1.1\r\nOrigin: " + listedOrigin + "%0d%0aX-Injected: yes\r\n\r\n",
		"in a preflight":       "OPTIONS /v1/sessions HTTP/1.1\r\nOrigin: " + listedOrigin + "\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: a%0d%0aX-Injected: yes\r\n\r\n",
		"in a header's folds":  "GET " + streamPath("s", "main") + "?limit=x HTTP/1.1\r\nOrigin: " + listedOrigin + "\r\n X-Injected: yes\r\n\r\n",
		"in the cookie's host": "POST /v1/cookie HTTP/1.1\r\nX-Forwarded-Host: a" + strings.ReplaceAll(line, "\r\n", "%0d%0a") + "\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			first, rest, _ := strings.Cut(request, "\r\n")
			all := first + "\r\nHost: localhost\r\nAuthorization: Bearer " + alice + "\r\nContent-Type: application/json\r\nAccept: application/json\r\nConnection: close\r\n" + rest
			for header, values := range p.in(t).raw(all).header {
				if header == "X-Injected" || strings.Contains(strings.Join(values, " "), "X-Injected") {
					t.Errorf("%s: %q", header, values)
				}
			}
		})
	}
	p.unharmed(alice, "s")
}
