package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/translate"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/racetest"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// statelessCall returns a call of a client without sessions.
func statelessCall(t testing.TB, id, method, params, meta string) rpc.Ask {
	t.Helper()
	if meta == "" {
		meta = `"io.modelcontextprotocol/clientCapabilities":{}`
	}
	if params != "" {
		params += ","
	}
	data := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",%s}}}`, id, method, params, meta)
	return rpc.Ask{
		Action: rpc.Request, Session: uuid.NewString(), Life: session.NewLife(), Stream: newStream(t, id), Data: []byte(data),
		Header: http.Header{mcp.HeaderVersion: {mcp.Stateless}, mcp.HeaderMethod: {method}, "Mcp-Param-Region": {"north"}},
	}
}

// question is one of a server to the client during a call.
const question = `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`

// toolCall returns a call of the tool x.
func toolCall(t testing.TB, meta string) rpc.Ask {
	t.Helper()
	return statelessCall(t, "1", mcp.MethodCallTool, `"name":"x"`, meta)
}

// accepted makes a call of the tool x, whose messages are stored in the log.
func (s *system) accepted(t testing.TB, meta string) rpc.Ask {
	t.Helper()
	c := toolCall(t, meta)
	wantStatus(t, s.do(t, c), http.StatusAccepted)
	return c
}

// asks is a client's _meta that lets a server ask.
const asks = `"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"progressToken":"mine"`

