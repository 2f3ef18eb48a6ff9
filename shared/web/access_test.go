package web

import (
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/daemon"
	"rejoin/shared/flagtype"
	"rejoin/shared/must"
)

const app1, app2 = "https://app.example", "http://localhost:3000"

func access(t *testing.T, change func(*AccessConfig)) *Access {
	t.Helper()
	cfg := AccessConfig{Config: authtest.Config(t), CORSOrigins: []string{app1, app2}}
	if change != nil {
		change(&cfg)
	}
	return must.Value(NewAccess(cfg, daemon.NewEnv(nil)))(t)
}

// serveGuarded serves a resource that any client with a token may read and write, one that needs
// the grant to publish to the session "s", and the exchange of a token for a cookie.
func serveGuarded(t *testing.T, a *Access, sameSite SameSite) (addr string) {
	t.Helper()
	app := NewApp(Config{Service: "test"})
	a.Protect(app, "--edge-hosts", nil)
	who := a.Guard(func(c *fiber.Ctx) error { return c.SendString("you are " + a.Grants(c).Subject) })
	Mount(
		app,
		Route{Method: "GET", Path: "/who", Handler: who},
		Route{Method: "POST", Path: "/who", Handler: who},
		Route{Method: "POST", Path: "/publish", Handler: a.GuardFor(func(_ *fiber.Ctx, g auth.Grants) bool { return g.MayPublish("s") }, func(c *fiber.Ctx) error { return c.SendString("published") })},
		Route{Method: "POST", Path: "/unguarded", Handler: func(c *fiber.Ctx) error {
			if !a.Grants(c).MayPublish("s") {
				return a.Insufficient(c)
			}
			return nil
		}},
		Route{Method: "POST", Path: "/v1/cookie", Handler: func(c *fiber.Ctx) error { return a.SetCookie(c, sameSite) }},
		Route{Method: "DELETE", Path: "/v1/cookie", Handler: func(c *fiber.Ctx) error { return a.DeleteCookie(c, sameSite) }},
	)
	return serve(t, app)
}

func header(pairs ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		b.WriteString(pairs[i] + ": " + pairs[i+1] + "\r\n")
	}
	return b.String()
}

