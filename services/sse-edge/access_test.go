package edge

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/daemon"
	"rejoin/shared/inspect"
	"rejoin/shared/session"
	"rejoin/shared/sse"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
)

const origin = "https://app.example"

// guarded has an edge let in only who has a token, and pages of one origin.
func guarded(t *testing.T) func(*Config) {
	t.Helper()
	access, err := web.NewAccess(web.AccessConfig{Config: authtest.Config(t), CORSOrigins: []string{origin}}, daemon.NewEnv(nil))
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.Access = access }
}

// create registers a session.
func (f *fixture) create(name, owner string) {
	f.t.Helper()
	if _, err := f.Backend.Sessions.Create(waittest.Context(f.t), session.New(name, owner, nil, time.Now())); err != nil {
		f.t.Fatal(err)
	}
}

// answered is a response with its body read.
type answered struct {
	*http.Response
	body string
}

// ask makes a request with headers in pairs.
func ask(t *testing.T, method, url string, headers ...string) answered {
	t.Helper()
	resp, err := send(t, method, url, headers...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{resp, string(data)}
}

func send(t *testing.T, method, url string, headers ...string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

// follow subscribes with headers.
func follow(t *testing.T, url string, headers ...string) *client {
	t.Helper()
	resp, err := send(t, http.MethodGet, url, append(headers, "Accept", "text/event-stream")...) //nolint:bodyclose // closed with the test
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, body: resp.Body, dec: sse.NewDecoder(resp.Body, 1<<22), resp: resp}
	t.Cleanup(c.close)
	return c
}

func TestAccess_Owner(t *testing.T) {
	f := newFixture(t)
	url := f.edge(guarded(t))
	f.create("s", "alice")
	f.create("other", "carol")
	f.Publish("a", 2)
	alice, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "bob", "*")
	narrow := authtest.Token(t, "alice", func(token *auth.Token) {
		token.Subscribe, token.Publish, token.Admin = []auth.Pattern{"t", "s-*"}, []auth.Pattern{auth.All}, true
	})

	c := follow(t, url+streamPath, bearer(alice)...)
	c.next("connect")
	c.messages(2)
	for _, accept := range []string{"text/event-stream", "application/json"} {
		var absent, code string
		for _, tt := range []struct {
			token, path string
			status      int
		}{
			{"", streamPath, 401},
			{bob, "/v1/sessions/nothing/streams/a/events", 404},
			{bob, streamPath, 404},
			{bob, "/v1/sessions/s/events", 404},
			{alice, "/v1/sessions/nothing/events", 404},
			{alice, "/v1/sessions/other/events", 404},
			{bob, streamPath + "?after=a_0000000_1", 404},
			{bob, streamPath + "?wait=60", 404},
			{bob, streamPath + "?on_gap=error", 404},
			{narrow, streamPath, 403},
			{narrow, "/v1/sessions/nothing/events", 403},
			{alice, streamPath + "?token=x", 400},
		} {
			headers := []string{"Accept", accept}
			if tt.token != "" {
				headers = append(headers, bearer(tt.token)...)
			}
			resp := ask(t, http.MethodGet, url+tt.path, headers...)
			status, body := resp.StatusCode, resp.body
			if status != tt.status {
				t.Errorf("%s as %s: %d %s, want %d", tt.path, accept, status, body, tt.status)
			}
			if status == http.StatusNotFound {
				resp.Header.Del("Date")
				all, err := json.Marshal(resp.Header)
				if err != nil {
					t.Fatal(err)
				}
				if absent == "" {
					absent, code = body, string(all)
				}
				if body != absent || string(all) != code {
					t.Errorf("%s: %s %s is not %s %s", tt.path, body, all, absent, code)
				}
			}
		}
	}
}

// What a token may read is decided when it comes, also when the edge has not heard of
// the session yet.
func TestAccess_NewSession(t *testing.T) {
	f := newFixture(t)
	url := f.edge(guarded(t))
	token := authtest.Of(t, "alice", "*")
	for _, name := range []string{"1", "2", "3"} {
		f.create(name, "alice")
		c := follow(t, url+"/v1/sessions/"+name+"/events", bearer(token)...)
		if data := string(c.next("connect").Data); !strings.Contains(data, `"exists":true`) {
			t.Error(data)
		}
		c.close()
	}
}

