package sessioncli

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rejoin/shared/daemon"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
)

func TestMain(m *testing.M) {
	time.Local = time.UTC // the zone of the times in a table
	os.Exit(leaktest.Run(m))
}

func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runApp(t, App, args...)
}

func runApp(t *testing.T, app func([]string) daemon.App, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := app(args)
	a.Stdout, a.Stderr = &out, &errs
	return a.Main(), out.String(), errs.String()
}

func tokenFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// asked is a server that gives the same answer to each request for a path, and keeps
// the requests.
type asked struct {
	answers map[string]string // by method and URI
	got     []string
}

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // an empty one is compared as such
	call := r.Method + " " + r.URL.RequestURI()
	a.got = append(a.got, strings.TrimSpace(call+" "+string(body))+r.Header.Get("Authorization"))
	answer, ok := a.answers[call]
	if r.Method == http.MethodDelete && ok && answer == "" {
		w.WriteHeader(http.StatusNoContent)
	} else if !ok {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		answer = `{"type":"urn:rejoin:problem:not_found","title":"Not found.","status":404,"code":"not_found","detail":"No such \u001b[2Jsession."}`
	}
	_, _ = io.WriteString(w, answer)
}

func serve(t *testing.T, answers map[string]string) (*asked, string) {
	t.Helper()
	a := &asked{answers: answers}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	return a, "--url=" + s.URL
}

const (
	first  = `{"session":"demo","state":"open","created":"2026-11-21T20:00:00Z","streams":2,"events":12,"bytes":34567,"activity":"2026-11-21T21:00:00Z"}`
	second = `{"session":"7","state":"closed","created":"2026-11-21T20:00:00Z","ended":"2026-11-21T20:30:00.5Z","activity":"2026-11-21T22:30:00.5Z","streams":0,"events":0,"bytes":0}`
	odd    = `{"session":"a\u001b[2Jb","state":"open","streams":1,"events":1,"bytes":1}`
)

