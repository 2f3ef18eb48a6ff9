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
	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/daemon"
	"rejoin/shared/inspect"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// guarded has an edge accept only clients with a token, and pages of one origin.
func guarded(t *testing.T) func(*Config) {
	t.Helper()
	access := edgetest.Access(t)
	return func(c *Config) { c.Access = access }
}

func TestAccess_Owner(t *testing.T) {
	f := newFixture(t)
	url := f.edge(guarded(t))
	f.Create("s", "alice")
	f.Create("other", "carol")
	f.Publish("a", 2)
	alice, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "bob", "*")
	narrow := authtest.Token(t, "alice", func(token *auth.Token) {
		token.Subscribe, token.Publish, token.Admin = []auth.Pattern{"t", "s-*"}, []auth.Pattern{auth.All}, true
	})

	c := connect(t, url+streamPath, edgetest.Bearer(alice)...)
	c.Messages(2)
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
				headers = append(headers, edgetest.Bearer(tt.token)...)
			}
			resp := edgetest.Ask(t, http.MethodGet, url+tt.path, headers...)
			status, body := resp.StatusCode, resp.Text
			if status != tt.status {
				t.Errorf("%s as %s: %d %s, want %d", tt.path, accept, status, body, tt.status)
			}
			if status == http.StatusNotFound {
				resp.Header.Del("Date")
				all := must.Value(json.Marshal(resp.Header))(t)
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

// The rights of a token are decided when it arrives, also when the edge has not heard of
// the session yet.
func TestAccess_NewSession(t *testing.T) {
	f := newFixture(t)
	url := f.edge(guarded(t))
	token := authtest.Of(t, "alice", "*")
	for _, name := range []string{"1", "2", "3"} {
		f.Create(name, "alice")
		c := subscribe(t, url+"/v1/sessions/"+name+"/events", edgetest.Bearer(token)...)
		if data := string(c.Next("connect").Data); !strings.Contains(data, `"exists":true`) {
			t.Error(data)
		}
		c.Close()
	}
}

// Clients at one address have shares of their own: each counts as the subject of its token.
func TestAccess_ShareOfSubject(t *testing.T) {
	for name, path := range map[string]string{"stream": streamPath, "several sessions": "/v1/events?session=s"} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s, _ := f.startService(func(c *Config) {
				guarded(t)(c)
				c.MaxConnections = 8
			})
			f.Create("s", "alice")
			f.SetMembers("s", "bob")
			alice, bob := edgetest.Bearer(authtest.Of(t, "alice", "*")), edgetest.Bearer(authtest.Of(t, "bob", "*"))
			for range 6 {
				connect(t, s.url()+path, alice...)
			}
			subscribe(t, s.url()+path, alice...).WantEnd()
			if n := testutil.ToFloat64(s.subs.Connections.Metrics.Refused.WithLabelValues("share_limit")); n != 1 {
				t.Errorf("%v connections above the share were refused", n)
			}
			connect(t, s.url()+path, bob...)
		})
	}
}

