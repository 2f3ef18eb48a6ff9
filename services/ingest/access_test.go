package ingest_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/ingest"
	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
)

// guardedConfig is a configuration with access control.
func guardedConfig(t *testing.T) ingest.Config {
	t.Helper()
	access := must.Value(web.NewAccess(web.AccessConfig{Config: authtest.Config(t)}, daemon.NewEnv(nil)))(t)
	cfg := testConfig()
	cfg.Access = access
	return cfg
}

// as makes a request with a token.
func (in *instance) as(t *testing.T, token, method, path, body string) answer {
	t.Helper()
	return in.send(t, method, path, []byte(body), "Content-Type", asJSON, "Authorization", "Bearer "+token)
}

// aboutSession is a request about a session; its status is that of one that is granted.
type aboutSession struct {
	what, method, path, body string
	status                   int
}

var requests = []aboutSession{
	{"publish", http.MethodPost, "/streams/t/events", string(ping("1")), http.StatusCreated},
	{"change the members", http.MethodPut, "/members", `{"members":["bob","team-7"]}`, http.StatusOK},
	{"close a stream", http.MethodDelete, "/streams/t", "", http.StatusNoContent},
	{"close", http.MethodDelete, "", "", http.StatusNoContent},
	{"clear", http.MethodDelete, "?clear=true", "", http.StatusNoContent},
}

// hides fails the test unless a request gets the same answer as one about a session that is not there.
func (in *instance) hides(t *testing.T, token, session string, r aboutSession) {
	t.Helper()
	got, absent := in.as(t, token, r.method, "/v1/sessions/"+session+r.path, r.body), in.as(t, token, r.method, "/v1/sessions/nothing"+r.path, r.body)
	absent.expect(t, http.StatusNotFound, "not_found")
	if got.status != absent.status || !bytes.Equal(got.body, absent.body) || len(got.header) != len(absent.header) {
		t.Errorf("%s: %d %s, and of a session that is not there %d %s", r.what, got.status, got.body, absent.status, absent.body)
	}
}

func TestAccess_Owner(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := guardedConfig(t)
	in, second, closer := s.start(t, cfg), s.start(t, cfg), s.start(t, cfg)
	alice, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "bob", "*")
	post, del, message := http.MethodPost, http.MethodDelete, string(ping("1"))
	events := func(session string) string { return "/v1/sessions/" + session + "/streams/t/events" }

	created := in.as(t, alice, post, "/v1/sessions", `{"session":"s"}`)
	if created.status != http.StatusCreated || strings.Contains(string(created.body), "alice") {
		t.Fatalf("%d %s", created.status, created.body)
	}
	if rec, err := s.b.Sessions.Get(waittest.Context(t), "s"); err != nil || rec.Owner != "alice" {
		t.Errorf("registered as %+v, %v", rec, err)
	}
	in.as(t, alice, post, events("s"), message).stored(t, false)
	second.as(t, alice, post, events("s"), message).stored(t, false)

	before := len(s.events(t))
	hidden := func() {
		t.Helper()
		for _, r := range requests {
			in.hides(t, bob, "s", r)
		}
	}
	in.as(t, alice, post, events("nothing"), message).expect(t, http.StatusNotFound, "not_found") // create it first
	closer.as(t, alice, del, "/v1/sessions/s/streams/t", "").got(t, http.StatusNoContent)
	in.as(t, alice, post, events("s"), message).expect(t, http.StatusConflict, "stream_closed")
	hidden()
	closer.as(t, alice, del, "/v1/sessions/s", "").got(t, http.StatusNoContent)
	in.as(t, alice, post, events("s"), message).expect(t, http.StatusConflict, "session_closed")
	in.as(t, alice, post, "/v1/sessions", `{"session":"s"}`).expect(t, http.StatusConflict, "session_closed")
	in.as(t, bob, post, "/v1/sessions", `{"session":"s"}`).expect(t, http.StatusConflict, "session_exists")
	hidden()
	if wrote := len(s.events(t)) - before; wrote != 0 {
		t.Errorf("%d events were stored", wrote)
	}
}

func TestAccess_SessionWithoutOwner(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	open := s.start(t, testConfig())
	open.post(t, "s", "t", ping("1")).stored(t, false) // before there was access control
	in := s.start(t, guardedConfig(t))
	in.as(t, authtest.Of(t, "alice", "*"), http.MethodPost, "/v1/sessions/s/streams/t/events", string(ping("2"))).expect(t, http.StatusNotFound, "not_found")
}