func TestAccess_TokenExpires(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	change := guarded(t)
	s, _ := f.startService(change)
	url := s.url()
	f.create("s", "alice")
	f.Publish("a", 1)
	first := follow(t, url+streamPath, bearer(authtest.Of(t, "alice", "s"))...)
	first.next("connect")
	first.messages(1) // the edge has it
	now := time.Now()
	last := authtest.Token(t, "alice", func(token *auth.Token) { // good for a moment of the leeway
		token.Subscribe = []auth.Pattern{"s"}
		token.Issued, token.Expires = now.Add(-time.Hour), now.Add(10*time.Second-auth.Leeway)
	})
	c := follow(t, url+streamPath, bearer(last)...)
	c.next("connect")
	place := c.messages(1)
	e := c.next("expiring")
	var told delivery.ExpiringData
	if err := json.Unmarshal(e.Data, &told); err != nil || e.ID != place || told.ExpiresAt.After(now.Add(10*time.Second)) || told.ExpiresAt.Before(now) {
		t.Errorf("%s with id %s, %v", e.Data, e.ID, err)
	}
	// A poll that would wait for longer is answered then, too.
	resp := ask(t, http.MethodGet, url+streamPath+"?wait=60&after="+place, "Accept", "application/json", "Authorization", "Bearer "+last)
	if status, body := resp.StatusCode, resp.body; status != http.StatusOK || !strings.Contains(body, `"events":[]`) {
		t.Errorf("%d %s", status, body)
	}
	if _, err := c.dec.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	if r := c.dec.Retry(); r < 2*time.Second || r > 4*time.Second {
		t.Errorf("retry is %s", r)
	}
	waittest.Until(t, "it is counted", func() bool { return testutil.ToFloat64(s.subs.Streams.Metrics.Closed.WithLabelValues("expired")) == 1 })
	if resp := ask(t, http.MethodGet, url+streamPath, bearer(last)...); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("%d %s", resp.StatusCode, resp.body)
	}

	f.Publish("a", 1)
	renewed := follow(t, url+streamPath+"?after="+place, bearer(authtest.Of(t, "alice", "s"))...)
	if e := renewed.next("connect"); !strings.Contains(string(e.Data), `"resumed":true`) {
		t.Errorf("connect is %s", e.Data)
	}
	renewed.messages(1)
}

func TestCookie_ExpiresWithToken(t *testing.T) {
	f := newFixture(t)
	url := f.edge(guarded(t))
	f.create("s", "alice")
	f.Publish("a", 1)
	resp := ask(t, http.MethodPost, url+"/v1/cookie", append(bearer(authtest.Of(t, "alice", "s")), "Origin", origin)...)
	if status, body := resp.StatusCode, resp.body; status != http.StatusNoContent || len(resp.Cookies()) != 1 || resp.Header.Get("Access-Control-Allow-Credentials") != "true" {
		t.Fatalf("%d %s %v", status, body, resp.Header)
	}
	cookie := resp.Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode {
		t.Errorf("the cookie is %s", resp.Header.Get("Set-Cookie"))
	}
	c := follow(t, url+streamPath, "Cookie", cookie.Name+"="+cookie.Value, "Origin", origin)
	c.next("connect")
	c.messages(1)
	if got := c.resp.Header.Get("Access-Control-Allow-Origin"); got != origin {
		t.Errorf("pages of %q may read the stream", got)
	}
	if got := c.resp.Header.Get("Vary"); got != "Accept, Origin" {
		t.Errorf("Vary is %q", got)
	}
}

// An EventSource gives up for good after anything but a 200.
func TestAccess_KeysOrRegistryFail(t *testing.T) {
	f := newFixture(t)
	url := f.edge(guarded(t))
	token := authtest.Of(t, "alice", "*")
	f.Server.Stop()
	resp := ask(t, http.MethodGet, url+streamPath, append(bearer(token), "Accept", "text/event-stream")...)
	if status, body := resp.StatusCode, resp.body; status != http.StatusOK || !strings.HasPrefix(body, "retry: ") || resp.Header.Get("Cache-Control") != "no-store, no-transform" {
		t.Errorf("%d %s %v", status, body, resp.Header)
	}
	resp = ask(t, http.MethodGet, url+streamPath, append(bearer(token), "Accept", "application/json")...)
	if status, body := resp.StatusCode, resp.body; status != http.StatusServiceUnavailable || !strings.Contains(body, `"unavailable"`) {
		t.Errorf("%d %s", status, body)
	}
}

func TestCookie_NoAccessControl(t *testing.T) {
	f := newFixture(t)
	if resp := ask(t, http.MethodPost, f.edge(nil)+"/v1/cookie", bearer("x")...); resp.StatusCode != http.StatusNotFound {
		t.Errorf("%d %s", resp.StatusCode, resp.body)
	}
}