// newStateless returns a server that speaks the revision without sessions.
func newStateless(t testing.TB) *server {
	t.Helper()
	s := newServer(t)
	s.responds(mcp.MethodDiscover, `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}`)
	s.handle(rpc.MethodInitialize, func(w *writing, _ *http.Request, m rpc.Message) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"x","data":{"supported":["2026-07-28"]}}}`, m.ID)
	})
	return s
}

// newEarlier returns a server with sessions, which refuses server/discover.
func newEarlier(t testing.TB) *server {
	t.Helper()
	s := newServer(t)
	s.handle(mcp.MethodDiscover, func(w *writing, _ *http.Request, _ rpc.Message) { w.WriteHeader(http.StatusBadRequest) })
	return s
}

// eachEra runs a test before a server of each era.
func eachEra(t *testing.T, test func(t *testing.T, era string, up *server)) {
	for era, newServer := range map[string]func(testing.TB) *server{"stateless": newStateless, "earlier": newEarlier} {
		t.Run(era, func(t *testing.T) { test(t, era, newServer(t)) })
	}
}

// wantNoSession expects that a session neither is nor was in the log.
func (s *system) wantNoSession(t testing.TB, name string) {
	t.Helper()
	if _, err := s.b.Sessions.Get(waittest.Context(t), name); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("the session is in the log: %v", err)
	}
}

func TestStateless_QuickCallLeavesNothingInTheLog(t *testing.T) {
	eachEra(t, func(t *testing.T, _ string, up *server) {
		s, _, _ := bridged(t, up)
		up.responds("tools/list", `"result":{"tools":[]}`)
		c := statelessCall(t, "7", "tools/list", "", "")
		wantStatus(t, s.do(t, c), http.StatusOK, `"id":7`, `"tools":[]`)
		s.wantNoSession(t, c.Session)
	})
}

// Errors have the status that the revision requires, whatever that of the server.
func TestStateless_Error(t *testing.T) {
	s, up, _ := bridged(t, newEarlier(t))
	up.responds(mcp.MethodRead, `"error":{"code":-32002,"message":"none","data":{"uri":"x:"}}`)
	up.handle("other/method", func(w *writing, _ *http.Request, _ rpc.Message) { w.WriteHeader(http.StatusBadRequest) })
	for _, tt := range []struct {
		method, params string
		status         int
		want           string
	}{
		{mcp.MethodRead, `"uri":"x:"`, http.StatusOK, `"error":{"code":-32602,"message":"none","data":{"uri":"x:"}}`},
		{"other/method", "", http.StatusNotFound, `"code":-32601`},
	} {
		wantStatus(t, s.do(t, statelessCall(t, `"a"`, tt.method, tt.params, "")), tt.status, tt.want, `"id":"a"`)
	}
}

// A call that has reached the server, and whose session cannot be stored, is not refused with 503: a client that
// repeats it would have it done twice.
func TestStateless_CallThatCannotBeStored(t *testing.T) {
	s, up, _ := bridged(t, newStateless(t))
	up.hangs(mcp.MethodCallTool, note(1))
	c := statelessCall(t, "7", mcp.MethodCallTool, `"name":"x"`, "")
	must.Value(s.b.Sessions.Create(waittest.Context(t), session.New(c.Session, "", nil, time.Now())))(t)
	a := s.do(t, c)
	wantUnknown(t, a)
	wantHas(t, a.Data, `"id":7`)
}

// Nor is a call whose bridge stops meanwhile, unless the server does not have it yet, or does nothing for it.
func TestStateless_BridgeStopsDuringACall(t *testing.T) {
	stateless, earlier := newStateless(t), newEarlier(t)
	for _, tt := range []struct {
		up            *server
		method, hangs string
		want          func(testing.TB, rpc.Answer)
	}{
		{stateless, mcp.MethodCallTool, mcp.MethodCallTool, wantUnknown},
		{earlier, mcp.MethodCallTool, mcp.MethodCallTool, wantUnknown},
		{stateless, mcp.MethodDiscover, mcp.MethodDiscover, wantBusy},
		{stateless, mcp.MethodListen, mcp.MethodListen, wantBusy},
		{earlier, mcp.MethodCallTool, rpc.MethodInitialize, wantBusy},
	} {
		s := newSystem(t, eventlog.Settings{})
		in := s.start(t, testConfig(tt.up.URL))
		in.server.SetEra(tt.up == stateless, time.Hour)
		begun := make(chan struct{})
		tt.up.handle(tt.hangs, func(_ *writing, r *http.Request, _ rpc.Message) {
			close(begun)
			<-r.Context().Done()
		})
		answer := later(func() rpc.Answer {
			return s.do(t, statelessCall(t, "7", tt.method, `"name":"x","notifications":{}`, ""))
		})
		waittest.Receive(t, "the server has the request", begun)
		in.stop()
		a := waittest.Receive(t, "the client is answered", answer)
		tt.want(t, a)
		wantHas(t, a.Data, `"id":7`)
	}
}

// The response to server/discover names the revisions that Rejoin speaks. A result that is no object is passed on.
func TestStateless_Discover(t *testing.T) {
	s, up, _ := bridged(t, newStateless(t))
	wantHas(t, s.do(t, statelessCall(t, "1", mcp.MethodDiscover, "", "")).Data, `"supportedVersions":["2026-07-28","2025-11-25"`, `"name":"s"`)
	up.responds(mcp.MethodDiscover, `"result":null`)
	wantStatus(t, s.do(t, statelessCall(t, "2", mcp.MethodDiscover, "", "")), http.StatusOK, `"id":2`)
}

// A response to server/discover that breaks off says nothing of the revisions that the server speaks.
func TestEra_DiscoverBreaksOff(t *testing.T) {
	s, up, _ := bridged(t, newStateless(t))
	discover := up.on[mcp.MethodDiscover]
	var asked atomic.Int64
	up.handle(mcp.MethodDiscover, func(w *writing, r *http.Request, m rpc.Message) {
		if asked.Add(1) > 1 {
			discover(w, r, m)
			return
		}
		w.json(`{"jsonrpc":"2.0","id":`)
		w.flush()
		panic(http.ErrAbortHandler)
	})
	wantStatus(t, s.do(t, statelessCall(t, "1", "tools/list", "", "")), http.StatusBadGateway)
	wantStatus(t, s.do(t, statelessCall(t, "2", "tools/list", "", "")), http.StatusOK)
}

// A server that refuses initialize is asked again for its revisions.
func TestEra_InitializeRefused(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	in := s.start(t, testConfig(newStateless(t).URL))
	takenForEarlier := func() { in.server.SetEra(false, time.Hour) }
	takenForEarlier()
	wantHas(t, s.do(t, statelessCall(t, "1", "tools/list", "", "")).Data, `"id":1`)
	wantStatus(t, s.do(t, statelessCall(t, "2", "tools/list", "", "")), http.StatusOK)
	takenForEarlier()
	s.open(t)
}

// A call with more than a response has a session of its own in the log, which ends with it.
func TestStateless_CallWithProgress(t *testing.T) {
	eachEra(t, func(t *testing.T, era string, up *server) {
		s, _, _ := bridged(t, up)
		var header http.Header
		up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
			header = r.Header
			w.stream()
			w.progress("", m)
			w.result("", m)
		})
		c := s.accepted(t, asks)
		wantParts(t, s.finished(t, c.Session, c.Stream), `"progressToken":"mine"`, `"id":1`)
		s.wantState(t, c.Session, session.Closed)
		if life := s.lifeOf(t, c.Session); life != c.Life {
			t.Errorf("the life is %s, not the edge's %s", life, c.Life)
		}
		if got := header.Get("Mcp-Param-Region"); (got == "north") != (era == "stateless") {
			t.Errorf("the server has the client's field as %q", got)
		}
		if era == "earlier" { // a moment after the log's session
			waittest.Until(t, "the server's session is ended", func() bool { return len(up.ended()) == 1 })
		} else if n := len(up.ended()); n != 0 {
			t.Errorf("%d sessions were ended", n)
		}
	})
}

// The session of a single call is no session of a client: it takes no messages. Its name is part of the name
// of its task.
func TestStateless_PostToItsSession(t *testing.T) {
	eachEra(t, func(t *testing.T, _ string, up *server) {
		s, _, _ := bridged(t, up)
		release := make(chan struct{})
		up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
			w.stream()
			w.progress("", m)
			<-release
			w.result("", m)
		})
		c := s.accepted(t, asks)
		for _, body := range []string{
			`{"jsonrpc":"2.0","id":2,"method":"echo/more"}`, `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":"q","result":{}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		} {
			wantStatus(t, s.post(t, c.Session, newStream(t, "2"), body), http.StatusNotFound)
		}
		up.wantPosted(t, 0, "echo/more")
		close(release)
		wantParts(t, s.finished(t, c.Session, c.Stream), "", `"content":[]`)
	})
}