func TestAccess_Refusals(t *testing.T) {
	a := access(t, nil)
	must.NoError(t, a.CheckListen("0.0.0.0:80", "--addr"))
	addr := serveGuarded(t, a, SameSiteLax)
	alice := authtest.Of(t, "alice", "s")
	bob := authtest.Token(t, "bob", nil)
	expired := authtest.Token(t, "alice", func(token *auth.Token) { token.Issued, token.Expires = time.Unix(1, 0), time.Unix(2, 0) })
	const none, invalid, scope = `Bearer realm="rejoin"`, `Bearer realm="rejoin", error="invalid_token"`, `Bearer realm="rejoin", error="insufficient_scope"`
	for name, tt := range map[string]struct {
		method, target, headers string
		code                    Code // empty: it is let in
		challenge               string
	}{
		"a token":                        {"GET", "/who", header("Authorization", "Bearer "+alice), "", ""},
		"the scheme in lower case":       {"GET", "/who", header("authorization", "bearer  "+alice), "", ""},
		"a token that writes":            {"POST", "/who", header("Authorization", "Bearer "+alice), "", ""},
		"a token from any page":          {"POST", "/who", header("Authorization", "Bearer "+alice, "Origin", "https://evil.example"), "", ""},
		"a cookie":                       {"GET", "/who", header("Cookie", "a=b; rejoin="+alice), "", ""},
		"a cookie that reads":            {"GET", "/who", header("Cookie", "rejoin="+alice, "Origin", "https://evil.example"), "", ""},
		"a cookie that writes":           {"POST", "/who", header("Cookie", "rejoin="+alice, "Origin", app1), "", ""},
		"a token beside a broken cookie": {"POST", "/who", header("Authorization", "Bearer "+alice, "Cookie", "rejoin=x"), "", ""},
		"a grant":                        {"POST", "/publish", header("Authorization", "Bearer "+alice), "", ""},
		"a parameter that holds token":   {"GET", "/who?tokens=1", header("Authorization", "Bearer "+alice), "", ""},

		"nothing":                             {"GET", "/who", "", CodeUnauthorized, none},
		"nothing that writes":                 {"POST", "/who", "", CodeUnauthorized, none},
		"nothing that writes for another":     {"POST", "/who", header("Origin", "https://evil.example"), CodeOriginNotAllowed, ""},
		"another scheme":                      {"GET", "/who", header("Authorization", "Basic YTpi"), CodeUnauthorized, none},
		"another scheme and a cookie":         {"GET", "/who", header("Authorization", "Basic YTpi", "Cookie", "rejoin="+alice), CodeUnauthorized, none},
		"a scheme alone":                      {"GET", "/who", header("Authorization", "Bearer"), CodeUnauthorized, none},
		"an empty cookie":                     {"GET", "/who", header("Cookie", "rejoin="), CodeUnauthorized, none},
		"a token without a scheme":            {"GET", "/who", header("Authorization", alice), CodeUnauthorized, none},
		"a broken token":                      {"GET", "/who", header("Authorization", "Bearer x"), CodeUnauthorized, invalid},
		"two tokens in one header":            {"GET", "/who", header("Authorization", "Bearer "+alice+" "+alice), CodeUnauthorized, invalid},
		"an expired token":                    {"GET", "/who", header("Authorization", "Bearer "+expired), CodeUnauthorized, invalid},
		"a broken token beside a good cookie": {"GET", "/who", header("Authorization", "Bearer x", "Cookie", "rejoin="+alice), CodeUnauthorized, invalid},
		"an expired cookie":                   {"GET", "/who", header("Cookie", "rejoin="+expired), CodeUnauthorized, invalid},
		"the cookie of another name":          {"GET", "/who", header("Cookie", "__Host-rejoin="+alice), CodeUnauthorized, none},
		"two headers":                         {"GET", "/who", header("Authorization", "Bearer "+alice, "authorization", "Bearer "+alice), CodeInvalidHeader, ""},
		"a token in the URL":                  {"GET", "/who?access_token=" + alice, "", CodeTokenInURL, ""},
		"a token in the URL as well":          {"GET", "/who?token=" + alice, header("Authorization", "Bearer "+alice), CodeTokenInURL, ""},
		"a token in the URL, encoded":         {"GET", "/who?acces%73_token=" + alice, "", CodeTokenInURL, ""},
		"a cookie of no listed page":          {"POST", "/who", header("Cookie", "rejoin="+alice), CodeOriginNotAllowed, ""},
		"a cookie that writes for another":    {"POST", "/who", header("Cookie", "rejoin="+alice, "Origin", "https://evil.example"), CodeOriginNotAllowed, ""},
		"a cookie that writes for null":       {"POST", "/who", header("Cookie", "rejoin="+alice, "Origin", "null"), CodeOriginNotAllowed, ""},
		"a cookie that writes for two":        {"POST", "/who", header("Cookie", "rejoin="+alice, "Origin", app1, "Origin", app1), CodeOriginNotAllowed, ""},
		"no grant":                            {"POST", "/publish", header("Authorization", "Bearer "+bob), CodeInsufficientScope, scope},
		"a handler without a guard":           {"POST", "/unguarded", header("Authorization", "Bearer "+alice), CodeInsufficientScope, scope},
	} {
		t.Run(name, func(t *testing.T) {
			r := do(t, addr, tt.method, tt.target, tt.headers+"Content-Length: 0\r\n")
			if tt.code == "" {
				if r.status != http.StatusOK {
					t.Errorf("got %d %s", r.status, r.body)
				}
				return
			}
			p := expectProblem(t, r, tt.code)
			if got := r.header.Get("WWW-Authenticate"); got != tt.challenge {
				t.Errorf("the challenge is %q, want %q", got, tt.challenge)
			}
			if p.Status == http.StatusUnauthorized && p.Detail != "" {
				t.Errorf("a client receives %q", p.Detail)
			}
		})
	}
	for reason, want := range map[string]float64{
		"missing": 8, "malformed": 3, "expired": 2, refusedURL: 3, refusedHeader: 1, refusedOrigin: 5, refusedScope: 2,
	} {
		if got := testutil.ToFloat64(a.refused.WithLabelValues(reason)); got != want {
			t.Errorf("%v refusals for %s are counted, want %v", got, reason, want)
		}
	}
}

func TestAccess_KeysCannotBeFetched(t *testing.T) {
	t.Parallel()
	addr := serveGuarded(t, access(t, func(cfg *AccessConfig) {
		cfg.SecretFile, cfg.JWKSURL, cfg.Issuer = "", "http://127.0.0.1:1/", "login" // no server listens there
	}), SameSiteLax)
	key := must.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	token := must.Value(jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{}).SignedString(key))(t)
	expectProblem(t, do(t, addr, "GET", "/who", header("Authorization", "Bearer "+token)), CodeUnavailable)
}

