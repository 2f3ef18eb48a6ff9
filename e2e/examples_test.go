package e2e

import (
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// publishingExamples are the programs of ../examples that publish, and their arguments
// besides session and stream.
var publishingExamples = []struct {
	name    string
	program string   // a file of ../examples, or a Go package
	args    []string // before session and stream
	key     string   // how a key is given: %, or a flag that ends with it
	file    bool     // it wants a file of lines, and not standard input
}{
	{name: "curl", program: "curl/publish.sh", key: "%"},
	{name: "curl, many in a request", program: "curl/publish-many.sh", key: "%", file: true},
	{name: "Go", program: "rejoin/examples/go/publish", key: "-key=%"},
	{name: "TypeScript", program: "typescript/publish.ts", key: "--key=%"},
	{name: "TypeScript, many in a request", program: "typescript/publish.ts", args: []string{"--many"}, key: "--key=%"},
	{name: "Python", program: "python/publish.py", key: "--key=%"},
	{name: "Python, many in a request", program: "python/publish.py", args: []string{"--many"}, key: "--key=%"},
	{name: "NATS", program: "nats/publish.sh", key: "%"},
	{name: "JavaScript client", program: "../e2e/testdata/publish.ts", key: "%"},
}

// subscribingExamples follow a stream, with the cursor in a file.
var subscribingExamples = []struct{ name, program string }{
	{"Go", "rejoin/examples/go/subscribe"},
	{"TypeScript", "typescript/subscribe.ts"},
	{"TypeScript with rejoin.js", "typescript/follow.ts"},
	{"Python", "python/subscribe.py"},
}

// run is an example that runs.
type run struct {
	*process

	t     testing.TB
	stdin io.WriteCloser

	output, error waittest.Buffer
}

// example starts a program of ../examples, which is ended with the test.
func (p *proc) example(program string, args ...string) *run {
	t := p.t
	t.Helper()
	path := must.Value(filepath.Abs(filepath.Join("..", "examples", program)))(t)
	switch filepath.Ext(program) {
	case ".sh":
		args = append([]string{path}, args...)
	case ".py":
		args = append([]string{"python3", path}, args...)
	case ".ts":
		args = append([]string{npm(t).node(), "--disable-warning=ExperimentalWarning", path}, args...)
	default:
		args = append([]string{built(t, program)}, args...)
	}
	built(t, natsPackage)
	r := &run{t: t}
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // launch ends it
	cmd.Env = append(withoutRejoin(os.Environ()), "REJOIN_URL="+p.api()+"/", "PYTHONIOENCODING=latin-1", "NATS_URL=nats://"+p.addrs["--nats-addr"], "PATH="+scratch+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // scripts start others
	r.stdin = must.Value(cmd.StdinPipe())(t)
	cmd.Stdout, cmd.Stderr = &r.output, &r.error
	r.process = launch(t, cmd)
	return r
}

// natsPackage stands in for the NATS command line.
const natsPackage = "rejoin/e2e/nats"

// write gives it lines to read.
func (r *run) write(lines string) {
	r.t.Helper()
	if _, err := io.WriteString(r.stdin, lines); err != nil {
		r.t.Fatalf("%v\n%s", err, r.errors())
	}
}

func (r *run) text() string   { return r.output.String() }
func (r *run) errors() string { return r.error.String() }

// end waits for its end and returns its exit code.
func (r *run) end() int {
	r.t.Helper()
	_ = r.stdin.Close() // fails when it has ended
	waittest.Value(r.t, "the program ends; it printed", func() string { return r.text() + r.errors() }, func(string) bool { return r.ended() })
	return r.cmd.ProcessState.ExitCode()
}

// until waits until it has printed so many lines.
func (r *run) until(lines int) {
	r.t.Helper()
	waittest.Until(r.t, strconv.Itoa(lines)+" lines are printed", func() bool {
		if r.ended() && strings.Count(r.text(), "\n") < lines {
			r.t.Fatalf("it has ended with %d\n%s%s", r.cmd.ProcessState.ExitCode(), r.text(), r.errors())
		}
		return strings.Count(r.text(), "\n") >= lines
	})
}

func numberedLines(from, to int) string {
	var b strings.Builder
	for n := from; n <= to; n++ {
		b.WriteString(numbered(n) + "\n")
	}
	return b.String()
}

// storedIn returns the numbers of a stream's messages, as far as they are retained.
func (p *proc) storedIn(session, stream string) (numbers []int) {
	p.t.Helper()
	a := do(p.t, http.MethodGet, p.api()+streamPath(session, stream), "", "Accept", "application/json")
	return numbersIn(p.t, a.body)
}

var numberPattern = regexp.MustCompile(`"n":\s*(\d+)`)

func numbersIn(t testing.TB, text string) (numbers []int) {
	t.Helper()
	for _, m := range numberPattern.FindAllStringSubmatch(text, -1) {
		n := must.Value(strconv.Atoi(m[1]))(t)
		numbers = append(numbers, n)
	}
	return numbers
}

// invalidMessage matches its error: of the server, or of the Go client before that.
var invalidMessage = regexp.MustCompile(`"code": ?"invalid_json"|invalid JSON`)

// The messages that an example publishes while the program is killed and started are
// stored once and in order; repeated under their keys they are not stored again; a
// refusal is reported.
func TestExamples_Publishing(t *testing.T) {
	t.Parallel()
	for _, e := range publishingExamples {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t, "--ack-timeout=4s")
			begin := func(stream, key, lines string) *run {
				t.Helper()
				args := append(slices.Clone(e.args), "demo", stream)
				if e.file {
					file := filepath.Join(t.TempDir(), "lines[1]") // brackets are a pattern to curl
					must.NoError(t, os.WriteFile(file, []byte(lines), 0o600))
					args = append(args, file)
				}
				if key = strings.ReplaceAll(e.key, "%", key); strings.HasPrefix(key, "-") {
					args = append([]string{key}, args...)
				} else {
					args = append(args, key)
				}
				r := p.example(e.program, args...)
				if !e.file {
					r.write(lines)
				}
				return r
			}
			succeeds := func(r *run) {
				t.Helper()
				if code := r.end(); code != 0 {
					t.Fatalf("exit code %d\n%s%s", code, r.text(), r.errors())
				}
			}
			want := []int{1, 2, 3, 4, 5, 6}
			arrives := func() {
				t.Helper()
				waittest.Until(t, "all have arrived", func() bool { return len(p.storedIn("demo", "main")) >= len(want) })
			}

			oneByOne := !e.file && len(e.args) == 0
			if oneByOne {
				r := begin("main", "first", numberedLines(1, 3))
				r.until(3)
				p.kill()
				r.write(numberedLines(4, 6))
				p.start()
				succeeds(r)
				if got := strings.Count(r.text(), "\n"); got != 6 {
					t.Errorf("it printed\n%s", r.text())
				}
			} else {
				p.kill()
				r := begin("main", "first", strings.TrimSuffix(numberedLines(1, 6), "\n"))
				_ = r.stdin.Close()
				p.start()
				succeeds(r)
			}
			arrives() // a 201 follows JetStream's acknowledgement, and the edge receives the event a moment later
			if got := p.storedIn("demo", "main"); !slices.Equal(got, want) {
				t.Errorf("stored are %d", got)
			}

			again := begin("main", "first", strings.TrimSuffix(numberedLines(1, 6), "\n"))
			succeeds(again)
			if got := p.storedIn("demo", "main"); !slices.Equal(got, want) {
				t.Errorf("repeated, stored are %d", got)
			}
			if !strings.Contains(strings.ReplaceAll(again.text(), `": `, `":`), "duplicate") {
				t.Errorf("repeated, it printed\n%s", again.text())
			}

			r := begin("main", "second", `{"order":`+"\n")
			if oneByOne && e.name != "Go" { // which publishes the next messages
				waittest.Until(t, "a refusal ends it", r.ended)
			}
			if code := r.end(); code != 1 || !invalidMessage.MatchString(r.text()+r.errors()) {
				t.Errorf("of a message that is none it says %d\n%s%s", code, r.text(), r.errors())
			}
			if many := e.file || len(e.args) > 0; many { // a repeat would stop at the same line
				r = begin("main", "invalid", strings.Repeat("{\n", 1500))
				if code := r.end(); code != 1 || !strings.Contains(r.text()+r.errors(), "invalid_body") {
					t.Errorf("of 1,500 invalid lines it says %d\n%s%s", code, r.text(), r.errors())
				}
			}
			long := `{"text":"` + strings.Repeat("x", 200_000) + "é\"}" // longer than an argument of a command
			r = begin("long", "long", long+"\n")
			switch code := r.end(); {
			case e.name == "NATS":
				if code != 1 || !strings.Contains(r.errors(), "not sent") {
					t.Errorf("of a long message it says %d\n%s", code, r.errors())
				}
			case code != 0 || !strings.Contains(do(t, http.MethodGet, p.api()+streamPath("demo", "long")+"?wait=30", "", "Accept", "application/json").body, long):
				t.Errorf("of a long message it says %d\n%s", code, r.errors())
			}
			succeeds(begin("negative", "negative", "-5\n")) // no flag of a command
			p.close("/v1/sessions/demo/streams/main")
			r = begin("main", "third", numbered(7)+"\n")
			if code := r.end(); code != 1 || !strings.Contains(r.text()+r.errors(), "stream_closed") {
				t.Errorf("of a closed stream it says %d\n%s%s", code, r.text(), r.errors())
			}
			waittest.Until(t, "the edge knows of the close", func() bool {
				return strings.Contains(do(t, http.MethodGet, p.api()+streamPath("demo", "main"), "", "Accept", "application/json").body, `"closed":true`)
			})
			if got := p.storedIn("demo", "main"); !slices.Equal(got, want) { // no event is after the close
				t.Errorf("at the end, stored are %d", got)
			}
		})
	}
}

