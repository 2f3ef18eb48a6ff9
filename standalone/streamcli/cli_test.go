package streamcli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"rejoin/shared/client"
	"rejoin/shared/daemon"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
	"rejoin/standalone/remote"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func run(t *testing.T, in string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, status, errs bytes.Buffer
	a := app(strings.NewReader(in), &status, args)
	a.Stdout, a.Stderr = &out, &errs
	code = a.Main()
	return code, out.String(), status.String() + errs.String()
}

func app(in io.Reader, status io.Writer, args []string) daemon.App {
	if args[0] == "publish" {
		return publishApp(args[1:], in, status)
	}
	return tailApp(args[1:], status)
}

// interrupted runs a command, and interrupts it when it reports something.
func interrupted(seen string, args ...string) (code int, status, stderr string) {
	signals := make(chan os.Signal, 1)
	report := &noticed{seen: seen, then: func() { signals <- os.Interrupt }}
	var errs bytes.Buffer
	a := app(strings.NewReader("1\n"), report, args)
	a.Stdout, a.Stderr, a.Signals = io.Discard, &errs, signals
	code = a.Main()
	return code, report.String(), errs.String()
}

// serve is a server that gives the same answer to each request.
func serve(t *testing.T, status int, mediaType, body string) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// ingest answers each line of a request in its turn, and keeps the lines.
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

// An unknown outcome is no rejection: the server did not answer, and the session was closed
// before the line could be sent again.
func TestPublish_UnknownOutcome(t *testing.T) {
	codes := make(chan string, 2)
	codes <- "publish_unknown"
	codes <- "session_closed"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"index":0,"code":%q}`+"\n"+`{"accepted":0,"stopped":null}`+"\n", <-codes)
	}))
	defer s.Close()
	code, _, status := run(t, "", "publish", "s", "t", "[1]", "--url="+s.URL)
	if code != 1 || !strings.HasSuffix(status, "\n0 stored (0 duplicates), 0 rejected, 1 unknown\nrejoin publish: unknown outcome: 1\n") {
		t.Errorf("code %d, %q", code, status)
	}
}

// The first response to a closed stream only reports where it stopped; the repeat is refused.
func TestPublish_ClosedStream(t *testing.T) {
	var asked int
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked > 1 {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"code":"stream_closed","status":409}`)
			return
		}
		_, _ = io.WriteString(w, `{"accepted":0,"stopped":{"index":0,"code":"stream_closed","detail":"It was not stored."}}`+"\n")
	}))
	defer s.Close()
	code, _, status := run(t, "", "publish", "s", "t", "[1]", "--url="+s.URL)
	if want := "line 1: refused with status 409: stream_closed\n0 stored (0 duplicates), 1 rejected\n"; code != 1 || !strings.HasPrefix(status, want) {
		t.Errorf("code %d, %q, want %q", code, status, want)
	}
}

func TestReport_Punctuation(t *testing.T) {
	var status bytes.Buffer
	newReport(&status, "URL").failed(&client.Error{Code: "unavailable", Detail: "Not stored."})
	if want := "URL: refused: unavailable: Not stored; trying again\n"; status.String() != want {
		t.Errorf("%q, want %q", status.String(), want)
	}
}

