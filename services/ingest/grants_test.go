package ingest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/eventlog"
	"rejoin/shared/waittest"
)

// actingFor returns a token of a subject that may publish to all sessions of owners.
func actingFor(t *testing.T, subject string, owners ...auth.Pattern) string {
	t.Helper()
	return authtest.Token(t, subject, func(token *auth.Token) {
		token.Publish, token.Owners = []auth.Pattern{auth.All}, owners
	})
}

// Each caller has the access to a session of user-1 that its token grants, and for every other caller
// the session does not exist.
func TestGrantsMatrix(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in := s.start(t, guardedConfig(t))
	const post = http.MethodPost
	number := 0
	for caller, tt := range map[string]struct {
		token   string
		visible bool // the session exists for the caller
		creates bool // for user-1, and closes user-1's sessions
	}{
		"a member":                    {actingFor(t, "bob"), true, false},
		"a member by a pattern":       {actingFor(t, "team-7"), true, false},
		"nearly a member":             {actingFor(t, "bobby"), false, false},
		"a service for a member":      {actingFor(t, "service", "bob"), false, false},
		"its owner":                   {actingFor(t, "user-1"), true, true},
		"a stranger":                  {actingFor(t, "user-2"), false, false},
		"a service for all":           {actingFor(t, "service", "*"), true, true},
		"a service for users":         {actingFor(t, "service", "admin", "user-*"), true, true},
		"a service for user-1":        {actingFor(t, "service", "user-1"), true, true},
		"a service for others":        {actingFor(t, "service", "user-2", "user-10", "user-1-*"), false, false},
		"the owner as a service":      {actingFor(t, "user-1", "user-2"), true, true},
		"a subject that looks like *": {actingFor(t, "*"), false, false},
	} {
		t.Run(caller, func(t *testing.T) {
			number++
			name, created := fmt.Sprint("s", number), fmt.Sprint("c", number)
			in.as(t, actingFor(t, "user-1"), post, "/v1/sessions", `{"session":"`+name+`","members":["team-*","bob","bob"]}`).got(t, http.StatusCreated)

			body := `{"session":"` + created + `","owner":"user-1"}`
			if a := in.as(t, tt.token, post, "/v1/sessions", body); tt.creates {
				a.got(t, http.StatusCreated)
				if rec, err := s.b.Sessions.Get(waittest.Context(t), created); err != nil || rec.Owner != "user-1" {
					t.Errorf("registered as %+v, %v", rec, err)
				}
			} else {
				a.expect(t, http.StatusForbidden, "insufficient_scope")
			}

			for _, do := range requests {
				if !tt.visible {
					in.hides(t, tt.token, name, do)
					continue
				}
				got := in.as(t, tt.token, do.method, "/v1/sessions/"+name+do.path, do.body)
				if !tt.creates && do.method != post {
					got.expect(t, http.StatusForbidden, "insufficient_scope")
				} else if got.status != do.status {
					t.Errorf("%s: %d %s", do.what, got.status, got.body)
				}
			}
			want := "session_exists"
			if tt.creates {
				want = "session_closed"
			}
			in.as(t, tt.token, post, "/v1/sessions", `{"session":"`+name+`"}`).expect(t, http.StatusConflict, want)
		})
	}
}

// A name decides before an owner does: a service for all owners gets 403 for names that its
// token does not grant.
func TestGrants_OwnersDoNotWidenNames(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in := s.start(t, guardedConfig(t))
	narrow := authtest.Token(t, "service", func(token *auth.Token) {
		token.Publish, token.Owners = []auth.Pattern{"chat-*"}, []auth.Pattern{auth.All}
	})
	in.as(t, narrow, http.MethodPost, "/v1/sessions", `{"session":"other","owner":"alice"}`).expect(t, http.StatusForbidden, "insufficient_scope")
	in.as(t, narrow, http.MethodPost, "/v1/sessions/other/streams/t/events", string(ping("1"))).expect(t, http.StatusForbidden, "insufficient_scope")
	in.as(t, narrow, http.MethodPost, "/v1/sessions", `{"session":"chat-1","owner":"alice"}`).got(t, http.StatusCreated)
}

func TestCreateSession_Owner(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in, open := s.start(t, guardedConfig(t)), s.start(t, testConfig())
	service := actingFor(t, "service", "*")
	for _, body := range []string{`{"owner":""}`, `{"owner":7}`, `{"owner":null}`, `{"owner":["a"]}`, `{"owner":"` + strings.Repeat("x", 257) + `"}`, `{"owner":"a","owner":"b"}`} {
		in.as(t, service, http.MethodPost, "/v1/sessions", body).expect(t, http.StatusBadRequest, "invalid_body")
	}
	open.send(t, http.MethodPost, "/v1/sessions", []byte(`{"owner":"alice"}`), "Content-Type", asJSON).expect(t, http.StatusBadRequest, "invalid_body")
	in.as(t, actingFor(t, "alice"), http.MethodPost, "/v1/sessions", `{"session":"own","owner":"alice"}`).got(t, http.StatusCreated)
}