// Without its arguments an example prints how it is used. A file that cannot be read is reported
// without an attempt.
func TestExamples_Usage(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	for _, e := range publishingExamples {
		if len(e.args) > 0 {
			continue // a program that is in the list
		}
		r := p.example(e.program, "demo")
		if code := r.end(); code == 0 || !strings.Contains(r.errors(), "usage: ") {
			t.Errorf("%s: exit code %d\n%s%s", e.name, code, r.text(), r.errors())
		}
	}
	for _, e := range subscribingExamples {
		r := p.example(e.program, "demo", "main")
		if code := r.end(); code == 0 || !strings.Contains(r.errors(), "usage: ") {
			t.Errorf("%s: exit code %d\n%s%s", e.name, code, r.text(), r.errors())
		}
	}
	for _, file := range []string{"/nosuch", "/"} {
		r := p.example("curl/publish-many.sh", "demo", "main", file)
		if code := r.end(); code != 1 || r.errors() != "cannot read "+file+"\n" {
			t.Errorf("exit code %d\n%s%s", code, r.text(), r.errors())
		}
	}
}

// A 408 or 303 proves no more than a missing response: a proxy may have passed the message on.
func TestExamples_LastStatusIsAProxys(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"303", "408"} {
		tools := t.TempDir()
		must.NoError(t, os.WriteFile(filepath.Join(tools, "curl"), []byte("#!/bin/sh\nprintf "+status+"\n"), 0o700)) //nolint:gosec // it is a program
		cmd := exec.CommandContext(t.Context(), "bash", "../examples/curl/publish.sh", "demo", "main")
		cmd.Stdin, cmd.Env = strings.NewReader("[1]\n"), append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 75 || !strings.Contains(string(out), "it may be stored or not") {
			t.Errorf("of %s: %v\n%s", status, err, out)
		}
	}
}

