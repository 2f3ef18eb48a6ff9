package stateless

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/config"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/standby"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/leaktest"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// Which calls become tasks, and when.
func TestTask_Rule(t *testing.T) {
	const (
		asks  = `"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"progressToken":"mine"`
		tasks = `"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"progressToken":"mine"`
	)
	for call, tt := range map[string]struct {
		after flagtype.Duration
		want  taskRule
	}{
		`tools/call x ` + tasks:        {0, taskRule{may: true}},
		`tools/call x-none ` + tasks:   {-1, taskRule{}},
		`tools/call never ` + tasks:    {0, taskRule{}},
		`tools/call always ` + tasks:   {0, taskRule{may: true, atOnce: true}},
		`tools/call required ` + tasks: {0, taskRule{may: true}},
		`tools/call x ` + asks:         {0, taskRule{}},
		`tools/call always ` + asks:    {0, taskRule{}},
		`prompts/get always ` + tasks:  {0, taskRule{}},
	} {
		part := strings.SplitN(call, " ", 3)
		r := must.Value(mcp.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":%q,"params":{"name":%q,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",%s}}}`, part[0], part[1], part[2])))(t)
		s := &env{host: &host.Host{Config: config.Config{TaskAfter: tt.after}}, tools: map[string]config.TaskPolicy{"never": config.TaskNever, "always": config.TaskAlways, "required": config.TaskRequired}}
		if got, err := s.ruleOf(r); err != nil || got != tt.want {
			t.Errorf("%s has %+v, %v", call, got, err)
		}
	}
	for after, want := range map[time.Duration]time.Duration{time.Second: time.Second, 0: host.AnswerWithin} {
		if got := (&env{host: &host.Host{Config: config.Config{TaskAfter: flagtype.Duration(after)}}}).taskAfter(); got != want {
			t.Errorf("with --task-after=%s a call becomes a task after %s", after, got)
		}
	}
}

// A bridge that does not answer in time counts neither as alive nor as lost: the count of questions that found none
// does not change.
func TestHasLost_BridgeIsSilent(t *testing.T) {
	srv, with := natstest.StartParallel(t), daemon.NewEnv(nil)
	b := must.Value(backend.Create(t.Context(), backend.Config{NATSURL: srv.URL()}, "test", eventlog.Settings{Partitions: 2}, with.Log))(t)
	t.Cleanup(b.Close)
	e := &env{host: host.New(config.Config{MaxCalls: 1, MaxProcesses: 1}, "test", b, with)}
	e.host.Times.Gone, e.host.Times.Alive = 0, time.Minute
	w := &watched{bridge: "other"}
	ask := func(want bool) {
		t.Helper()
		if got := e.hasLost(t.Context(), w); got != want {
			t.Errorf("the bridge is lost: %v, after %d questions", got, w.absent)
		}
	}
	// other answers as a bridge of the name does, or is silent, while ask asks.
	other := func(answer func(*nats.Msg), want bool) {
		t.Helper()
		sub := must.Value(b.Conn.Subscribe(standby.AliveSubject(w.bridge), answer))(t)
		ask(want)
		must.NoError(t, sub.Unsubscribe())
	}
	silent := func() {
		t.Helper()
		e.host.Times.Alive = time.Millisecond
		other(func(*nats.Msg) {}, false)
		e.host.Times.Alive = time.Minute
	}
	away := func() {
		t.Helper()
		for range goneAfter {
			silent()
			ask(false)
		}
		silent()
		ask(true)
	}
	away()
	silent()
	ask(false) // reported already
	other(func(msg *nats.Msg) { _ = msg.Respond(nil) }, false)
	away()
}

// A client cannot answer a question that it has not been asked yet.
func TestTask_AnswerBeforeTheQuestion(t *testing.T) {
	asked := question{key: "q8", id: json.RawMessage("8")}
	next := question{key: "q9", id: json.RawMessage("9")}
	k := &task{}
	k.is.Requests = map[string]json.RawMessage{asked.key: json.RawMessage("{}")}
	work := &translated{taskState: taskState{made: k}, open: []question{asked, next}}
	if err := work.updateTask(translate.Object{next.key: json.RawMessage("{}")}); err != nil || len(work.open) != 2 {
		t.Error("the question was answered")
	}
}

// unknownOutcome is an MCP server whose client receives an unknown outcome once the server has its request.
type unknownOutcome struct {
	call.Upstream
	requests int
}

func (u *unknownOutcome) Serve(_ context.Context, c *call.Call, _ http.Header, _ []byte) {
	u.requests++
	c.Tell(upstream.OutcomeUnknown(""))
}

// The MCP server does not get a request once the client has an answer that lets it make the request again. The client
// may receive it at the moment at which the server would get the request.
func TestTranslated_RequestThatMayBeRepeated(t *testing.T) {
	for _, told := range []bool{true, false} {
		h := &sessions.Session{Scope: &call.Scope{Host: &host.Host{}}}
		up, work := &unknownOutcome{}, newTranslated(&env{}, h, mcp.Request{Method: mcp.MethodGetPrompt})
		work.up = up
		c := call.New(h.Scope, "st", []json.RawMessage{json.RawMessage("1")})
		c.MayRepeat()
		if told {
			c.Tell(upstream.OutcomeUnknown(""))
		}
		work.hand(t.Context(), c)
		if got := (<-c.Reply).Status; (got == http.StatusServiceUnavailable) != told || up.requests > 0 && told {
			t.Errorf("the client is answered %d, and the server has %d requests", got, up.requests)
		}
	}
}

// The time to answer may be over at the moment at which an answer is taken: the task continues.
func TestTask_AnswerAtTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &task{session: &call.Scope{Host: &host.Host{}}}
		k.is.Status = mcp.TaskWorking
		(&taskState{made: k}).awaitInput(func(string) { t.Error("the task is cancelled") })
		time.Sleep(time.Second)
	})
}
