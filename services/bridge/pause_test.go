package bridge

import (
	"bytes"
	"context"
	"math"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// pause stops a process, and returns when it has stopped.
func pause(t *testing.T, process *os.Process) {
	t.Helper()
	must.NoError(t, process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatal(status, err)
	}
}

// A bridge whose name was taken while it was paused ignores the messages of that time: a request, whose client
// has an error or has made it again, and a response, whose call the other bridge has ended.
func TestBridge_WakesWithoutItsName(t *testing.T) {
	t.Parallel()
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	finish, finished := make(chan struct{}), make(chan struct{})
	up.handle("slow", func(w *writing, _ *http.Request, m rpc.Message) {
		defer close(finished)
		w.stream()
		<-finish
		w.send("", note(1))
		w.send("", response(m.ID))
	})
	process, kill := s.startProcess(t, up.URL)
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "slow")
	s.isRecorded(t, name, stream)
	pause(t, process)
	close(finish)
	waittest.Receive(t, "the server has responded", finished)
	late, before := newStream(t, "2"), s.b.Conn.Stats().OutMsgs
	answers := make(chan rpc.Answer, 1)
	go func() {
		call := rpc.Ask{Action: rpc.Post, Session: name, Stream: late, Data: []byte(`{"jsonrpc":"2.0","id":2,"method":"late"}`)}
		a, err := call.Do(waittest.Context(t), s.b.Conn)
		if err != nil {
			t.Error(err)
		}
		answers <- a
	}()
	waittest.Until(t, "the request is sent", func() bool { return s.b.Conn.Stats().OutMsgs > before })
	must.NoError(t, s.b.Conn.FlushWithContext(waittest.Context(t))) // NATS has the request, and knows one bridge alone
	s.start(t, testConfig(up.URL), func(s *Service) { s.host.Times.Alive = time.Second })
	wantError(t, s.finished(t, name, stream), 1, "1")
	must.NoError(t, process.Signal(syscall.SIGCONT))
	wantStatus(t, waittest.Receive(t, "the request is answered", answers), http.StatusServiceUnavailable)
	must.Value(process.Wait())(t) // it ends by itself
	kill()
	up.wantPosted(t, 0, `"late"`)
	wantError(t, s.finished(t, name, stream), 1, "1")
}

// losesName lets a test take the name of a bridge. The bridge notices at its next look, as after a pause of its
// process: timers that ran out meanwhile fire before. looked receives a value at each look from then on.
func (in *instance) losesName() (lose func(), looked <-chan struct{}) {
	after, looked := in.losesNameAfter()
	return func() { after(0) }, looked
}

// losesNameAfter is losesName with a number of looks that still find the bridge's name.
func (in *instance) losesNameAfter() (lose func(looks int64), looked <-chan struct{}) {
	var left atomic.Int64
	left.Store(math.MaxInt64)
	looks := make(chan struct{}, 1)
	in.confirm.Store(new(func(context.Context) error {
		if left.Add(-1) >= 0 {
			return nil
		}
		select {
		case looks <- struct{}{}:
		default:
		}
		return host.ErrReplaced
	}))
	return left.Store, looks
}