// A proxy's page with the status 200 proves as little as a missing response, and so do a response that breaks off and
// one to the GET that a redirect makes of a POST.
func TestExamples_AnswerIsAPage(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"python/publish.py", "typescript/publish.ts"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				answer := "<p>Log in to this network</p>"
				switch requests.Add(1) {
				case 1:
				case 2:
					w.Header().Set("Content-Length", "100")
					w.WriteHeader(http.StatusBadGateway)
				default:
					answer = `{"index":0,"id":"main_abcdefg_1","duplicate":false}` + "\n" + `{"accepted":1,"unknown":0,"stopped":null}` + "\n"
				}
				_, _ = io.WriteString(w, answer) // the client may have disconnected
			})
			r := procAt(t, server.URL).example(program, "--many", "demo", "main")
			r.write("[1]\n")
			if code := r.end(); code != 0 || !strings.Contains(r.text(), "main_abcdefg_1") {
				t.Errorf("exit code %d\n%s%s", code, r.text(), r.errors())
			}

			for _, status := range []int{http.StatusBadRequest, http.StatusOK} {
				moving := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPost {
						http.Redirect(w, r, "/moved", http.StatusSeeOther)
						return
					}
					if status == http.StatusOK {
						w.Header().Set("Content-Type", "text/event-stream")
						defer func() { <-r.Context().Done() }() // it has no end
					}
					w.WriteHeader(status)
					_ = http.NewResponseController(w).Flush() // the client may have disconnected
				})
				r = procAt(t, moving.URL).example(program, "--many", "demo", "main")
				r.write("[1]\n")
				if code := r.end(); code == 0 || !strings.Contains(r.errors(), "it may be stored or not") {
					t.Errorf("after a redirect to %d: exit code %d\n%s%s", status, code, r.text(), r.errors())
				}
			}
		})
	}
}

