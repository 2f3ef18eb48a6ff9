package web

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// echo answers with its own name and its decoded parameters.
func echo(name string, params ...string) fiber.Handler {
	return func(c *fiber.Ctx) error {
		out := name
		for _, p := range params {
			v, err := Param(c, p)
			if err != nil {
				return err
			}
			out += fmt.Sprintf(" %s=%q", p, v)
		}
		return c.SendString(out)
	}
}

// standalone is an app with the routes of several services.
func standalone(cfg Config) *fiber.App {
	cfg.Service = "standalone"
	app := NewApp(cfg)
	Mount(app, // as ingest would
		Route{Method: "POST", Path: "/v1/sessions", Handler: echo("create")},
		Route{Method: "DELETE", Path: "/v1/sessions/:session", Handler: echo("close session", "session")},
		Route{Method: "POST", Path: "/v1/sessions/:session/streams/:stream/events", Handler: echo("publish", "session", "stream")},
		Route{Method: "DELETE", Path: "/v1/sessions/:session/streams/:stream", Handler: echo("close stream", "session", "stream")},
	)
	Mount(app, // as the edge would
		Route{Method: "GET", Path: "/v1/sessions/:session/events", Handler: echo("flow", "session"), NoHead: true},
		Route{Method: "GET", Path: "/v1/sessions/:session/streams/:stream/events", Handler: echo("events", "session", "stream"), NoHead: true},
		Route{Method: "GET", Path: "/", Handler: echo("playground")},
	)
	Mount(app, // as the janitor would
		Route{Method: "GET", Path: "/v1/sessions", Handler: echo("list"), Query: []string{"x", "y"}},
		Route{Method: "GET", Path: "/v1/sessions/:session", Handler: echo("show", "session")},
	)
	return app
}

func TestApp_RawPaths(t *testing.T) {
	t.Parallel()
	addr := serve(t, standalone(Config{}))
	for _, tt := range []struct{ target, want string }{
		{"/", "playground"},
		{"/v1/sessions", "list"},
		{"/v1/sessions/", "list"},
		{"/v1/sessions?x=/../y", "list"},
		{"/v1/sessions/a", `show session="a"`},
		{"/v1/sessions/a/", `show session="a"`},
		{"/v1/sessions/A", `show session="A"`},
		{"/v1/sessions/a#b", `show session="a"`},
		{"http://localhost/v1/sessions/a", `show session="a"`},

		// Every character of a name, encoded or not, decoded once.
		{"/v1/sessions/a%2Fb", `show session="a/b"`},
		{"/v1/sessions/a%2fb", `show session="a/b"`},
		{"/v1/sessions/a%2Fevents", `show session="a/events"`},
		{"/v1/sessions/a%252Fb", `show session="a%2Fb"`},
		{"/v1/sessions/%25", `show session="%"`},
		{"/v1/sessions/%61", `show session="a"`},
		{"/v1/sessions/a+b=c", `show session="a+b=c"`},
		{"/v1/sessions/a%2Bb%3Dc", `show session="a+b=c"`},
		{"/v1/sessions/a%3Fb%23c", `show session="a?b#c"`},
		{"/v1/sessions/a:b.c-d*e", `show session="a:b.c-d*e"`},
		{"/v1/sessions/a%5Cb\\c", `show session="a\\b\\c"`},
		{"/v1/sessions/%20%00%ff", `show session=" \x00\xff"`},
		{"/v1/sessions/a://b", ""},
		{"/v1/sessions/events/events", `flow session="events"`},
		{"/v1/sessions/streams/streams/streams/events", `events session="streams" stream="streams"`},
		{"/v1/sessions/a%2Fstreams%2Fb/events", `flow session="a/streams/b"`},
		{"/v1/sessions/a%2Fb/streams/c%2Fd/events", `events session="a/b" stream="c/d"`},

		// Dots are names like any other here, and refused where names are
		// checked. They never lead elsewhere.
		{"/v1/sessions/..", `show session=".."`},
		{"/v1/sessions/.", `show session="."`},
		{"/v1/sessions/%2e%2e", `show session=".."`},
		{"/v1/sessions/%2E%2E/events", `flow session=".."`},
		{"/v1/sessions/../sessions", ""},
		{"/v1/x/../sessions", ""},
		{"/v1/./sessions", ""},
		{"/v1/sessions/a/../b", ""},
		{"/v1/sessions/a/streams/../events", `events session="a" stream=".."`},
		{"/v1/sessions/%2e%2e%2fsessions", `show session="../sessions"`},

		// Neither do empty segments or encoded letters of fixed ones.
		{"//v1/sessions", ""},
		{"/v1//sessions", ""},
		{"/v1/sessions//events", ""},
		{"/v1/sessions/a/streams//events", ""},
		{"/v1%2Fsessions", ""},
		{"/v1/session%73", ""},
		{"/v1/SESSIONS", ""},
		{"//localhost/v1/sessions?://", ""},
		{"ftp://localhost/v1/sessions", ""},
		{"v1/sessions", ""},
		{"*", ""},
	} {
		t.Run(tt.target, func(t *testing.T) {
			r := do(t, addr, "GET", tt.target, "")
			if tt.want == "" {
				if p := expectProblem(t, r, CodeNotFound); p.Detail != "The standalone has answered, which has no such path." {
					t.Errorf("it says %q", p.Detail)
				}
				return
			}
			if r.status != http.StatusOK || r.body != tt.want {
				t.Errorf("got %d %s, want %s", r.status, r.body, tt.want)
			}
		})
	}
	for _, broken := range []string{"%", "%2", "%zz", "a%2Fb%"} {
		t.Run(broken, func(t *testing.T) {
			expectProblem(t, do(t, addr, "GET", "/v1/sessions/"+broken, ""), CodeInvalidName)
		})
	}
}

