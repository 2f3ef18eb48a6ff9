package bridge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// stdioMode is the argument that makes the test's program an MCP server.
const stdioMode = "be-an-mcp-server"

// stdioServer is an MCP server on stdin and stdout.
func stdioServer() {
	signals := make(chan os.Signal, 1)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 4<<20)
	say := func(format string, a ...any) { fmt.Printf(format+"\n", a...) }
	for in.Scan() {
		m, err := rpc.ParseMessage(in.Bytes())
		if err != nil || m.Method == nil {
			say(`{"jsonrpc":"2.0","method":"heard","params":{"id":%s}}`, m.ID)
			continue
		}
		id := string(m.ID)
		switch *m.Method {
		case rpc.MethodInitialize:
			if slices.Contains(os.Args, "banner") {
				say("Server running on stdio")
				say("%s", note(1))
				say("[%s]", note(2))
			}
			say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`, id)
		case "progress":
			for n := range 3 {
				say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, m.Param("_meta", "progressToken"), n)
			}
			say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
		case "note":
			say("%s", note(1))
		case "ask":
			say(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
		case "answer":
			say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.Param("id"))
			say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
		case "hang", "notifications/initialized":
			if slices.Contains(os.Args, "mute") {
				_ = os.Stdout.Close()
			}
		case "cancelled", upstream.MethodCancelled:
			say(`{"jsonrpc":"2.0","method":"cancelled","params":{"id":%s}}`, m.Param("requestId"))
		case "huge":
			say(`{"result":{"id":7,"x":"%s"},"jsonrpc":"2.0","id":%s}`, strings.Repeat("x", 3<<20), id)
		case "rubbish":
			say("this is no JSON")
			say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
		case "exit":
			say("%s", note(9))
			os.Exit(3)
		case "stderr":
			fmt.Fprintln(os.Stderr, "a line "+strings.Repeat("y", 100<<10))
			say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
		case "deaf": // to the end of its input, and to SIGTERM
			signal.Notify(signals, syscall.SIGTERM)
			child := exec.Command("sleep", "1000") //nolint:noctx // the bridge ends it
			child.Stdout, child.Stderr = os.Stdout, os.Stderr
			_ = child.Start()
			say(`{"jsonrpc":"2.0","id":%s,"result":{"pids":[%d,%d]}}`, id, os.Getpid(), child.Process.Pid)
			select {}
		case "busy": // until SIGUSR1, and without a response
			signal.Notify(signals, syscall.SIGUSR1)
			say("%s", note(os.Getpid()))
			<-signals
		case "pid":
			say(`{"jsonrpc":"2.0","id":%s,"result":{"pids":[%d]}}`, id, os.Getpid())
		}
	}
}

func stdioConfig(t testing.TB) config.Config {
	t.Helper()
	cfg := testConfig("")
	cfg.UpstreamCommand = "'" + os.Args[0] + "' " + stdioMode
	cfg.MaxProcesses = 3
	return cfg
}

func TestProcess_AnswersOnRequestStreams(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	in := s.start(t, stdioConfig(t))
	name := s.ready(t)
	hang, _ := s.request(t, name, "1", "hang") // so that two calls are open
	stream := newStream(t, "2")
	wantStatus(t, s.post(t, name, stream, `{"jsonrpc":"2.0","id":2,"method":"progress",`+"\n"+`"params":{"_meta":{"progressToken":"t"}}}`), http.StatusAccepted)
	wantMessages(t, s.finished(t, name, stream)[3:], response("2"))
	// A message about no request belongs to the only one that is open, or else to none.
	s.post(t, name, "", `{"jsonrpc":"2.0","method":"note"}`)
	s.receives(t, name, hang, note(1))
	s.post(t, name, newStream(t, "3"), `{"jsonrpc":"2.0","id":3,"method":"hang"}`)
	s.post(t, name, "", `{"jsonrpc":"2.0","method":"note"}`)
	s.receives(t, name, rpc.Standalone, note(1))
	wantStatus(t, s.post(t, name, newStream(t, "3"), `{"jsonrpc":"2.0","id":3,"method":"hang"}`), http.StatusBadRequest)
	s.end(t, name)
	waittest.Until(t, "the process has ended", func() bool { return in.metric(t, "processes") == 0 })
	s.wantState(t, name, session.Closed)
}

// A process that does not read while it works on a call keeps its session, and gets the next request when it reads.
func TestProcess_ReadsLate(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	in := s.start(t, stdioConfig(t))
	name := s.ready(t)
	first, _ := s.request(t, name, "1", "busy")
	var n struct{ Params struct{ N int } }
	must.NoError(t, json.Unmarshal([]byte(s.has(t, name, first, 1)[0]), &n))
	in.host.Config.OpenTimeout = time.Millisecond
	second := newStream(t, "2")
	answer := later(func() rpc.Answer {
		return s.post(t, name, second, `{"jsonrpc":"2.0","id":2,"method":"answer","params":{"id":1,"text":"`+strings.Repeat("x", 1<<20)+`"}}`)
	})
	waittest.Until(t, "the request is to be written", func() bool { return in.table.Session(name).Call(second) != nil })
	must.NoError(t, syscall.Kill(n.Params.N, syscall.SIGUSR1))
	wantStatus(t, waittest.Receive(t, "the request is taken", answer), http.StatusAccepted)
	for stream, id := range map[string]string{first: "1", second: "2"} {
		if all := s.finished(t, name, stream); all[len(all)-1] != response(id) {
			t.Errorf("request %s has %v", id, all)
		}
	}
}

// A response of a process waits for an earlier message that cannot be stored: --call-timeout does not end its call
// meanwhile.
func TestProcess_ResponseWaitsForNATS(t *testing.T) {
	for name, begin := range map[string]func(link *natstest.Link, lost *atomic.Bool) (end func()){
		"outage": func(link *natstest.Link, _ *atomic.Bool) func() {
			link.Cut()
			return link.Heal
		},
		"no leader": func(_ *natstest.Link, lost *atomic.Bool) func() {
			lost.Store(true)
			return func() { lost.Store(false) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, cfg, lost := newSystem(t, eventlog.Settings{}), stdioConfig(t), atomic.Bool{}
			link := &natstest.Link{Before: func(data []byte) {
				if lost.Load() {
					replace(data, "PUB mcp.", "PUB nop.") // which has no responders
				}
			}}
			s.options = []nats.Option{nats.SetCustomDialer(link)}
			cfg.CallTimeout = flagtype.Duration(5 * time.Second)
			in := s.start(t, cfg)
			h := in.table.Session(s.ready(t))
			call := func(id string) (stream string) {
				t.Helper()
				stream = newStream(t, id)
				data := `{"jsonrpc":"2.0","id":` + id + `,"method":"progress","params":{"_meta":{"progressToken":` + id + `}}}`
				wantStatus(t, h.Post(rpc.Ask{Action: rpc.Post, Session: h.Name, Stream: stream, Data: []byte(data)}), http.StatusAccepted)
				return stream
			}
			end := begin(link, &lost)
			first := call("1")
			waittest.Until(t, "a message is not stored", func() bool { return in.metric(t, "publish_retries_total") > 0 })
			second := call("2")
			waittest.Until(t, "the time of the call is over", func() bool { return in.metric(t, "publish_retries_total") >= 12 }) // with 7.5 s between them
			end()
			for id, stream := range map[string]string{"1": first, "2": second} {
				wantMessages(t, s.finished(t, h.Name, stream)[3:], response(id))
			}
		})
	}
}

// A response may be stored although the bridge stops before it learns that. Then its request has no error, too. No other
// stream is read.
func TestProcess_StopsWhileAResponseIsStored(t *testing.T) {
	s, hang := newSystem(t, eventlog.Settings{}), newStream(t, "2")
	var reads atomic.Int64
	s.sending(func(data []byte) {
		if bytes.Contains(data, []byte(".CONSUMER.CREATE.")) && bytes.Contains(data, []byte(event.Token(hang))) {
			reads.Add(1)
		}
		if i := bytes.Index(data, []byte("HPUB mcp.")); i >= 0 && bytes.Contains(data, []byte(`"result":{}`)) {
			replace(data[i:], " _INBOX_", " _NOBOX_") // without a subscriber
		}
	})
	cfg := stdioConfig(t)
	cfg.AckTimeout = 100 * time.Millisecond
	in := s.start(t, cfg)
	name := s.ready(t)
	wantStatus(t, s.post(t, name, hang, `{"jsonrpc":"2.0","id":2,"method":"hang"}`), http.StatusAccepted)
	stream, _ := s.request(t, name, "1", "rubbish")
	waittest.Until(t, "the response is not acknowledged", func() bool { return in.metric(t, "publish_retries_total") > 0 })
	in.stop()
	wantMessages(t, s.messages(t, name, stream), response("1"))
	wantError(t, s.finished(t, name, hang), 1, "2")
	if n := reads.Load(); n != 0 {
		t.Errorf("the stream of a call without a response was read %d times", n)
	}
}

// A banner is left out and logged; a notification, which MCP allows, is for the client.
func TestProcess_WritesBeforeInitializeResponse(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	cfg := stdioConfig(t)
	cfg.UpstreamCommand += " banner"
	in := s.start(t, cfg)
	name := s.open(t)
	s.receives(t, name, rpc.Standalone, note(1), note(2))
	in.wantMetric(t, 1, "dropped_messages_total", host.DropInvalid)
}

func TestProcess_RequestsToClient(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	s.start(t, stdioConfig(t))
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "ask")
	s.receives(t, name, stream, `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
	wantStatus(t, s.post(t, name, "", `{"jsonrpc":"2.0","id":"q","result":{}}`), http.StatusAccepted)
	wantParts(t, s.has(t, name, stream, 2), "", `"heard","params":{"id":"q"}`)
}

func TestProcess_EndClosesSession(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	in := s.start(t, stdioConfig(t))
	name := s.ready(t)
	hang, _ := s.request(t, name, "1", "hang")
	stream, _ := s.request(t, name, "2", "exit")
	wantError(t, s.finished(t, name, stream), 1, "2")
	wantError(t, s.finished(t, name, hang), 1, "1")
	s.wantState(t, name, session.Closed)
	wantMessages(t, s.messages(t, name, rpc.Standalone), note(9))
	waittest.Until(t, "nothing is left", func() bool { return in.metric(t, "processes") == 0 && in.metric(t, "sessions") == 0 })
}

func TestProcess_KilledWithChildren(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{})
	in := s.start(t, stdioConfig(t))
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "deaf")
	var m struct{ Result struct{ Pids []int } }
	if err := json.Unmarshal([]byte(s.finished(t, name, stream)[0]), &m); err != nil || len(m.Result.Pids) != 2 {
		t.Fatal(err)
	}
	in.stop()
	for _, pid := range m.Result.Pids {
		waittest.Until(t, strconv.Itoa(pid)+" has ended", func() bool {
			// The process that inherits the child may not have waited for it yet.
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		})
	}
	s.wantState(t, name, session.Closed)
}

