package e2e

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/must"
	"rejoin/shared/web/webtest"
)

const listedOrigin = "https://app.example"

// startGuarded starts the program with access control and one listed origin.
func startGuarded(t testing.TB, args ...string) *proc {
	t.Helper()
	cfg := authtest.Config(t)
	return startProc(t, append([]string{
		"--auth=jwt", "--jwt-secret-file=" + cfg.SecretFile, "--jwt-audience=" + cfg.Audience, "--cors-origins=" + listedOrigin,
		"--ack-timeout=9s", "--log-level=debug",
	}, args...)...)
}

// as makes a request with a token, and asks for JSON.
func (p *proc) as(token, method, path, body string, headers ...string) answer {
	p.t.Helper()
	return do(p.t, method, p.api()+path, body, append([]string{
		"Authorization", "Bearer " + token, "Content-Type", jsonType, "Accept", jsonType,
	}, headers...)...)
}

// victim makes a session of alice's that holds one event.
func (p *proc) victim(session string) (token, id string) {
	p.t.Helper()
	token = authtest.Of(p.t, "alice", "*")
	p.as(token, http.MethodPost, "/v1/sessions", `{"session":"`+session+`"}`).got(p.t, http.StatusCreated)
	a := p.as(token, http.MethodPost, streamPath(session, "main"), numbered(1))
	a.got(p.t, http.StatusCreated)
	return token, stringIn(p.t, a.body, "id")
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

// attempts are all that an intruder would like to do to a session.
func attempts(session string) [][3]string {
	return [][3]string{
		{http.MethodPost, streamPath(session, "main"), numbered(2)},
		{http.MethodGet, streamPath(session, "main"), ""},
		{http.MethodGet, "/v1/sessions/" + session + "/events", ""},
		{http.MethodDelete, "/v1/sessions/" + session + "/streams/main?clear=true", ""},
		{http.MethodDelete, "/v1/sessions/" + session + "?clear=true", ""},
	}
}

func encodedPart(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func TestAttackForgedToken(t *testing.T) {
	p := startGuarded(t)
	alice, _ := p.victim("s")
	now := time.Now()
	claims := auth.Token{
		Subject: "alice", Audience: authtest.Audience, Publish: []auth.Pattern{auth.All}, Subscribe: []auth.Pattern{auth.All}, Admin: true,
		Issued: now, Expires: now.Add(time.Hour),
	}
	signed := func(secret string, change func(*auth.Token)) string {
		token := claims
		if change != nil {
			change(&token)
		}
		text := must.Value(token.Sign([]byte(secret)))(t)
		return text
	}
	good := signed(authtest.Secret, nil)
	head, rest, _ := strings.Cut(good, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	for attack, token := range map[string]string{
		"token of another audience": signed(authtest.Secret, func(c *auth.Token) { c.Audience = "other" }),
		"expired token":             signed(authtest.Secret, func(c *auth.Token) { c.Issued, c.Expires = now.Add(-2*time.Hour), now.Add(-time.Hour) }),
		"wrong key":                 signed("another secret, of no issuer", nil),
		"empty key":                 signed("", nil),
		"none algorithm":            encodedPart(`{"alg":"none","typ":"JWT"}`) + "." + payload + ".",
		"none algorithm, signed":    encodedPart(`{"alg":"nOnE"}`) + "." + payload + "." + signature,
		"no signature":              head + "." + payload + ".",
		"another payload":           head + "." + encodedPart(`{"sub":"alice","aud":"`+authtest.Audience+`","exp":9000000000,"rejoin":{"publish":["*"],"subscribe":["*"],"admin":true}}`) + "." + signature,
		"key from the token":        encodedPart(`{"alg":"ES256","jku":"http://127.0.0.1:1/","jwk":{"kty":"EC"},"kid":"../../dev/null"}`) + "." + payload + "." + signature,
	} {
		t.Run(attack, func(t *testing.T) {
			p := p.in(t)
			for _, try := range append(attempts("s"), [][3]string{{http.MethodPost, "/v1/sessions", `{"session":"mine"}`}, {http.MethodGet, "/v1/sessions", ""}, {http.MethodPost, "/v1/cookie", ""}}...) {
				a := p.as(token, try[0], try[1], try[2])
				if a.status != http.StatusUnauthorized || a.header.Get("WWW-Authenticate") != `Bearer realm="rejoin", error="invalid_token"` || a.header.Get("Set-Cookie") != "" {
					t.Errorf("%s %s: %d %s %v", try[0], try[1], a.status, a.body, a.header)
				}
			}
			a := do(t, http.MethodGet, p.api()+streamPath("s", "main"), "", "Cookie", "rejoin="+token, "Accept", jsonType)
			a.got(t, http.StatusUnauthorized)
		})
	}
	p.unharmed(alice, "s")
}

// An answer about a session of another must not differ from one about nothing.
func TestAttackSessionGuessing(t *testing.T) {
	p := startGuarded(t)
	alice, id := p.victim("s")
	mallory := authtest.Of(t, "mallory", "*")
	seen := func(a answer) string {
		h := maps.Clone(a.header)
		h.Del("Date")
		text := must.Value(json.Marshal(h))(t)
		return string(text) + a.body
	}
	there, nothing := attempts("s"), attempts("x")
	for i := range there {
		for _, more := range [][]string{nil, {"Accept", "text/event-stream"}, {"Last-Event-ID", id}, {"Idempotency-Key", "k"}} {
			a := p.as(mallory, there[i][0], there[i][1], there[i][2], more...)
			b := p.as(mallory, nothing[i][0], nothing[i][1], nothing[i][2], more...)
			if a.status != http.StatusNotFound || b.status != http.StatusNotFound || seen(a) != seen(b) {
				t.Errorf("%v: %d %s, and for nothing %d %s", there[i], a.status, seen(a), b.status, seen(b))
			}
		}
	}
	p.unharmed(alice, "s")
}

// An ID is a place and no permission, and not even a place anywhere else.
func TestAttackCrossSession(t *testing.T) {
	p := startGuarded(t)
	alice, id := p.victim("s")
	mallory := authtest.Of(t, "mallory", "*")
	p.as(mallory, http.MethodPost, "/v1/sessions", `{"session":"own"}`).got(t, http.StatusCreated)
	p.as(mallory, http.MethodPost, streamPath("own", "main"), numbered(7)).got(t, http.StatusCreated)
	p.unharmed(mallory, "own") // which waits for the edge to have it: a gap comes at once
	for _, path := range []string{
		streamPath("own", "main") + "?wait=30&after=" + id, "/v1/sessions/own/events?wait=30&after=" + id,
	} {
		a := p.as(mallory, http.MethodGet, path, "")
		if a.status != http.StatusOK || !strings.Contains(a.body, `"reason":"unknown"`) || !strings.Contains(a.body, `"n":7`) || strings.Contains(a.body, `"n":1`) {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	for _, path := range []string{streamPath("own", "main") + "?session=s", streamPath("own", "main") + "?stream=main", streamPath("own%2F..%2Fs", "main"), "/v1/sessions/own/../s/streams/main/events", streamPath("s%00", "main"), streamPath("S", "main"), streamPath("s.main", "main"), streamPath("*", "main"), streamPath("%3E", "main")} {
		if a := p.as(mallory, http.MethodGet, path, ""); a.status != http.StatusNotFound && a.status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	p.unharmed(alice, "s")
}

func TestAttackOriginSpoofing(t *testing.T) {
	p := startGuarded(t)
	alice, _ := p.victim("s")
	cookie := "rejoin=" + alice
	for _, origin := range []string{
		"", "null", "https://evil.example", listedOrigin + ".evil.example", "http://app.example", listedOrigin + ":444", listedOrigin + "/", "HTTPS://APP.EXAMPLE",
		"https://evil.example " + listedOrigin, listedOrigin + ", https://evil.example", "//app.example", "app.example", p.api(),
	} {
		for _, try := range attempts("s") {
			if try[0] == http.MethodGet {
				continue // what it answers cannot be read by the page
			}
			headers := []string{"Cookie", cookie, "Content-Type", jsonType, "Referer", listedOrigin + "/"}
			if origin != "" {
				headers = append(headers, "Origin", origin)
			}
			a := do(t, try[0], p.api()+try[1], try[2], headers...)
			if a.status != http.StatusForbidden || stringIn(t, a.body, "code") != "origin_not_allowed" || a.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%q: %s %s: %d %s", origin, try[0], try[1], a.status, a.body)
			}
		}
		a := do(t, http.MethodGet, p.api()+streamPath("s", "main"), "", "Cookie", cookie, "Accept", jsonType, "Origin", origin)
		if allowed := a.header.Get("Access-Control-Allow-Origin"); allowed != "" {
			t.Errorf("pages of %q may read answers: %q", origin, allowed)
		}
	}
	p.unharmed(alice, "s")
	do(t, http.MethodPost, p.api()+streamPath("s", "main"), numbered(2), "Cookie", cookie, "Content-Type", jsonType, "Origin", listedOrigin).got(t, http.StatusCreated)
}

func TestAttackRebindingHost(t *testing.T) {
	open := startProc(t)
	for flag, path := range map[string]string{"--edge-addr": "/v1/sessions/s/events", "--ingest-addr": "/v1/sessions", "--janitor-addr": "/v1/sessions"} {
		for _, host := range []string{"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0"} {
			if a := do(t, http.MethodGet, open.url(flag)+path, "", "Host", host, "Accept", jsonType); a.status != http.StatusForbidden {
				t.Errorf("%s as %s: %d %s", flag, host, a.status, a.body)
			}
		}
	}
	// With access control the browser has no cookie for the name, and one that somebody
	// planted under it is not the one that is looked for.
	p := startGuarded(t)
	alice, _ := p.victim("s")
	for _, cookie := range []string{"", "rejoin=" + alice} {
		do(t, http.MethodGet, p.api()+streamPath("s", "main"), "", "Host", "evil.example", "Cookie", cookie, "Accept", jsonType).got(t, http.StatusUnauthorized)
	}
}

func TestAttackTokenInURL(t *testing.T) {
	p := startGuarded(t)
	alice, _ := p.victim("s")
	for _, name := range []string{"access_token", "token", "%74oken"} {
		for _, try := range attempts("s") {
			separator := "?"
			if strings.Contains(try[1], "?") {
				separator = "&"
			}
			a := do(t, try[0], p.api()+try[1]+separator+name+"="+alice, try[2], "Content-Type", jsonType, "Accept", jsonType)
			if a.status != http.StatusBadRequest || stringIn(t, a.body, "code") != "token_in_url" || !strings.Contains(a.body, "Authorization: Bearer") {
				t.Errorf("%s %s: %d %s", try[0], try[1], a.status, a.body)
			}
		}
	}
	p.unharmed(alice, "s")
	if strings.Contains(p.log.String(), alice) {
		t.Error("the token is in the log")
	}
}

func TestAttackHeaderInjection(t *testing.T) {
	p := startGuarded(t)
	alice, _ := p.victim("s")
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
			conn := webtest.Dial(t, p.addrs["--edge-addr"], all)
			for header, values := range webtest.ReadAnswer(t, bufio.NewReader(conn), "").Header {
				if header == "X-Injected" || strings.Contains(strings.Join(values, " "), "X-Injected") {
					t.Errorf("%s: %q", header, values)
				}
			}
		})
	}
	p.unharmed(alice, "s")
}