// A notification that the log does not take is left out, and the call continues.
func TestStateless_NotificationIsTooLarge(t *testing.T) {
	eachEra(t, func(t *testing.T, _ string, up *server) {
		s := newSystem(t, eventlog.Settings{MaxMessageBytes: 4096})
		in := s.start(t, testConfig(up.URL))
		up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
			w.stream()
			w.send("", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"message":"`+strings.Repeat("x", 8000)+`","progressToken":`+string(m.Param("_meta", "progressToken"))+`}}`)
			w.result("", m)
		})
		c := s.accepted(t, asks)
		wantParts(t, s.finished(t, c.Session, c.Stream), `"content":[]`)
		in.wantMetric(t, 1, "dropped_messages_total", host.DropTooLarge)
	})
}

// Where calls have taken their share of the sessions, a call continues without the log, and the messages
// before its response are left out.
func TestStateless_TooManySessions(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	up := newEarlier(t)
	cfg := testConfig(up.URL)
	cfg.Sessions.MaxSessions = 3
	s.start(t, cfg)
	s.open(t)
	s.open(t)
	up.reports()
	c := toolCall(t, asks)
	wantStatus(t, s.do(t, c), http.StatusOK, `"content":[]`)
	s.wantNoSession(t, c.Session)
	wantStatus(t, s.do(t, statelessCall(t, "2", mcp.MethodListen, `"notifications":{}`, "")), http.StatusTooManyRequests, `"id":2`)
	s.open(t) // there is room for a client with a session
}

// A request that is refused since it can have no session ends at the MCP server too.
func TestStateless_RefusedIsEnded(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newStateless(t)
	cfg := testConfig(up.URL)
	cfg.Sessions.MaxSessions = 3
	in := s.start(t, cfg)
	in.host.Times.Answer = 0
	s.open(t)
	s.open(t)
	up.handle(mcp.MethodListen, func(_ *writing, r *http.Request, _ rpc.Message) { <-r.Context().Done() })
	c := statelessCall(t, "1", mcp.MethodListen, `"notifications":{}`, "")
	wantStatus(t, s.do(t, c), http.StatusTooManyRequests)
	waittest.Until(t, "the request is not open any more", func() bool { return in.metric(t, "calls") == 0 })
	s.wantNoSession(t, c.Session)
}

// A quick result that NATS does not carry is an error for its request.
func TestStateless_ResultIsTooLarge(t *testing.T) {
	eachEra(t, func(t *testing.T, _ string, up *server) {
		s, _, _ := bridged(t, up)
		up.responds(mcp.MethodCallTool, `"result":{"content":[{"type":"text","text":"`+strings.Repeat("x", 9<<20)+`"}]}`)
		wantHas(t, s.do(t, toolCall(t, asks)).Data, `"id":1,"error"`, "--max-message-bytes")
	})
}

// A client that disconnects cancels its call: the connection to a server of its revision ends, and another
// server is notified.
func TestStateless_ClientGoes(t *testing.T) {
	eachEra(t, func(t *testing.T, era string, up *server) {
		s, _, _ := bridged(t, up)
		gone := make(chan struct{})
		up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
			w.stream()
			w.progress("", m)
			<-r.Context().Done()
			close(gone)
		})
		c := s.accepted(t, asks)
		s.do(t, rpc.Ask{Action: rpc.Cancel, Session: c.Session, Stream: c.Stream})
		waittest.Receive(t, "the server's request has ended", gone)
		s.wantState(t, c.Session, session.Closed)
		if era == "earlier" {
			up.wantPosted(t, 1, "notifications/cancelled")
		}
	})
}

// looks notes as many looks at a session as there are in a while.
func looks(h *sessions.Session, d time.Duration) {
	for range d / sessions.LookEvery {
		h.CountLook(true)
	}
}

// Where a client may reconnect its call continues for the grace: until that is over, or the client
// makes the call again, or an edge asks about it.
func TestStateless_ClientMayComeBack(t *testing.T) {
	for _, end := range []string{"grace", "again", "asked"} {
		s, up, in := bridged(t, newStateless(t))
		gone := make(chan struct{})
		up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
			w.stream()
			w.send("", note(1))
			if string(m.ID) == "2" { // the call that is made again
				return
			}
			<-r.Context().Done()
			close(gone)
		})
		c := s.accepted(t, "")
		s.do(t, rpc.Ask{Action: rpc.Cancel, Session: c.Session, Stream: c.Stream, Resumable: true})
		h := in.table.Session(c.Session)
		if !h.Demand.HasLeft() {
			t.Error("the call does not wait for its client")
		}
		switch end {
		case "again":
			again := c
			again.Session, again.Life, again.Stream = uuid.NewString(), session.NewLife(), newStream(t, "2")
			again.Data = []byte(strings.Replace(string(c.Data), `"id":1`, `"id":2`, 1))
			other := again
			other.Session, other.Life, other.Stream = uuid.NewString(), session.NewLife(), newStream(t, "2")
			other.Data = []byte(strings.Replace(string(again.Data), `"_meta":{`, `"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"other","version":"1"},`, 1))
			s.do(t, other)
			if h.HasEnded() {
				t.Error("another client has ended the call")
			}
			s.do(t, again)
		case "asked":
			looks(h, in.host.Config.CancelGrace)
			s.do(t, rpc.Ask{Action: rpc.Check, Session: c.Session, Stream: c.Stream})
			if h.Demand.HasLeft() || h.IsOrphaned() {
				t.Error("the call is cancelled")
			}
			continue
		case "grace":
			waittest.Until(t, "the call has ended", func() bool { in.patrol(true); return in.table.Session(c.Session) == nil })
		}
		waittest.Receive(t, end+": the server's request has ended", gone)
		s.wantState(t, c.Session, session.Closed)
	}
}

