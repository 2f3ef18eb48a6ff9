package web

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/shared/auth/authtest"
	"rejoin/shared/daemon"
	"rejoin/shared/must"
)

// Pages of other origins change nothing, with any service and any access control.
func TestAttackPagesOfOtherOriginsWrite(t *testing.T) {
	t.Parallel()
	off := must.Value(NewAccess(AccessConfig{CORSOrigins: []string{app1}}, daemon.NewEnv(nil)))(t)
	const public, host = "https://mcp.example", "rejoin.example"
	site := func(value string) string { return header(headerFetchSite, value) }
	tests := map[string]struct {
		headers string
		refused bool
	}{
		"no page":                               {"", false},
		"the page itself":                       {site("same-origin") + header("Origin", "http://"+host), false},
		"the page itself, behind TLS":           {site("same-origin") + header("Origin", "https://"+host), false},
		"the page itself, another Host":         {site("same-origin") + header("Origin", "https://other.example"), false},
		"the page itself, without a referrer":   {site("same-origin") + header("Origin", "null"), false},
		"the page itself, old":                  {header("Origin", "http://"+host), false},
		"the page itself, old, behind TLS":      {header("Origin", "https://"+host, "X-Forwarded-Proto", "https"), false},
		"the page itself, old, behind two":      {header("Origin", "https://"+host, "X-Forwarded-Proto", "https, http"), false},
		"the address bar":                       {site("none"), false},
		"a listed page":                         {site("cross-site") + header("Origin", app1), false},
		"a listed page, old":                    {header("Origin", app1), false},
		"a page of the public URL":              {site("same-site") + header("Origin", public), false},
		"another site":                          {site("cross-site") + header("Origin", "https://evil.example"), true},
		"another site, without an origin":       {site("cross-site"), true},
		"another origin of the site":            {site("same-site") + header("Origin", "https://blog."+host), true},
		"another origin, without an origin":     {site("same-site"), true},
		"a sandbox":                             {site("cross-site") + header("Origin", "null"), true},
		"an unknown word":                       {site("SAME-ORIGIN"), true},
		"nothing, said":                         {site(""), true},
		"two words":                             {site("same-origin") + site("same-origin"), true},
		"another site, old":                     {header("Origin", "https://evil.example"), true},
		"a sandbox, old":                        {header("Origin", "null"), true},
		"no origin, said":                       {header("Origin", ""), true},
		"another scheme":                        {header("Origin", "https://"+host), true},
		"another scheme behind TLS":             {header("Origin", "http://"+host, "X-Forwarded-Proto", "https"), true},
		"an unknown scheme":                     {header("Origin", "foo://"+host), true},
		"no scheme":                             {header("Origin", host), true},
		"another port":                          {header("Origin", "http://"+host+":8080"), true},
		"a name that begins so":                 {header("Origin", "http://"+host+".evil.example"), true},
		"two origins":                           {header("Origin", "http://"+host, "Origin", "http://"+host), true},
		"two origins, one listed":               {header("Origin", app1, "Origin", "https://evil.example"), true},
		"a name and a password":                 {header("Origin", "https://evil.example", "Authorization", "Basic YTpi"), true},
		"an empty token":                        {header("Origin", "https://evil.example", "Authorization", "Bearer "), true},
		"two tokens":                            {header("Origin", "https://evil.example", "Authorization", "Bearer a", "Authorization", "Bearer b"), true},
		"a form, which a browser sends at once": {site("cross-site") + header("Origin", "https://evil.example", "Content-Type", "text/plain"), true},
	}
	methods := []string{"POST", "PUT", "PATCH", "DELETE"}
	for mode, a := range map[string]*Access{"nil": nil, "none": off, "jwt": access(t, nil)} {
		app := NewApp(Config{Service: "test"})
		a.Protect(app, "--edge-hosts", []string{host}, "", public)
		var reached atomic.Int64
		for _, method := range methods {
			Mount(app, Route{Method: method, Path: "/", Handler: func(c *fiber.Ctx) error {
				reached.Add(1)
				return c.SendString("changed")
			}})
		}
		c := dial(t, serve(t, app))
		passed, refused := 0, 0
		for name, tt := range tests {
			if a == nil && strings.HasPrefix(name, "a listed page") {
				continue // it has no list
			}
			t.Run(mode+", "+name, func(t *testing.T) {
				for _, method := range methods {
					c.send(t, method+" / HTTP/1.1\r\nHost: "+host+"\r\n"+tt.headers+"Content-Length: 0\r\n\r\n")
					r := c.receive(t, method)
					if tt.refused {
						refused++
						expectProblem(t, r, CodeOriginNotAllowed)
						continue
					}
					passed++
					if r.status != http.StatusOK {
						t.Errorf("%s: %d %s", method, r.status, r.body)
					}
				}
			})
		}
		if n := int(reached.Load()); n != passed {
			t.Errorf("%s: %d requests reached the handler, not %d", mode, n, passed)
		}
		if a == nil {
			continue
		}
		if n := testutil.ToFloat64(a.refused.WithLabelValues(refusedOrigin)); n != float64(refused) {
			t.Errorf("%s: %v refusals are counted, not %d", mode, n, refused)
		}
	}
}

// A page of another origin cannot send a token without a preflight: a request with a token is
// of another program. Without access control a token proves nothing.
func TestOriginCheck_BearerToken(t *testing.T) {
	off := must.Value(NewAccess(AccessConfig{}, daemon.NewEnv(nil)))(t)
	foreign := header("Origin", "https://evil.example", headerFetchSite, "cross-site", "Authorization", "Bearer "+authtest.Of(t, "alice", "s"), "Content-Length", "0")
	if r := do(t, serveGuarded(t, access(t, nil), SameSiteLax), "POST", "/publish", foreign); r.body != "published" {
		t.Errorf("%d %s", r.status, r.body)
	}
	expectProblem(t, do(t, serveGuarded(t, off, SameSiteLax), "POST", "/publish", foreign), CodeOriginNotAllowed)
}

func TestOriginCheck_Reads(t *testing.T) {
	addr := serveGuarded(t, nil, SameSiteLax)
	foreign := header("Origin", "https://evil.example", headerFetchSite, "cross-site")
	for method, want := range map[string]int{"GET": http.StatusOK, "HEAD": http.StatusOK, "OPTIONS": http.StatusNoContent} {
		if r := do(t, addr, method, "/who", foreign); r.status != want || r.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %d %v", method, r.status, r.header)
		}
	}
}
