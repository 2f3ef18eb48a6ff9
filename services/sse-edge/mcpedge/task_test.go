package mcpedge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// aTask is the task of a session that a test has made.
type aTask struct {
	b    *bridge
	u    *mcpUser
	name string
	is   mcp.StoredTask
}

// newTask makes a session with a task that works.
func newTask(t *testing.T, b *bridge, u *mcpUser, owner string) *aTask {
	t.Helper()
	name := uuid.NewString()
	must.Value(b.f.Backend.Sessions.Create(waittest.Context(t), session.New(name, owner, nil, time.Now())))(t)
	k := &aTask{b: b, u: u, name: name, is: mcp.StoredTask{Task: mcp.Task{ID: mcp.TaskID(name), Created: time.Now().UTC(), Poll: 1000}}}
	k.becomes(t, mcp.TaskWorking, nil)
	return k
}

// becomes stores another state.
func (k *aTask) becomes(t *testing.T, status mcp.Status, change func(*mcp.StoredTask)) {
	t.Helper()
	k.is.Status, k.is.Updated = status, time.Now().UTC()
	if change != nil {
		change(&k.is)
	}
	data := must.Value(k.is.Event())(t)
	k.b.say(k.name, mcp.TaskStream, status.IsTerminal(), string(data))
}

// ask makes a request about the task.
func (k *aTask) ask(method, params string, headers ...string) edgetest.Answered {
	return k.u.read(k.send(method, params, headers...))
}

func (k *aTask) send(method, params string, headers ...string) reply {
	return k.u.post(aboutTask(method, k.is.ID, params, `"extensions":{"io.modelcontextprotocol/tasks":{}}`),
		append([]string{"Mcp-Method", method, "Mcp-Name", k.is.ID}, headers...)...)
}

