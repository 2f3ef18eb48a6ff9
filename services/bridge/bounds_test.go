package bridge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/services/bridge/mcpserver"
	"rejoin/services/bridge/stateless"
	"rejoin/services/bridge/translate"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// A question that is nested so deep that no result could hold it is not asked, and ends no bridge.
func TestTranslated_QuestionIsTooDeep(t *testing.T) {
	s, up, _ := bridged(t, newEarlier(t))
	refused := make(chan rpc.Message, 1)
	up.onAnswer(func(m rpc.Message) { refused <- m })
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		w.send("", `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"a":`+strings.Repeat("[", 9998)+strings.Repeat("]", 9998)+`}}`)
		select {
		case m := <-refused:
			if m.Error == nil {
				return
			}
		case <-r.Context().Done():
			return
		}
		w.result("", m)
	})
	if r, a := s.ask(t, toolCall(t, asks)); r.Result.ResultType != "complete" {
		t.Errorf("the call is answered %s", a.Data)
	}
}

// A call whose client cannot be asked, since NATS is down, ends at the MCP server too: the server would wait for
// the answer, and no edge could cancel the call.
func TestTranslated_QuestionWithoutNATS(t *testing.T) {
	t.Parallel()
	s, up, in := bridged(t, newEarlier(t))
	asked := make(chan struct{})
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, _ rpc.Message) {
		s.srv.Stop()
		w.stream()
		w.ask("", "q")
		close(asked)
		<-r.Context().Done()
	})
	go in.stateless.Request(toolCall(t, asks))
	waittest.Receive(t, "the server asks", asked)
	waittest.Until(t, "the call has ended", func() bool { return in.metric(t, "calls") == 0 })
	waittest.Until(t, "the server's session has ended", func() bool { return len(up.ended()) == 1 })
	s.srv.Start()
}

// A call whose questions no event can hold is over for its client, and is not held until --input-wait.
func TestTranslated_QuestionIsTooLarge(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{MaxMessageBytes: 4096}), newEarlier(t)
	cfg := testConfig(up.URL)
	cfg.InputWait = time.Hour
	in := s.start(t, cfg)
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		w.progress("", m) // so that the answer is 202
		w.send("", `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"`+strings.Repeat("x", 8000)+`"}}`)
		<-r.Context().Done()
	})
	c := toolCall(t, asks)
	wantHas(t, second(s.ask(t, c)).Data, "--max-message-bytes")
	waittest.Until(t, "the call has ended", func() bool { return in.metric(t, "calls") == 0 })
	waittest.Until(t, "the server's session has ended", func() bool { return len(up.ended()) == 1 })
	s.wantState(t, c.Session, session.Closed)
	waittest.Until(t, "the server's request is cancelled", func() bool { return up.posted("notifications/cancelled") == 1 })
}

// The metadata of each call is bounded: it is in the memory of every service.
func TestStateless_LongServerInfo(t *testing.T) {
	s, up, _ := bridged(t, newEarlier(t))
	icon := strings.Repeat("x", 50_000)
	up.result = `{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1","icons":[{"src":"data:` + icon + `"}]}}`
	up.reports()
	c := s.accepted(t, asks)
	wantHas(t, s.finished(t, c.Session, c.Stream)[1], icon)
	rec, err := s.b.Sessions.CopyOrGet(waittest.Context(t), c.Session)
	if err != nil || len(rec.Metadata) > 1<<10 || !strings.Contains(string(rec.Metadata), `"serverInfo":{"name":"s","version":"1"}`) {
		t.Errorf("the log keeps %d bytes with the call: %.500s, %v", len(rec.Metadata), rec.Metadata, err)
	}
}

func TestStatelessServer_LongInstructions(t *testing.T) {
	s, up, _ := bridged(t, newStateless(t))
	text := strings.Repeat("x", 50_000)
	up.responds(mcp.MethodDiscover, `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"instructions":"`+text+`"}`)
	name := uuid.NewString()
	wantHas(t, s.do(t, rpc.Ask{Action: rpc.Open, Session: name, Data: []byte(initialize)}).Data, text)
	rec, err := s.b.Sessions.CopyOrGet(waittest.Context(t), name)
	if err != nil || len(rec.Metadata) > 1<<10 || !strings.Contains(string(rec.Metadata), `"listChanged":true`) {
		t.Errorf("the log keeps %d bytes with the session: %.500s, %v", len(rec.Metadata), rec.Metadata, err)
	}
}

// A client that listens to more resources and tasks than the limits costs no more than the limits.
func TestListen_TooMuch(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
	in := s.start(t, taskConfig(up.URL))
	up.has(`{"resources":{"subscribe":true}}`)
	uris, ids := make([]string, 3*mcpserver.MaxSubscriptions), make([]string, 10*stateless.MaxWatched)
	for i := range uris {
		uris[i] = fmt.Sprintf("x:%d", i/2)
	}
	for i := range ids {
		ids[i] = mcp.TaskID(uuid.NewString())
	}
	before := in.b.Conn.Stats().OutMsgs
	c := statelessCall(t, "1", mcp.MethodListen, fmt.Sprintf(`"notifications":{"resourceSubscriptions":%s,"taskIds":%s}`, event.MustJSON(uris), event.MustJSON(ids)), tasks)
	wantStatus(t, s.do(t, c), http.StatusAccepted)
	var f translate.Filter
	m := must.Value(rpc.ParseMessage([]byte(s.listenedTo(t, c, 1)[0])))(t)
	must.NoError(t, json.Unmarshal(m.Param("notifications"), &f))
	if n := up.posted("resources/subscribe"); n != mcpserver.MaxSubscriptions || len(f.URIs) != n || len(slices.Compact(slices.Sorted(slices.Values(f.URIs)))) != n || len(f.Tasks) != 0 {
		t.Errorf("%d subscriptions are made, of which %d are acknowledged", n, len(f.URIs))
	}
	if n := in.b.Conn.Stats().OutMsgs - before; n > 3*stateless.MaxWatched {
		t.Errorf("%d messages are sent to NATS", n)
	}
}

// The edge has compared the first of each header field, so the server gets no other.
func TestStateless_FieldTwice(t *testing.T) {
	s, up, _ := bridged(t, newStateless(t))
	headers := make(chan http.Header, 1)
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		headers <- r.Header
		w.json(response(m.ID))
	})
	c := toolCall(t, "")
	c.Header[mcp.HeaderName] = []string{"x", "y"}
	s.do(t, c)
	wantMessages(t, (<-headers).Values(mcp.HeaderName), "x")
}

// Calls without sessions take at most half of the limits of sessions, and no principal takes that half alone.
func TestAttackCallsOfOnePrincipal(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
	cfg := testConfig(up.URL)
	cfg.Sessions.MaxSessions = 32
	s.start(t, cfg)
	up.reports()
	callOf := func(owner string) rpc.Answer {
		c := toolCall(t, asks)
		c.Owner = owner
		return s.do(t, c)
	}
	inLog := 0
	for range 20 {
		if callOf("mallory").Status == http.StatusAccepted {
			inLog++
		}
	}
	if inLog != 12 { // three quarters of the half
		t.Errorf("%d calls of one principal are in the log", inLog)
	}
	wantStatus(t, callOf("alice"), http.StatusAccepted)
}