// An edge may notice late that a connection is dead, whose client has reconnected at another edge meanwhile.
func TestStateless_OldConnectionEndsLate(t *testing.T) {
	s, up, in := bridged(t, newStateless(t))
	gone := up.hangs(mcp.MethodCallTool, note(1))
	c := s.accepted(t, "")
	first := time.Now()
	second := first.Add(time.Minute)
	about := func(action rpc.Action, since time.Time) {
		t.Helper()
		wantStatus(t, s.do(t, rpc.Ask{Action: action, Session: c.Session, Stream: c.Stream, Since: since, Resumable: action == rpc.Cancel}), http.StatusAccepted)
	}
	about(rpc.Check, first)
	about(rpc.Check, second)
	about(rpc.Check, first) // the edge does not know yet
	h := in.table.Session(c.Session)
	waits := func(want bool, after string) {
		t.Helper()
		if h.Demand.HasLeft() != want {
			t.Errorf("the call waits for its client: %t, after %s", !want, after)
		}
	}
	about(rpc.Cancel, first)
	waits(false, "the end of the old connection")
	about(rpc.Cancel, second)
	waits(true, "the end of the new one")
	about(rpc.Check, second)
	waits(false, "a question")
	about(rpc.Cancel, time.Time{}) // of an edge that does not report when the connection began
	waits(true, "the end of any connection")
	waittest.Until(t, "the call has ended", func() bool { in.patrol(true); return in.table.Session(c.Session) == nil })
	waittest.Receive(t, "the server's request has ended", gone)
}

// A bridge with too much to do for a question about a call notes all the same that the client waits.
func TestStateless_AskedWithTooMuchToDo(t *testing.T) {
	s, up, in := bridged(t, newStateless(t))
	up.hangs(mcp.MethodCallTool, note(1))
	c := s.accepted(t, "")
	s.do(t, rpc.Ask{Action: rpc.Cancel, Session: c.Session, Stream: c.Stream, Resumable: true})
	waittest.Until(t, "all places are taken", func() bool { return in.handling.Take("", in.handling.Capacity()) })
	wantBusy(t, s.do(t, rpc.Ask{Action: rpc.Check, Session: c.Session, Stream: c.Stream}))
	wantStatus(t, s.do(t, toolCall(t, "")), http.StatusServiceUnavailable, `"id":1`)
	if in.table.Session(c.Session).Demand.HasLeft() {
		t.Error("the call waits for its client")
	}
	in.handling.Give("", in.handling.Capacity())
}

// A client that answers a question is connected, however long it took.
func TestStateless_ClientAnswersLate(t *testing.T) {
	s, up, in := bridged(t, asker(t))
	in.host.Times.Answer = 0
	up.hangs(mcp.MethodCallTool, question)
	c := toolCall(t, asks)
	r, _ := s.ask(t, c)
	h := in.table.Session(c.Session)
	s.do(t, rpc.Ask{Action: rpc.Cancel, Session: c.Session, Stream: c.Stream, Resumable: true})
	if looks(h, time.Hour); h.IsOrphaned() {
		t.Fatal("a call that waits for its client is cancelled")
	}
	wantStatus(t, s.do(t, repeated(t, c, "2", r, `{"action":"accept"}`)), http.StatusAccepted)
	if h.Ctx.Err() != nil || h.IsOrphaned() {
		t.Error("a call is cancelled whose client has just answered")
	}
}

// asker is a server with sessions that asks twice while it works on a call, and answers with the
// client's answers.
func asker(t testing.TB) *server {
	t.Helper()
	up := newEarlier(t)
	var mu sync.Mutex
	answers := map[string]chan string{}
	answer := func(id string) chan string {
		mu.Lock()
		defer mu.Unlock()
		if answers[id] == nil {
			answers[id] = make(chan string, 1)
		}
		return answers[id]
	}
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		var told []string
		for n := range 2 {
			id := uuid.NewString()
			w.send("", fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"elicitation/create","params":{"about":%s,"round":%d}}`, id, m.Param("arguments"), n))
			select {
			case a := <-answer(id):
				told = append(told, a)
			case <-r.Context().Done():
				return
			}
		}
		text, _ := json.Marshal(strings.Join(told, " "))
		w.send("", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`, m.ID, text))
	})
	up.onAnswer(func(m rpc.Message) {
		var id string
		_ = json.Unmarshal(m.ID, &id)
		answer(id) <- string(m.Result)
	})
	return up
}