// A bridge whose name was taken while it was paused sends nothing to the MCP server: the next bridge has the calls
// and the sessions whose timers run out in this one.
func TestBridge_TimersRunOutWithoutItsName(t *testing.T) {
	for name, expire := range map[string]func(*testing.T, *system, *server, *instance) (looked <-chan struct{}){
		"call-timeout": func(t *testing.T, s *system, up *server, in *instance) <-chan struct{} {
			up.onResume(func(_ *writing, r *http.Request) { <-r.Context().Done() })
			lose, looked := in.losesNameAfter()
			h := in.table.Session(s.ready(t))
			lose(1) // the stream is asked for
			h.ResumeAll(map[string]call.Cursor{newStream(t, "1"): {ID: "e1"}})
			return looked
		},
		"reconnect": func(t *testing.T, s *system, up *server, in *instance) <-chan struct{} {
			up.onResume(func(*writing, *http.Request) { t.Error("the server is asked for a stream of the next bridge") })
			lose, looked := in.losesName()
			h := in.table.Session(s.ready(t))
			lose()
			h.ResumeAll(map[string]call.Cursor{newStream(t, "1"): {ID: "e1"}})
			return looked
		},
		"listen": func(t *testing.T, s *system, up *server, in *instance) <-chan struct{} {
			lose, looked := in.losesName()
			asked := make(chan struct{}, 1)
			in.host.Times.After = func(time.Duration) <-chan time.Time { // the stream has ended
				lose()
				again := make(chan time.Time, 1)
				select {
				case asked <- struct{}{}:
					again <- time.Time{}
				default:
				}
				return again
			}
			var asks atomic.Int32
			up.onGet(func(w *writing, _ *http.Request) {
				if w.stream(); asks.Add(1) > 1 {
					t.Error("the server is asked for the stream of the next bridge")
				}
			})
			s.ready(t)
			return looked
		},
		"cancel-grace": func(t *testing.T, s *system, up *server, in *instance) <-chan struct{} {
			in.host.Times.Answer = 0
			up.hangs(mcp.MethodCallTool)
			lose, looked := in.losesName()
			c := s.accepted(t, "")
			waittest.Until(t, "the server has the request", func() bool { return up.posted(mcp.MethodCallTool) == 1 })
			s.do(t, rpc.Ask{Action: rpc.Cancel, Session: c.Session, Stream: c.Stream, Resumable: true})
			h := in.table.Session(c.Session)
			lose()
			waittest.Until(t, "the grace is over", func() bool { in.patrol(true); return h.HasEnded() })
			return looked
		},
		"session": func(t *testing.T, s *system, _ *server, in *instance) <-chan struct{} {
			lose, looked := in.losesName()
			h := in.table.Session(s.ready(t))
			lose()
			h.Finish(host.ErrEnded)
			return looked
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
			cfg := testConfig(up.URL)
			cfg.CallTimeout = flagtype.Duration(10 * time.Millisecond)
			in := s.start(t, cfg)
			waittest.Receive(t, "the bridge looks whose its name is", expire(t, s, up, in))
			in.stop()
			if cancelled, ended := up.posted(upstream.MethodCancelled), up.ended(); cancelled > 0 || len(ended) > 0 {
				t.Errorf("the server is told %d times that a request is cancelled, and to end the sessions %q", cancelled, ended)
			}
		})
	}
}

// A bridge that loses its name while the MCP server works opens no session in the log: no bridge would hold it.
func TestSession_OpenedWithoutTheName(t *testing.T) {
	for _, tt := range []struct {
		up     *server
		call   rpc.Ask
		status int
	}{
		{newServer(t), rpc.Ask{Action: rpc.Open, Session: uuid.NewString(), Data: []byte(initialize)}, http.StatusServiceUnavailable},
		{newStateless(t), toolCall(t, ""), http.StatusGatewayTimeout}, // the tool has begun
	} {
		s := newSystem(t, eventlog.Settings{})
		in := s.start(t, testConfig(tt.up.URL))
		lose, _ := in.losesName()
		tt.up.before(rpc.MethodInitialize, func() { lose() })
		tt.up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, _ rpc.Message) {
			lose()
			w.stream()
			w.send("", note(1))
		})
		wantStatus(t, s.do(t, tt.call), tt.status)
		in.stop()
		s.wantNoSession(t, tt.call.Session)
	}
}

