package ingest_test

import (
	"bytes"
	"fmt"
	"io"
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

func TestAccess_Owner(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := guardedConfig(t)
	in, second, closer := s.start(t, cfg), s.start(t, cfg), s.start(t, cfg)
	alice, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "bob", "*")
	const post, del, message = http.MethodPost, http.MethodDelete, `{"jsonrpc":"2.0","id":1,"method":"ping"}`
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
	absent := map[string]answer{
		"publish":      in.as(t, bob, post, events("nothing"), message),
		"close":        in.as(t, bob, del, "/v1/sessions/nothing", ""),
		"close stream": in.as(t, bob, del, "/v1/sessions/nothing/streams/t", ""),
		"clear":        in.as(t, bob, del, "/v1/sessions/nothing?clear=true", ""),
	}
	his := func(session string) map[string]answer {
		return map[string]answer{
			"publish":      in.as(t, bob, post, events(session), message),
			"close":        in.as(t, bob, del, "/v1/sessions/"+session, ""),
			"close stream": in.as(t, bob, del, "/v1/sessions/"+session+"/streams/t", ""),
			"clear":        in.as(t, bob, del, "/v1/sessions/"+session+"?clear=true", ""),
		}
	}
	same := func(when string, session string) {
		t.Helper()
		for what, got := range his(session) {
			want := absent[what]
			want.expect(t, http.StatusNotFound, "not_found")
			if got.status != want.status || !bytes.Equal(got.body, want.body) || len(got.header) != len(want.header) {
				t.Errorf("%s, %s: %d %s, and of a session that is not there %d %s", when, what, got.status, got.body, want.status, want.body)
			}
		}
	}
	same("while it is open", "s")
	in.as(t, bob, post, "/v1/sessions", `{"session":"s"}`).expect(t, http.StatusConflict, "session_exists")
	in.as(t, alice, post, events("nothing"), message).expect(t, http.StatusNotFound, "not_found") // create it first

	closer.as(t, alice, del, "/v1/sessions/s/streams/t", "").got(t, http.StatusNoContent)
	in.as(t, alice, post, events("s"), message).expect(t, http.StatusConflict, "stream_closed")
	same("when the stream is closed", "s")
	closer.as(t, alice, del, "/v1/sessions/s", "").got(t, http.StatusNoContent)
	in.as(t, alice, post, events("s"), message).expect(t, http.StatusConflict, "session_closed")
	in.as(t, alice, post, "/v1/sessions", `{"session":"s"}`).expect(t, http.StatusConflict, "session_closed")
	in.as(t, bob, post, "/v1/sessions", `{"session":"s"}`).expect(t, http.StatusConflict, "session_exists")
	same("when it is closed", "s")
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
	for _, name := range []string{"two", "nothing", "*"} { // what there is makes no difference
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
	lines, body := io.Pipe()
	req, err := http.NewRequestWithContext(waittest.Context(t), http.MethodPost, in.url+"/v1/sessions/s/streams/t/events", lines)
	must.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-ndjson")
	req.Header.Set("Authorization", "Bearer "+token)
	go func() {
		defer func() { _ = body.Close() }()
		_, _ = fmt.Fprintf(body, "%s\n", ping("1")) // the answer shows what arrived
		for in.as(t, token, http.MethodPost, "/v1/sessions/nothing/streams/t/events", "").status != http.StatusUnauthorized {
			time.Sleep(10 * time.Millisecond)
		}
		_, _ = fmt.Fprintf(body, "%s\n%s\n", ping("2"), ping("3"))
	}()
	resp, err := in.http.Do(req)
	must.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	a := read(t, resp)
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

// NATS has an access control of its own, and who reaches it could write to the log itself.
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

// A client that has as much under way as it may leaves places for others.
func TestPublish_PlacesAreShared(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := guardedConfig(t)
	cfg.MaxInFlight = 8
	var l natstest.Link
	in := s.start(t, cfg, nats.SetCustomDialer(&l))
	alice, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "bob", "*")
	post := func(token, session string) answer {
		return in.as(t, token, http.MethodPost, "/v1/sessions/"+session+"/streams/t/events", string(ping("1")))
	}
	for token, session := range map[string]string{alice: "a", bob: "b"} {
		in.as(t, token, http.MethodPost, "/v1/sessions", `{"session":"`+session+`"}`)
		post(token, session).stored(t, false)
	}
	l.Cut()
	waittest.Until(t, "the cut is noticed", func() bool { return !in.b.Conn.IsConnected() })
	const many = 20
	alices, bobs := make(chan answer, many), make(chan answer, 1)
	underWay := func() int { return int(in.metric(t, "rejoin_ingest_inflight")) }
	for range many {
		go func() { alices <- post(alice, "a") }()
	}
	waittest.Until(t, "all are under way or answered", func() bool { return len(alices)+underWay() == many })
	before := underWay()
	go func() { bobs <- post(bob, "b") }()
	waittest.Until(t, "so is another client's", func() bool { return len(bobs)+underWay() == before+1 })
	l.Heal()
	(<-bobs).stored(t, false)
	for range many {
		if a := <-alices; a.status != http.StatusCreated {
			a.expect(t, http.StatusServiceUnavailable, "unavailable")
		}
	}
}

// So does one that closes sessions and changes members, though there are no such sessions.
func TestClose_PlacesAreShared(t *testing.T) {
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
	in.as(t, bob, http.MethodPost, "/v1/sessions", `{"session":"b"}`).got(t, http.StatusCreated)
	held.Store(true) // NATS is not heard
	const many = 10  // of each
	alices, bobs := make(chan answer, 2*many), make(chan answer, 1)
	underWay := func() int { return int(in.metric(t, "rejoin_ingest_inflight")) }
	for range many {
		go func() { alices <- in.as(t, alice, http.MethodDelete, "/v1/sessions/none", "") }()
		go func() { alices <- in.as(t, alice, http.MethodPut, "/v1/sessions/none/members", `{"members":[]}`) }()
	}
	waittest.Until(t, "she has three quarters", func() bool { return underWay() >= 6 })
	go func() { bobs <- in.as(t, bob, http.MethodPost, eventsOf("b", "t"), string(ping("1"))) }()
	waittest.Until(t, "another client is under way, or answered", func() bool { return len(bobs)+underWay() >= 7 })
	if n := underWay(); n != 7 {
		t.Errorf("%d are under way", n)
	}
	heal()
	(<-bobs).stored(t, false)
	for range 2 * many {
		(<-alices).expect(t, http.StatusNotFound, "not_found")
	}
}
