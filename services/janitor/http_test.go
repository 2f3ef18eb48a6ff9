package janitor

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

func get(t *testing.T, addr, path string, into any) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
	}
	return resp.StatusCode, string(data)
}

func TestHTTP(t *testing.T) {
	cfg := quick()
	r := begin(t, natstest.Start(t), eventlog.Settings{}, cfg)
	if _, err := r.b.Sessions.Create(t.Context(), session.New("empty", "someone", json.RawMessage(`{"k":1}`), noon)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"log/1", "log2"} {
		a := r.publish(t, name, "a", 2)
		r.publish(t, name, "b", 1)
		if name == "log/1" {
			eventually(t, func() error {
				var d sessionDetail
				if status, body := get(t, r.Addr().String(), "/v1/sessions/log%2F1", &d); status != http.StatusOK {
					return fmt.Errorf("%d %s", status, body)
				}
				if len(d.Streams) != 2 || d.Streams[0].First != a[0] || d.Streams[0].Last != a[1] || d.Events != 3 || d.Bytes != 3*messageBytes || d.Oldest.IsZero() || d.Newest.IsZero() {
					return fmt.Errorf("%+v", d)
				}
				return nil
			})
		}
	}
	for _, name := range []string{"log/1", "log2"} {
		eventually(t, func() error { // the registrar was here
			if _, ok := r.b.Sessions.Session(name); !ok {
				return fmt.Errorf("%s is not registered", name)
			}
			return nil
		})
	}
	if err := session.Close(t.Context(), r.b.Sessions, r.b.Log, "log2", "a", false, 0); err != nil {
		t.Fatal(err)
	}
	if err := session.Close(t.Context(), r.b.Sessions, r.b.Log, "log2", "", false, 0); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path   string
		status int
		want   string // what the body holds
		names  string // what the list holds
		next   string
	}{
		{"/v1/sessions", 200, `"owner":"someone"`, "empty log/1 log2", ""},
		{"/v1/sessions?limit=2", 200, "", "empty log/1", "log/1"},
		{"/v1/sessions?limit=2&after=log/1", 200, "", "log2", ""},
		{"/v1/sessions?limit=1&after=f", 200, "", "log/1", "log/1"},
		{"/v1/sessions?state=closed", 200, "", "log2", ""},
		{"/v1/sessions?state=open&limit=2", 200, "", "empty log/1", ""},
		{"/v1/sessions?state=closing", 200, `"sessions":[]`, "", ""},
		{"/v1/sessions?limit=0", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?limit=1001", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?limit=x", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?after=*", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?state=dead", 400, "invalid_parameter", "", ""},
		{"/v1/sessions/empty", 200, `"streams":[]`, "", ""},
		{"/v1/sessions/empty", 200, `"metadata":{"k":1}`, "", ""},
		{"/v1/sessions/log2", 200, `"closed":true`, "", ""},
		{"/v1/sessions/nobody", 404, "not_found", "", ""},
		{"/v1/sessions/*", 400, "invalid_name", "", ""},
		{"/v1/sessions/" + strings.Repeat("x", event.MaxNameLen+1), 400, "invalid_name", "", ""},
	} {
		t.Run(test.path, func(t *testing.T) {
			var list sessionList
			status, body := get(t, r.Addr().String(), test.path, &list)
			if status != test.status || !strings.Contains(body, test.want) {
				t.Errorf("%d %s, want %d with %s", status, body, test.status, test.want)
			}
			var names []string
			for _, s := range list.Sessions {
				names = append(names, s.Session)
			}
			if got := strings.Join(names, " "); got != test.names || list.Next != test.next {
				t.Errorf("the list is %q and goes on after %q, want %q and %q", got, list.Next, test.names, test.next)
			}
		})
	}
}

func TestHTTPAndReadinessWaitForTheLedger(t *testing.T) {
	srv := natstest.Start(t)
	env := daemon.NewEnv(nil)
	b, err := backend.Create(t.Context(), backend.Config{NATSURL: srv.URL()}, "janitor", eventlog.Settings{Partitions: 1}, env.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s, err := New(quick(), b, env)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.ln.Close() }()
	for _, path := range []string{"/v1/sessions", "/v1/sessions/s"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.app.Test(req, -1)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s answers %d", path, resp.StatusCode)
		}
	}
	if r := env.Health.Readiness(); r.Ready || r.Failing[0].Check != "ledger" {
		t.Errorf("the readiness is %+v", r)
	}
}