func aboutTask(method, id, params, capabilities string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{"taskId":%q%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{%s}}}}`, method, id, params, capabilities)
}

// state asks for the task.
func (k *aTask) state(t *testing.T) mcp.Task {
	t.Helper()
	a := k.ask(mcp.MethodGetTask, "")
	var r struct {
		ID     int `json:"id"`
		Result struct {
			Type string `json:"resultType"`
			mcp.Task
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(a.Text), &r); err != nil || a.StatusCode != http.StatusOK || r.ID != 7 || r.Result.Type != "complete" || r.Result.ID != k.is.ID {
		t.Fatalf("tasks/get is answered %d %s", a.StatusCode, a.Text)
	}
	return r.Result.Task
}

const emptyResult = `{"id":7,"jsonrpc":"2.0","result":{"resultType":"complete"}}`

func TestTask_States(t *testing.T) {
	b, u := newStateless(t, nil)
	k := newTask(t, b, u, "")
	b.listen(rpc.Subject(k.name))
	if is := k.state(t); is.Status != mcp.TaskWorking || is.TTL != nil || is.Poll != 1000 || is.Created.IsZero() {
		t.Errorf("at first it is %+v", is)
	}
	k.becomes(t, mcp.TaskInputRequired, func(is *mcp.StoredTask) {
		is.Requests = map[string]json.RawMessage{"a": json.RawMessage(`{"method":"roots/list","params":{}}`)}
		is.Asked = map[string]json.RawMessage{"a": json.RawMessage(`1`)}
	})
	if is := k.state(t); is.Status != mcp.TaskInputRequired || string(is.Requests["a"]) != `{"method":"roots/list","params":{}}` {
		t.Errorf("then it is %+v", is)
	}
	if a := k.ask(mcp.MethodGetTask, ""); strings.Contains(a.Text, "asked") {
		t.Errorf("the client is told what is the bridge's: %s", a.Text)
	}
	if a := k.ask(mcp.MethodGetTask, "", "Accept", "text/event-stream, application/json"); a.Header.Get("Content-Type") != "text/event-stream" || !strings.HasPrefix(a.Text, `data: {"id":7,`) {
		t.Errorf("as a stream: %v %s", a.Header, a.Text)
	}
	// A bridge takes the requests that change a task.
	b.request = func(c rpc.Ask) rpc.Answer {
		if c.Session != k.name || !c.Held || c.Life == "" || !strings.Contains(string(c.Data), `"x":1`) {
			t.Errorf("the bridge is asked %+v", c)
		}
		return rpc.Answer{Status: http.StatusOK, Data: []byte(emptyResult)}
	}
	for _, method := range []string{mcp.MethodUpdateTask, mcp.MethodCancelTask} {
		if a := k.ask(method, `,"inputResponses":{"x":1}`); a.StatusCode != http.StatusOK || a.Text != emptyResult {
			t.Errorf("%s is answered %d %s", method, a.StatusCode, a.Text)
		}
	}
	// The task is over, and keeps its state without a bridge and with a closed session.
	k.becomes(t, mcp.TaskCompleted, func(is *mcp.StoredTask) {
		is.Requests, is.Asked, is.Result = nil, nil, json.RawMessage(`{"content":[]}`)
		is.TTL = new(int64)
	})
	b.leave()
	for range 2 {
		if is := k.state(t); is.Status != mcp.TaskCompleted || string(is.Result) != `{"content":[]}` || is.TTL == nil {
			t.Errorf("at last it is %+v", is)
		}
		for _, method := range []string{mcp.MethodUpdateTask, mcp.MethodCancelTask} {
			if a := k.ask(method, `,"inputResponses":{}`); a.StatusCode != http.StatusOK || a.Text != emptyResult {
				t.Errorf("%s at the end is answered %d %s", method, a.StatusCode, a.Text)
			}
		}
		must.NoError(t, b.f.Backend.Sessions.End(waittest.Context(t), k.name, "", false))
	}
}

func TestTask_Refused(t *testing.T) {
	b, u := newStateless(t, nil)
	k := newTask(t, b, u, "")
	none := uuid.NewString()
	for _, method := range []string{mcp.MethodGetTask, mcp.MethodUpdateTask, mcp.MethodCancelTask} {
		a := u.read(u.post(aboutTask(method, k.is.ID, "", ""), "Mcp-Method", method, "Mcp-Name", k.is.ID))
		if a.StatusCode != http.StatusBadRequest || !strings.Contains(a.Text, `"code":-32021`) || !strings.Contains(a.Text, `"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`) || !strings.Contains(a.Text, `"id":7`) {
			t.Errorf("%s without the extension is answered %d %s", method, a.StatusCode, a.Text)
		}
		unknown := *k
		for _, unknown.is.ID = range []string{mcp.TaskID(none), "rejoin." + strings.ToUpper(none)} {
			if a := unknown.ask(method, ""); !strings.Contains(a.Text, `"code":-32602`) || !strings.Contains(a.Text, `"id":7`) {
				t.Errorf("%s of %s is answered %d %s", method, unknown.is.ID, a.StatusCode, a.Text)
			}
		}
		if a := k.ask(method, "", "Mcp-Name", "another"); !strings.Contains(a.Text, `"code":-32020`) {
			t.Errorf("%s with another header is answered %d %s", method, a.StatusCode, a.Text)
		}
	}
	listen := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{"notifications":{"taskIds":[%q]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, k.is.ID)
	if a := u.read(u.post(listen, "Mcp-Method", mcp.MethodListen)); a.StatusCode != http.StatusBadRequest || !strings.Contains(a.Text, `"code":-32021`) {
		t.Errorf("to listen without the extension is answered %d %s", a.StatusCode, a.Text)
	}
	// Requests that change a task need its bridge.
	if a := k.ask(mcp.MethodCancelTask, ""); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("without a bridge cancel is answered %d %s", a.StatusCode, a.Text)
	}
	// A session without a task has none, whatever events are published to its stream.
	session := newTask(t, b, u, "")
	b.say(session.name, mcp.TaskStream, false, `{"jsonrpc":"2.0","method":"x"}`)
	if a := session.ask(mcp.MethodGetTask, ""); !strings.Contains(a.Text, `"code":-32602`) {
		t.Errorf("another event is answered %d %s", a.StatusCode, a.Text)
	}
}

// A task whose session was closed, or whose bridge is gone for good, has failed.
func TestTask_Lost(t *testing.T) {
	f, b := bridged(t)
	s, _ := f.mcpService(nil)
	u := &mcpUser{t: t, url: s.url(), version: mcp.Stateless}
	closed, lost := newTask(t, b, u, ""), newTask(t, b, u, "")
	must.NoError(t, b.f.Backend.Sessions.End(waittest.Context(t), closed.name, "", false))
	waittest.Until(t, "the task of a closed session has failed", func() bool { return closed.state(t).Status == mcp.TaskFailed })
	if is := closed.state(t); !strings.Contains(string(is.Error), "-32603") {
		t.Errorf("in a closed session it is %+v", is)
	}
	if is := lost.state(t); is.Status != mcp.TaskWorking {
		t.Errorf("while its bridge may come back it is %+v", is)
	}
	s.unheard.mu.Lock()
	*s.unheard.all[lost.name] = absence{first: time.Now(), last: time.Now(), lost: true}
	s.unheard.mu.Unlock()
	if is := lost.state(t); is.Status != mcp.TaskFailed || !strings.Contains(string(is.Error), "-32603") {
		t.Errorf("without a bridge it is %+v", is)
	}
	b.listen(rpc.Subject(lost.name))
	if is := lost.state(t); is.Status != mcp.TaskWorking {
		t.Errorf("with a bridge it is %+v", is)
	}
}

