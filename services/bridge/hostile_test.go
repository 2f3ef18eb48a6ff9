package bridge

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/config"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestCloseSession_ServerHangs(t *testing.T) {
	s, up, _, name := begun(t)
	over := make(chan struct{})
	defer close(over)
	up.onDelete = func() { <-over }
	s.end(t, name)
	s.wantState(t, name, session.Closed)
}

func TestResume_BeforeFirstMessage(t *testing.T) {
	s, up, first := bridged(t, newServer(t))
	up.handle("prime", func(w *writing, r *http.Request, _ rpc.Message) {
		w.stream()
		w.send("primed", "")
		<-r.Context().Done()
	})
	up.onResume(func(w *writing, r *http.Request) {
		if id := r.Header.Get("Last-Event-ID"); id != "primed" {
			t.Errorf("the stream is resumed after %s", id)
		}
		w.send("end", response("1"))
	})
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "prime")
	waittest.Until(t, "the ID has come", func() bool {
		c := first.table.Session(name).Call(stream)
		return c != nil && c.Cursor().ID != ""
	})
	s.restart(t, first)
	wantMessages(t, s.finished(t, name, stream), response("1"))
}

func TestEventID_NotAHeaderValue(t *testing.T) {
	for _, id := range []string{strings.Repeat("x", 1<<20), "a\x01b", "a\x7f"} {
		s, up, in, name := begun(t)
		up.handle("bad", func(w *writing, _ *http.Request, _ rpc.Message) {
			w.stream()
			w.send(id, note(1))
		})
		stream, _ := s.request(t, name, "1", "bad")
		wantError(t, s.finished(t, name, stream), 2, "1")
		in.stop()
	}
}

func TestRedirect_POSTBecomesGET(t *testing.T) {
	s, up, _ := bridged(t, newServer(t))
	up.handle("moved", func(w *writing, r *http.Request, _ rpc.Message) {
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	})
	name := s.open(t)
	up.onGet(func(*writing, *http.Request) { t.Error("it was followed") })
	wantStatus(t, second(s.request(t, name, "1", "moved")), http.StatusBadGateway)
}

func TestOpenSession_TooLate(t *testing.T) {
	t.Parallel()
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.handle(rpc.MethodInitialize, func(w *writing, r *http.Request, _ rpc.Message) {
		w.Header().Set(upstream.HeaderSession, "left-behind")
		w.stream()
		<-r.Context().Done()
	})
	cfg := testConfig(up.URL)
	cfg.OpenTimeout = 6 * time.Second // the session has begun by then
	s.start(t, cfg)
	wantStatus(t, s.do(t, rpc.Ask{Action: rpc.Open, Session: "s", Data: []byte(initialize)}), http.StatusGatewayTimeout)
	waittest.Until(t, "it has ended", func() bool { return slices.Equal(up.ended(), []string{"left-behind"}) })
}

func TestProcess_EndsAfterInitialize(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	cfg := shellConfig(t, `read x; echo '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25"}}'`)
	s.start(t, cfg)
	for range 5 {
		s.wantState(t, s.open(t), session.Closed)
	}
}

func TestSessionID_Invalid(t *testing.T) {
	for _, id := range []string{"\xff", strings.Repeat("x", 100_000)} {
		s, up, in := bridged(t, newServer(t))
		up.handle(rpc.MethodInitialize, func(w *writing, _ *http.Request, m rpc.Message) {
			w.Header().Set(upstream.HeaderSession, id)
			w.json(response(string(m.ID)))
		})
		wantStatus(t, s.do(t, rpc.Ask{Action: rpc.Open, Session: "s", Data: []byte(initialize)}), http.StatusBadGateway)
		in.stop()
	}
}

// withoutID are errors of a server that could not read a request: with the ID null, as in JSON-RPC, and without the
// member, as in the schema of MCP 2026-07-28.
var withoutID = map[string]string{
	"null": `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`,
	"none": `{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}`,
}