func TestList_AllPages(t *testing.T) {
	a, url := serve(t, map[string]string{
		"GET /v1/sessions?limit=1000":                     `{"sessions":[` + first + `,` + second + `],"next":"demo"}`,
		"GET /v1/sessions?after=demo&limit=1000":          `{"sessions":[` + odd + `]}`,
		"GET /v1/sessions?limit=1000&state=closed":        `{"sessions":[]` + strings.Repeat(" ", 33<<20) + `}`, // as much as metadata may take
		"GET /v1/sessions?limit=1000&sort=bytes":          `{"sessions":[` + first + `],"next":"Yn"}`,
		"GET /v1/sessions?after=Yn&limit=1000&sort=bytes": `{"sessions":[` + second + `]}`,
	})
	const want = `SESSION  STATE   STREAMS  EVENTS  BYTES  LAST ACTIVITY
demo     open    2        12      34567  2026-11-21 21:00:00
7        closed  0        0       0      2026-11-21 22:30:00
"a\x1b[2Jb"  open  1  1  1  -
`
	if code, out, errs := run(t, url); code != 0 || out != want || errs != "" {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
	if len(a.got) != 2 {
		t.Errorf("asked %q", a.got)
	}
	if code, out, _ := run(t, "show", "--json", url); code != 0 || out != first+"\n"+second+"\n"+odd+"\n" {
		t.Errorf("%d\n%s", code, out)
	}
	if code, out, _ := run(t, "--sort=bytes", "--json", url); code != 0 || out != first+"\n"+second+"\n" {
		t.Errorf("%d\n%s", code, out)
	}
	if code, out, _ := run(t, "--state=closed", url); code != 0 || strings.Count(out, "\n") != 1 {
		t.Errorf("%d\n%s", code, out)
	}
}

func TestShow_SessionWithStreams(t *testing.T) {
	body := strings.Replace(first, `"streams":2`, `"streams":[{"stream":"main","events":12,"bytes":34567,"newest":"2026-11-21T21:00:00Z","closed":false},{"stream":"old","events":0,"bytes":0,"closed":true}]`, 1)
	_, url := serve(t, map[string]string{"GET /v1/sessions/demo": body, "GET /v1/sessions/a%2Fb": second})
	const want = `demo is open: 12 events, 34567 bytes, last activity 2026-11-21 21:00:00
STREAM  STATE   EVENTS  BYTES  LAST ACTIVITY
main    open    12      34567  2026-11-21 21:00:00
old     closed  0       0      -
`
	if code, out, errs := run(t, "demo", url); code != 0 || out != want {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
	if code, out, _ := run(t, "demo", "--json", url); code != 0 || out != body+"\n" {
		t.Errorf("%d\n%s", code, out)
	}
	if code, _, errs := run(t, "nobody", url); code != 1 || errs != `rejoin sessions: "No such \x1b[2Jsession." (404 not_found)`+"\n" {
		t.Errorf("%d %q", code, errs)
	}
}

func TestCreateAndClose(t *testing.T) {
	a, url := serve(t, map[string]string{
		"POST /v1/sessions": second, "DELETE /v1/sessions/a%2Fb": "", "DELETE /v1/sessions/demo/streams/%3F?clear=true": "",
	})
	file := tokenFile(t, " secret\n")
	for _, args := range [][]string{{"create"}, {"create", "7", "--token-file=" + file, "--owner=alice", "--members=bob,carol"}, {"close", "a/b"}, {"close", "demo", "?", "--clear"}} {
		want := map[string]string{"a/b": "session a/b is closed\n", "demo": "stream ? of session demo is closed\n"}[args[min(len(args)-1, 1)]]
		if args[0] == "create" {
			want = "7\n"
		}
		if code, out, errs := run(t, append(args, url)...); code != 0 || out != want {
			t.Errorf("%v: %d %q %q", args, code, out, errs)
		}
	}
	want := `[POST /v1/sessions {} POST /v1/sessions {"session":"7","owner":"alice","members":["bob","carol"]}Bearer secret DELETE /v1/sessions/a%2Fb DELETE /v1/sessions/demo/streams/%3F?clear=true]`
	if got := fmt.Sprint(a.got); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestErrors_TokenIsMissing(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"code":"unauthorized","detail":"A valid token is required."}`)
	}))
	defer s.Close()
	if code, _, errs := run(t, "--url="+s.URL); code != 1 || errs != "rejoin sessions: A valid token is required. (401 unauthorized); give a token with --token-file\n" {
		t.Errorf("%d %q", code, errs)
	}
	for text, hint := range map[string]string{"\n": "; the file of --token-file is empty", "token": ""} {
		file := tokenFile(t, text)
		if code, _, errs := run(t, "--url="+s.URL, "--token-file="+file); code != 1 || errs != "rejoin sessions: A valid token is required. (401 unauthorized)"+hint+"\n" {
			t.Errorf("%q: %d %q", text, code, errs)
		}
	}
}

// No server answers, or another one: a server with TLS answers 400 to plain HTTP, the admin port 404.
func TestErrors_AnotherServer(t *testing.T) {
	if code, _, errs := run(t, "--url=http://127.0.0.1:1"); code != 1 || errs != "rejoin sessions: http://127.0.0.1:1 does not answer (connect: connection refused); start rejoin, or set its address with --url\n" {
		t.Errorf("%d %q", code, errs)
	}
	for _, status := range []int{http.StatusBadRequest, http.StatusNotFound} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		want := fmt.Sprintf("rejoin sessions: the server responded with %d %s; is --url=%s the address of Rejoin, and is it http:// or https://?\n", status, http.StatusText(status), s.URL)
		if code, _, errs := run(t, "--url="+s.URL); code != 1 || errs != want {
			t.Errorf("%d %q, want %q", code, errs, want)
		}
		s.Close()
	}
}

func TestErrors_UntrustedCertificate(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it logs that the client ends the handshake
	s.StartTLS()
	defer s.Close()
	const want = "rejoin sessions: the server's certificate is not trusted (x509: certificate signed by unknown authority); SSL_CERT_FILE can name"
	if code, _, errs := run(t, "--url="+s.URL); code != 1 || !strings.HasPrefix(errs, want) || strings.Count(errs, "\n") != 1 {
		t.Errorf("%d %q", code, errs)
	}
}

// RFC 6750 has no Bearer credentials without a token.
func TestToken_EmptyFile(t *testing.T) {
	a, url := serve(t, map[string]string{"GET /v1/sessions/demo": `{"session":"demo"}`})
	file := tokenFile(t, "\n")
	if code, _, errs := run(t, "demo", "--json", "--token-file="+file, url); code != 0 || fmt.Sprint(a.got) != "[GET /v1/sessions/demo]" {
		t.Errorf("%d %q, sent %q", code, errs, a.got)
	}
}

func TestErrors_OneSentence(t *testing.T) {
	_, url := serve(t, map[string]string{"GET /v1/sessions?limit=1000": "<html>", "POST /v1/sessions": `[1]`, "DELETE /v1/sessions/demo": "<html>"})
	_, other := serve(t, map[string]string{"GET /v1/sessions?limit=1000": "{}", "GET /v1/sessions/demo": `null`, "POST /v1/sessions": `{"status":"ok"}`})
	for name, tt := range map[string]struct {
		code int
		args []string
	}{
		"bad name":      {2, []string{"a b", url}},
		"no name":       {2, []string{"close", url}},
		"bad state":     {2, []string{"--state=gone", url}},
		"bad order":     {2, []string{"--sort=name", url}},
		"no list":       {2, []string{"demo", "--sort=bytes", url}},
		"bad url":       {2, []string{"--url=nowhere"}},
		"another page":  {1, []string{url}},
		"a sign-in":     {1, []string{"close", "demo", url}},
		"an array":      {1, []string{"create", url}},
		"no name of it": {1, []string{"create", other}},
		"another list":  {1, []string{other}},
		"null":          {1, []string{"demo", other}},
		"no token file": {1, []string{url, "--token-file=/nonexistent/token"}},
	} {
		t.Run(name, func(t *testing.T) {
			if code, out, errs := run(t, tt.args...); code != tt.code || out != "" || strings.Count(errs, "\n") != 1 {
				t.Errorf("%d %q %q", code, out, errs)
			}
		})
	}
}
