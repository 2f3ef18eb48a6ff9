package sessioncli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"rejoin/shared/daemon"
	"rejoin/shared/must"
	"rejoin/standalone/remote"
)

const (
	limitsAnswer = `{"acting":true,"partitions":16,"limits":{"events":10000},"maxAge":3600,"logBytes":2097152,"closedGrace":300,"version":"v1.2.3","stored":99,"retained":{"sessions":1,"streams":2,"events":12,"bytes":34567},"total":1,"sessions":[{"session":"demo","events":9000,"bytes":34567,"openStreams":2,"limits":{"events":10000},"limit":"events","share":0.9}]}`
	gapsAnswer   = `{"edges":{"answered":1,"silent":1,"reachable":true},"since":"2026-11-21T20:00:00Z","clients":3,"total":2,"reasons":{"trimmed":1,"expired":1},"gaps":[` +
		`{"edge":"e","host":"h","time":"2026-11-21T21:00:00Z","what":"gap","session":"demo","stream":"main","reason":"expired","certain":true,"requested":"main_a\u001b_1","address":"127.0.0.1"},` +
		`{"edge":"e","time":"2026-11-21T20:30:00Z","what":"gap","session":"7","reason":"trimmed","certain":false}]}`
	connectionsAnswer = `{"edges":{"answered":1,"silent":0,"reachable":true},"clients":2,"total":1,"connections":[{"edge":"e","host":"h","number":1,"stream":"main","protocol":"sse","address":"127.0.0.1","since":"2026-11-21T20:00:00Z","came":"start","state":"live","events":12,"cursor":3,"cursorId":"main_a_3","behind":4}]}`
)