// The client learns the limit and the flag, and so does the operator.
func TestProcess_TooLargeMessage(t *testing.T) {
	s, log := newLogged(t, eventlog.Settings{MaxMessageBytes: 1 << 20})
	in := s.start(t, stdioConfig(t))
	name := s.ready(t)
	s.request(t, name, "7", "hang")
	stream, _ := s.request(t, name, `"h"`, "huge")
	all := s.finished(t, name, stream)
	if wantError(t, all, 1, `"h"`); !strings.Contains(all[0], `the limit is 1048576 bytes (--max-message-bytes)`) {
		t.Errorf("the stream has %.200v", all)
	}
	log.want(t, 1, "level=WARN", "rejoin log set --max-message-bytes=N", "limit=1048576", "session="+name)
	stream, _ = s.request(t, name, "8", "rubbish")
	wantMessages(t, s.finished(t, name, stream), response("8"))
	for _, reason := range []string{host.DropInvalid, host.DropTooLarge} {
		in.wantMetric(t, 1, "dropped_messages_total", reason)
	}
	stream, _ = s.request(t, name, "9", "stderr")
	s.finished(t, name, stream)
	s.post(t, name, "", `{"jsonrpc":"2.0","method":"answer","params":{"id":77}}`)
	waittest.Until(t, "a late response is counted", func() bool { return in.metric(t, "dropped_messages_total", host.DropLate) == 1 })
}