// A pipe of the shell is empty the second time, so the program alone reads it.
func TestAccessConfig_CheckReadsNoPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "secret")
	must.NoError(t, syscall.Mkfifo(pipe, 0o600))
	cfg := AccessConfig{Config: auth.Config{Auth: auth.ModeJWT, SecretFile: pipe, Audience: "a"}}
	must.NoError(t, cfg.Check())
	cfg.SecretFile = filepath.Join(t.TempDir(), "none")
	if _, ok := errors.AsType[*flagtype.FileError](cfg.Check()); !ok {
		t.Error("a file that is not there is no error of the file")
	}
}

func TestAccess_Off(t *testing.T) {
	t.Parallel()
	off := must.Value(NewAccess(AccessConfig{}, daemon.NewEnv(nil)))(t)
	for name, a := range map[string]*Access{"nil": nil, "none": off} {
		t.Run(name, func(t *testing.T) {
			addr := serveGuarded(t, a, SameSiteLax)
			for _, target := range []string{"/who", "/publish", "/unguarded", "/who?token=x"} {
				r := do(t, addr, "POST", target, header("Authorization", "Bearer x", "Authorization", "y", "Cookie", "rejoin=z", "Content-Length", "0"))
				if r.status != http.StatusOK || r.header.Get("Vary") != "" || r.header.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("%s: %+v", target, r)
				}
			}
			c := dial(t, addr)
			c.send(t, "GET /who HTTP/1.1\r\nHost: evil.example\r\n\r\n")
			expectProblem(t, c.receive(t, "GET"), CodeHostNotAllowed)
			if err := a.CheckListen("0.0.0.0:80", "--addr"); err == nil {
				t.Error("it listens everywhere")
			}
			if err := a.CheckListen("127.0.0.1:80", "--addr"); err != nil || a.On() {
				t.Error(err)
			}
		})
	}
}