// Nor does it change the metadata of a session, which is the next bridge's.
func TestSession_ChangedWithoutTheName(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, *system) (in *instance, session string, change func()){
		"task": func(t *testing.T, s *system) (*instance, string, func()) {
			cfg := taskConfig(slow(newStateless(t), nil, outcome).URL)
			cfg.TaskAfter = flagtype.Duration(time.Hour)
			in := s.start(t, cfg)
			c := s.accepted(t, tasks)
			up, ok := in.table.Session(c.Session).Upstream.(interface{ MakeTask() })
			if !ok {
				t.Fatal("the call can be no task")
			}
			return in, c.Session, up.MakeTask
		},
		"subscription": func(t *testing.T, s *system) (*instance, string, func()) {
			in := s.start(t, testConfig(withSubscriptions(t).URL))
			h := in.table.Session(s.open(t))
			c := rpc.Ask{Action: rpc.Post, Session: h.Name, Stream: newStream(t, "1"), Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"x:"}}`)}
			return in, h.Name, func() { h.Post(c) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t, eventlog.Settings{})
			in, session, change := begin(t, s)
			before := must.Value(s.b.Sessions.Get(waittest.Context(t), session))(t)
			lose, looked := in.losesName()
			lose()
			go change()
			waittest.Receive(t, "the bridge looks whose its name is", looked)
			in.stop()
			if after, err := s.b.Sessions.Get(waittest.Context(t), session); err != nil || string(after.Metadata) != string(before.Metadata) {
				t.Errorf("the registry has %s, and not %s (%v)", after.Metadata, before.Metadata, err)
			}
		})
	}
}

// A bridge that was paused gets a request and the edge's question about it at once, and may look at the
// question first: the call must not be reported as lost while it runs.
func TestCheck_RequestIsTakenMeanwhile(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	goOn := make(chan struct{})
	up.handle("slow", func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		select {
		case <-goOn:
			w.send("", response(m.ID))
		case <-r.Context().Done():
		}
	})
	stream := newStream(t, "1")
	asking, answer, once := make(chan struct{}), make(chan struct{}), sync.Once{}
	s.sending(func(data []byte) {
		if bytes.Contains(data, []byte(".=end."+event.Token(stream))) {
			once.Do(func() { close(asking); <-answer })
		}
	})
	in := s.start(t, testConfig(up.URL))
	h := in.table.Session(s.ready(t))
	checked := later(func() rpc.Answer { return h.Check(rpc.Ask{Action: rpc.Check, Session: h.Name, Stream: stream}) })
	waittest.Receive(t, "the log is asked for the call's end", asking)
	wantStatus(t, h.Post(rpc.Ask{Action: rpc.Post, Session: h.Name, Stream: stream, Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"slow"}`)}), http.StatusAccepted)
	close(answer)
	wantStatus(t, waittest.Receive(t, "the check is answered", checked), http.StatusAccepted)
	close(goOn)
	if all := s.finished(t, h.Name, stream); !slices.Equal(all, []string{response("1")}) {
		t.Errorf("the stream has %v", all)
	}
}

// After a pause a bridge checks its name before each message: a request may wait longer for that than an edge's
// question about it, which arrived later.
func TestCheck_RequestWaitsForTheName(t *testing.T) {
	s, up, in, name := begun(t)
	first, goOn, looked := make(chan struct{}), make(chan struct{}), atomic.Bool{}
	in.confirm.Store(new(func(ctx context.Context) error {
		if looked.CompareAndSwap(false, true) {
			close(first)
			<-goOn
		}
		return ctx.Err()
	}))
	stream := newStream(t, "1")
	answer := later(func() rpc.Answer { return s.post(t, name, stream, `{"jsonrpc":"2.0","id":1,"method":"quick"}`) })
	waittest.Receive(t, "the request waits", first)
	wantStatus(t, s.do(t, rpc.Ask{Action: rpc.Check, Session: name, Stream: stream}), http.StatusAccepted)
	close(goOn)
	wantStatus(t, waittest.Receive(t, "the request is answered", answer), http.StatusAccepted)
	if all := s.finished(t, name, stream); !slices.Equal(all, []string{response("1")}) || up.posted("quick") != 1 {
		t.Errorf("the stream has %v", all)
	}
}