// required is a result that asks.
type required struct {
	Result struct {
		ResultType    string                        `json:"resultType"`
		InputRequests map[string]translate.Question `json:"inputRequests"`
		RequestState  string                        `json:"requestState"`
	} `json:"result"`
}

// ask makes a call, and returns its questions.
func (s *system) ask(t testing.TB, c rpc.Ask) (required, rpc.Answer) {
	t.Helper()
	a := s.do(t, c)
	data := a.Data
	if a.Status == http.StatusAccepted {
		all := s.finished(t, c.Session, c.Stream)
		data = []byte(all[len(all)-1])
	}
	var r required
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return r, rpc.Answer{Status: a.Status, Data: data}
}

// repeated returns a call that is made again, with an answer to each question.
func repeated(t testing.TB, c rpc.Ask, id string, r required, answer string) rpc.Ask {
	t.Helper()
	state, ours, err := mcp.ParseState(r.Result.RequestState)
	if err != nil || !ours {
		t.Fatalf("the state is %q", r.Result.RequestState)
	}
	answers := map[string]json.RawMessage{}
	for key := range r.Result.InputRequests {
		answers[key] = json.RawMessage(answer)
	}
	var m struct {
		Method string                     `json:"method"`
		Params map[string]json.RawMessage `json:"params"`
	}
	must.NoError(t, json.Unmarshal(c.Data, &m))
	m.Params["requestState"], m.Params["inputResponses"] = event.MustJSON(r.Result.RequestState), event.MustJSON(answers)
	c.Session, c.Life, c.Stream, c.Held = state.Session, state.Life, newStream(t, id), true
	c.Data = translate.Message(map[string]any{"id": json.RawMessage(id), "method": m.Method, "params": m.Params})
	return c
}

func TestTranslated_ServerAsks(t *testing.T) {
	s, up, _ := bridged(t, asker(t))
	c := statelessCall(t, "1", mcp.MethodCallTool, `"name":"x","arguments":{"n":5}`, asks)
	first, _ := s.ask(t, c)
	if first.Result.ResultType != "input_required" || len(first.Result.InputRequests) != 1 {
		t.Fatalf("the result is %+v", first)
	}
	for _, q := range first.Result.InputRequests {
		if q.Method != translate.MethodElicit || string(q.Params) != `{"about":{"n":5},"round":0}` {
			t.Errorf("the question is %s %s", q.Method, q.Params)
		}
	}
	second, _ := s.ask(t, repeated(t, c, "2", first, `{"action":"accept"}`))
	if second.Result.ResultType != "input_required" || second.Result.RequestState == first.Result.RequestState {
		t.Fatalf("the second result is %+v", second)
	}
	// Answers that were taken before are not taken again: the client receives the same question.
	same, _ := s.ask(t, repeated(t, c, "3", first, `{"action":"decline"}`))
	if len(same.Result.InputRequests) != 1 {
		t.Fatalf("the third result is %+v", same)
	}
	_, last := s.ask(t, repeated(t, c, "4", same, `{"action":"cancel"}`))
	wantHas(t, last.Data, `{\"action\":\"accept\"} {\"action\":\"cancel\"}`, `"id":4`)
	up.wantPosted(t, 1, "tools/call")
}

// Of two requests that repeat a call the newer one gets the response. The other one ends at once.
func TestTranslated_RepeatedTwice(t *testing.T) {
	s, up, in := bridged(t, newEarlier(t))
	release := make(chan struct{})
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		w.ask("", "q")
		select {
		case <-release:
			w.result("", m)
		case <-r.Context().Done():
		}
	})
	c := toolCall(t, asks)
	asked, _ := s.ask(t, c)
	earlier, newer := repeated(t, c, "2", asked, `{}`), repeated(t, c, "3", asked, `{}`)
	h := in.table.Session(earlier.Session)
	first := later(func() rpc.Answer { return s.do(t, earlier) })
	waittest.Until(t, "the server has the answer", func() bool { return up.posted(`"id":"q"`) == 1 })
	second := later(func() rpc.Answer { return s.do(t, newer) })
	wantStatus(t, waittest.Receive(t, "the earlier request is answered", first), http.StatusConflict, `"id":2`)
	close(release)
	wantStatus(t, waittest.Receive(t, "the newer request is answered", second), http.StatusOK, `"content":[]`, `"id":3`)
	waittest.Until(t, "the call is over", h.HasEnded)
}

// A notification of progress has the token of the request that waits, which need not be the first one's.
func TestTranslated_ProgressOfARepeatedRequest(t *testing.T) {
	s, up, _ := bridged(t, newEarlier(t))
	answered := make(chan struct{})
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		w.stream()
		w.ask("", "q")
		<-answered
		w.progress("", m)
		w.result("", m)
	})
	up.onAnswer(func(rpc.Message) { close(answered) })
	c := toolCall(t, asks)
	asked, _ := s.ask(t, c)
	c = repeated(t, c, "2", asked, `{"action":"accept"}`)
	c.Data = bytes.Replace(c.Data, []byte(`"mine"`), []byte(`"another"`), 1)
	wantStatus(t, s.do(t, c), http.StatusAccepted)
	wantParts(t, s.finished(t, c.Session, c.Stream), `"progressToken":"another"`, "")
}