// The janitor closes sessions that ask for that, and a session that was closed elsewhere ends its process:
// see TestSession_ClosedElsewhere.
func TestProcess_SessionAsksToBeClosedWhenIdle(t *testing.T) {
	for idle, want := range map[flagtype.Duration]time.Duration{flagtype.Duration(10 * time.Minute): 10 * time.Minute, flagtype.Duration(1500 * time.Millisecond): time.Second, 0: 0, -1: 0} {
		s := newSystem(t, eventlog.Settings{})
		cfg := stdioConfig(t)
		cfg.ProcessIdleAfter = idle
		s.start(t, cfg)
		rec, err := s.b.Sessions.Get(waittest.Context(t), s.open(t))
		if err != nil || rec.Retention.IdleAfter != want {
			t.Errorf("%s: the session asks for %+v, %v", time.Duration(idle), rec.Retention, err)
		}
	}
}

func TestProcess_CommandIsNotAServer(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	for _, command := range []string{"/does/not/exist", "true"} {
		cfg := stdioConfig(t)
		cfg.UpstreamCommand = command
		in := s.start(t, cfg)
		a := s.opening(t)
		wantStatus(t, a, http.StatusBadGateway)
		wantErrorFor(t, a.Data, "0")
		in.stop()
	}
}

func TestRestart_SessionsOfEndedProcesses(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	must.Value(s.b.Sessions.Create(waittest.Context(t), session.New("s", "", json.RawMessage(`{"mcp":{"bridge":"test"}}`), time.Now())))(t)
	stream := newStream(t, "1")
	must.NoError(t, s.records(t).Put(waittest.Context(t), records.Key("s", stream), records.Record{}))
	s.start(t, stdioConfig(t))
	wantError(t, s.finished(t, "s", stream), 1, "1")
	s.wantState(t, "s", session.Closed)
}