func TestApp_ParameterOutlivesItsRequest(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test"})
	var kept []string
	Mount(app, Route{Method: "GET", Path: "/:name", Handler: func(c *fiber.Ctx) error {
		name, err := Param(c, "name")
		kept = append(kept, name)
		return err
	}})
	c := dial(t, serve(t, app))
	for _, name := range []string{"first", "other"} {
		c.send(t, "GET /"+name+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
		c.receive(t, "GET")
	}
	if len(kept) != 2 || kept[0] != "first" || kept[1] != "other" {
		t.Errorf("kept %q", kept)
	}
}

func TestApp_MethodNotAllowed(t *testing.T) {
	t.Parallel()
	addr := serve(t, standalone(Config{}))
	const events = "/v1/sessions/s/streams/t/events"
	for _, tt := range []struct {
		method, target string
		status         int
		allow          string
	}{
		{"GET", "/v1/sessions", 200, ""},
		{"POST", "/v1/sessions", 200, ""},
		{"HEAD", "/v1/sessions", 200, ""},
		{"DELETE", "/v1/sessions", 405, "GET, HEAD, OPTIONS, POST"},
		{"OPTIONS", "/v1/sessions", 204, "GET, HEAD, OPTIONS, POST"},
		{"PUT", "/v1/sessions/s", 405, "DELETE, GET, HEAD, OPTIONS"},
		{"GET", events, 200, ""},
		{"POST", events, 200, ""},
		{"HEAD", events, 405, "GET, OPTIONS, POST"},
		{"PATCH", events, 405, "GET, OPTIONS, POST"},
		{"TRACE", events, 405, "GET, OPTIONS, POST"},
		{"BREW", events, 405, "GET, OPTIONS, POST"},
		{"get", events, 405, "GET, OPTIONS, POST"},
		{"GET", "/v1/sessions/s/streams/t", 405, "DELETE, OPTIONS"},
		{"BREW", "/coffee", 404, ""},
		{"OPTIONS", "/coffee", 404, ""},
		{"OPTIONS", "*", 404, ""},
	} {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			r := do(t, addr, tt.method, tt.target, "Content-Length: 0\r\n")
			if r.status != tt.status || r.header.Get("Allow") != tt.allow {
				t.Errorf("got %d, Allow %q, want %d, %q", r.status, r.header.Get("Allow"), tt.status, tt.allow)
			}
			switch {
			case tt.method == "HEAD":
				if r.body != "" {
					t.Errorf("HEAD has the body %q", r.body)
				}
			case tt.status == 405:
				expectProblem(t, r, CodeMethodNotAllowed)
			case tt.status == 404:
				expectProblem(t, r, CodeNotFound)
			}
		})
	}
}

