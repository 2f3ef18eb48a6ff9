package standalone

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rejoin-standalone-")
	if err == nil {
		binary = filepath.Join(dir, "rejoin")
		var out []byte
		if out, err = exec.Command("go", "build", "-o", binary, "./cmd/rejoin").CombinedOutput(); err != nil { //nolint:noctx // the test run's own time-out is enough
			err = fmt.Errorf("%w\n%s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := leaktest.Run(m, append(webtest.IgnoreFasthttp(), natstest.IgnoreLeaks()...)...)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

var addrFlags = []string{"--edge-addr", "--ingest-addr", "--janitor-addr", "--nats-addr", "--admin-addr"}

// command is the real program on free ports; the last of two equal flags counts. A publish waits for
// JetStream as long as a slow machine takes.
func command(t *testing.T, data string, args ...string) *exec.Cmd {
	all := []string{"--data=" + data, "--log-format=json", "--ack-timeout=1m"}
	for _, flag := range addrFlags {
		all = append(all, flag+"=127.0.0.1:0")
	}
	cmd := exec.CommandContext(t.Context(), binary, append(all, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "REJOIN_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	return cmd
}

// running is the real program.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	log    *waittest.Buffer
	addrs  map[string]string
	ended  chan error
	waited chan struct{} // closed when it has ended
}

func start(t *testing.T, data string, args ...string) *running {
	t.Helper()
	r := &running{t: t, cmd: command(t, data, args...), log: &waittest.Buffer{}, addrs: map[string]string{}, ended: make(chan error, 1), waited: make(chan struct{})}
	r.cmd.Stderr = r.log
	must.NoError(t, r.cmd.Start())
	go func() {
		defer close(r.waited)
		r.ended <- r.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // fails when it has ended
		<-r.waited
		if t.Failed() {
			t.Logf("the log of the program:\n%s", r.log)
		}
	})
	listening := len(addrFlags)
	if slices.Contains(args, "--nats-addr=") {
		listening--
	}
	waittest.Until(t, "it is ready", func() bool {
		r.readAddrs()
		if len(r.addrs) < listening {
			return false
		}
		req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addrs["--admin-addr"]+"/readyz", nil))(t)
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return r
}

func (r *running) readAddrs() {
	told := map[string]string{
		"edge open": "--edge-addr", "ingest listens": "--ingest-addr", "janitor listens": "--janitor-addr",
		"nats listens": "--nats-addr", "admin port open": "--admin-addr",
	}
	for line := range strings.Lines(r.log.String()) {
		var record struct{ Msg, Addr string }
		if json.Unmarshal([]byte(line), &record) == nil && told[record.Msg] != "" {
			r.addrs[told[record.Msg]] = record.Addr
		}
	}
}

// stop stops the program as Ctrl-C does.
func (r *running) stop() {
	r.t.Helper()
	_ = r.cmd.Process.Signal(os.Interrupt) // fails when it has ended, which shows below
	if err := waittest.Receive(r.t, "the program stops", r.ended); err != nil {
		r.t.Fatalf("it stopped with %v", err)
	}
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: waittest.Timeout}

func request(t *testing.T, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	headers = append(headers, "Accept", "application/json")
	if body != "" {
		headers = append(headers, "Content-Type", "application/json")
	}
	a := webtest.Ask(t, method, url, body, headers...)
	return a.Status, a.Text
}

const (
	message   = `{"jsonrpc":"2.0","method":"m"}`
	eventPath = "/v1/sessions/s/streams/st/events"
)

func TestHosts_AllowedNames(t *testing.T) {
	t.Parallel()
	r := start(t, filepath.Join(t.TempDir(), "data"), "--edge-hosts=rejoin.example", "--ingest-hosts=rejoin.example", "--janitor-hosts=rejoin.example")
	for _, flag := range []string{"--edge-addr", "--ingest-addr", "--janitor-addr"} {
		for host, allowed := range map[string]bool{"rejoin.example": true, "localhost": true, "127.0.0.1": true, "other.example": false} {
			status, _ := request(t, http.MethodOptions, "http://"+r.addrs[flag]+"/v1/sessions", "", "Host", host)
			if got := status != http.StatusForbidden; got != allowed {
				t.Errorf("%s answered %s with %d", flag, host, status)
			}
		}
	}
	r.stop()
}

func TestPublish_LargestMessage(t *testing.T) {
	t.Parallel()
	const largest = 31 << 20
	r := start(t, filepath.Join(t.TempDir(), "data"), "--max-message-bytes="+strconv.Itoa(largest), "--max-bytes-per-session=-1")
	const head, tail = `{"jsonrpc":"2.0","method":"`, `"}`
	body := head + strings.Repeat("m", largest-len(head)-len(tail)) + tail
	for _, flag := range []string{"--edge-addr", "--ingest-addr"} {
		url := "http://" + r.addrs[flag] + eventPath
		if status, _ := request(t, http.MethodPost, url, body, "Idempotency-Key", flag, "Event-Type", strings.Repeat("t", event.MaxTypeLen)); status != http.StatusCreated {
			t.Errorf("%s answered the largest message with %d", flag, status)
		}
		if status := announce(t, r.addrs[flag], eventPath, largest+2); status != http.StatusRequestEntityTooLarge {
			t.Errorf("%s answered more with %d", flag, status)
		}
	}
}

// announce sends the header of a request with a length but no body, and returns the
// status: an answer to a body that is still being sent may be lost.
func announce(t *testing.T, addr, path string, length int) (status int) {
	t.Helper()
	conn := webtest.Dial(t, addr, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, length))
	return webtest.ReadAnswer(t, bufio.NewReader(conn), http.MethodPost).Status
}

func TestAddresses_WholeAPIAndEachService(t *testing.T) {
	t.Parallel()
	r := start(t, filepath.Join(t.TempDir(), "data"))
	url := func(flag string) string { return "http://" + r.addrs[flag] }
	for i, flag := range []string{"--edge-addr", "--ingest-addr"} {
		if status, body := request(t, http.MethodPost, url(flag)+eventPath, message); status != http.StatusCreated {
			t.Errorf("%s answered publish %d with %d %s", flag, i, status, body)
		}
	}
	events := func() int {
		_, body := request(t, http.MethodGet, url("--edge-addr")+eventPath, "")
		var page struct{ Events []any }
		if err := json.Unmarshal([]byte(body), &page); err != nil {
			t.Fatal(body)
		}
		return len(page.Events)
	}
	waittest.Until(t, "both events are there", func() bool { return events() == 2 })
	for _, flag := range []string{"--edge-addr", "--janitor-addr"} {
		waittest.Until(t, flag+" answers the look at a session", func() bool { // the ledger is behind the edge
			status, body := request(t, http.MethodGet, url(flag)+"/v1/sessions/s", "")
			return status == http.StatusOK && strings.Contains(body, `"events":2`)
		})
	}
	if status, body := request(t, http.MethodGet, url("--edge-addr")+"/", ""); status != http.StatusOK || !strings.Contains(body, "playground") {
		t.Errorf("the playground is %d", status)
	}
	if status, body := request(t, http.MethodGet, url("--edge-addr")+"/admin", ""); status != http.StatusOK || !strings.Contains(body, "<title>Rejoin admin") {
		t.Errorf("the admin page is %d", status)
	}
	status, metrics := request(t, http.MethodGet, url("--admin-addr")+"/metrics", "")
	for _, service := range []string{"edge", "ingest", "janitor"} {
		if status != http.StatusOK || !strings.Contains(metrics, "rejoin_"+service+"_") {
			t.Errorf("/metrics (%d) has nothing of %s", status, service)
		}
	}

	// Other programs publish on NATS.
	nc := must.Value(nats.Connect(r.addrs["--nats-addr"], nats.Timeout(30*time.Second)))(t)
	defer nc.Close()
	log := must.Value(eventlog.Open(t.Context(), nc, slog.New(slog.DiscardHandler)))(t)
	defer log.Close()
	opening, err := log.Opening(t.Context(), "s")
	if err == nil {
		_, err = log.Publish(t.Context(), eventlog.Event{Session: "s", Life: opening.Life, Stream: "st", Data: []byte(message)})
	}
	must.NoError(t, err)
	waittest.Until(t, "the event of another program is there", func() bool { return events() == 3 })

	// A stream that is open does not hold up the stop for long.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url("--edge-addr")+eventPath, nil)
	resp, err := client.Do(req)
	must.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	r.stop()
	if rest, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(rest), "retry: ") {
		t.Errorf("the open stream ended with %v: %q", err, rest)
	}
	for line := range strings.Lines(r.log.String()) {
		slow := slices.ContainsFunc([]string{ // as on a machine that pauses
			"cannot look at a partition", "no janitor has looked at a partition", "this janitor has stepped down", "a sweep is left unfinished",
			"Readloop processing time", "took too long",
		}, func(what string) bool { return strings.Contains(line, what) })
		if strings.Contains(line, `"level":"ERROR"`) || strings.Contains(line, `"level":"WARN"`) && !slow {
			t.Errorf("it complained: %s", line)
		}
	}
}