const stream = `retry: 10
event: connect
id: t_tag_0
data: {"session":"s","stream":"t","exists":true,"resumed":true}

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
	code, out, status := run(t, "", "tail", "s", "t", "--url="+s.URL, "--from=t_abcdefg_0")
	if code != 0 || out != `t_tag_1 {"jsonrpc":"2.0","method":"a<b"}`+"\n" || status != "gap: events may be missing after t_tag_1 (trimmed)\nstream t of session s is closed\n" {
		t.Errorf("code %d, output %q, status %q", code, out, status)
	}
	if got := requests[0].Header.Get("Last-Event-ID"); got != "t_abcdefg_0" {
		t.Errorf("it began behind %q", got)
	}
	if _, _, _ = run(t, "", "tail", "s", "--url="+s.URL, "--from=now"); requests[len(requests)-1].URL.Query().Get("from") != "now" {
		t.Errorf("asked for %s", requests[len(requests)-1].URL)
	}
}

// A publisher controls no terminal on which its events are printed.
func TestTail_TerminalControls(t *testing.T) {
	message := "\"\u009b31m \u009d0;title\u009c \u007f é\""
	url := serve(t, http.StatusOK, "text/event-stream", "id: t_tag_1\ndata: {\"id\":\"t_tag_1\",\"stream\":\"t\",\"message\":"+message+"}\n\nevent: close\ndata: {}\n\n")
	const want = `"\u009b31m \u009d0;title\u009c \u007f é"`
	for _, flag := range []string{"--json", "--format={{.Message}}"} {
		if code, out, _ := run(t, "", "tail", "s", "--url="+url, flag); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: code %d, output %q", flag, code, out)
		}
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
		"bad type":     {2, []string{"publish", "s", "t", "1", "--type=close"}},
		"no message":   {2, []string{"publish", "s", "t", "[1]", " "}},
		"unknown flag": {2, []string{"tail", "s", "--follow"}},
	} {
		t.Run(name, func(t *testing.T) {
			if code, _, status := run(t, "", tt.args...); code != tt.code || strings.Count(status, "\n") != 1 {
				t.Errorf("code %d, %q", code, status)
			}
		})
	}
}

func TestTail_Options(t *testing.T) {
	var requests []*http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: connect\nid: t_tag_0\ndata: {\"exists\":false}\n\n")
		for i, at := range []string{"2026-11-25T12:00:00Z", "2026-11-25T13:00:00Z"} {
			_, _ = fmt.Fprintf(w, "id: t_tag_%d\ndata: {\"id\":\"t_tag_%d\",\"stream\":\"t\",\"type\":\"tick\",\"time\":%q,\"message\":[%d]}\n\n", i+2, i+2, at, i+2)
		}
		_ = http.NewResponseController(w).Flush() // or there is no response
		<-r.Context().Done()
	}))
	defer s.Close()
	code, out, status := run(t, "", "tail", "s", "t", "--url="+s.URL, "--since=2026-11-25T11:00:00Z", "--count=1", "--method=a,b*", "--level=info",
		"--format={{.Stream}} {{.ID}} {{.Type}} {{.Time}} {{.Message}}")
	if code != 0 || out != "t t_tag_2 tick 2026-11-25T12:00:00Z [2]\n" || status != "stream t of session s does not exist yet; waiting\n" {
		t.Errorf("code %d, output %q, status %q", code, out, status)
	}
	if got := requests[0].URL.RawQuery; got != "envelope=true&from=2026-11-25T11%3A00%3A00Z&level=info&method=a%2Cb%2A" {
		t.Errorf("asked for %s", got)
	}
	for n, want := range map[string]string{"-n20": "envelope=true&last=20", "--last=0": "envelope=true&from=now"} {
		if _, _, _ = run(t, "", "tail", "s", "t", "--url="+s.URL, "--json", "--count=1", n); requests[len(requests)-1].URL.RawQuery != want {
			t.Errorf("%s: asked for %s", n, requests[len(requests)-1].URL.RawQuery)
		}
	}
	for _, wrong := range []string{"-n=-1", "--last=1001", "--last=3 --from=now", "--last=3 --since=5m", "--since=yesterday", "--since=-5m", "--since=5m --from=now", "--from=5m", "--from=t_abcdefg_1", "t --from=*_abcdefg_1", "t --from=u_abcdefg_1", "--count=-1", "--level=foo", "--method=a,,b", "--method=a*b", "--format={{.X}}", "--format={{"} {
		if code, _, status := run(t, "", append([]string{"tail", "s", "--url=" + s.URL}, strings.Fields(wrong)...)...); code != 2 || strings.Count(status, "\n") != 1 {
			t.Errorf("%s: code %d, %q", wrong, code, status)
		}
	}
}

// In the flow of a session, an event's own ID is no cursor: tail prints the one that --from takes.
func TestTail_CursorOfAFlow(t *testing.T) {
	url := serve(t, http.StatusOK, "text/event-stream", "id: *_abcdefg_7\ndata: {\"id\":\"t_1234567_7\",\"stream\":\"t\",\"message\":[1]}\n\nevent: close\ndata: {}\n\n")
	for flag, want := range map[string]string{
		"--count=0":            "*_abcdefg_7 t [1]\n",
		"--format={{.Cursor}}": "*_abcdefg_7\n",
		"--json":               `{"id":"t_1234567_7","cursor":"*_abcdefg_7","stream":"t","type":"message","time":"0001-01-01T00:00:00Z","message":[1]}` + "\n",
	} {
		if code, out, status := run(t, "", "tail", "s", "--url="+url, flag); code != 0 || out != want {
			t.Errorf("%s: code %d, %q, %q", flag, code, out, status)
		}
	}
}

// A server that refuses for now is reported as one that answers, and that it accepts again.
func TestTail_ServerRefusesFirst(t *testing.T) {
	answers, asked := []int{200, 503, 200}, 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(answers[asked])
		_, _ = io.WriteString(w, []string{"retry: 1\nevent: connect\ndata: {\"exists\":true}\n\n", "", stream}[asked])
		asked++
	}))
	defer s.Close()
	code, _, status := run(t, "", "tail", "s", "t", "--url="+s.URL)
	lines := strings.Split(status, "\n")
	if code != 0 || lines[0] != s.URL+": refused with status 503: Service Unavailable; trying again" || lines[1] != s.URL+" answers" {
		t.Errorf("code %d, %q", code, status)
	}
}

// transport answers requests.
type transport func() *http.Response

func (f transport) RoundTrip(*http.Request) (*http.Response, error) { return f(), nil }

// A server that refuses each attempt at a line until the outcome stays unknown does not answer again with that.
func TestPublish_RefusedUntilUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var status bytes.Buffer
		server := newReport(&status, "URL")
		publisher, err := client.NewPublisher(client.PublisherConfig{URL: "http://localhost", OnFailure: server.failed, HTTPClient: &http.Client{Transport: transport(func() *http.Response {
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}
		})}})
		must.NoError(t, err)
		result := must.Value(publisher.Publish(t.Context(), client.Message{Session: "s", Stream: "t", Data: []byte("1")}))(t)
		queue := make(chan pending, 1)
		queue <- pending{1, result}
		close(queue)
		if got := (&PublishCLI{}).collect(t.Context(), publisher, queue, &status, server); got.unknown != 1 || strings.Contains(status.String(), "URL answers") {
			t.Errorf("%+v, %q", got, status.String())
		}
		must.NoError(t, publisher.Close(t.Context()))
	})
}

// A server that refuses has answered, so an interruption is no failure.
func TestTail_InterruptedWhileRefused(t *testing.T) {
	if code, status, _ := interrupted("; trying again", "tail", "s", "--url="+serve(t, http.StatusTooManyRequests, "", "")); code != 0 {
		t.Errorf("code %d, %q", code, status)
	}
}

// A command that is stopped before it reached the server prints that nothing was done.
func TestInterrupted_WithoutAServer(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	for name, want := range map[string]string{
		"tail":    "rejoin tail: interrupted; http://me:xxxxx@" + s.URL[7:] + " has never answered\n",
		"publish": "0 stored (0 duplicates), 0 rejected\nrejoin publish: interrupted; line 1 and later were not stored\n",
	} {
		t.Run(name, func(t *testing.T) {
			code, status, errs := interrupted("http://me:xxxxx@", name, "s", "t", "--url=http://me:secret@"+s.URL[7:])
			if _, said, _ := strings.Cut(status, "\n"); code != 1 || said+errs != want {
				t.Errorf("code %d, %q", code, said+errs)
			}
		})
	}
}

// A server that accepts connections and answers nothing is reported, also when the messages come from
// standard input, where the first one may come later.
func TestSilentServer_IsReported(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	for _, args := range []string{"tail s t", "publish s t", `publish s t {"n":1}`} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			if code, status, _ := interrupted("(no answer yet)", append(strings.Fields(args), "--url="+s.URL)...); code != 1 {
				t.Errorf("code %d, %q", code, status)
			}
		})
	}
}

func TestUntrustedCertificate_IsReported(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it logs that the client ends the handshake
	s.StartTLS()
	defer s.Close()
	for _, command := range []string{"tail", "publish"} {
		want := s.URL + ": the server's certificate is not trusted (x509: certificate signed by unknown authority); SSL_CERT_FILE can name"
		if code, status, _ := interrupted("trying again", command, "s", "t", "--url="+s.URL); code != 1 || !strings.HasPrefix(status, want) {
			t.Errorf("%s: code %d, %q", command, code, status)
		}
	}
}

// noticed calls then when something is written for the first time.
type noticed struct {
	mu   sync.Mutex
	all  bytes.Buffer
	seen string
	then func()
}

func (n *noticed) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.then != nil && bytes.Contains(p, []byte(n.seen)) {
		n.then()
		n.then = nil
	}
	return n.all.Write(p)
}

func (n *noticed) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all.String()
}

func TestPublish_Arguments(t *testing.T) {
	var got []string
	url := ingest(t, &got)
	code, _, status := run(t, "from standard input", "publish", "s", "t", "{\n\"a\": 1}", "[2]", "--url="+url)
	if code != 0 || status != "2 stored (0 duplicates), 0 rejected\n" || len(got) != 2 || !strings.Contains(got[0], `{"a":1}`) || !strings.Contains(got[1], "[2]") {
		t.Errorf("code %d, %q, sent %q", code, status, got)
	}
}

// A character device passes for a terminal.
func TestTail_Colours(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	device := must.Value(os.OpenFile(os.DevNull, os.O_WRONLY, 0))(t)
	defer func() { _ = device.Close() }()
	if got := red(device, "gone"); got != "\x1b[31mgone\x1b[0m" {
		t.Errorf("%q", got)
	}
	var b bytes.Buffer
	if err := dimmed(new(TailCLI).defaultFormat()).Execute(&b, printed{Cursor: "*_1", Stream: "t", Message: "{}"}); err != nil || b.String() != "\x1b[2m*_1\x1b[0m t {}\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	if red(&b, "gone") != "gone" {
		t.Error("a buffer has colours")
	}
	for name, value := range map[string]string{"NO_COLOR": "1", "TERM": "dumb"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if coloured(device) {
				t.Error("there are colours")
			}
		})
	}
}

// The errors say what to do.
func TestPublish_Hints(t *testing.T) {
	var got []string
	url := ingest(t, &got)
	if _, _, status := run(t, "[1]\n\n"+strings.Repeat("x", maxLine+1), "publish", "s", "t", "--url="+url); !strings.HasSuffix(status, "rejoin publish: line 3 is longer than 32 MiB\n") {
		t.Errorf("of a long line it says %q", status)
	}
	if _, _, status := run(t, "", "publish", "s", "t", "hello", "--url="+url); !strings.Contains(status, `'"hello"'`) {
		t.Errorf("of a text without quotes it says %q", status)
	}
	for _, answer := range []int{http.StatusNotFound, http.StatusBadRequest} { // as TLS answers plain HTTP
		url := serve(t, answer, "", "")
		for _, args := range [][]string{{"tail", "s"}, {"publish", "s", "t", "1"}} {
			if _, _, status := run(t, "", append(args, "--url="+url)...); !strings.Contains(status, "is --url="+url+" the address of Rejoin, and is it http:// or https://?") {
				t.Errorf("%v: of another server it says %q", args, status)
			}
		}
	}
	const problem = "application/problem+json"
	ofIngest := serve(t, http.StatusMethodNotAllowed, problem, `{"status":405,"code":"method_not_allowed","title":"no","detail":"The Allow header lists the methods."}`)
	if _, _, status := run(t, "", "tail", "s", "--url="+ofIngest); !strings.Contains(status, "is --url="+ofIngest+" the address of Rejoin") {
		t.Errorf("of a service without the method it says %q", status)
	}
	guarded := serve(t, http.StatusUnauthorized, problem, `{"status":401,"code":"unauthorized","title":"No token."}`)
	token := filepath.Join(t.TempDir(), "token")
	must.NoError(t, os.WriteFile(token, []byte("t"), 0o600))
	for _, args := range [][]string{{"tail", "s"}, {"publish", "s", "t", "1"}} {
		args = append(args, "--url="+guarded)
		if _, _, status := run(t, "", args...); !strings.Contains(status, "No token; give a token with --token-file") {
			t.Errorf("%v without a token: %q", args, status)
		}
		if _, _, status := run(t, "", append(args, "--token-file="+token)...); strings.Contains(status, "--token-file") {
			t.Errorf("%v with another token: %q", args, status)
		}
	}
}

// A log may allow messages of 31 MiB.
func TestPublish_LargestMessage(t *testing.T) {
	var got []string
	url := ingest(t, &got)
	message := `"` + strings.Repeat("x", 31<<20-2) + `"`
	if code, _, status := run(t, message, "publish", "s", "t", "--url="+url); code != 0 || len(got) != 1 {
		t.Errorf("code %d, %q, sent %d", code, status, len(got))
	}
}

// The beginning of a line is another message.
func TestPublish_InputBreaksOff(t *testing.T) {
	var got []string
	cli := PublishCLI{Flags: remote.Flags{URL: ingest(t, &got)}, Session: "s", Stream: "t"}
	err := cli.publish(t.Context(), io.MultiReader(strings.NewReader("1\n23"), iotest.ErrReader(io.ErrUnexpectedEOF)), io.Discard)
	if !errors.Is(err, io.ErrUnexpectedEOF) || len(got) != 1 {
		t.Errorf("%v, sent %q", err, got)
	}
}

// Idle standard input delays no interruption.
func TestPublish_InterruptedWhileInputIsIdle(t *testing.T) {
	in := idle{read: make(chan struct{}), end: make(chan struct{})}
	defer close(in.end)
	signals := make(chan os.Signal, 1)
	var status, errs bytes.Buffer
	a := publishApp([]string{"s", "t", "--url=http://127.0.0.1:1"}, in, &status)
	a.Stdout, a.Stderr, a.Signals = io.Discard, &errs, signals
	code := make(chan int, 1)
	go func() { code <- a.Main() }()
	<-in.read
	signals <- os.Interrupt
	select {
	case got := <-code:
		if want := "0 stored (0 duplicates), 0 rejected\nrejoin publish: interrupted at line 1\n"; got != 1 || status.String()+errs.String() != want {
			t.Errorf("code %d, %q", got, status.String()+errs.String())
		}
	case <-waittest.Context(t).Done():
		t.Fatal("it continues to read")
	}
}

// idle has nothing to read until its end.
type idle struct {
	read chan struct{} // closed at the first Read
	end  chan struct{}
}

func (in idle) Read([]byte) (int, error) {
	close(in.read)
	<-in.end
	return 0, io.EOF
}

// Lines that were stored before the interruption count, although they were not reported yet.
func TestPublish_InterruptedBeforeItReportsOutcomes(t *testing.T) {
	asked := make(chan string, 3)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		asked <- string(body)
		switch line := string(body); {
		case strings.Contains(line, "[1]"):
			_, _ = io.WriteString(w, `{"index":0,"code":"body_too_large"}`+"\n"+`{"accepted":0,"stopped":null}`+"\n")
		case strings.Contains(line, "[2]"):
			_, _ = io.WriteString(w, `{"index":0,"id":"t_tag_2"}`+"\n"+`{"accepted":1,"stopped":null}`+"\n")
		default:
			<-r.Context().Done()
		}
	}))
	defer s.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	third := make(chan struct{})
	in := &afterEach{lines: []string{"[1]\n", "[2]\n", "[3]\n"}, asked: asked, end: third}
	status := &noticed{seen: "line 1: ", then: func() {
		<-third // so the second one is stored
		interrupt()
	}}
	cli := PublishCLI{Flags: remote.Flags{URL: s.URL}, Session: "s", Stream: "t"}
	err := cli.publish(ctx, in, status)
	if err == nil || err.Error() != "interrupted; line 3 and later may not have been stored" || !strings.HasSuffix(status.String(), "\n1 stored (0 duplicates), 1 rejected\n") {
		t.Errorf("%v, %q", err, status)
	}
}

// afterEach is an input whose next line comes when the server has received the previous one.
type afterEach struct {
	lines []string
	asked <-chan string
	begun bool
	end   chan<- struct{} // closed when the server has got the last one
}

func (in *afterEach) Read(p []byte) (int, error) {
	if in.begun {
		<-in.asked
	}
	in.begun = true
	if len(in.lines) == 0 {
		close(in.end)
		return 0, io.EOF
	}
	n := copy(p, in.lines[0])
	in.lines = in.lines[1:]
	return n, nil
}