// Every attempt to store many messages ends within the two minutes for which the log knows their key.
func TestExamples_ManyEndInTime(t *testing.T) {
	t.Parallel()
	tools := t.TempDir()
	curl := "#!/bin/sh\necho \"$@\" >>'" + tools + "/requests'\nprintf 400\n"
	must.NoError(t, os.WriteFile(filepath.Join(tools, "curl"), []byte(curl), 0o700)) //nolint:gosec // it is a program
	for seconds, most := range map[int]int{0: 115, 50: 65} {
		cmd := exec.CommandContext(t.Context(), "bash", "../examples/curl/publish-many.sh", "demo", "main", "/dev/null")
		cmd.Env = append(os.Environ(), "SECONDS="+strconv.Itoa(seconds), "PATH="+tools+":"+os.Getenv("PATH"))
		out, _ := cmd.CombinedOutput() // it ends with the refusal
		requests, err := os.ReadFile(filepath.Join(tools, "requests"))
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(requests)), "\n")
		_, rest, _ := strings.Cut(lines[len(lines)-1], "--max-time ")
		limit, _, _ := strings.Cut(rest, " ")
		if n, err := strconv.Atoi(limit); err != nil || n < 1 || n > most {
			t.Errorf("a request after %d s may take %q s, want at most %d", seconds, limit, most)
		}
	}
}