func TestMount_InvalidRoutes(t *testing.T) {
	for name, r := range map[string]Route{
		"twice":           {Method: "POST", Path: "/v1/sessions"},
		"method of ours":  {Method: "OPTIONS", Path: "/v1/sessions"},
		"head by itself":  {Method: "HEAD", Path: "/v1/x"},
		"unknown method":  {Method: "BREW", Path: "/v1/x"},
		"method in lower": {Method: "get", Path: "/v1/x"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			r.Handler = echo("x")
			Mount(standalone(Config{}), r)
		})
	}
}

func TestApp_UnreadableRequests(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test", MaxBodyBytes: func() int { return 64 }})
	Mount(app, Route{Method: "POST", Path: "/", Handler: func(c *fiber.Ctx) error {
		all, err := StreamedBody(c).Limited(c.App().Config().BodyLimit)
		if err != nil {
			return err
		}
		return c.Send(all)
	}})
	addr := serve(t, app)
	for name, tt := range map[string]struct {
		request string
		want    Code
	}{
		"body too large":         {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65\r\n\r\n", CodeBodyTooLarge},
		"chunked body too large": {"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n41\r\n" + strings.Repeat("x", 65) + "\r\n0\r\n\r\n", CodeBodyTooLarge},
		"headers too large":      {"POST / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", MaxHeaderBytes) + "\r\n\r\n", CodeHeadersTooLarge},
		"target too large":       {"GET /" + strings.Repeat("x", MaxHeaderBytes) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", CodeHeadersTooLarge},
		"no HTTP":                {"\x16\x03\x01\r\n\r\n", CodeInvalidRequest},
		"two lengths":            {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\ncontent-length: 4\r\n\r\nabcd", CodeInvalidRequest},
		"length and chunks":      {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", CodeInvalidRequest},
		"another coding":         {"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", CodeInvalidRequest},
		"two codings":            {"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", CodeInvalidRequest},
		"bad length":             {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: ten\r\n\r\n", CodeInvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, addr)
			c.send(t, tt.request)
			r := c.receive(t, "POST")
			if p := expectProblem(t, r, tt.want); (p.Detail != "") != (tt.want == CodeBodyTooLarge) {
				t.Errorf("tells %q", p.Detail)
			}
			c.closed(t)
		})
	}
	body := strings.Repeat("x", 64)
	c := dial(t, addr)
	c.send(t, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 64\r\nExpect: 100-continue\r\n\r\n")
	if r := c.receive(t, "POST"); r.status != http.StatusContinue {
		t.Fatalf("got %+v, want 100", r)
	}
	c.send(t, body)
	if r := c.receive(t, "POST"); r.status != http.StatusOK || r.body != body {
		t.Errorf("the largest body gets %+v", r)
	}
}

// A client that sends its whole body before it reads the answer, as fetch does, receives the reason of the refusal: a
// connection that is closed while data arrives on it would be reset.
func TestApp_RefusedHeadBeforeItsBody(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test", MaxBodyBytes: func() int { return 64 }})
	Mount(app, Route{Method: "POST", Path: "/", Handler: echo("taken")})
	addr := serve(t, app)
	body := strings.Repeat("x", 64<<10)
	for head, want := range map[string]Code{
		"Content-Length: 65536\r\n":                               CodeBodyTooLarge,
		"Content-Length: 65536\r\nTransfer-Encoding: chunked\r\n": CodeInvalidRequest,
	} {
		c := dial(t, addr)
		c.send(t, "POST / HTTP/1.1\r\nHost: localhost\r\n"+head+"\r\n"+body)
		expectProblem(t, c.receive(t, "POST"), want)
		if rest, err := io.ReadAll(c.r); len(rest) > 0 || err != nil {
			t.Errorf("%s: the connection ends with %q, %v", want, rest, err)
		}
	}
}

// A head that fasthttp takes in one way, and a proxy in front may take in another, is refused, and
// no later bytes on the connection are taken for a request.
func TestAttackAmbiguousRequestHeads(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test"})
	app.Use((*Access)(nil).hostCheck("--edge-hosts", nil))
	for _, method := range []string{"GET", "POST"} {
		Mount(app, Route{Method: method, Path: "/*", Handler: echo("taken")})
	}
	addr := serve(t, app)
	const chunks = "0\r\n\r\n"
	for name, tt := range map[string]struct {
		request string
		taken   bool
	}{
		"one Host":                        {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", true},
		"two Hosts, the last a good one":  {"GET / HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n", false},
		"two Hosts, the first a good one": {"GET / HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n\r\n", false},
		"no Host":                         {"GET / HTTP/1.1\r\n\r\n", false},
		"no Host, but in the target":      {"GET http://localhost/ HTTP/1.1\r\n\r\n", false},
		"the same Host twice":             {"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", false},
		"a CR in a value":                 {"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\rY: b\r\n\r\n", false},
		"a CR in a name":                  {"GET / HTTP/1.1\r\nHost: localhost\r\nX\rY: b\r\n\r\n", false},
		"a CR before the end of a line":   {"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\r\n\r\n", false},
		"a CR in the target":              {"GET /a\rb HTTP/1.1\r\nHost: localhost\r\n\r\n", false},
		"chunks":                          {"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks, true},
		"chunks in HTTP/1.0":              {"POST / HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks, false},
		"chunks in HTTP/1.2":              {"POST / HTTP/1.2\r\nHost: localhost\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks, false},
		"a length in HTTP/1.0":            {"POST / HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			takenOrClosed(t, addr, tt.request, "taken", tt.taken)
		})
	}
}

// takenOrClosed sends a request that is answered with body, or refused on a connection that ends then.
func takenOrClosed(t *testing.T, addr, request, body string, taken bool) {
	t.Helper()
	c := dial(t, addr)
	c.send(t, request)
	r := c.receive(t, "POST")
	if !taken {
		expectProblem(t, r, CodeInvalidRequest)
		c.closed(t)
	} else if r.body != body {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// fasthttp takes the fields after the last chunk for ones of the head. A proxy in front passes them on, and has
// added its own X-Forwarded-For before.
func TestAttackTrailersTakenForHeaders(t *testing.T) {
	t.Parallel()
	clients := must.Value(NewClients(ClientsConfig{TrustedProxies: []string{"127.0.0.1"}}))(t)
	app := NewApp(Config{Service: "test", Clients: clients})
	Mount(app, Route{Method: "POST", Path: "/", Handler: func(c *fiber.Ctx) error {
		if _, err := StreamedBody(c).Limited(1 << 10); err != nil {
			return err
		}
		return c.SendString(clients.Client(c) + c.Get("X"))
	}})
	addr := serve(t, app)
	for name, tt := range map[string]struct {
		fields, trailers string
		taken            bool
	}{
		"none":                 {"", "", true},
		"cookies, and none":    {"Cookie: a=b\r\nCookie: c=d\r\n", "", true},
		"an address":           {"", "X-Forwarded-For: 192.0.2.2\r\n", false},
		"one that is declared": {"Trailer: X-Forwarded-For\r\n", "X-Forwarded-For: 192.0.2.2\r\n", false},
		"a cookie":             {"Cookie: a=b\r\n", "Cookie: c=d\r\n", false},
		"a control character":  {"", "X: \x01\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			takenOrClosed(t, addr, "POST / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 192.0.2.1\r\n"+tt.fields+"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"+tt.trailers+"\r\n", "192.0.2.1", tt.taken)
		})
	}
}

// fasthttp before 1.58 skips a chunk's extension up to a CR, line breaks included; for a proxy that
// takes the first line break for the end of the line, the chunk has another beginning
// (https://github.com/valyala/fasthttp/pull/1899).
func TestAttackAmbiguousChunkExtensions(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test"})
	Mount(app, Route{Method: "POST", Path: "/", Handler: func(c *fiber.Ctx) error {
		all, err := StreamedBody(c).Limited(1 << 10)
		if err != nil {
			return err
		}
		return c.Send(all)
	}})
	addr := serve(t, app)
	for name, tt := range map[string]struct {
		body  string
		taken bool
	}{
		"an extension":                       {"2;a=b\r\nab\r\n0\r\n\r\n", true},
		"a line break in an extension":       {"2;\nxx\r\nab\r\n0\r\n\r\n", false},
		"a line break in the last extension": {"2\r\nab\r\n0;\n\r\n\r\n", false},
		"a line that ends with a line break": {"2\nab\r\n0\r\n\r\n", false},
		"a CR in an extension":               {"2;a\rb\r\nab\r\n0\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			takenOrClosed(t, addr, "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"+tt.body, "ab", tt.taken)
		})
	}
}

// No answer is passed to a page of another origin that loads it as a script or an image, and
// no answer is taken for another media type than its own, not even that of a request that cannot
// be read.
func TestAttackAnswersLoadedAsScripts(t *testing.T) {
	t.Parallel()
	app := standalone(Config{})
	Mount(app, Route{Method: "GET", Path: "/fail", Handler: func(*fiber.Ctx) error { panic("broken") }})
	addr := serve(t, app)
	for _, request := range []string{
		"GET /v1/sessions HTTP/1.1\r\nHost: localhost", "GET /nothing HTTP/1.1\r\nHost: localhost", "DELETE /v1/sessions HTTP/1.1\r\nHost: localhost",
		"GET /fail HTTP/1.1\r\nHost: localhost", "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999", "\x16\x03\x01",
	} {
		c := dial(t, addr)
		c.send(t, request+"\r\n\r\n")
		r := c.receive(t, "GET")
		if r.header.Get("X-Content-Type-Options") != "nosniff" || r.header.Get("Cross-Origin-Resource-Policy") != "same-origin" {
			t.Errorf("%q: %d %v", request, r.status, r.header)
		}
	}
}

// A misspelt parameter would otherwise give another answer than the requested one. A token in
// the URL is refused by the check of tokens.
func TestApp_UnknownParameters(t *testing.T) {
	t.Parallel()
	addr := serve(t, standalone(Config{}))
	for target, unknown := range map[string]string{
		"/v1/sessions?x=1&y=2&x=3":            "",
		"/v1/sessions?token=t&access_token=t": "",
		"/?form=now":                          "",
		"/v1/sessions?x=1&z":                  `"z"`,
		"/v1/sessions/s?form=now":             `"form"`,
		"/v1/sessions?=1":                     `""`,
		"/v1/sessions?%78=1&X=2":              `"X"`,
	} {
		r := do(t, addr, "GET", target, "")
		if unknown == "" {
			if r.status != http.StatusOK {
				t.Errorf("%s: %d %s", target, r.status, r.body)
			}
			continue
		}
		if p := expectProblem(t, r, CodeInvalidParameter); !strings.Contains(p.Detail, unknown) {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}
}

func TestHostCheck(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		allowed []string
		target  string
		host    string
		ok      bool
	}{
		"localhost":             {nil, "/", "localhost", true},
		"with port":             {nil, "/", "localhost:8080", true},
		"any case":              {nil, "/", "LocalHost:8080", true},
		"final dot":             {nil, "/", "localhost.:8080", true},
		"IPv4":                  {nil, "/", "127.0.0.1:8080", true},
		"IPv6":                  {nil, "/", "[::1]:8080", true},
		"IPv6 without port":     {nil, "/", "[::1]", true},
		"rebound":               {nil, "/", "evil.example:8080", false},
		"suffix":                {nil, "/", "localhost.evil.example", false},
		"prefix":                {nil, "/", "evil-localhost", false},
		"other loopback":        {nil, "/", "127.0.0.2", false},
		"user":                  {nil, "/", "localhost@evil.example", false},
		"user is evil":          {nil, "/", "evil.example@localhost", false},
		"two colons":            {nil, "/", "localhost:80:80", false},
		"empty":                 {nil, "/", "", false},
		"absolute":              {nil, "http://localhost:8080/", "localhost:8080", true},
		"absolute evil":         {nil, "http://evil.example/", "localhost", false},
		"absolute, header evil": {nil, "http://localhost/", "evil.example", false},
		"given name":            {[]string{"rejoin.example", "[2001:db8::1]"}, "/", "rejoin.example", true},
		"given IPv6":            {[]string{"rejoin.example", "[2001:db8::1]"}, "/", "[2001:DB8::1]:80", true},
		"given, loopback too":   {[]string{"rejoin.example"}, "/", "localhost", true},
		"given, another":        {[]string{"rejoin.example"}, "/", "evil.example", false},
	}
	on := access(t, nil)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, a := range []*Access{nil, on} {
				if a.On() && tt.allowed == nil {
					continue // any host is allowed
				}
				app := NewApp(Config{Service: "test"})
				app.Use(a.hostCheck("--edge-hosts", tt.allowed))
				Mount(app, Route{Method: "GET", Path: "/", Handler: echo("ok")})
				c := dial(t, serve(t, app))
				c.send(t, "GET "+tt.target+" HTTP/1.1\r\nHost: "+tt.host+"\r\n\r\n")
				r := c.receive(t, "GET")
				if !tt.ok {
					if p := expectProblem(t, r, CodeHostNotAllowed); !strings.Contains(p.Detail, "--edge-hosts") {
						t.Errorf("it says %q", p.Detail)
					}
				} else if r.body != "ok" {
					t.Errorf("got %+v", r)
				}
			}
		})
	}
}

func TestMetrics_BoundedLabels(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	app := standalone(Config{Metrics: registry})
	Mount(app, Route{Method: "GET", Path: "/fail", Handler: func(*fiber.Ctx) error { return errors.New("broken") }})
	addr, stop := start(t, app, waittest.Timeout)
	do(t, addr, "GET", "/v1/sessions", "")
	do(t, addr, "GET", "/v1/sessions/s", "")
	do(t, addr, "GET", "/fail", "")
	do(t, addr, "GET", "/nothing", "")
	do(t, addr, "DELETE", "/v1/sessions", "")
	do(t, addr, "BREW", "/v1/sessions", "")
	do(t, addr, "POST", "/v1/sessions", "Content-Length: 99999999\r\n")
	must.NoError(t, stop()) // the last request is counted

	const name = "rejoin_standalone_http_requests_total"
	want := strings.NewReader(`
# HELP ` + name + ` HTTP requests answered, by method and status. The method other stands for all rare methods, and for requests refused before they were routed.
# TYPE ` + name + ` counter
` + name + `{code="200",method="GET"} 2
` + name + `{code="404",method="GET"} 1
` + name + `{code="405",method="DELETE"} 1
` + name + `{code="405",method="other"} 1
` + name + `{code="413",method="POST"} 1
` + name + `{code="500",method="DELETE"} 0
` + name + `{code="500",method="GET"} 1
` + name + `{code="500",method="POST"} 0
` + name + `{code="500",method="PUT"} 0
` + name + `{code="500",method="other"} 0
` + name + `{code="503",method="DELETE"} 0
` + name + `{code="503",method="GET"} 0
` + name + `{code="503",method="POST"} 0
` + name + `{code="503",method="PUT"} 0
` + name + `{code="503",method="other"} 0
`)
	must.NoError(t, testutil.GatherAndCompare(registry, want, name))
	if n, err := testutil.GatherAndCount(registry, "rejoin_standalone_http_request_duration_seconds"); err != nil || n != 4 {
		t.Errorf("%d durations, %v", n, err)
	}
}

// With a name that is not valid UTF-8 the exporter of traces would lose all spans of the same batch.
func TestApp_LogsNamesOnly(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test"})
	Mount(app, Route{Method: "GET", Path: "/v1/sessions/:session/streams/:stream", Handler: func(c *fiber.Ctx) error {
		session, stream := Place(c)
		return c.SendString(session + " " + stream)
	}})
	addr := serve(t, app)
	for target, want := range map[string]string{
		"/v1/sessions/a%2Fb/streams/*":                             "a/b *",
		"/v1/sessions/%FF/streams/a":                               " a",
		"/v1/sessions/a/streams/%0A%1B":                            "a ",
		"/v1/sessions/a/streams/%C3%A9":                            "a ",
		"/v1/sessions/a/streams/" + strings.Repeat("x", 128) + "x": "a ",
	} {
		if r := do(t, addr, "GET", target, ""); r.body != want {
			t.Errorf("%s is at %q, want %q", target, r.body, want)
		}
	}
}

// Such a request has no route, and its head may hold a token.
func TestApp_UnreadableRequestIsLogged(t *testing.T) {
	t.Parallel()
	for _, headers := range []string{"X: a\r\n B: b\r\n", "X : a\r\n", "Content-Length: x\r\n", "Authorization: Bearer SECRET\x01\r\n"} {
		var out bytes.Buffer
		app := NewApp(Config{Service: "test", Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		addr, stop := start(t, app, waittest.Timeout)
		if r := do(t, addr, "GET", "/", "Authorization: Bearer SECRET\r\n"+headers); r.status != http.StatusBadRequest {
			t.Errorf("%q is answered %d", headers, r.status)
		}
		must.NoError(t, stop())
		if line := out.String(); !strings.Contains(line, "request refused") || !strings.Contains(line, "request headers: ") || strings.Contains(line, "SECRET") {
			t.Errorf("%q: the log is %q", headers, line)
		}
	}
}
