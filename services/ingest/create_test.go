package ingest_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/shared/eventlog"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func (in *instance) create(t *testing.T, body string) answer {
	t.Helper()
	return in.send(t, http.MethodPost, "/v1/sessions", []byte(body), "Content-Type", asJSON)
}

func TestCreateSession_Name(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 2})
	in := s.start(t, testConfig())
	for body, want := range map[string]struct{ name, metadata string }{
		`{}`:                                {},
		`{"session":"mine"}`:                {name: "mine"},
		`{"session":"a/b?c","metadata":{}}`: {name: "a/b?c", metadata: "{}"},
		`{"metadata":{"user":"\u00e9","n":[1,{}]}}`:                                   {metadata: `{"user":"\u00e9","n":[1,{}]}`},
		`{"session":"full","metadata":{"a":"` + strings.Repeat("x", 16<<10-8) + `"}}`: {name: "full", metadata: `{"a":"` + strings.Repeat("x", 16<<10-8) + `"}`},
	} {
		a := in.create(t, body)
		if a.status != http.StatusCreated || a.State != "open" || a.Life == "" || a.Partition != s.b.Log.Partition(a.Session) || time.Since(a.Created).Abs() > time.Hour || string(a.Metadata) != want.metadata {
			t.Errorf("%.60s: %d %.200s", body, a.status, a.body)
			continue
		}
		if want.name == "" {
			if id, err := uuid.Parse(a.Session); err != nil || id.Version() != 4 {
				t.Errorf("%s: chose %q", body, a.Session)
			}
		} else if a.Session != want.name {
			t.Errorf("%s: %q", body, a.Session)
		}
		if want := "/v1/sessions/" + strings.NewReplacer("/", "%2F", "?", "%3F").Replace(a.Session); a.header.Get("Location") != want {
			t.Errorf("Location %q, want %q", a.header.Get("Location"), want)
		}
		if rec, err := s.b.Sessions.Get(waittest.Context(t), a.Session); err != nil || rec.State != session.Open || rec.Life != a.Life || !rec.Created.Equal(a.Created) {
			t.Errorf("registered as %+v, %v", rec, err)
		}
		in.send(t, http.MethodPost, a.header.Get("Location")+"/streams/t/events", ping("1"), "Content-Type", asJSON).stored(t, false)
	}
	bare := in.send(t, http.MethodPost, "/v1/sessions", nil)
	if bare.status != http.StatusCreated || bare.Session == "" {
		t.Errorf("without a body: %d %s", bare.status, bare.body)
	}
}

func TestCreateSession_NameInUse(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 2})
	in, other := s.start(t, testConfig()), s.start(t, testConfig())
	in.create(t, `{"session":"s"}`).got(t, http.StatusCreated)
	for _, i := range []*instance{in, other} {
		i.create(t, `{"session":"s"}`).expect(t, http.StatusConflict, "session_exists")
	}
	s.start(t, testConfig()).close(t, "s").got(t, http.StatusNoContent)
	for _, i := range []*instance{in, other} {
		i.create(t, `{"session":"s"}`).expect(t, http.StatusConflict, "session_closed")
	}
}