// The machine sleeps for ten minutes between two attempts: the log has forgotten the key. The
// failed attempt, which may take as long as the log knows the key since its body is large, is reported before.
func TestExamples_Suspend(t *testing.T) {
	t.Parallel()
	examples := must.Value(filepath.Abs("../examples"))(t)
	python := `
import sys, time
sys.path.insert(0, sys.argv[1] + "/python")
import publish
attempts, now = 0, 1e9
def attempt(*_, timeout):
    global attempts, limit
    limit = timeout
    attempts += 1
    raise OSError("no answer")
def sleep(_):
    global now
    now += 600
publish.urllib.request.urlopen, time.sleep, time.time = attempt, sleep, lambda: now
try:
    publish.publish("http://rejoin.test", "demo", "main", b"1" * (8 << 20), "key")
except publish.PublishError as error:
    print(attempts, error.unknown, limit)
`
	typescript := `
const { publish } = await import(process.argv[2] + '/typescript/publish.ts')
let attempts = 0
let now = 1e12
let limit
Date.now = () => now
AbortSignal.timeout = (ms) => { limit = ms }
globalThis.fetch = async () => {
  attempts++
  setImmediate(() => { now += 600_000 }) // in the pause
  throw new TypeError('no answer')
}
await publish({ base: 'http://rejoin.test', session: 'demo', stream: 'main' }, '1'.repeat(8 << 20), 'key').catch((error) => console.log(attempts, error.unknown, limit))
`
	for name, run := range map[string][]string{
		"suspend.py":  {"python3", python, "http://rejoin.test: no answer; trying again\n1 True 115.0\n"},
		"suspend.mjs": {npm(t).node(), typescript, "http://rejoin.test: TypeError: no answer; trying again\n1 true 115000\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), name)
			must.NoError(t, os.WriteFile(file, []byte(run[1]), 0o600))
			cmd := exec.CommandContext(t.Context(), run[0], file, examples) //nolint:gosec // from here
			cmd.Env = append(os.Environ(), "NODE_NO_WARNINGS=1", "PYTHONDONTWRITEBYTECODE=1")
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != run[2] {
				t.Errorf("%v, it printed %s, want %s", err, out, run[2])
			}
		})
	}
}

// Without the NATS command line the example reports it at once: nothing was sent.
func TestExamples_NATSMissing(t *testing.T) {
	t.Parallel()
	tools := t.TempDir()
	for _, name := range []string{"bash", "od", "tr", "sleep"} {
		path := must.Value(exec.LookPath(name))(t)
		must.NoError(t, os.Symlink(path, filepath.Join(tools, name)))
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(tools, "bash"), "../examples/nats/publish.sh", "demo", "main")
	cmd.Env = []string{"PATH=" + tools}
	cmd.Stdin = strings.NewReader("1\n")
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !strings.Contains(string(out), "nats is not installed") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A subscriber continues where it stopped, whichever part was down, reports missing events, and
// ends with the stream.
func TestExamples_Subscribing(t *testing.T) {
	t.Parallel()
	for _, e := range subscribingExamples {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t, "--retry=100ms", "--ack-timeout=4s")
			file := filepath.Join(t.TempDir(), "place")
			follow := func() *run { return p.example(e.program, "demo", "main", file) }
			printed := func(r *run, want ...int) {
				t.Helper()
				if got := numbersIn(t, r.text()); !slices.Equal(got, want) {
					t.Errorf("it printed %d, want %d\n%s", got, want, r.errors())
				}
			}
			savedBehind := func(id string) {
				t.Helper()
				waittest.Until(t, "the place is saved", func() bool {
					place, err := os.ReadFile(file)
					return err == nil && sequenceOf(t, string(place)) >= sequenceOf(t, id)
				})
			}
			p.publish("demo", "main", 1, 3)
			r := follow()
			r.until(3)
			p.kill()
			waittest.Until(t, "the outage is reported", func() bool { return strings.Contains(r.errors(), "; trying again\n") })
			p.start()
			last := p.publish("demo", "main", 4, 5)
			r.until(5)
			savedBehind(last)
			r.kill()
			printed(r, 1, 2, 3, 4, 5)

			last = p.publish("demo", "main", 6, 7)
			r = follow()
			r.until(2)
			savedBehind(last)
			r.kill()
			printed(r, 6, 7)
			if r.errors() != "" {
				t.Errorf("it says %s", r.errors())
			}

			must.NoError(t, os.WriteFile(file, []byte("main_0000000_1"), 0o600))
			r = follow()
			r.until(7)
			p.close("/v1/sessions/demo/streams/main")
			if code := r.end(); code != 0 {
				t.Errorf("at the end of the stream its exit code is %d\n%s", code, r.errors())
			}
			printed(r, 1, 2, 3, 4, 5, 6, 7)
			if r.errors() != "events are missing: unknown\n" {
				t.Errorf("of a gap it says %q", r.errors())
			}

			r = follow()
			if code := r.end(); code != 0 || r.text()+r.errors() != "" {
				t.Errorf("behind the end it says %d %s%s", code, r.text(), r.errors())
			}
			must.NoError(t, os.Remove(file))
			p.stop()
			p.args = append(p.args, guarded(t)...)
			p.start()
			if code := follow().end(); code != 1 {
				t.Errorf("without a token its exit code is %d", code)
			}
		})
	}
}

