package standalone

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"rejoin/shared/auth/authtest"
	"rejoin/shared/daemon"
)

func TestAccess_PublicAddressNeedsAccessControl(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	for _, flag := range []string{"--edge-addr", "--ingest-addr", "--janitor-addr", "--nats-addr"} {
		want := "rejoin: " + flag + " 0.0.0.0:0 can be reached from other machines, and there is no access control; switch it on with --auth=jwt, listen on 127.0.0.1, or accept it with --insecure; see rejoin serve --help"
		if got := refusesWith(t, daemon.ExitUsage, data, flag+"=0.0.0.0:0"); got != want {
			t.Errorf("it said %q, want %q", got, want)
		}
	}
	if got := refuses(t, data, "--auth=jwt", "--jwt-audience=a", "--jwt-secret-file="+data+"/nothing"); !strings.Contains(got, "--jwt-secret-file cannot be read") {
		t.Errorf("it said %q", got)
	}
	if strings.Contains(files(t, data), "jetstream") {
		t.Error("a log was made")
	}

	for _, args := range [][]string{
		append(guarded(t), "--edge-addr=0.0.0.0:0", "--ingest-addr=0.0.0.0:0", "--janitor-addr=0.0.0.0:0", "--nats-addr=0.0.0.0:0"),
		{"--insecure", "--edge-addr=0.0.0.0:0", "--nats-addr=0.0.0.0:0"},
	} {
		start(t, filepath.Join(t.TempDir(), "data"), args...).stop()
	}
}

func TestAccess_TokenOnEveryAddress(t *testing.T) {
	t.Parallel()
	r := start(t, filepath.Join(t.TempDir(), "data"), guarded(t)...)
	api := "http://" + r.addrs["--edge-addr"]
	for flag, all := range map[string][][2]string{
		"--ingest-addr": {
			{"POST", "/v1/sessions"}, {"POST", eventPath}, {"PUT", "/v1/sessions/s/members"}, {"DELETE", "/v1/sessions/s"}, {"DELETE", "/v1/sessions/s/streams/st"},
		},
		"--janitor-addr": {{"GET", "/v1/sessions"}, {"GET", "/v1/sessions/s"}},
		"--edge-addr":    {{"GET", eventPath}, {"GET", "/v1/sessions/s/events"}, {"POST", "/v1/cookie"}},
	} {
		for _, route := range all {
			for _, url := range []string{"http://" + r.addrs[flag], api} {
				if status, body := request(t, route[0], url+route[1], ""); status != http.StatusUnauthorized {
					t.Errorf("%v at %s: %d %s", route, url, status, body)
				}
			}
		}
	}
	if status, body := request(t, http.MethodGet, api+"/", ""); status != http.StatusOK { // a page, which needs a token for all that it does
		t.Errorf("%d %s", status, body)
	}

	token := authtest.Of(t, "alice", "s")
	as := func(method, path, body string) (int, string) {
		return request(t, method, api+path, body, "Authorization", "Bearer "+token)
	}
	if status, body := as(http.MethodPost, "/v1/sessions", `{"session":"s"}`); status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := as(http.MethodPost, eventPath, message); status != http.StatusCreated {
		t.Errorf("%d %s", status, body)
	}
	if status, body := as(http.MethodGet, eventPath+"?wait=30", ""); status != http.StatusOK || !strings.Contains(body, message) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := as(http.MethodGet, "/v1/sessions", ""); status != http.StatusForbidden {
		t.Errorf("%d %s", status, body)
	}
	if strings.Contains(r.log.String(), token) {
		t.Error("the token is in the log")
	}
}