// A response on the server's own stream is none to the call of a client without sessions.
func TestListen_Response(t *testing.T) {
	s, up, in := bridged(t, newEarlier(t))
	taken := make(chan struct{})
	up.onGet(func(w *writing, r *http.Request) {
		w.stream()
		w.send("", response(`"other"`))
		w.send("", withoutID["null"])
		w.send("", withoutID["none"])
		w.send("", `{"jsonrpc":"2.0","id":"p","method":"ping"}`)
		<-r.Context().Done()
	})
	up.onAnswer(func(rpc.Message) { close(taken) })
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		<-taken
		w.json(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"content":[]}}`)
	})
	wantHas(t, s.do(t, toolCall(t, asks)).Data, `"content":[]`)
	in.wantMetric(t, 3, "dropped_messages_total", host.DropLate)
}

// Some servers send the header of their own stream with its first message: a call whose client can be asked, and a
// request to listen, do not wait for that.
func TestListen_NoHeader(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
	s.start(t, testConfig(up.URL), soon)
	up.onGet(func(_ *writing, r *http.Request) { <-r.Context().Done() })
	wantHas(t, s.do(t, toolCall(t, asks)).Data, `"result"`)
	l := statelessCall(t, "1", mcp.MethodListen, `"notifications":{}`, "")
	s.do(t, l)
	s.listenedTo(t, l, 1)
}

// A server that cannot read a request has no ID to give its error: the one request of the POST is the one
// that it is about (JSON-RPC 2.0, section 5).
func TestResponse_ErrorWithoutID(t *testing.T) {
	for _, parseError := range withoutID {
		for _, to := range []func(*writing, string){(*writing).json, func(w *writing, data string) {
			w.stream()
			w.send("", data)
		}} {
			s, up, in, session := begun(t)
			up.handle("bad", func(w *writing, _ *http.Request, _ rpc.Message) { to(w, parseError) })
			stream, _ := s.request(t, session, "1", "bad")
			all := s.finished(t, session, stream)
			wantError(t, all, 1, "1")
			wantHas(t, all[0], `"Parse error"`)
			in.stop()
		}
	}
}

// The same for calls of clients without sessions, before a server of their revision and before another.
func TestStateless_ErrorWithoutID(t *testing.T) {
	for _, parseError := range withoutID {
		eachEra(t, func(t *testing.T, _ string, up *server) {
			s, _, _ := bridged(t, up)
			up.handle("tools/list", func(w *writing, _ *http.Request, _ rpc.Message) { w.json(parseError) })
			want := `{"error":{"code":-32700,"message":"Parse error"},"id":7,"jsonrpc":"2.0"}`
			wantMessages(t, []string{string(s.do(t, statelessCall(t, "7", "tools/list", "", "")).Data)}, want)
		})
	}
}

// The same for initialize, and for a process.
func TestResponse_ErrorWithoutIDElsewhere(t *testing.T) {
	for name, parseError := range withoutID {
		t.Run(name, func(t *testing.T) {
			s, up, in := bridged(t, newServer(t))
			up.handle(rpc.MethodInitialize, func(w *writing, r *http.Request, _ rpc.Message) {
				w.stream()
				w.send("", parseError)
				<-r.Context().Done()
			})
			want := `{"error":{"code":-32700,"message":"Parse error"},"id":0,"jsonrpc":"2.0"}`
			wantMessages(t, []string{string(s.opening(t).Data)}, want)
			in.stop()
			in = s.start(t, shellConfig(t, `read x; echo '`+parseError+`'; read x`))
			wantMessages(t, []string{string(s.opening(t).Data)}, want)
			in.stop()
			s.start(t, shellConfig(t, initializes+`; read x; echo '`+parseError+`'; read x`))
			session := s.open(t)
			stream, _ := s.request(t, session, "1", "bad")
			wantMessages(t, s.finished(t, session, stream), strings.Replace(want, `"id":0`, `"id":1`, 1))
		})
	}
}

// shellConfig is for a server that is a command of a shell.
func shellConfig(t *testing.T, command string) config.Config {
	t.Helper()
	cfg := stdioConfig(t)
	cfg.UpstreamCommand = fmt.Sprintf("sh -c %q", command)
	return cfg
}

// initializes is a shell's response to initialize.
var initializes = `read x; echo '` + strings.Replace(response("0"), "{}", `{"protocolVersion":"2025-11-25"}`, 1) + `'`

// An error without an ID may be about a notification.
func TestResponse_ErrorAboutANotification(t *testing.T) {
	for name, parseError := range withoutID {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t, eventlog.Settings{})
			cfg := shellConfig(t, initializes+`; read x; read x; echo '`+parseError+`'; echo '`+response("1")+`'; read x`)
			s.start(t, cfg)
			session := s.open(t)
			stream, _ := s.request(t, session, "1", "long")
			wantStatus(t, s.post(t, session, "", `{"jsonrpc":"2.0","method":"notifications/x"}`), http.StatusAccepted)
			wantMessages(t, s.finished(t, session, stream), response("1"))
		})
	}
}

// soon shortens all pauses to a millisecond.
func soon(s *Service) {
	s.host.Times.After = func(time.Duration) <-chan time.Time { return time.After(time.Millisecond) }
}

// The bridge continues to listen to a server that has forgotten the event of its cursor: the Go SDK answers 400. The
// server replays nothing then, so a message that the log has already is a new one.
func TestListen_EventIsForgotten(t *testing.T) {
	s, up, first := bridged(t, newServer(t))
	up.onGet(func(w *writing, r *http.Request) {
		if r.Header.Get("Last-Event-ID") != "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.stream()
		w.send(uuid.NewString(), note(1))
		<-r.Context().Done()
	})
	name := s.ready(t)
	noted := func(n int) {
		t.Helper()
		s.has(t, name, rpc.Standalone, n)
	}
	noted(1)
	first.stop()
	// As if the bridge had died before it wrote down its event ID.
	must.Value(s.b.Log.Publish(waittest.Context(t), eventlog.Event{Session: name, Life: s.lifeOf(t, name), Stream: rpc.Standalone, Data: []byte(note(1))}))(t)
	s.start(t, testConfig(up.URL), soon)
	noted(3)
}

// Some servers have no route for GET, which their framework answers with 404; MCP wants 405. The session has ended
// when the server does not know a stream any more that was open.
func TestListen_NotFound(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	in := s.start(t, testConfig(up.URL), soon)
	h := in.table.Session(s.open(t))
	var gets atomic.Int32
	var early atomic.Bool // the session had ended before there was a stream
	up.onGet(func(w *writing, _ *http.Request) {
		if gets.Add(1) == 2 {
			early.Store(h.HasEnded())
			w.stream()
		} else {
			w.WriteHeader(http.StatusNotFound)
		}
	})
	h.Upstream.Listen(t.Context(), call.NewStandalone(h.Scope, nil), func() http.Header { return nil })
	if early.Load() || !h.HasEnded() || gets.Load() != 3 {
		t.Errorf("ended before there was a stream: %t, after it: %t, with %d requests", early.Load(), h.HasEnded(), gets.Load())
	}
}