// The state of a call belongs to its client, for the same request.
func TestTranslated_StateOfAnother(t *testing.T) {
	s, _, _ := bridged(t, asker(t))
	c := statelessCall(t, "1", mcp.MethodCallTool, `"name":"x","arguments":{"n":5}`, asks)
	c.Owner = "anna"
	asked, _ := s.ask(t, c)
	for name, change := range map[string]func(*rpc.Ask){
		"user":      func(c *rpc.Ask) { c.Owner = "berta" },
		"anonymous": func(c *rpc.Ask) { c.Owner = "" },
		"arguments": func(c *rpc.Ask) { c.Data = []byte(strings.Replace(string(c.Data), `"n":5`, `"n":6`, 1)) },
		"method":    func(c *rpc.Ask) { c.Data = []byte(strings.Replace(string(c.Data), "tools/call", "prompts/get", 1)) },
		"more":      func(c *rpc.Ask) { c.Data = []byte(strings.Replace(string(c.Data), `"name"`, `"more":1,"name"`, 1)) },
		"round": func(c *rpc.Ask) {
			c.Data = []byte(strings.Replace(string(c.Data), asked.Result.RequestState, asked.Result.RequestState+"X", 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			again := repeated(t, c, "2", asked, `{}`)
			change(&again)
			wantStatus(t, s.do(t, again), http.StatusBadRequest, "-32602", `"id":2`)
		})
	}
	if next, _ := s.ask(t, repeated(t, c, "2", asked, `{}`)); next.Result.ResultType != "input_required" {
		t.Errorf("the client itself is answered %+v", next)
	}
}

// Each prompt and each answer reaches its own call.
func TestTranslated_ManyAreAskedAtOnce(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	up := asker(t)
	cfg := testConfig(up.URL)
	cfg.MaxCalls = 100_000
	s.start(t, cfg)
	calls := 300 / racetest.Slowdown
	var all sync.WaitGroup
	for n := range calls {
		all.Go(func() {
			c := statelessCall(t, "1", mcp.MethodCallTool, fmt.Sprintf(`"name":"x","arguments":{"n":%d}`, n), asks)
			c.Owner = []string{"anna", "berta", ""}[n%3]
			for round := range 2 {
				r, _ := s.ask(t, c)
				for _, q := range r.Result.InputRequests {
					if want := fmt.Sprintf(`{"about":{"n":%d},"round":%d}`, n, round); string(q.Params) != want {
						t.Errorf("call %d is asked %s", n, q.Params)
					}
				}
				c = repeated(t, c, fmt.Sprint(round+2), r, fmt.Sprintf(`{"n":%d,"round":%d}`, n, round))
			}
			_, last := s.ask(t, c)
			wantHas(t, last.Data, fmt.Sprintf(`{\"n\":%d,\"round\":0} {\"n\":%d,\"round\":1}`, n, n))
		})
	}
	all.Wait()
	up.wantPosted(t, calls, "tools/call")
}

// An answer that the server did not get is sent again: the server waits for it.
func TestTranslated_ServerIsAwayForAnAnswer(t *testing.T) {
	s, up, _ := bridged(t, asker(t))
	take := up.on[""]
	var tries atomic.Int64
	up.handle("", func(w *writing, r *http.Request, m rpc.Message) {
		if m.IsResponse() && tries.Add(1) == 1 { // and no look whether the server is there
			panic(http.ErrAbortHandler)
		}
		take(w, r, m)
	})
	c := statelessCall(t, "1", mcp.MethodCallTool, `"name":"x","arguments":{"n":5}`, asks)
	first, _ := s.ask(t, c)
	second, _ := s.ask(t, repeated(t, c, "2", first, `{"action":"accept"}`))
	if second.Result.ResultType != "input_required" || tries.Load() != 2 {
		t.Errorf("after %d tries: %+v", tries.Load(), second)
	}
}

// A client gets no question of a kind that it did not declare: the server gets an error.
func TestTranslated_ClientCannotBeAsked(t *testing.T) {
	s, up, _ := bridged(t, newEarlier(t))
	refused := make(chan string, 1)
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		w.stream()
		w.send("", `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		w.send("", `{"jsonrpc":"2.0","id":2,"method":"sampling/createMessage","params":{}}`)
		w.send("", `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"content":[],"refused":`+<-refused+`}}`)
	})
	up.onAnswer(func(m rpc.Message) {
		if m.Error != nil { // else it is the answer to the ping
			refused <- string(m.Error)
		}
	})
	wantHas(t, second(s.ask(t, toolCall(t, asks))).Data, `"refused":{"code":-32601`)
}

// progresses has a server's tools report progress once, with an event ID, and not respond. sent is set to the ID
// of the request.
func progresses(up *server) (sent *string) {
	sent = new(string)
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		*sent = string(m.ID)
		w.stream()
		w.progress("e1", m)
		<-r.Context().Done()
	})
	return sent
}

// A call of a client without sessions continues at the next bridge, where the server allows that.
func TestStateless_TakenOver(t *testing.T) {
	for name, up := range map[string]*server{"stateless": newStateless(t), "earlier": newEarlier(t), "slow": newEarlier(t)} {
		s, _, in := bridged(t, up)
		c := toolCall(t, asks)
		if name == "slow" { // the log has the session before there is one at the server
			in.host.Times.Answer = 0
			up.before(rpc.MethodInitialize, func() { s.wantState(t, c.Session, session.Open) })
		}
		sent := progresses(up)
		up.onResume(func(w *writing, r *http.Request) {
			w.send("e2", `{"jsonrpc":"2.0","id":`+*sent+`,"result":{"content":[]}}`)
		})
		s.do(t, c)
		s.has(t, c.Session, c.Stream, 1)
		s.restart(t, in)
		all := s.finished(t, c.Session, c.Stream)
		if len(all) != 2 || !strings.Contains(all[1], `"id":1`) || strings.Contains(all[1], `"resultType":"complete"`) != (name != "stateless") {
			t.Errorf("%s: %q", name, all)
		}
		s.wantState(t, c.Session, session.Closed)
		up.wantPosted(t, 1, "tools/call")
	}
}

// A call may be written down before the server has answered initialize. The next bridge learns of the
// server's session nevertheless, and ends it.
func TestStateless_TakenOverBeforeAnEventID(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
	c := toolCall(t, asks)
	kv := s.records(t).KV
	written := func(what string) bool {
		entry, err := kv.Get(t.Context(), records.Key(c.Session, c.Stream))
		return err == nil && strings.Contains(string(entry.Value()), what)
	}
	up.before(rpc.MethodInitialize, func() {
		waittest.Until(t, "the call is written down", func() bool { return written("{") })
	})
	up.handle(mcp.MethodCallTool, func(_ *writing, r *http.Request, _ rpc.Message) { <-r.Context().Done() })
	in := s.start(t, testConfig(up.URL))
	in.host.Times.Answer = 0
	s.do(t, c)
	waittest.Until(t, "the server's session is written down", func() bool { return written(`"upstream":"up-`) })
	s.restart(t, in)
	wantError(t, s.finished(t, c.Session, c.Stream), 1, "1")
	waittest.Until(t, "the server's session is ended", func() bool { return len(up.ended()) == 1 })
}

// Servers that ask on the standalone stream do so after the bridge was replaced, too.
func TestStateless_TakenOverBeforeAQuestion(t *testing.T) {
	s, up, in := bridged(t, newEarlier(t))
	var second atomic.Bool
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, _ rpc.Message) {
		w.stream()
		w.send("e1", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":"x"}}`)
		<-r.Context().Done()
	})
	up.onGet(func(w *writing, r *http.Request) {
		w.stream()
		if second.Load() && r.Header.Get("Last-Event-ID") == "" {
			w.ask("", "q")
		}
		<-r.Context().Done()
	})
	c := s.accepted(t, asks)
	s.has(t, c.Session, c.Stream, 1)
	in.stop()
	second.Store(true)
	s.start(t, testConfig(up.URL))
	wantParts(t, s.finished(t, c.Session, c.Stream), "", `"elicitation/create"`)
}