func TestAccess_Grants(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in := s.start(t, guardedConfig(t))
	some := authtest.Token(t, "alice", func(token *auth.Token) {
		token.Publish, token.Subscribe, token.Admin = []auth.Pattern{"one", "chat-*"}, []auth.Pattern{auth.All}, true
	})
	for name, ok := range map[string]bool{"one": true, "chat-1": true, "chat-": true, "one1": false, "chat": false, "two": false} {
		a := in.as(t, some, http.MethodPost, "/v1/sessions", `{"session":"`+name+`"}`)
		if ok && a.status != http.StatusCreated || !ok && a.status != http.StatusForbidden {
			t.Errorf("create %s: %d %s", name, a.status, a.body)
		}
	}
	must.Value(s.b.Sessions.Create(waittest.Context(t), session.New("two", "alice", nil, time.Now())))(t)
	for _, name := range []string{"two", "nothing", "*"} { // whether the session exists makes no difference
		for _, request := range [][2]string{
			{http.MethodPost, "/v1/sessions/" + name + "/streams/t/events"},
			{http.MethodDelete, "/v1/sessions/" + name},
			{http.MethodDelete, "/v1/sessions/" + name + "/streams/t"},
		} {
			in.as(t, some, request[0], request[1], string(ping("1"))).expect(t, http.StatusForbidden, "insufficient_scope")
		}
	}
	in.as(t, some, http.MethodPost, "/v1/sessions", `{}`).expect(t, http.StatusForbidden, "insufficient_scope") // a name of ingest's choice
	all := authtest.Of(t, "alice", "*")
	in.as(t, all, http.MethodPost, "/v1/sessions", `{}`).got(t, http.StatusCreated)
	in.as(t, all, http.MethodPost, "/v1/sessions/%20/streams/t/events", string(ping("1"))).expect(t, http.StatusBadRequest, "invalid_name")
	in.as(t, all, http.MethodDelete, "/v1/sessions/*", "").expect(t, http.StatusBadRequest, "invalid_name")

	for _, request := range [][2]string{
		{http.MethodPost, "/v1/sessions"},
		{http.MethodPost, "/v1/sessions/one/streams/t/events"},
		{http.MethodDelete, "/v1/sessions/one"},
		{http.MethodDelete, "/v1/sessions/one/streams/t"},
	} {
		in.send(t, request[0], request[1], nil).expect(t, http.StatusUnauthorized, "unauthorized")
	}
}

func TestAccess_PublicAddress(t *testing.T) {
	cfg := testConfig()
	cfg.IngestAddr = "0.0.0.0:0"
	if _, err := ingest.New(cfg, nil, daemon.NewEnv(nil)); err == nil || !strings.Contains(err.Error(), "--ingest-addr 0.0.0.0:0") {
		t.Error(err)
	}
}