func TestAccess_TokenExpires(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	change := guarded(t)
	s, _ := f.startService(change)
	url := s.url()
	f.Create("s", "alice")
	f.Publish("a", 1)
	first := connect(t, url+streamPath, edgetest.Bearer(authtest.Of(t, "alice", "s"))...)
	first.Messages(1) // the edge has it
	// A token is valid for a moment of the leeway. Each next one is valid for longer, until one lasts
	// as long as this machine takes.
	var last, place string
	opened := 0
	for life, seen := 2*time.Second, false; !seen; life *= 2 {
		if life > 2*waittest.Timeout {
			t.Fatal("no token lives for long enough")
		}
		now := time.Now()
		last = authtest.Token(t, "alice", func(token *auth.Token) {
			token.Subscribe = []auth.Pattern{"s"}
			token.Issued, token.Expires = now.Add(-time.Hour), now.Add(life-auth.Leeway)
		})
		c := subscribe(t, url+streamPath, edgetest.Bearer(last)...)
		if c.Response.StatusCode == http.StatusUnauthorized {
			continue
		}
		opened++
		place, seen = c.expires(now, life, func(place string) edgetest.Answered {
			return edgetest.Ask(t, http.MethodGet, url+streamPath+"?wait=60&after="+place, "Accept", "application/json", "Authorization", "Bearer "+last)
		})
	}
	waittest.Until(t, "it is counted", func() bool {
		return testutil.ToFloat64(s.subs.Connections.Metrics.Closed.WithLabelValues("expired")) == float64(opened)
	})
	edgetest.Ask(t, http.MethodGet, url+streamPath, edgetest.Bearer(last)...).Got(t, http.StatusUnauthorized)

	f.Publish("a", 1)
	renewed := subscribe(t, url+streamPath+"?after="+place, edgetest.Bearer(authtest.Of(t, "alice", "s"))...)
	if e := renewed.Next("connect"); !strings.Contains(string(e.Data), `"resumed":true`) {
		t.Errorf("connect is %s", e.Data)
	}
	renewed.Messages(1)
}

// expires reads a stream whose token is valid for life, which ends with the token, as does a poll that
// would wait for longer. The result is false when the token expired too early to see that: a
// token counts in whole seconds.
func (c *client) expires(now time.Time, life time.Duration, poll func(place string) edgetest.Answered) (place string, seen bool) {
	c.T.Helper()
	late := func() bool { return time.Since(now) > life-time.Second }
	for _, typ := range []string{"connect", "message", "expiring"} {
		e, err := c.Decoder.Next()
		switch {
		case errors.Is(err, io.EOF) && late():
			return "", false
		case err != nil || e.Type != typ:
			c.T.Fatalf("got %s %s and %v, want %s", e.Type, e.Data, err, typ)
		case typ == "message":
			place = e.ID
		case typ == "expiring":
			var told delivery.ExpiringData
			if err := json.Unmarshal(e.Data, &told); err != nil || e.ID != place || told.ExpiresAt.After(now.Add(life)) || told.ExpiresAt.Before(now) {
				c.T.Errorf("%s with id %s, %v", e.Data, e.ID, err)
			}
		}
	}
	a := poll(place)
	if a.StatusCode == http.StatusUnauthorized && late() {
		return "", false
	}
	if a.StatusCode != http.StatusOK || !strings.Contains(a.Text, `"events":[]`) {
		c.T.Errorf("%d %s", a.StatusCode, a.Text)
	}
	c.WantEnd()
	if r := c.Decoder.Retry(); r < 2*time.Second || r > 4*time.Second {
		c.T.Errorf("retry is %s", r)
	}
	return place, true
}

// An EventSource gives up for good after anything but a 200.
func TestAccess_KeysOrRegistryFail(t *testing.T) {
	f := newFixture(t)
	url := f.edge(guarded(t))
	token := authtest.Of(t, "alice", "*")
	f.Server.Stop()
	resp := edgetest.Ask(t, http.MethodGet, url+streamPath, append(edgetest.Bearer(token), "Accept", "text/event-stream")...)
	if status, body := resp.StatusCode, resp.Text; status != http.StatusOK || !strings.HasPrefix(body, "retry: ") || resp.Header.Get("Cache-Control") != "no-store, no-transform" {
		t.Errorf("%d %s %v", status, body, resp.Header)
	}
	resp = edgetest.Ask(t, http.MethodGet, url+streamPath, append(edgetest.Bearer(token), "Accept", "application/json")...)
	if status, body := resp.StatusCode, resp.Text; status != http.StatusServiceUnavailable || !strings.Contains(body, `"unavailable"`) {
		t.Errorf("%d %s", status, body)
	}
}