func TestProcess_LineTooLong(t *testing.T) {
	l := upstream.NewLines(strings.NewReader("ab\n\n123456\n12345\nrest"), 5)
	var got []string
	var rest strings.Builder
	for {
		line, err := l.Next(func(part []byte) { rest.Write(part) })
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, upstream.ErrTooLarge) {
			line = []byte("too large")
		}
		got = append(got, string(line))
	}
	wantMessages(t, got, "ab", "", "too large", "12345")
	if rest.String() != "123456\n" {
		t.Errorf("the long line was %q", rest.String())
	}
}

// FuzzSkimmer compares the skimmer with a reader that keeps all of a message.
func FuzzSkimmer(f *testing.F) {
	for _, data := range []string{response(`"a\"b"`), note(1), `{"result":{"id":3},"jsonrpc":"2.0","id":7}`, `{"id":-1.5e3,"jsonrpc":"2.0","error":{"code":1,"message":"id"}}`, `{"id":1,"method":"m","jsonrpc":"2.0"}`} {
		f.Add([]byte(data), 3)
	}
	f.Fuzz(func(t *testing.T, data []byte, at int) {
		var s upstream.Skimmer
		at = min(max(at, 0), len(data))
		s.Add(data[:at])
		s.Add(data[at:])
		got := s.Response()
		m, err := rpc.ParseMessage(data)
		if err != nil || strings.Contains(string(data), `\u`) || len(m.ID) > upstream.SkimBytes {
			return // it only must not fail
		}
		want := ""
		if m.IsResponse() && string(m.ID) != "null" {
			want = rpc.IDKey(m.ID)
		}
		if got == nil && want != "" || got != nil && rpc.IDKey(got) != want {
			t.Errorf("%q is taken for the response to %q", data, got)
		}
	})
}

// M7: an MCP server of another user reads the bridge's files, and has the bridge's capabilities.
func TestAttackStdioServerReadsFiles(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must.NoError(t, os.WriteFile(secret, []byte("secret\n"), 0o600))
	s := newSystem(t, eventlog.Settings{})
	cfg := testConfig("")
	cfg.MaxProcesses = 1
	cfg.UpstreamCommand = "sh -c '" + `read -r request
		printf "{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{\"protocolVersion\":\"2025-11-25\",\"found\":\"%s\"}}\n" "$(id -u; id -g; id -G; echo $HOME; cat ` + secret + `; grep Cap /proc/self/status)" | tr "\n\t" "  "
		echo; cat >/dev/null` + "'"
	open := func() string {
		t.Helper()
		in := s.start(t, cfg)
		defer in.stop()
		a := s.do(t, rpc.Ask{Action: rpc.Open, Session: uuid.NewString(), Data: []byte(initialize)})
		var m struct{ Result struct{ Found string } }
		if err := json.Unmarshal(a.Data, &m); err != nil || a.Status != http.StatusOK {
			t.Fatalf("%d %s, %v", a.Status, a.Data, err)
		}
		return m.Result.Found
	}
	if found := open(); !strings.Contains(found, " secret ") {
		t.Errorf("a server of the bridge's own user has found %q", found)
	}
	cfg.UpstreamUser = "7654321:7654322"
	if !upstream.MaySwitchUser() {
		if _, err := New(cfg, s.b, daemon.NewEnv(nil)); err == nil || !strings.Contains(err.Error(), "CAP_SETUID") {
			t.Errorf("the error is %v", err)
		}
		return
	}
	found := open()
	if got := strings.Fields(found)[:4]; !slices.Equal(got, []string{"7654321", "7654322", "7654322", "/"}) {
		t.Errorf("it runs as %q", got)
	}
	if strings.Contains(found, "secret") || !strings.Contains(found, "CapPrm: 0000000000000000 CapEff: 0000000000000000") {
		t.Errorf("it has found %q", found)
	}
}
