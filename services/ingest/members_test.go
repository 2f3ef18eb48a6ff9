package ingest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"rejoin/shared/auth/authtest"
	"rejoin/shared/eventlog"
	"rejoin/shared/waittest"
)

func TestPutMembers(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in, other := s.start(t, guardedConfig(t)), s.start(t, guardedConfig(t))
	alice, bob, carol := actingFor(t, "alice"), actingFor(t, "bob"), actingFor(t, "carol")
	const post, put, del = http.MethodPost, http.MethodPut, http.MethodDelete
	publish := func(at *instance, token string) answer {
		t.Helper()
		return at.as(t, token, post, "/v1/sessions/s/streams/t/events", string(ping("1")))
	}
	members := func(a answer) []string {
		t.Helper()
		var got struct{ Members []string }
		if err := json.Unmarshal(a.body, &got); err != nil || a.status >= 300 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		return got.Members
	}
	if got := members(in.as(t, alice, post, "/v1/sessions", `{"session":"s","members":["carol","bob"],"metadata":{"a":"<b>"}}`)); !slices.Equal(got, []string{"bob", "carol"}) {
		t.Errorf("created with %q", got)
	}
	publish(in, bob).stored(t, false)
	publish(other, carol).stored(t, false)

	put1 := in.as(t, alice, put, "/v1/sessions/s/members", `{"members":["carol"]}`)
	if got := members(put1); !slices.Equal(got, []string{"carol"}) || !strings.Contains(string(put1.body), `"metadata"`) {
		t.Errorf("%s", put1.body)
	}
	publish(in, bob).expect(t, http.StatusNotFound, "not_found")
	waittest.Until(t, "the other ingest knows that he was taken out", func() bool { return publish(other, bob).status == http.StatusNotFound })
	publish(other, carol).stored(t, false)

	before := len(s.entries(t))
	in.as(t, alice, put, "/v1/sessions/s/members", `{"members":["carol","carol"]}`).got(t, http.StatusOK)
	if got := len(s.entries(t)); got != before {
		t.Errorf("the same members once more take %d entries", got-before)
	}
	service := actingFor(t, "service", "alice")
	in.as(t, service, put, "/v1/sessions/s/members", `{"members":[]}`).got(t, http.StatusOK)
	publish(in, carol).expect(t, http.StatusNotFound, "not_found")
	in.as(t, service, put, "/v1/sessions/s/members", `{"members":["*"]}`).got(t, http.StatusOK)
	publish(in, actingFor(t, "anybody")).stored(t, false)

	in.as(t, alice, del, "/v1/sessions/s", "").got(t, http.StatusNoContent)
	in.as(t, alice, put, "/v1/sessions/s/members", `{"members":["bob"]}`).expect(t, http.StatusConflict, "session_closed")
}

func TestPutMembers_BadRequests(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in, open := s.start(t, guardedConfig(t)), s.start(t, testConfig())
	alice := actingFor(t, "alice")
	in.as(t, alice, http.MethodPost, "/v1/sessions", `{"session":"s","metadata":{"a":"`+strings.Repeat("x", 10_000)+`"}}`).got(t, http.StatusCreated)
	var many, long []string
	for i := range 101 {
		many = append(many, fmt.Sprintf("%q", fmt.Sprint(i)))
	}
	for i := range 30 {
		long = append(long, fmt.Sprintf("%q", strings.Repeat("x", 220)+fmt.Sprint(i)))
	}
	for body, want := range map[string]string{
		``: "invalid_json", `{}`: "invalid_body", `[]`: "invalid_body", `{"members":null}`: "invalid_body", `{"members":"bob"}`: "invalid_body",
		`{"members":[7]}`: "invalid_body", `{"members":[null]}`: "invalid_body", `{"members":[""]}`: "invalid_body", `{"members":{}}`: "invalid_body",
		`{"members":["` + strings.Repeat("x", 257) + `"]}`: "invalid_body", `{"members":[],"owner":"alice"}`: "invalid_body", `{"members":["a"],"members":[]}`: "invalid_body",
		`{"members":[` + strings.Join(many, ",") + `]}`: "invalid_body", `{"members":[`: "invalid_json", `{"members":[` + strings.Join(long, ",") + `]}`: "body_too_large",
	} {
		status := http.StatusBadRequest
		if want == "body_too_large" {
			status = http.StatusRequestEntityTooLarge
		}
		in.as(t, alice, http.MethodPut, "/v1/sessions/s/members", body).expect(t, status, want)
	}
	in.as(t, alice, http.MethodPut, "/v1/sessions/s/members", `{"members":[`+strings.Join(many[1:], ",")+`]}`).got(t, http.StatusOK)
	for _, name := range []string{"%20", "nothing"} {
		if a := in.as(t, alice, http.MethodPut, "/v1/sessions/"+name+"/members", `{"members":[]}`); a.status != http.StatusBadRequest && a.status != http.StatusNotFound {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	for path, method := range map[string]string{"/v1/sessions": http.MethodPost, "/v1/sessions/s/members": http.MethodPut} {
		open.send(t, method, path, []byte(`{"members":[]}`), "Content-Type", asJSON).expect(t, http.StatusBadRequest, "invalid_body")
	}
	in.as(t, authtest.Of(t, "alice", "other"), http.MethodPut, "/v1/sessions/s/members", `{"members":[]}`).expect(t, http.StatusForbidden, "insufficient_scope")
}

// A change of members counts for the limit of metadata, and for the rate of new sessions.
func TestPutMembers_Limits(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := guardedConfig(t)
	cfg.Sessions.MaxMetadataBytes = 1000
	in := s.start(t, cfg)
	alice := actingFor(t, "alice")
	in.as(t, alice, http.MethodPost, "/v1/sessions", `{"session":"s"}`).got(t, http.StatusCreated)
	change := func(n int) answer {
		return in.as(t, alice, http.MethodPut, "/v1/sessions/s/members", `{"members":["`+strings.Repeat("x", n)+`"]}`)
	}
	change(200).got(t, http.StatusOK)
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("%q", strings.Repeat("x", 100)+fmt.Sprint(i)))
	}
	in.as(t, alice, http.MethodPut, "/v1/sessions/s/members", `{"members":[`+strings.Join(names, ",")+`]}`).expect(t, http.StatusTooManyRequests, "too_many_sessions")
	change(201).got(t, http.StatusOK) // the refused changes have taken no share
	change(10).got(t, http.StatusOK)

	cfg = guardedConfig(t)
	cfg.MaxSessionRate = 1
	limited := s.start(t, cfg)
	waittest.Until(t, "the rate is used up", func() bool {
		return limited.as(t, alice, http.MethodPut, "/v1/sessions/s/members", `{"members":[]}`).status == http.StatusTooManyRequests
	})
}