// An edge with too many sessions without a bridge forgets sessions rather than exceed its limit.
func TestUnheard_IsBounded(t *testing.T) {
	var u unheard
	now := time.Now()
	for i := range 3 * maxUnheard {
		u.note(fmt.Sprint(i), true, now, time.Minute)
		if len(u.all) > maxUnheard {
			t.Fatalf("%d are remembered", len(u.all))
		}
	}
	newest := fmt.Sprint(3*maxUnheard - 1)
	u.note(newest, true, now.Add(time.Minute/2), time.Minute)
	if lost, _ := u.note(newest, true, now.Add(time.Minute), time.Minute); !lost {
		t.Error("the newest is forgotten")
	}
}

// A bridge that was unavailable twice was not unavailable all the time between.
func TestUnheard_Lost(t *testing.T) {
	for name, tt := range map[string]struct {
		checks string // seconds; "+" where a bridge listens
		want   bool
	}{
		"once":                             {"0", false},
		"all the time":                     {"0 8 16 17", true},
		"for less than the limit":          {"0 8 16", false},
		"heard between":                    {"0 8 12+ 14 17", false},
		"twice":                            {"0 17", false},
		"checks that are far apart":        {"0 60", false},
		"asked seldom after it was lost":   {"0 8 16 17 90", true},
		"heard again after it was lost":    {"0 8 16 17 90+ 91", false},
		"far apart, and then all the time": {"0 60 68 76 77", true},
	} {
		var u unheard
		lost, begin := false, time.Now()
		for check := range strings.FieldsSeq(tt.checks) {
			at, heard := strings.CutSuffix(check, "+")
			seconds := must.Value(time.ParseDuration(at + "s"))(t)
			lost, _ = u.note("s", !heard, begin.Add(seconds), 17*time.Second)
		}
		if lost != tt.want {
			t.Errorf("%s: lost is %t", name, lost)
		}
	}
}

// A task whose client asks seldom is found to be lost.
func TestTask_LostBetweenTwoPolls(t *testing.T) {
	f, b := bridged(t)
	f.tune = func(s *edge) { s.unheardFor = time.Second } // a check that is late by half of that begins a new absence
	s, _ := f.mcpService(nil)
	k := newTask(t, b, &mcpUser{t: t, url: s.url(), version: mcp.Stateless}, "")
	k.state(t)
	waittest.Until(t, "the edge asks again", func() bool {
		s.unheard.mu.Lock()
		defer s.unheard.mu.Unlock()
		a := s.unheard.all[k.name]
		return a != nil && a.lost
	})
}

// The edge notices a bridge that listens between two polls of a client: the second poll begins a new absence.
func TestTask_BridgeIsBackBetweenTwoPolls(t *testing.T) {
	f, b := bridged(t)
	s, _ := f.mcpService(nil)
	k := newTask(t, b, &mcpUser{t: t, url: s.url(), version: mcp.Stateless}, "")
	k.state(t)
	b.listen(rpc.Subject(k.name))
	waittest.Until(t, "the edge has found the bridge", func() bool {
		s.unheard.mu.Lock()
		defer s.unheard.mu.Unlock()
		return len(s.unheard.all) == 0
	})
}

func TestTask_OfAnotherUser(t *testing.T) {
	f, b := bridged(t)
	u := &mcpUser{t: t, url: f.mcpEdge(guarded(t)), version: mcp.Stateless}
	k := newTask(t, b, u, "alice")
	b.listen(rpc.Subject(k.name))
	for _, method := range []string{mcp.MethodGetTask, mcp.MethodUpdateTask, mcp.MethodCancelTask} {
		if a := k.ask(method, "", edgetest.Bearer(authtest.Of(t, "bob", "*"))...); !strings.Contains(a.Text, `"code":-32602`) {
			t.Errorf("%s of another's task is answered %d %s", method, a.StatusCode, a.Text)
		}
	}
	if n := len(b.sent(rpc.Request)); n != 0 {
		t.Errorf("the bridge is asked %d times", n)
	}
	u.headers = edgetest.Bearer(authtest.Of(t, "alice", "*"))
	if is := k.state(t); is.Status != mcp.TaskWorking {
		t.Errorf("its owner is told %+v", is)
	}
}