// emptyMessages is a proxy that answers with an event without data while no edge is there: before a
// message, and after it with its ID.
func emptyMessages(t *testing.T) *proc {
	t.Helper()
	const head = "retry: 20\n"
	var requests atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		if r.URL.Path == "/rejoin.js" {
			http.ServeFile(w, r, "../services/sse-edge/rejoinjs/rejoin.js")
			return
		}
		text := "event: close\nid: main_abcdefg_3\ndata: {\"status\":\"closed\",\"session\":\"demo\",\"stream\":\"main\"}\n\n"
		switch requests.Add(1) {
		case 1:
			text = "data:\n\nretry:\n\xff\n"
		case 2:
			text = "event: connect\nid: main_abcdefg_1\ndata: {\"session\":\"demo\",\"stream\":\"main\",\"exists\":true}\n\n" +
				"event: rejoin.later\ndata: {}\n\nid: main_abcdefg_2\ndata: " + numbered(1) + "\n\n"
		case 3:
			text = "id: " + r.Header.Get("Last-Event-ID") + ".17\ndata:\n\n"
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, head+text) // the client may have ended
	})
	return procAt(t, s.URL)
}

// An event without data is no message, nor is one of a type that a later version may send. A cursor that cannot be
// saved ends a subscriber: it is no failure of the connection.
func TestExamples_EmptyMessage(t *testing.T) {
	t.Parallel()
	for _, e := range subscribingExamples {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "place")
			r := emptyMessages(t).example(e.program, "demo", "main", file)
			if code := r.end(); code != 0 || strings.Count(r.text(), "\n") != 1 || !slices.Equal(numbersIn(t, r.text()), []int{1}) || strings.Contains(r.errors(), "missing") {
				t.Errorf("exit code %d, it printed\n%s%s", code, r.text(), r.errors())
			}
			if place, err := os.ReadFile(file); err != nil || sequenceOf(t, string(place)) < 2 {
				t.Errorf("the place is %q, %v", place, err)
			}
			r = emptyMessages(t).example(e.program, "demo", "main", filepath.Join(dir, "missing", "place"))
			if code := r.end(); code == 0 || !strings.Contains(r.errors(), "missing") {
				t.Errorf("without a folder for the place: exit code %d, it printed\n%s%s", code, r.text(), r.errors())
			}
		})
	}
}

// A handler's TypeError is no failure of the connection, which fetch reports as one as well.
func TestExamples_HandlerThrows(t *testing.T) {
	t.Parallel()
	r := emptyMessages(t).example("../e2e/testdata/throws.ts")
	if code := r.end(); code != 1 || !strings.Contains(r.errors(), "of the handler") {
		t.Errorf("exit code %d, it printed\n%s%s", code, r.text(), r.errors())
	}
}

// A publisher that is interrupted, or stopped as by docker stop, reports that a message without an answer may be
// stored.
func TestExamples_PublishInterrupted(t *testing.T) {
	t.Parallel()
	for _, sent := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sent.String(), func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{})
			s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // it breaks off with the client
				close(asked)
				<-r.Context().Done()
			})
			r := procAt(t, s.URL).example("rejoin/examples/go/publish", "demo", "main")
			r.write("[1]\n")
			<-asked
			must.NoError(t, r.cmd.Process.Signal(sent))
			if code := r.end(); code != 1 || !strings.Contains(r.errors(), "it may be stored or not") || strings.Contains(r.errors(), "not stored:") || !strings.Contains(r.errors(), "the key is ") {
				t.Errorf("exit code %d\n%s", code, r.errors())
			}
		})
	}
}