func TestAccess_PublicAddress(t *testing.T) {
	f := newFixture(t)
	cfg := Config{EdgeAddr: "[::]:0", Config: subscriber.Config{
		WindowBytes: 1 << 20, LogReads: 2, Heartbeat: time.Second, Retry: time.Second, MaxAge: time.Minute, WriteTimeout: time.Second,
		MaxConnections: 1, MaxSessionConnections: 1, MaxAddressConnections: 1,
	}}
	if _, err := New(cfg, f.Backend, daemon.NewEnv(nil)); err == nil || !strings.Contains(err.Error(), "--edge-addr [::]:0") {
		t.Error(err)
	}
}

// A token with owners reads the sessions of these, as far as its patterns allow; to it those of
// all others are not there.
func TestAccess_ActsForOwner(t *testing.T) {
	f := newFixture(t)
	url := f.edge(guarded(t))
	f.create("s", "user-1")
	f.create("other", "admin")
	f.Publish("a", 2)
	service := func(subscribe auth.Pattern, owners ...auth.Pattern) string {
		return authtest.Token(t, "service", func(token *auth.Token) {
			token.Subscribe, token.Owners = []auth.Pattern{subscribe}, owners
		})
	}
	users := service("*", "user-*")
	c := follow(t, url+streamPath, bearer(users)...)
	c.next("connect")
	c.messages(2)
	absent := ask(t, http.MethodGet, url+"/v1/sessions/nothing/events", bearer(users)...)
	for _, tt := range []struct {
		token, path string
		status      int
	}{
		{users, "/v1/sessions/nothing/events", 404},
		{users, "/v1/sessions/other/events", 404},
		{service("*"), streamPath, 404},
		{service("*", "user-2"), streamPath, 404},
		{service("t", "*"), streamPath, 403},
	} {
		got := ask(t, http.MethodGet, url+tt.path, bearer(tt.token)...)
		if got.StatusCode != tt.status || tt.status == 404 && (got.body != absent.body || len(got.Header) != len(absent.Header)) {
			t.Errorf("%s: %d %s", tt.path, got.StatusCode, got.body)
		}
	}
}

// setMembers replaces the members of a session, as ingest does.
func (f *fixture) setMembers(name string, members ...string) {
	f.t.Helper()
	if _, err := f.Backend.Sessions.SetMembers(waittest.Context(f.t), name, members, func(session.Record) error { return nil }); err != nil {
		f.t.Fatal(err)
	}
}

// A member reads a session until it is taken out: its stream ends with the next heartbeat, a poll
// when it would be answered, and from then on the session is not there. The owner reads on.
func TestAccess_MemberRemoved(t *testing.T) {
	f := newFixture(t)
	guard := guarded(t)
	s, _ := f.startService(func(c *Config) {
		guard(c)
		c.Heartbeat = 50 * time.Millisecond
	})
	url := s.url()
	f.create("s", "alice")
	f.Publish("a", 1)
	alice, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "bob", "*")
	absent := ask(t, http.MethodGet, url+"/v1/sessions/nothing/events", bearer(bob)...)
	notThere := func(when string) {
		t.Helper()
		for _, path := range []string{streamPath, "/v1/sessions/s/events"} {
			if got := ask(t, http.MethodGet, url+path, bearer(bob)...); got.StatusCode != http.StatusNotFound || got.body != absent.body || len(got.Header) != len(absent.Header) {
				t.Errorf("%s: %d %s", when, got.StatusCode, got.body)
			}
		}
	}
	notThere("before")
	f.setMembers("s", "bob", "carol")
	his, hers := follow(t, url+streamPath, bearer(bob)...), follow(t, url+streamPath, bearer(alice)...)
	for _, c := range []*client{his, hers} {
		c.next("connect")
		c.messages(1)
	}
	f.setMembers("s", "carol")
	for {
		e, err := his.dec.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || e.Type != "cursor" {
			t.Fatalf("%+v, %v", e, err)
		}
	}
	waittest.Until(t, "it is counted", func() bool { return testutil.ToFloat64(s.subs.Streams.Metrics.Closed.WithLabelValues("revoked")) == 1 })
	notThere("afterwards")
	f.Publish("a", 1)
	hers.messages(1)
}

func TestAccess_MemberRemovedWhilePolling(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(guarded(t))
	url := s.url()
	f.create("s", "alice")
	f.setMembers("s", "bob")
	answers := make(chan answered, 1)
	go func() {
		answers <- ask(t, http.MethodGet, url+streamPath+"?wait=60", append(bearer(authtest.Of(t, "bob", "*")), "Accept", "application/json")...)
	}()
	waittest.Until(t, "it was let in", func() bool {
		all, _ := s.subs.Admitted.Clients(inspect.Question{})
		return all == 1
	})
	f.setMembers("s")
	waittest.Until(t, "the edge knows", func() bool { rec, _ := s.sessions.Session("s"); return len(rec.Members) == 0 })
	f.Publish("a", 1)
	if got := <-answers; got.StatusCode != http.StatusNotFound {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}