func TestCookie_NoAccessControl(t *testing.T) {
	f := newFixture(t)
	edgetest.Ask(t, http.MethodPost, f.edge(nil)+"/v1/cookie", edgetest.Bearer("x")...).Got(t, http.StatusNotFound)
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

// A token with owners reads the sessions of these, as far as its patterns allow; for it those of
// all others do not exist.
func TestAccess_ActsForOwner(t *testing.T) {
	f := newFixture(t)
	url := f.edge(guarded(t))
	f.Create("s", "user-1")
	f.Create("other", "admin")
	f.Publish("a", 2)
	service := func(subscribe auth.Pattern, owners ...auth.Pattern) string {
		return authtest.Token(t, "service", func(token *auth.Token) {
			token.Subscribe, token.Owners = []auth.Pattern{subscribe}, owners
		})
	}
	users := service("*", "user-*")
	c := connect(t, url+streamPath, edgetest.Bearer(users)...)
	c.Messages(2)
	hides(t, url, "/v1/sessions/other/events", users)
	hides(t, url, streamPath, service("*"))
	hides(t, url, streamPath, service("*", "user-2"))
	edgetest.Ask(t, http.MethodGet, url+streamPath, edgetest.Bearer(service("t", "*"))...).Got(t, http.StatusForbidden)
}

// hides fails the test unless a token receives the same answer for a session as for one that does not exist.
func hides(t *testing.T, url, path, token string) {
	t.Helper()
	absent := edgetest.Ask(t, http.MethodGet, url+"/v1/sessions/nothing/events", edgetest.Bearer(token)...)
	got := edgetest.Ask(t, http.MethodGet, url+path, edgetest.Bearer(token)...)
	if got.StatusCode != http.StatusNotFound || got.Text != absent.Text || len(got.Header) != len(absent.Header) {
		t.Errorf("%s: %d %s", path, got.StatusCode, got.Text)
	}
}

// A member reads a session until it is removed: its stream ends with the next heartbeat, a poll
// when it would be answered, and from then on the session does not exist for it. The owner reads on.
func TestAccess_MemberRemoved(t *testing.T) {
	f := newFixture(t)
	guard := guarded(t)
	s, _ := f.startService(func(c *Config) {
		guard(c)
		c.Heartbeat = 50 * time.Millisecond
	})
	url := s.url()
	f.Create("s", "alice")
	f.Publish("a", 1)
	alice, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "bob", "*")
	hides(t, url, flowPath, bob)
	f.SetMembers("s", "bob", "carol")
	his, hers := subscribe(t, url+streamPath, edgetest.Bearer(bob)...), subscribe(t, url+streamPath, edgetest.Bearer(alice)...)
	for _, c := range []*client{his, hers} {
		c.Next("connect")
		c.Messages(1)
	}
	f.SetMembers("s", "carol")
	for {
		e, err := his.Decoder.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || e.Type != "cursor" {
			t.Fatalf("%+v, %v", e, err)
		}
	}
	waittest.Until(t, "it is counted", func() bool {
		return testutil.ToFloat64(s.subs.Connections.Metrics.Closed.WithLabelValues("revoked")) == 1
	})
	hides(t, url, streamPath, bob)
	hides(t, url, flowPath, bob)
	f.Publish("a", 1)
	hers.Messages(1)
}

func TestAccess_MemberRemovedWhilePolling(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(guarded(t))
	url := s.url()
	f.Create("s", "alice")
	f.SetMembers("s", "bob")
	answers := make(chan edgetest.Answered, 1)
	go func() {
		answers <- edgetest.Ask(t, http.MethodGet, url+streamPath+"?wait=60", append(edgetest.Bearer(authtest.Of(t, "bob", "*")), "Accept", "application/json")...)
	}()
	waittest.Until(t, "it was let in", func() bool {
		all, _ := s.subs.Admission.Clients(inspect.Question{})
		return all == 1
	})
	f.SetMembers("s")
	waittest.Until(t, "the edge knows", func() bool { rec, _ := s.sessions.Session("s"); return len(rec.Members) == 0 })
	f.Publish("a", 1)
	(<-answers).Got(t, http.StatusNotFound)
}
