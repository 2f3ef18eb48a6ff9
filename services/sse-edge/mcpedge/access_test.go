package mcpedge

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
)

func TestMCP_Owner(t *testing.T) {
	f, b := bridged(t)
	guard := guarded(t)
	url := f.mcpEdge(func(c *config) {
		guard(c)
		c.MCP.PublicURL, c.MCP.AuthorizationServers = "https://mcp.example", []string{"https://login.example"}
	})
	alice := join(t, url, "2025-11-25", edgetest.Bearer(authtest.Of(t, "alice", "*"))...)
	if open := b.sent(rpc.Open)[0]; open.Owner != "alice" || open.Client != "127.0.0.1" {
		t.Errorf("the bridge was told of %q at %q", open.Owner, open.Client)
	}
	c := alice.follow(alice.post(toolCall))
	c.primed()
	b.say(alice.session, b.sent(rpc.Post)[0].Stream, true, result(`"a"`))
	c.says(result(`"a"`))

	as := func(token string) *mcpUser {
		other := *alice
		if other.headers = nil; token != "" {
			other.headers = edgetest.Bearer(token)
		}
		return &other
	}
	narrow := authtest.Token(t, "alice", func(token *auth.Token) { token.Subscribe = []auth.Pattern{auth.All} })
	const metadata = `resource_metadata="https://mcp.example/.well-known/oauth-protected-resource/mcp"`
	for name, tt := range map[string]struct {
		user      *mcpUser
		status    int
		challenge string
	}{
		"another": {as(authtest.Of(t, "bob", "*")), http.StatusNotFound, ""},
		"nobody":  {as(""), http.StatusUnauthorized, `Bearer realm="rejoin", ` + metadata},
		"a bad token": {
			as("x"), http.StatusUnauthorized, `Bearer realm="rejoin", error="invalid_token", ` + metadata,
		},
		"who may only read": {as(narrow), http.StatusForbidden, `Bearer realm="rejoin", error="insufficient_scope", ` + metadata},
	} {
		for method, body := range map[string]string{http.MethodPost: toolCall, http.MethodGet: "", http.MethodDelete: ""} {
			a := tt.user.read(tt.user.do(method, body))
			if a.StatusCode != tt.status || a.Header.Get("WWW-Authenticate") != tt.challenge || !strings.Contains(a.Text, `"jsonrpc":"2.0"`) {
				t.Errorf("%s: %s: %d %q %s", name, method, a.StatusCode, a.Header.Get("WWW-Authenticate"), a.Text)
			}
		}
	}
	// A member uses a session, and does not end it.
	f.SetMembers(alice.session, "bob")
	bob := as(authtest.Of(t, "bob", "*"))
	bob.read(bob.post(result("1"))).Got(t, http.StatusAccepted)
	bob.read(bob.do(http.MethodDelete, "")).Got(t, http.StatusForbidden)
	if a := as(narrow); a.read(a.post(`{"jsonrpc":"2.0","id":0,"method":"initialize"}`)).StatusCode != http.StatusForbidden {
		t.Error("who may only read began a session")
	}
	for path, want := range map[string]string{
		"":     `{"resource":"https://mcp.example","authorization_servers":["https://login.example"],"bearer_methods_supported":["header"]}`,
		"/mcp": `{"resource":"https://mcp.example/mcp","authorization_servers":["https://login.example"],"bearer_methods_supported":["header"]}`,
	} {
		if a := edgetest.Ask(t, http.MethodGet, url+"/.well-known/oauth-protected-resource"+path); a.StatusCode != http.StatusOK || a.Text != want {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.Text)
		}
	}
}

func TestMCP_AllowedOrigin(t *testing.T) {
	f := newFixture(t)
	f.bridge()
	u := join(t, f.mcpEdge(guarded(t)), "2025-11-25", append(edgetest.Bearer(authtest.Of(t, "alice", "*")), "Origin", edgetest.Origin)...)
	a := u.read(u.post(result("1")))
	if a.Header.Get("Access-Control-Allow-Origin") != edgetest.Origin || !strings.Contains(a.Header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id") {
		t.Errorf("%d %s", a.StatusCode, a.Header)
	}
}

func TestMCP_ResourceURL(t *testing.T) {
	for _, c := range []Config{
		{PublicURL: "mcp.example"},
		{PublicURL: "https://mcp.example/x"},
		{PublicURL: "https://mcp.example/"},
		{PublicURL: "ftp://mcp.example"},
		{AuthorizationServers: []string{"login"}},
		{AuthorizationServers: []string{"https://login.example?x"}},
	} {
		if c.Validate(time.Second) == nil {
			t.Errorf("%q and %q are taken", c.PublicURL, c.AuthorizationServers)
		}
	}
	must.NoError(t, (Config{PublicURL: "http://localhost:8080", AuthorizationServers: []string{"https://login.example/tenant"}}).Validate(time.Second))
}