// The next bridge continues before a question that its client has not received yet: the server does not ask twice.
func TestTranslated_CursorOfAQuestionThatIsNotStored(t *testing.T) {
	for _, made := range []string{"call", "task"} {
		s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
		ask := make(chan struct{})
		up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
			w.stream()
			w.progress("e1", m)
			<-ask
			w.ask("e2", "q")
			<-r.Context().Done()
		})
		cfg := testConfig(up.URL)
		cfg.TaskAfter = flagtype.Duration(waittest.Timeout)
		in := s.start(t, cfg)
		c := s.accepted(t, tasks)
		s.has(t, c.Session, c.Stream, 1)
		h := in.table.Session(c.Session)
		if made == "task" {
			h.Upstream.(interface{ MakeTask() }).MakeTask() //nolint:errcheck // a call with tasks has it
		}
		cursor := h.Call(c.Stream)
		stored := func() string {
			all := in.table.Open()
			return all[slices.IndexFunc(all, func(o records.OpenCall) bool { return o.Stream == c.Stream })].ID
		}
		waittest.Until(t, "the progress is stored", func() bool { return stored() == "e1" })
		s.srv.Stop()
		close(ask)
		waittest.Until(t, "the question is read", func() bool { return cursor.Cursor().ID == "e2" })
		if at := stored(); at != "e1" {
			t.Errorf("%s: the next bridge continues after %s", made, at)
		}
		s.srv.Start()
		waittest.Until(t, "the client is asked", func() bool { return stored() == "e2" })
	}
}