func TestBatch_TokenExpires(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in := s.start(t, guardedConfig(t))
	must.Value(s.b.Sessions.Create(waittest.Context(t), session.New("s", "alice", nil, time.Now())))(t)
	now := time.Now()
	token := authtest.Token(t, "alice", func(token *auth.Token) { // good for a moment of the leeway
		token.Publish = []auth.Pattern{auth.All}
		token.Issued, token.Expires = now.Add(-time.Hour), now.Add(pause+2*time.Second-auth.Leeway)
	})
	lines, answered := in.beginBatch(t, "Authorization", "Bearer "+token)
	must.Value(fmt.Fprintf(lines, "%s\n", ping("1")))(t) // the answer shows the messages that arrived
	waittest.Until(t, "the token has expired", func() bool {
		return in.as(t, token, http.MethodPost, "/v1/sessions/nothing/streams/t/events", "").status == http.StatusUnauthorized
	})
	_, _ = fmt.Fprintf(lines, "%s\n%s\n", ping("2"), ping("3")) // fails once the answer is there
	must.NoError(t, lines.Close())
	a := <-answered
	if a.status != http.StatusOK || !strings.Contains(string(a.body), `"accepted":1`) || !strings.Contains(string(a.body), `"code":"unauthorized"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if n := len(s.events(t)); n != 1 {
		t.Errorf("%d events are stored", n)
	}
}

func TestBatch_Owner(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in := s.start(t, guardedConfig(t))
	must.Value(s.b.Sessions.Create(waittest.Context(t), session.New("s", "alice", nil, time.Now())))(t)
	alice, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "bob", "*")
	two := []byte("[" + string(ping("1")) + "," + string(ping("2")) + "]")
	for _, query := range []string{"", "?results=each"} {
		for _, name := range []string{"s", "nothing"} {
			in.send(t, http.MethodPost, "/v1/sessions/"+name+"/streams/t/events"+query, two, "Content-Type", asMessages, "Authorization", "Bearer "+bob).expect(t, http.StatusNotFound, "not_found")
		}
	}
	if a := in.send(t, http.MethodPost, "/v1/sessions/s/streams/t/events", two, "Content-Type", asMessages, "Authorization", "Bearer "+alice); a.status != http.StatusOK || !strings.Contains(string(a.body), `"accepted":2`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if n := len(s.events(t)); n != 2 {
		t.Errorf("%d events are stored", n)
	}
}

// NATS has an access control of its own, and a publisher that reaches it could write to the log itself.
func TestNATS_NeedsSessionNotToken(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	s.start(t, guardedConfig(t))
	must.Value(s.b.Sessions.Create(waittest.Context(t), session.New("s", "alice", nil, time.Now())))(t)
	if m := request(t, s.b.Conn, "mcp.ingest.s.t", ping("1")); !strings.Contains(string(m.Data), `"duplicate":false`) {
		t.Errorf("%s %v", m.Data, m.Header)
	}
	if m := request(t, s.b.Conn, "mcp.ingest.nothing.t", ping("1")); !strings.Contains(fmt.Sprint(m.Header)+string(m.Data), "not_found") {
		t.Errorf("%s %v", m.Data, m.Header)
	}
	if _, ok := s.b.Sessions.Session("nothing"); ok {
		t.Error("a session was made without an owner")
	}
}

// A client that has as much under way as it may leaves slots for others, also where there are no such sessions.
func TestPlaces_AreShared(t *testing.T) {
	for name, tt := range map[string]struct {
		method, path, body string
		status             int
		code               string
	}{
		"publish":            {http.MethodPost, eventsOf("a", "t"), string(ping("1")), http.StatusServiceUnavailable, "unavailable"}, // or 201
		"close":              {http.MethodDelete, "/v1/sessions/none", "", http.StatusNotFound, "not_found"},
		"change the members": {http.MethodPut, "/v1/sessions/none/members", `{"members":[]}`, http.StatusNotFound, "not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t, eventlog.Settings{Partitions: 1})
			cfg := guardedConfig(t)
			cfg.MaxInFlight = 8
			var held atomic.Bool
			release := make(chan struct{})
			l := natstest.Link{After: func([]byte) {
				if held.Load() {
					<-release
				}
			}}
			in := s.start(t, cfg, nats.SetCustomDialer(&l))
			heal := sync.OnceFunc(func() { held.Store(false); close(release) })
			t.Cleanup(heal)
			alice, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "bob", "*")
			for token, session := range map[string]string{alice: "a", bob: "b"} {
				in.as(t, token, http.MethodPost, "/v1/sessions", `{"session":"`+session+`"}`).got(t, http.StatusCreated)
			}
			held.Store(true) // NATS is not heard
			const many = 20
			alices, bobs := make(chan answer, many), make(chan answer, 1)
			underWay := func() int { return int(in.metric(t, "rejoin_ingest_inflight")) }
			for range many {
				go func() { alices <- in.as(t, alice, tt.method, tt.path, tt.body) }()
			}
			waittest.Until(t, "she has three quarters", func() bool { return underWay() >= 6 })
			go func() { bobs <- in.as(t, bob, http.MethodPost, eventsOf("b", "t"), string(ping("1"))) }()
			waittest.Until(t, "another client is under way, or answered", func() bool { return len(bobs)+underWay() >= 7 })
			if n := underWay(); n != 7 {
				t.Errorf("%d are under way", n)
			}
			heal()
			(<-bobs).stored(t, false)
			for range many {
				if a := <-alices; a.status != http.StatusCreated {
					a.expect(t, tt.status, tt.code)
				}
			}
		})
	}
}
