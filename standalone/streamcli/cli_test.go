package streamcli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rejoin/shared/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func run(t *testing.T, in string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, status, errs bytes.Buffer
	a := tailApp(args[1:], &status)
	if args[0] == "publish" {
		a = publishApp(args[1:], strings.NewReader(in), &status)
	}
	a.Stdout, a.Stderr = &out, &errs
	code = a.Main()
	return code, out.String(), status.String() + errs.String()
}

// ingest answers each line of a request in its turn, and keeps what it got.
func ingest(t *testing.T, got *[]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		lines := strings.Split(strings.TrimSpace(string(body)), "\n")
		accepted := 0
		for i, line := range lines {
			*got = append(*got, r.URL.Path+" "+line)
			if strings.Contains(line, "refuse") {
				_, _ = fmt.Fprintf(w, `{"index":%d,"code":"body_too_large"}`+"\n", i)
				continue
			}
			accepted++
			_, _ = fmt.Fprintf(w, `{"index":%d,"id":"t_tag_%d","duplicate":%t}`+"\n", i, i+1, strings.Contains(line, "again"))
		}
		_, _ = fmt.Fprintf(w, `{"accepted":%d,"duplicates":0,"refused":0,"unknown":0,"lastId":null,"errors":[],"stopped":null}`+"\n", accepted)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestPublish_ReportsEachLine(t *testing.T) {
	var got []string
	url := ingest(t, &got)
	message := func(method string) string { return `{"jsonrpc":"2.0","method":"` + method + `"}` }
	in := strings.Join([]string{message("a"), "", "  " + message("again"), "broken", message("refuse")}, "\n")
	code, out, status := run(t, in, "publish", "s", "t", "--url="+url, "--type=tick")
	if code != 1 || out != "" {
		t.Errorf("code %d, output %q", code, out)
	}
	for _, want := range []string{"line 4: ", "line 5: ", "2 stored (1 duplicates), 2 rejected\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("%q is not in %q", want, status)
		}
	}
	if len(got) != 3 || !strings.HasPrefix(got[0], "/v1/sessions/s/streams/t/events ") || !strings.Contains(got[0], `"tick"`) {
		t.Errorf("sent %q", got)
	}
	if code, _, status := run(t, message("a"), "publish", "s", "t", "--url="+url); code != 0 || status != "1 stored (0 duplicates), 0 rejected\n" {
		t.Errorf("code %d, %q", code, status)
	}
}

const stream = `retry: 10
event: connect
id: t_tag_0
data: {}

id: t_tag_1
data: {"jsonrpc":"2.0",
data: "method":"a<b"}

event: gap
id: t_tag_4
data: {"reason":"trimmed","certain":false,"stream":"t","requested":"t_tag_1","resumesAt":"t_tag_4"}

event: close
id: t_tag_5
data: {"status":"closed","session":"s","stream":"t"}

`

func TestTail_PrintsUntilTheStreamEnds(t *testing.T) {
	var requests []*http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream)
	}))
	defer s.Close()
	code, out, status := run(t, "", "tail", "s", "t", "--url="+s.URL, "--from=t_tag_0")
	if code != 0 || out != `{"jsonrpc":"2.0","method":"a<b"}`+"\n" || !strings.Contains(status, "may be missing after t_tag_1 (trimmed)") {
		t.Errorf("code %d, output %q, status %q", code, out, status)
	}
	if got := requests[0].Header.Get("Last-Event-ID"); got != "t_tag_0" {
		t.Errorf("it began behind %q", got)
	}
	if _, _, _ = run(t, "", "tail", "s", "--url="+s.URL, "--from=now"); requests[len(requests)-1].URL.Query().Get("from") != "now" {
		t.Errorf("asked for %s", requests[len(requests)-1].URL)
	}
}

func TestErrors_OneSentence(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, tt := range map[string]struct {
		code int
		args []string
	}{
		"no stream":    {2, []string{"publish", "s"}},
		"no session":   {2, []string{"tail"}},
		"bad url":      {2, []string{"tail", "s", "--url=ftp://x"}},
		"bad session":  {2, []string{"tail", "a b", "--url=http://127.0.0.1:1"}},
		"bad stream":   {2, []string{"publish", "s", ".."}},
		"no token":     {1, []string{"publish", "s", "t", "--token-file=" + missing}},
		"unknown flag": {2, []string{"tail", "s", "--follow"}},
	} {
		t.Run(name, func(t *testing.T) {
			if code, _, status := run(t, "", tt.args...); code != tt.code || strings.Count(status, "\n") != 1 {
				t.Errorf("code %d, %q", code, status)
			}
		})
	}
}