func TestStatus_Text(t *testing.T) {
	a, url := serve(t, map[string]string{"GET /v1/limits": limitsAnswer, "GET /v1/gaps?limit=1": gapsAnswer, "GET /v1/sessions?limit=1": `{"sessions":[],"total":5}`})
	url = strings.Replace(url, "//", "//me:secret@", 1)
	want := `server      ` + strings.Replace(strings.TrimPrefix(url, "--url="), "secret", "xxxxx", 1) + `
version     v1.2.3
janitor     acts for 16 partitions
edges       1, and 1 that did not answer
clients     3
sessions    5 (1 with events, in 2 streams)
events      12
size        34567 bytes of 2097152 (2.0 MiB), 1 %
retention   1h
entries     99 stored in all
gaps        2 since 2026-11-21 20:00:00
near limit  sessions: 1

SESSION  LIMIT   USED  EVENTS  BYTES  STREAMS
demo     events  90 %  9000    34567  2
`
	if code, out, errs := runApp(t, StatusApp, url); code != 0 || out != want || errs != "" || len(a.got) != 3 {
		t.Errorf("%d %q %q\n%s", code, errs, a.got, out)
	}
	a.answers["GET /v1/gaps?limit=1"] = `{"edges":{"answered":0,"silent":1,"reachable":true},"clients":0,"total":0,"reasons":{},"gaps":[]}`
	if code, out, _ := runApp(t, StatusApp, url); code != 0 || !strings.Contains(out, "clients     unknown\n") || !strings.Contains(out, "gaps        unknown\n") {
		t.Errorf("without an edge: %d\n%s", code, out)
	}
	a.answers["GET /v1/gaps?limit=1"] = gapsAnswer
	want = `{"limits":` + limitsAnswer + `,"gaps":` + strings.ReplaceAll(gapsAnswer, "\n", "") + `,"sessions":{"sessions":[],"total":5}}` + "\n"
	if code, out, errs := runApp(t, StatusApp, url, "--json"); code != 0 || out != want {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
}

func TestGaps_Text(t *testing.T) {
	_, url := serve(t, map[string]string{"GET /v1/gaps?limit=100": gapsAnswer, "GET /v1/gaps?limit=7": gapsAnswer})
	const want = `gaps since 2026-11-21 20:00:00: 2; edges: 1, and 1 that did not answer; expired: 1, trimmed: 1
TIME                 SESSION  STREAM  REASON   MISSING  REQUESTED       ADDRESS
2026-11-21 21:00:00  demo     main    expired  yes      "main_a\x1b_1"  127.0.0.1
2026-11-21 20:30:00  7        -       trimmed  perhaps  -               -
`
	if code, out, errs := runApp(t, GapsApp, url); code != 0 || out != want || errs != "" {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
	if code, _, errs := runApp(t, GapsApp, url, "--limit=1000"); code != 2 || errs != "rejoin gaps: --limit: 1000 is not a number from 1 to 500; see rejoin gaps --help\n" {
		t.Errorf("%d %q", code, errs)
	}
	if code, out, errs := runApp(t, GapsApp, url, "--limit=7", "--json"); code != 0 || out != gapsAnswer+"\n" || errs != "" {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
}

func TestConnections_Text(t *testing.T) {
	_, url := serve(t, map[string]string{
		"GET /v1/sessions/demo/connections?limit=100": connectionsAnswer,
		"GET /v1/sessions/idle/connections?limit=100": `{"edges":{"answered":0,"silent":0,"reachable":false},"clients":0,"total":0,"connections":[]}`,
		"GET /v1/sessions/none/connections?limit=100": `{"edges":{"answered":1,"silent":0,"reachable":true},"clients":0,"total":0,"connections":[]}`,
		"GET /v1/sessions/idle":                       `{"session":"idle"}`,
	})
	const want = `event streams: 1; clients: 2; edges: 1
SINCE                STREAM  PROTOCOL  ADDRESS    STARTED  STATE  EVENTS  BEHIND  CURSOR    EDGE
2026-11-21 20:00:00  main    sse       127.0.0.1  start    live   12      4       main_a_3  h
`
	if code, out, errs := runApp(t, ConnectionsApp, "demo", url); code != 0 || out != want || errs != "" {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
	for _, args := range [][]string{{"none", url}, {"none", url, "--json"}} {
		if code, out, errs := runApp(t, ConnectionsApp, args...); code != 1 || out != "" || !strings.Contains(errs, "404 not_found") {
			t.Errorf("%v: %d %q\n%s", args, code, errs, out)
		}
	}
	if code, out, errs := runApp(t, ConnectionsApp, "idle", url); code != 0 || out != "event streams: 0; clients: 0; edges: unknown, since NATS is unavailable\n" {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
	if code, out, errs := runApp(t, ConnectionsApp, "demo", url, "--json"); code != 0 || out != connectionsAnswer+"\n" {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
	for _, args := range [][]string{{}, {"a b"}, {"demo", "--limit=0"}, {"demo", "--limit=501"}} {
		if code, _, errs := runApp(t, ConnectionsApp, append(args, url)...); code != 2 || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: %d %q", args, code, errs)
		}
	}
}

func TestStatus_WrongURL(t *testing.T) {
	for _, app := range []func([]string) daemon.App{StatusApp, GapsApp, ConnectionsApp} {
		if code, _, errs := runApp(t, app, "--url=nowhere"); code != 2 || !strings.Contains(errs, `--url "nowhere"`) {
			t.Errorf("%d %q", code, errs)
		}
	}
}

// reported records a report, and lets the server answer.
type reported struct {
	text  string
	reply chan struct{}
}

func (r *reported) Write(text []byte) (int, error) {
	r.text += string(text)
	close(r.reply)
	return len(text), nil
}

// A redirected DELETE would become a GET, whose answer proves no close. Another origin gets no token.
func TestAPI_Redirect(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token := r.Header.Get("Authorization"); token != "" {
			t.Errorf("another origin is sent %q", token)
		}
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer other.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusMovedPermanently)
	}))
	defer s.Close()
	a := must.Value(newAPI(remote.Flags{URL: s.URL, TokenFile: tokenFile(t, "secret")}, io.Discard))(t)
	for method, ok := range map[string]bool{http.MethodGet: true, http.MethodPost: false, http.MethodDelete: false} {
		if _, err := a.do(t.Context(), method, "/", nil); (err == nil) != ok {
			t.Errorf("%s: %v", method, err)
		}
	}
	if _, err := a.do(t.Context(), http.MethodGet, "/refused", nil); err == nil || !strings.Contains(err.Error(), "redirected to "+other.URL) {
		t.Errorf("a refusal: %v", err)
	}
}

// A program whose context has ended exits with 0 when its error is only that of the context.
func TestAPI_Interrupted(t *testing.T) {
	for name, part := range map[string]string{"before the response": "", "within it": "{"} {
		ctx, interrupt := context.WithCancel(t.Context())
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if part != "" {
				_, _ = io.WriteString(w, part)
				_ = http.NewResponseController(w).Flush()
			}
			interrupt()
			<-r.Context().Done()
		}))
		a := must.Value(newAPI(remote.Flags{URL: s.URL}, io.Discard))(t)
		if _, err := a.do(ctx, http.MethodDelete, "/", nil); err == nil || errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "interrupted") {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}

func TestAPI_SilentServerIsReported(t *testing.T) {
	r := &reported{reply: make(chan struct{})}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { <-r.reply }))
	defer s.Close()
	a := must.Value(newAPI(remote.Flags{URL: s.URL}, r))(t)
	if _, err := a.do(t.Context(), http.MethodGet, "/", nil); err != nil || r.text != s.URL+" has not answered yet; waiting up to 30s\n" {
		t.Errorf("%v; it says %q", err, r.text)
	}
}