// A client that is asked after the bridge was replaced receives the response to its repeated request, also
// when the server does not wait for the answers.
func TestStateless_TakenOverBeforeAResponseWithoutAnswers(t *testing.T) {
	s, up, in := bridged(t, newEarlier(t))
	sent, respond := progresses(up), make(chan struct{})
	up.onResume(func(w *writing, r *http.Request) {
		w.ask("e2", "q")
		select {
		case <-respond:
			w.send("e3", `{"jsonrpc":"2.0","id":`+*sent+`,"result":{"content":[{"type":"text","text":"done"}]}}`)
		case <-r.Context().Done():
		}
	})
	c := s.accepted(t, asks)
	s.has(t, c.Session, c.Stream, 1)
	in = s.restart(t, in)
	made := in.table.Session(c.Session).Call(c.Stream)
	var asked required
	all := s.finished(t, c.Session, c.Stream)
	if err := json.Unmarshal([]byte(all[len(all)-1]), &asked); err != nil || len(asked.Result.InputRequests) != 1 {
		t.Fatalf("the client receives %q", all)
	}
	close(respond)
	waittest.Until(t, "the server's response is taken", made.Done)
	other := repeated(t, c, "2", asked, `{}`)
	other.Data = bytes.Replace(other.Data, []byte(`"x"`), []byte(`"y"`), 1)
	wantStatus(t, s.do(t, other), http.StatusBadRequest)
	wantHas(t, second(s.ask(t, repeated(t, c, "2", asked, `{}`))).Data, `"text":"done"`, `"id":2`)
}

// A call without a session ends with its client, so the server may be silent for any time. A session
// outlives connections, so its calls have a limit.
func TestStateless_NoCallTimeout(t *testing.T) {
	eachEra(t, func(t *testing.T, _ string, up *server) {
		s, release := newSystem(t, eventlog.Settings{}), make(chan struct{})
		up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
			<-release
			w.json(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"content":[]}}`)
		})
		up.handle("silent", func(_ *writing, r *http.Request, _ rpc.Message) { <-r.Context().Done() })
		cfg := testConfig(up.URL)
		cfg.CallTimeout, cfg.AcceptAfter = flagtype.Duration(300*time.Millisecond), time.Millisecond
		in := s.start(t, cfg)
		in.host.Times.Answer = time.Millisecond
		c := statelessCall(t, "7", mcp.MethodCallTool, `"name":"x"`, "")
		wantStatus(t, s.do(t, c), http.StatusAccepted)
		later := s.ready(t) // its limit begins after the call
		stream, _ := s.request(t, later, "1", "silent")
		wantError(t, s.finished(t, later, stream), 1, "1")
		close(release)
		wantParts(t, s.finished(t, c.Session, c.Stream), `"result"`)
	})
}

// A server that refuses one client, for its credentials, does not refuse others.
func TestAttackCredentialsThatTheServerRefuses(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newStateless(t)
	const field = "X-Api-Key"
	discover := up.on[mcp.MethodDiscover]
	slow, release := make(chan struct{}), make(chan struct{})
	up.handle(mcp.MethodDiscover, func(w *writing, r *http.Request, m rpc.Message) {
		switch r.Header.Get(field) {
		case "right":
			discover(w, r, m)
		case "slow":
			close(slow)
			<-release
			fallthrough
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	cfg := testConfig(up.URL)
	cfg.ForwardHeader = append(cfg.ForwardHeader, field)
	s.start(t, cfg)
	call := func(key string) rpc.Answer {
		c := statelessCall(t, "1", "tools/list", "", "")
		c.Header.Set(field, key)
		return s.do(t, c)
	}
	if a := call("wrong"); a.Status != http.StatusUnauthorized {
		t.Errorf("the call is answered %d %s", a.Status, a.Data)
	}
	waits := make(chan rpc.Answer, 1)
	go func() { waits <- call("slow") }()
	<-slow
	if a := call("right"); a.Status != http.StatusOK {
		t.Errorf("another client's call is answered %d %s", a.Status, a.Data)
	}
	close(release)
	if a := <-waits; a.Status != http.StatusUnauthorized {
		t.Errorf("the call that waited is answered %d %s", a.Status, a.Data)
	}
}

// The question for the MCP server's revisions is for all clients, so its answer does not depend on one client's header.
func TestAttackHeaderThatBreaksTheServer(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newStateless(t)
	const field, wrong = "Accept-Language", "wrong"
	breaks := func(serve func(*writing, *http.Request, rpc.Message)) func(*writing, *http.Request, rpc.Message) {
		return func(w *writing, r *http.Request, m rpc.Message) {
			if r.Header.Get(field) == wrong {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			serve(w, r, m)
		}
	}
	up.handle(mcp.MethodDiscover, breaks(up.on[mcp.MethodDiscover]))
	up.handle("tools/list", breaks(func(w *writing, _ *http.Request, m rpc.Message) { w.json(response(m.ID)) }))
	cfg := testConfig(up.URL)
	cfg.ForwardHeader = []string{field}
	s.start(t, cfg)
	call := statelessCall(t, "1", "tools/list", "", "")
	call.Header.Set(field, wrong)
	wantStatus(t, s.do(t, call), http.StatusInternalServerError)
	wantStatus(t, s.do(t, statelessCall(t, "2", "tools/list", "", "")), http.StatusOK)
}