func TestCORS(t *testing.T) {
	addr := serveGuarded(t, access(t, nil), SameSiteLax)
	token := authtest.Of(t, "alice", "s")
	preflight := header("Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization")
	for name, tt := range map[string]struct {
		method, target, headers string
		status                  int
		origin, allowed         string
	}{
		"a preflight":         {"OPTIONS", "/who", header("Origin", app1) + preflight, 204, app1, corsAllowed},
		"of the other origin": {"OPTIONS", "/who", header("Origin", app2) + preflight, 204, app2, corsAllowed},
		"of a tool's parameters": {"OPTIONS", "/who", header("Origin", app1, "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "authorization,mcp-param-region, x-other ,MCP-Param-Zone"), 204, app1, corsAllowed + ", mcp-param-region, MCP-Param-Zone"},
		"of another origin":               {"OPTIONS", "/who", header("Origin", "https://evil.example") + preflight, 204, "", ""},
		"of an origin that begins so":     {"OPTIONS", "/who", header("Origin", app1+".evil.example") + preflight, 204, "", ""},
		"of another scheme":               {"OPTIONS", "/who", header("Origin", "http://app.example") + preflight, 204, "", ""},
		"of another port":                 {"OPTIONS", "/who", header("Origin", app1+":8443") + preflight, 204, "", ""},
		"of a subdomain":                  {"OPTIONS", "/who", header("Origin", "https://a.app.example") + preflight, 204, "", ""},
		"of null":                         {"OPTIONS", "/who", header("Origin", "null") + preflight, 204, "", ""},
		"of two":                          {"OPTIONS", "/who", header("Origin", app1, "Origin", app2) + preflight, 204, "", ""},
		"OPTIONS that is no preflight":    {"OPTIONS", "/who", header("Origin", app1), 204, app1, ""},
		"an answer":                       {"GET", "/who", header("Origin", app1, "Authorization", "Bearer "+token), 200, app1, ""},
		"an answer for another":           {"GET", "/who", header("Origin", "https://evil.example", "Authorization", "Bearer "+token), 200, "", ""},
		"an answer for no page":           {"GET", "/who", header("Authorization", "Bearer "+token), 200, "", ""},
		"a refusal can be read as well":   {"GET", "/who", header("Origin", app1), 401, app1, ""},
		"so can what is not there":        {"GET", "/nothing", header("Origin", app1), 404, app1, ""},
		"so can a body that is too large": {"POST", "/who", header("Origin", app1, "Content-Length", "99999999"), 413, app1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := do(t, addr, tt.method, tt.target, tt.headers)
			get := r.header.Get
			if r.status != tt.status || get("Access-Control-Allow-Origin") != tt.origin || get("Access-Control-Allow-Headers") != tt.allowed {
				t.Errorf("got %d %v", r.status, r.header)
			}
			if (get("Access-Control-Allow-Credentials") == "true") != (tt.origin != "") || get("Vary") != "Origin" {
				t.Errorf("got %v", r.header)
			}
			if (get("Cross-Origin-Resource-Policy") == "cross-origin") != (tt.origin != "") {
				t.Errorf("got %v", r.header)
			}
			if exposed := get("Access-Control-Expose-Headers"); (exposed == corsExposed) != (tt.origin != "" && tt.allowed == "") {
				t.Errorf("exposed is %q", exposed)
			}
		})
	}
}

func TestCORS_ExactOrigins(t *testing.T) {
	for origin, ok := range map[string]bool{
		app1: true, app2: true, "http://[::1]:80": true,
		"": false, "*": false, "null": false, "app.example": false, "https://app.example/": false, "https://app.example/x": false, "https://*.example": false,
		"https://App.example": false, "ftp://app.example": false, "https://u@app.example": false, "https://app.example?x": false, "https://": false, "https://\x00": false,
	} {
		err := AccessConfig{CORSOrigins: []string{app1, origin}}.Validate()
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "--cors-origins") {
			t.Errorf("%q: %v", origin, err)
		}
	}
	if err := (AccessConfig{Config: auth.Config{Auth: "x"}}).Validate(); err == nil {
		t.Error("the flags of tokens are not looked at")
	}
	for _, cfg := range []AccessConfig{{CORSOrigins: []string{"*"}}, {Config: auth.Config{Auth: auth.ModeJWT, SecretFile: "nowhere", Audience: "a"}}} {
		if _, err := NewAccess(cfg, daemon.NewEnv(nil)); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

func TestCookie_FromAToken(t *testing.T) {
	token := authtest.Of(t, "alice", "s")
	for name, tt := range map[string]struct {
		sameSite   SameSite
		host, want string
	}{
		"lax":                {SameSiteLax, "rejoin.example", "__Host-rejoin; HttpOnly; Path=/; SameSite=Lax; Secure"},
		"strict":             {SameSiteStrict, "rejoin.example:8443", "__Host-rejoin; HttpOnly; Path=/; SameSite=Strict; Secure"},
		"none":               {SameSiteNone, "rejoin.example", "__Host-rejoin; HttpOnly; Partitioned; Path=/; SameSite=None; Secure"},
		"on this machine":    {SameSiteLax, "localhost:8080", "rejoin; HttpOnly; Path=/; SameSite=Lax"},
		"none, this machine": {SameSiteNone, "127.0.0.1", "rejoin; HttpOnly; Partitioned; Path=/; SameSite=None; Secure"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := serveGuarded(t, access(t, nil), tt.sameSite)
			c := dial(t, addr)
			ask := func(method, target, headers string) response {
				c.send(t, method+" "+target+" HTTP/1.1\r\nHost: "+tt.host+"\r\n"+headers+"Content-Length: 0\r\n\r\n")
				return c.receive(t, method)
			}
			r := ask("POST", "/v1/cookie", header("Authorization", "Bearer "+token))
			cookie, err := http.ParseSetCookie(r.header.Get("Set-Cookie"))
			if err != nil || r.status != http.StatusNoContent || r.header.Get("Cache-Control") != "no-store" {
				t.Fatalf("%v in %+v", err, r)
			}
			if cookie.Value != token || cookie.MaxAge < 3500 || cookie.MaxAge > 3610 || cookie.Domain != "" {
				t.Errorf("the cookie is %+v", cookie)
			}
			if got := attributes(r.header.Get("Set-Cookie")); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if r := ask("GET", "/who", header("Cookie", cookie.Name+"="+cookie.Value)); r.body != "you are alice" {
				t.Errorf("got %+v", r)
			}
			for range 2 {
				r = ask("DELETE", "/v1/cookie", header("Authorization", "Bearer "+token))
				deleted, err := http.ParseSetCookie(r.header.Get("Set-Cookie"))
				if err != nil || r.status != http.StatusNoContent || r.header.Get("Cache-Control") != "no-store" {
					t.Fatalf("%v in %+v", err, r)
				}
				if got := attributes(r.header.Get("Set-Cookie")); got != tt.want || deleted.Value != "" || deleted.MaxAge != -1 {
					t.Errorf("deleted with %s, and not %s: %+v", got, tt.want, deleted)
				}
			}
		})
	}
}

// attributes returns a cookie's name and attributes, without those that change.
func attributes(cookie string) string {
	var all []string
	for part := range strings.SplitSeq(cookie, "; ") {
		name, _, _ := strings.Cut(part, "=")
		switch {
		case len(all) == 0:
			all = append(all, name)
		case name != "Max-Age":
			all = append(all, part)
		}
	}
	slices.Sort(all[1:])
	return strings.Join(all, "; ")
}

func TestCookie_OnlyFromABearerToken(t *testing.T) {
	addr := serveGuarded(t, access(t, nil), SameSiteLax)
	token := authtest.Of(t, "alice", "s")
	for name, tt := range map[string]struct {
		target, headers string
		code            Code
	}{
		"nothing":            {"/v1/cookie", "", CodeUnauthorized},
		"a cookie":           {"/v1/cookie", header("Cookie", "rejoin="+token, "Origin", app1), CodeUnauthorized},
		"a broken token":     {"/v1/cookie", header("Authorization", "Bearer x"), CodeUnauthorized},
		"two tokens":         {"/v1/cookie", header("Authorization", "Bearer "+token, "Authorization", "Bearer "+token), CodeInvalidHeader},
		"a token in the URL": {"/v1/cookie?token=" + token, header("Authorization", "Bearer "+token), CodeTokenInURL},
	} {
		t.Run(name, func(t *testing.T) {
			r := do(t, addr, "POST", tt.target, tt.headers+"Content-Length: 0\r\n")
			expectProblem(t, r, tt.code)
			if r.header.Get("Set-Cookie") != "" {
				t.Error("there is a cookie")
			}
		})
	}
}

// Browsers silently drop a larger cookie, and the page would then be refused as one without a token.
func TestCookie_TokenTooLong(t *testing.T) {
	addr := serveGuarded(t, access(t, nil), SameSiteLax)
	token := authtest.Token(t, "alice", func(token *auth.Token) {
		token.Subscribe = slices.Repeat([]auth.Pattern{auth.Pattern(strings.Repeat("s", 100))}, 40)
	})
	bearer := header("Authorization", "Bearer "+token) + "Content-Length: 0\r\n"
	if r := do(t, addr, "POST", "/who", bearer); r.body != "you are alice" {
		t.Errorf("got %+v", r)
	}
	r := do(t, addr, "POST", "/v1/cookie", bearer)
	expectProblem(t, r, CodeInvalidHeader)
	if r.header.Get("Set-Cookie") != "" || !strings.Contains(r.body, "4090") {
		t.Errorf("got %+v", r)
	}
}

// A page that is not listed cannot have a cookie deleted; a permitted request need not have a
// good one.
func TestCookie_Delete(t *testing.T) {
	addr := serveGuarded(t, access(t, nil), SameSiteLax)
	token := authtest.Of(t, "alice", "s")
	for name, tt := range map[string]struct {
		headers string
		code    Code // empty: it is deleted
	}{
		"no page":                  {"", ""},
		"a token":                  {header("Authorization", "Bearer "+token), ""},
		"a broken token":           {header("Authorization", "Bearer x", "Cookie", "rejoin=x"), ""},
		"a listed page":            {header("Cookie", "rejoin="+token, "Origin", app1), ""},
		"a listed page, again":     {header("Origin", app1), ""},
		"a listed page, too late":  {header("Cookie", "rejoin=x", "Origin", app1), ""},
		"a cookie of no page":      {header("Cookie", "rejoin="+token), CodeOriginNotAllowed},
		"another page":             {header("Cookie", "rejoin="+token, "Origin", "https://evil.example"), CodeOriginNotAllowed},
		"another page, no cookie":  {header("Origin", "https://evil.example"), CodeOriginNotAllowed},
		"a page without an origin": {header("Cookie", "rejoin="+token, "Origin", "null"), CodeOriginNotAllowed},
		"two origins":              {header("Cookie", "rejoin="+token, "Origin", app1, "Origin", app1), CodeOriginNotAllowed},
		"two tokens":               {header("Authorization", "Bearer "+token, "Authorization", "Bearer "+token), CodeInvalidHeader},
	} {
		t.Run(name, func(t *testing.T) {
			r := do(t, addr, "DELETE", "/v1/cookie", tt.headers)
			if tt.code != "" {
				expectProblem(t, r, tt.code)
				if r.header.Get("Set-Cookie") != "" {
					t.Error("there is a cookie")
				}
				return
			}
			if cookie := r.header.Get("Set-Cookie"); r.status != http.StatusNoContent || !strings.HasPrefix(cookie, "rejoin=; ") || !strings.Contains(cookie, "; Max-Age=0") {
				t.Errorf("%d %q %s", r.status, cookie, r.body)
			}
		})
	}
}
