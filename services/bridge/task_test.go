package bridge

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/stateless"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// tasks is a client's _meta that accepts a task as a response.
const tasks = `"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"progressToken":"mine"`

// taskConfig has calls become tasks after a moment; with tools, only by these policies.
func taskConfig(server string, tools ...string) config.Config {
	cfg := testConfig(server)
	if cfg.TaskAfter, cfg.TaskTools = flagtype.Duration(10*time.Millisecond), tools; len(tools) > 0 {
		cfg.TaskAfter = flagtype.Duration(waittest.Timeout)
	}
	return cfg
}

// states returns the states that a task had.
func (s *system) states(t testing.TB, name string) (all []mcp.StoredTask) {
	t.Helper()
	events, _ := s.read(t, name, mcp.TaskStream)
	for _, data := range events {
		is, err := mcp.ParseTask([]byte(data))
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		all = append(all, is)
	}
	return all
}

// created makes a call, and returns the task that it becomes.
func (s *system) created(t testing.TB, c rpc.Ask) (is mcp.Task) {
	t.Helper()
	_, a := s.ask(t, c)
	var r struct {
		Result struct {
			Type string `json:"resultType"`
			mcp.Task
		} `json:"result"`
	}
	if err := json.Unmarshal(a.Data, &r); err != nil || r.Result.Type != "task" || r.Result.Status != mcp.TaskWorking || r.Result.ID != mcp.TaskID(c.Session) || r.Result.TTL != nil {
		t.Fatalf("the call is answered %s", a.Data)
	}
	if len(s.states(t, c.Session)) == 0 {
		t.Fatal("the client has heard of a task that is not in the log")
	}
	return r.Result.Task
}

// task runs a bridge, and returns a call that it makes a task.
func (s *system) task(t testing.TB, cfg config.Config) (in *instance, c rpc.Ask) {
	t.Helper()
	in, c = s.start(t, cfg), statelessCall(t, "1", mcp.MethodCallTool, `"name":"x","arguments":{"n":5}`, tasks)
	s.created(t, c)
	return in, c
}

// about makes a request about a call's task.
func (s *system) about(t testing.TB, c rpc.Ask, method, params string) rpc.Answer {
	t.Helper()
	again := statelessCall(t, `"about"`, method, fmt.Sprintf(`"taskId":%q%s`, mcp.TaskID(c.Session), params), tasks)
	again.Session, again.Life, again.Held, again.Owner = c.Session, c.Life, true, c.Owner
	return s.do(t, again)
}

// acknowledged is about a request that is taken.
func (s *system) acknowledged(t testing.TB, c rpc.Ask, method, params string) {
	t.Helper()
	a := s.about(t, c, method, params)
	wantStatus(t, a, http.StatusOK)
	wantMessages(t, []string{string(a.Data)}, `{"id":"about","jsonrpc":"2.0","result":{"resultType":"complete"}}`)
}

// slow has a server's tool answer when release is closed, after progress.
func slow(up *server, release chan struct{}, outcome string) *server {
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		token := m.Param("_meta", "progressToken")
		w.send("", fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, token))
		select {
		case <-release:
		case <-r.Context().Done():
			return
		}
		w.send("", fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":2}}`, token))
		w.send("", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, outcome))
	})
	return up
}

const outcome = `"result":{"content":[{"type":"text","text":"done"}],"isError":true}`

func TestTask_LateCall(t *testing.T) {
	const failure = `{"code":-32099,"message":"broken"}`
	for want, out := range map[mcp.Status]string{mcp.TaskCompleted: outcome, mcp.TaskFailed: `"error":` + failure} {
		t.Run(string(want), func(t *testing.T) {
			eachEra(t, func(t *testing.T, _ string, up *server) {
				s, release := newSystem(t, eventlog.Settings{MaxAge: 3 * time.Hour}), make(chan struct{})
				slow(up, release, out)
				cfg := taskConfig(up.URL)
				cfg.TaskTTL = 2 * time.Hour
				s.start(t, cfg)
				c := toolCall(t, tasks)
				created := s.created(t, c)
				close(release)
				is := s.becomes(t, c.Session, want)
				if is.Created != created.Created || is.TTL == nil || *is.TTL < 2*3600_000 || is.Updated.Before(is.Created) {
					t.Errorf("the state is %+v", is)
				}
				if want == mcp.TaskFailed && string(is.Error) != failure || want == mcp.TaskCompleted && !strings.Contains(string(is.Result), `"text":"done"`) {
					t.Errorf("the state is %+v", is)
				}
				if all, _ := s.read(t, c.Session, c.Stream); len(all) > 2 || strings.Contains(strings.Join(all, ""), `"progress":2`) {
					t.Errorf("the client is told %s", all)
				}
				up.wantPosted(t, 1, "tools/call")
				s.wantState(t, c.Session, session.Closed)
				rec, err := s.b.Sessions.Get(waittest.Context(t), c.Session)
				if err != nil || rec.Retention.KeepClosed != 2*time.Hour {
					t.Errorf("the log keeps the session for %s, %v", rec.Retention.KeepClosed, err)
				}
			})
		})
	}
}

// A quick call is answered, and so is one of a client without the extension.
func TestTask_CallsThatAreNone(t *testing.T) {
	eachEra(t, func(t *testing.T, _ string, up *server) {
		s, release := newSystem(t, eventlog.Settings{}), make(chan struct{})
		slow(up, release, outcome)
		close(release)
		s.start(t, taskConfig(up.URL, "never=never", "required=required", "always=always"))
		quick := toolCall(t, tasks)
		answered := func(c rpc.Ask) {
			t.Helper()
			r, a := s.ask(t, c)
			if wantHas(t, a.Data, "done"); r.Result.ResultType == "task" {
				t.Errorf("it is answered %s", a.Data)
			}
		}
		answered(quick)
		if rec, err := s.b.Sessions.Get(waittest.Context(t), quick.Session); err != nil || rec.Retention.KeepClosed != sessions.CallKept {
			t.Errorf("the log keeps a call that was no task for %s, %v", rec.Retention.KeepClosed, err)
		}
		answered(statelessCall(t, "1", mcp.MethodCallTool, `"name":"always"`, asks)) // the client lacks the extension
		refused := statelessCall(t, "1", mcp.MethodCallTool, `"name":"required"`, asks)
		wantStatus(t, s.do(t, refused), http.StatusBadRequest, `{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`, `"id":1`)
		for _, method := range []string{mcp.MethodGetTask, mcp.MethodUpdateTask, mcp.MethodCancelTask} {
			foreign := statelessCall(t, "1", method, `"taskId":"x"`, tasks)
			wantHas(t, s.do(t, foreign).Data, "-32602")
		}
		wantHas(t, s.do(t, statelessCall(t, "1", mcp.MethodDiscover, "", "")).Data, `"extensions":{"io.modelcontextprotocol/tasks":{}}`)
	})
}

// asking is a stateless server whose tool asks two questions at once, twice.
func asking(t testing.TB) *server {
	t.Helper()
	up := newStateless(t)
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		state, _ := json.Marshal("")
		if s := m.Param("requestState"); s != nil {
			state = s
		}
		switch answers := m.Param("inputResponses"); string(state) {
		case `""`, `"one"`:
			next := map[string]string{`""`: "one", `"one"`: "two"}[string(state)]
			w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","requestState":%q,"inputRequests":{"a":{"method":"elicitation/create","params":{"message":%q}},"b":{"method":"roots/list"}}}}`, m.ID, next, next))
		default:
			text, _ := json.Marshal(string(answers))
			w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","content":[{"type":"text","text":%s}]}}`, m.ID, text))
		}
	})
	return up
}

func TestTask_StatelessServerAsks(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), asking(t)
	_, c := s.task(t, taskConfig(up.URL, "x=always"))
	seen := map[string]bool{}
	for round := range 2 {
		is := s.becomes(t, c.Session, mcp.TaskInputRequired)
		if len(is.Requests) != 2 || is.Asked != nil {
			t.Fatalf("round %d: the state is %+v", round, is)
		}
		n := 0
		for key := range is.Requests {
			if seen[key] {
				t.Errorf("the key %s comes twice", key)
			}
			seen[key] = true
			s.acknowledged(t, c, mcp.MethodUpdateTask, fmt.Sprintf(`,"inputResponses":{%q:{"round":%d},"unknown":{}}`, key, round))
			if n++; n == 1 { // after the last answer the call may be over at once, and an edge asks no bridge
				s.acknowledged(t, c, mcp.MethodUpdateTask, fmt.Sprintf(`,"inputResponses":{%q:{"late":true}}`, key))
				all := s.states(t, c.Session)
				if left := all[len(all)-1]; left.Status != mcp.TaskInputRequired || len(left.Requests) != 1 || left.Requests[key] != nil {
					t.Errorf("after the first answer the state is %+v", left)
				}
			}
		}
	}
	s.becomes(t, c.Session, mcp.TaskCompleted, `{\"a\":{\"round\":1},\"b\":{\"round\":1}}`)
	for _, data := range up.seen {
		if strings.Contains(data, "requestState") && !strings.Contains(data, `"n":5`) {
			t.Errorf("the request is made again as %s", data)
		}
	}
}

// A server that asks for nothing but its state is asked again after a pause; a result that is not of a
// tool fails the task.
func TestTask_StatelessServerIsOdd(t *testing.T) {
	s, up, calls := newSystem(t, eventlog.Settings{}), newStateless(t), 0
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		if calls++; calls <= 2 {
			w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","requestState":"%d"}}`, m.ID, calls))
			return
		}
		w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required"}}`, m.ID))
	})
	cfg := taskConfig(up.URL, "x=always")
	b := s.start(t, cfg)
	pauses := make(chan time.Duration, 10)
	b.host.Times.After = func(d time.Duration) <-chan time.Time {
		pauses <- d
		return time.After(0)
	}
	c := toolCall(t, tasks)
	s.created(t, c)
	if is := s.becomes(t, c.Session, mcp.TaskFailed); is.Error == nil || is.Result != nil {
		t.Errorf("the state is %+v", is)
	}
	if len(pauses) != 2 || <-pauses != stateless.TaskPoll {
		t.Errorf("there were %d pauses", len(pauses))
	}
}

func TestTask_EarlierServerAsks(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), asker(t)
	_, c := s.task(t, taskConfig(up.URL, "x=always"))
	for round := range 2 {
		var is mcp.StoredTask
		waittest.Until(t, "the client is asked", func() bool {
			is = s.becomes(t, c.Session, mcp.TaskInputRequired)
			return strings.Contains(string(is.Requests[fmt.Sprintf("q%d", round+1)]), fmt.Sprintf(`"round":%d`, round))
		})
		s.acknowledged(t, c, mcp.MethodUpdateTask, fmt.Sprintf(`,"inputResponses":{"q%d":{"action":%d}}`, round+1, round))
	}
	s.becomes(t, c.Session, mcp.TaskCompleted, `{\"action\":0} {\"action\":1}`)
}

// A server's question before the call is a task is the result of the client's request; the call
// becomes a task when the client makes the request again.
func TestTask_AfterTheClientWasAsked(t *testing.T) {
	s, up, release := newSystem(t, eventlog.Settings{}), newEarlier(t), make(chan struct{})
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		w.stream()
		w.ask("", "question")
		<-release
		w.send("", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, outcome))
	})
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	cfg := taskConfig(up.URL)
	cfg.TaskAfter = flagtype.Duration(waittest.Timeout)
	b := s.start(t, cfg)
	c := toolCall(t, tasks)
	asked, _ := s.ask(t, c)
	work := b.table.Session(c.Session).Upstream.(interface { //nolint:forcetypeassert,errcheck // the call before has made it
		IsTask() bool
		MakeTask()
	})
	due := time.NewTicker(2 * time.Millisecond)
	defer due.Stop()
	go func() { // the call becomes a task as soon as the client waits again
		for !work.IsTask() {
			select {
			case <-due.C:
				work.MakeTask()
			case <-t.Context().Done():
				return
			}
		}
	}()
	_, a := s.ask(t, repeated(t, c, "2", asked, `{}`))
	if !strings.Contains(string(a.Data), `"resultType":"task"`) || strings.Contains(string(a.Data), "requestState") || !strings.Contains(string(a.Data), `"id":2`) {
		t.Fatalf("the call is answered %s", a.Data)
	}
	// The client has not received the task, and asks once more.
	again := repeated(t, c, "3", asked, `{}`)
	wantHas(t, second(s.ask(t, again)).Data, `"resultType":"task"`, `"id":3`)
	free()
	s.becomes(t, c.Session, mcp.TaskCompleted, "done")
	up.wantPosted(t, 1, "tools/call")
}

func TestTask_Cancelled(t *testing.T) {
	eachEra(t, func(t *testing.T, era string, up *server) {
		s, gone := newSystem(t, eventlog.Settings{}), up.hangs(mcp.MethodCallTool)
		s.start(t, taskConfig(up.URL))
		c := toolCall(t, tasks)
		c.Owner = "anna"
		s.created(t, c)
		// A client that disconnects does not cancel the call: it has the task.
		s.do(t, rpc.Ask{Action: rpc.Cancel, Session: c.Session, Stream: c.Stream})
		if got := s.states(t, c.Session); got[len(got)-1].Status != mcp.TaskWorking {
			t.Fatalf("the state is %+v", got)
		}
		other := c
		other.Owner = "berta"
		wantHas(t, s.about(t, other, mcp.MethodCancelTask, "").Data, "-32602")
		s.acknowledged(t, c, mcp.MethodCancelTask, "")
		if is := s.becomes(t, c.Session, mcp.TaskCancelled); is.TTL == nil || is.Result != nil || is.Error != nil {
			t.Errorf("the state is %+v", is)
		}
		<-gone
		if era == "earlier" {
			waittest.Until(t, "the server is told", func() bool { return up.posted("notifications/cancelled") == 1 })
		}
		s.wantState(t, c.Session, session.Closed)
	})
}

// A task that waits for its client for too long is cancelled.
func TestTask_NoInput(t *testing.T) {
	for name, up := range map[string]*server{"stateless": asking(t), "earlier": asker(t)} {
		s := newSystem(t, eventlog.Settings{})
		cfg := taskConfig(up.URL, "x=always")
		cfg.InputWait = 50 * time.Millisecond
		_, c := s.task(t, cfg)
		if is := s.becomes(t, c.Session, mcp.TaskCancelled); is.Message != stateless.NoInput {
			t.Errorf("%s: the state is %+v", name, is)
		}
	}
}

// The result of a task may have any number of elements (docs/adr/0040): its state is read all the same. Where it is
// larger than an event may be, the client receives an error.
func TestTask_LargeResult(t *testing.T) {
	for _, tt := range []struct {
		content string
		status  mcp.Status
		want    string
	}{
		{`"` + strings.Repeat("x", 200_000) + `"}`, mcp.TaskFailed, "max-message-bytes"},
		{`"done"}` + strings.Repeat(`,{}`, 20_000), mcp.TaskCompleted, `"text":"done"`},
	} {
		eachEra(t, func(t *testing.T, _ string, up *server) {
			s, release := newSystem(t, eventlog.Settings{MaxMessageBytes: 100_000}), make(chan struct{})
			slow(up, release, `"result":{"content":[{"type":"text","text":`+tt.content+`]}`)
			_, c := s.task(t, taskConfig(up.URL))
			close(release)
			s.becomes(t, c.Session, tt.status, tt.want)
		})
	}
}

// A question is larger than an event may be: the task fails, and the call with it.
func TestTask_QuestionIsTooLarge(t *testing.T) {
	large := `{"method":"elicitation/create","params":{"message":"` + strings.Repeat("x", 8000) + `"}}`
	eachEra(t, func(t *testing.T, era string, up *server) {
		s, gone := newSystem(t, eventlog.Settings{MaxMessageBytes: 4096}), make(chan struct{})
		up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
			if era == "stateless" {
				w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"a":%s}}}`, m.ID, large))
				close(gone)
				return
			}
			w.stream()
			w.send("", `{"jsonrpc":"2.0","id":"q",`+large[1:])
			<-r.Context().Done()
			close(gone)
		})
		cfg := taskConfig(up.URL, "x=always")
		cfg.InputWait = time.Hour
		_, c := s.task(t, cfg)
		if is := s.becomes(t, c.Session, mcp.TaskFailed, "max-message-bytes"); is.TTL == nil || is.Requests != nil {
			t.Errorf("the state is %+v", is)
		}
		<-gone
		if era == "earlier" {
			waittest.Until(t, "the server is told", func() bool { return up.posted("notifications/cancelled") == 1 })
		}
		s.wantState(t, c.Session, session.Closed)
		if all := s.states(t, c.Session); len(all) != 2 {
			t.Errorf("the states are %+v", all)
		}
	})
}

// While the state of one task cannot be stored, the bridge looks after its other calls.
func TestTask_PatrolWithoutNATS(t *testing.T) {
	eachEra(t, func(t *testing.T, _ string, up *server) {
		s, release := newSystem(t, eventlog.Settings{}), make(chan struct{})
		slow(up, release, outcome)
		b, c := s.task(t, taskConfig(up.URL))
		before := b.metric(t, "publish_retries_total")
		s.srv.Stop()
		close(release)
		waittest.Until(t, "the last state cannot be stored", func() bool { return b.metric(t, "publish_retries_total") > before })
		looked := background(func() { b.patrol(true) })
		select {
		case <-looked:
		case <-time.After(waittest.Timeout / 2):
			t.Error("the patrol waits for the task")
		}
		s.srv.Start()
		<-looked
		s.becomes(t, c.Session, mcp.TaskCompleted)
	})
}

// resumableTool is a server with sessions whose tool's calls can be resumed.
func resumableTool(t *testing.T, notes int) *resumable {
	t.Helper()
	up := newResumable(t, notes)
	up.handle(mcp.MethodDiscover, newEarlier(t).on[mcp.MethodDiscover])
	up.handle(mcp.MethodCallTool, up.on["long"])
	return up
}

// A bridge that takes over another's task continues it where the server allows that, and else reports
// that it has failed.
func TestTask_TakenOver(t *testing.T) {
	for _, eventIDs := range []bool{true, false} {
		t.Run(fmt.Sprint("event IDs ", eventIDs), func(t *testing.T) {
			s, up := newSystem(t, eventlog.Settings{}), resumableTool(t, 3)
			if !eventIDs {
				up.hangs(mcp.MethodCallTool)
			}
			first, c := s.task(t, taskConfig(up.URL))
			waittest.Until(t, "the tool is called", func() bool { return up.posted("tools/call") == 1 })
			if eventIDs {
				up.step <- struct{}{}
				s.hasEventID(t, c)
			}
			first.stop()
			up.left(t)
			cfg := taskConfig(up.URL)
			cfg.CallTimeout = flagtype.Duration(time.Nanosecond) // which is not for tasks
			s.start(t, cfg)
			want := mcp.TaskFailed
			if eventIDs {
				want = mcp.TaskCompleted
				close(up.step)
			}
			is := s.becomes(t, c.Session, want)
			if (is.Result == nil) != (want == mcp.TaskFailed) {
				t.Errorf("the state is %+v", is)
			}
			s.wantState(t, c.Session, session.Closed)
			all := s.states(t, c.Session)
			if n := len(slices.DeleteFunc(all, func(is mcp.StoredTask) bool { return !is.Status.IsTerminal() })); n != 1 {
				t.Errorf("the task was over %d times", n)
			}
			up.wantPosted(t, 1, "tools/call")
		})
	}
}

// A bridge that cannot store the end of a task that it takes over can be stopped.
func TestTask_TakenOverWithoutTheLog(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newStateless(t)
	slow(up, nil, outcome)
	cfg := taskConfig(up.URL)
	first, c := s.task(t, cfg)
	first.stop()
	// As if the bridge had died before it wrote the call down.
	must.NoError(t, s.records(t).KV.Purge(waittest.Context(t), records.Key(c.Session, c.Stream)))
	tried := make(chan struct{})
	once := sync.OnceFunc(func() { close(tried) })
	s.sending(func(data []byte) {
		if replace(data, "HPUB mcp.", "HPUB not.") { // which has no responder
			once()
		}
	})
	second := s.launch(t, cfg)
	waittest.Receive(t, "the task is about to end", tried)
	waittest.Receive(t, "the bridge has stopped", background(second.stop))
}

// hasEventID waits until the record of a call has an event ID of the server's.
func (s *system) hasEventID(t *testing.T, c rpc.Ask) {
	t.Helper()
	waittest.Until(t, "the server's event is written down", func() bool {
		all, err := s.records(t).Load(waittest.Context(t))
		return err == nil && all[records.Key(c.Session, c.Stream)].ID != ""
	})
}

// leftBehind returns a call that may become a task, of a bridge that has stopped before that, and the
// configuration of the bridge.
func (s *system) leftBehind(t *testing.T, up *resumable) (rpc.Ask, config.Config) {
	t.Helper()
	cfg := taskConfig(up.URL)
	cfg.TaskAfter = flagtype.Duration(time.Hour)
	in := s.start(t, cfg)
	in.host.Times.Answer = 0
	c := s.accepted(t, tasks)
	up.step <- struct{}{}
	s.hasEventID(t, c)
	in.stop()
	up.left(t)
	return c, cfg
}

// A call that was no task yet becomes one at the next bridge.
func TestTask_CallTakenOver(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), resumableTool(t, 2)
	c, _ := s.leftBehind(t, up)
	s.start(t, taskConfig(up.URL))
	s.becomes(t, c.Session, mcp.TaskWorking)
	close(up.step)
	s.becomes(t, c.Session, mcp.TaskCompleted)
	wantHas(t, last(s.finished(t, c.Session, c.Stream)), `"id":1`, `"resultType":"task"`)
}

// A bridge may be killed between the first state of a task and the response that names the task: the client
// receives the response from the next bridge, and once.
func TestTask_TakenOverBeforeItsClientKnows(t *testing.T) {
	for name, want := range map[string]mcp.Status{"stateless": mcp.TaskFailed, "earlier": mcp.TaskCompleted} {
		t.Run(name, func(t *testing.T) {
			s, up := newSystem(t, eventlog.Settings{}), resumableTool(t, 2)
			if name == "stateless" {
				up.handle(mcp.MethodDiscover, newStateless(t).on[mcp.MethodDiscover])
			}
			c, cfg := s.leftBehind(t, up)
			data := must.Value(mcp.StoredTask{Task: mcp.Task{ID: mcp.TaskID(c.Session), Status: mcp.TaskWorking, Created: time.Now()}}.Event())(t)
			must.Value(s.b.Log.Publish(waittest.Context(t), eventlog.Event{Session: c.Session, Life: c.Life, Sole: true, Stream: mcp.TaskStream, Data: data}))(t)
			named := func() {
				t.Helper()
				wantHas(t, last(s.finished(t, c.Session, c.Stream)), `"id":1`, `"resultType":"task"`, mcp.TaskID(c.Session))
			}
			in := s.start(t, cfg)
			named()
			if want == mcp.TaskCompleted {
				in.stop() // the next one finds the response
				up.left(t)
				s.start(t, cfg)
			}
			close(up.step)
			s.becomes(t, c.Session, want)
			s.wantState(t, c.Session, session.Closed)
			named()
		})
	}
}

// The questions that a task's client has not answered are known to the next bridge, and so are those whose answer
// the server does not have: it is not acknowledged.
func TestTask_TakenOverWhileItAsks(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
	var id string
	var away atomic.Bool
	var tries atomic.Int64
	away.Store(true)
	release, told := make(chan struct{}), make(chan string, 1)
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		id = string(m.ID)
		w.stream()
		w.send("1", `{"jsonrpc":"2.0","id":"question","method":"elicitation/create","params":{"n":1}}`)
		<-r.Context().Done()
	})
	up.handle("", func(w *writing, _ *http.Request, m rpc.Message) {
		if away.Load() {
			if tries.Add(1)%2 == 0 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		if string(m.ID) == `"question"` {
			told <- string(m.Result)
			close(release)
		}
	})
	up.onResume(func(w *writing, r *http.Request) {
		select {
		case <-release:
			w.send("2", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, id, outcome))
		case <-r.Context().Done():
		}
	})
	cfg := taskConfig(up.URL, "x=always")
	first, c := s.task(t, cfg)
	s.becomes(t, c.Session, mcp.TaskInputRequired)
	s.hasEventID(t, c)
	const answer = `,"inputResponses":{"q1":{"action":"accept"}}`
	update := later(func() rpc.Answer { return s.about(t, c, mcp.MethodUpdateTask, answer) })
	waittest.Until(t, "the server is told", func() bool { return up.posted("accept") > 0 })
	first.stop()
	wantStatus(t, waittest.Receive(t, "the client is answered", update), http.StatusServiceUnavailable)
	away.Store(false)
	s.start(t, cfg)
	is := s.becomes(t, c.Session, mcp.TaskInputRequired)
	if want := map[string]json.RawMessage{"q1": json.RawMessage(`"question"`)}; !cmp.Equal(is.Asked, want) {
		t.Fatalf("the state is %+v", is)
	}
	s.acknowledged(t, c, mcp.MethodUpdateTask, answer)
	if got := <-told; got != `{"action":"accept"}` {
		t.Errorf("the server is told %s", got)
	}
	s.becomes(t, c.Session, mcp.TaskCompleted, "done")
}

// A bridge may be killed before it has written down the event of a question that its task's client is asked. The
// server sends the question again, and the client is asked once.
func TestTask_TakenOverBeforeTheQuestionIsWrittenDown(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, _ rpc.Message) {
		w.stream()
		w.send("0", note(1))
		w.ask("1", "one")
		<-r.Context().Done()
	})
	up.onResume(func(w *writing, r *http.Request) {
		if r.Header.Get("Last-Event-ID") == "0" {
			w.ask("1", "one")
		}
		w.ask("2", "two")
		<-r.Context().Done()
	})
	cfg := taskConfig(up.URL, "x=always")
	first, c := s.task(t, cfg)
	s.becomes(t, c.Session, mcp.TaskInputRequired)
	s.hasEventID(t, c)
	first.stop()
	key, bucket := records.Key(c.Session, c.Stream), s.records(t)
	all := must.Value(bucket.Load(waittest.Context(t)))(t)
	is := all[key]
	is.ID = "0"
	must.NoError(t, bucket.Put(waittest.Context(t), key, is))
	s.start(t, cfg)
	var asked []string
	waittest.Until(t, "the client is asked the second question", func() bool {
		asked = nil
		for _, id := range s.becomes(t, c.Session, mcp.TaskInputRequired).Asked {
			asked = append(asked, string(id))
		}
		return slices.Contains(asked, `"two"`)
	})
	slices.Sort(asked)
	wantMessages(t, asked, `"one"`, `"two"`)
}

// A question is not shown again while its answer is on the way to the server, which asks another one meanwhile.
func TestTask_ServerAsksDuringAnAnswer(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
	answered, take := make(chan struct{}), make(chan struct{})
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, _ rpc.Message) {
		w.stream()
		w.ask("1", "one")
		<-answered
		w.ask("2", "two")
		<-r.Context().Done()
	})
	up.onAnswer(func(rpc.Message) {
		close(answered)
		<-take
	})
	in, c := s.task(t, taskConfig(up.URL, "x=always"))
	s.becomes(t, c.Session, mcp.TaskInputRequired)
	made := in.table.Session(c.Session).Call(c.Stream)
	update := later(func() rpc.Answer { return s.about(t, c, mcp.MethodUpdateTask, `,"inputResponses":{"q1":{}}`) })
	waittest.Until(t, "the second question is read", func() bool { return made.Cursor().ID == "2" })
	for range 100 {
		s.states(t, c.Session) // an early question would come long before
	}
	close(take)
	wantStatus(t, waittest.Receive(t, "the client is answered", update), http.StatusOK)
	var asked []string
	for _, is := range s.states(t, c.Session) {
		asked = slices.AppendSeq(asked, maps.Keys(is.Requests))
	}
	wantMessages(t, asked, "q1", "q2")
}

// A key of a question that another bridge has asked, and the client has answered, is not used again.
func TestTask_TakenOverAfterItAsked(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
	var id string
	answered := map[string]chan struct{}{`"one"`: make(chan struct{}), `"two"`: make(chan struct{})}
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		id = string(m.ID)
		w.stream()
		w.ask("1", "one")
		<-r.Context().Done()
	})
	up.handle("", func(w *writing, _ *http.Request, m rpc.Message) {
		w.WriteHeader(http.StatusAccepted)
		if done := answered[string(m.ID)]; done != nil {
			close(done)
		}
	})
	up.onResume(func(w *writing, r *http.Request) {
		w.ask("2", "two")
		select {
		case <-answered[`"two"`]:
			w.send("3", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, id, outcome))
		case <-r.Context().Done():
		}
	})
	cfg := taskConfig(up.URL, "x=always")
	first, c := s.task(t, cfg)
	asked := map[string]bool{}
	answer := func() {
		for key := range s.becomes(t, c.Session, mcp.TaskInputRequired).Requests {
			if asked[key] {
				t.Errorf("the key %s comes twice", key)
			}
			asked[key] = true
			s.acknowledged(t, c, mcp.MethodUpdateTask, fmt.Sprintf(`,"inputResponses":{%q:{"action":"accept"}}`, key))
		}
	}
	answer()
	<-answered[`"one"`]
	s.hasEventID(t, c)
	s.restart(t, first)
	answer()
	s.becomes(t, c.Session, mcp.TaskCompleted)
}

// A state that does not change is stored again before the log's floor passes it.
func TestTask_Refreshed(t *testing.T) {
	s, release := newSystem(t, eventlog.Settings{}), make(chan struct{})
	up := slow(newStateless(t), release, outcome)
	cfg := taskConfig(up.URL)
	cfg.AckTimeout = waittest.Timeout // of the look, which is not tried again
	b, c := s.task(t, cfg)
	work, now := b.table.Session(c.Session), time.Now()
	refresh := func(after time.Duration, want int) {
		t.Helper()
		now = now.Add(after)
		if work.RefreshTask(now); len(s.states(t, c.Session)) != want {
			t.Errorf("after %s more the state is stored %d times, not %d", after, len(s.states(t, c.Session)), want)
		}
	}
	refresh(time.Minute, 1)
	for range 50 {
		must.Value(s.b.Log.Publish(waittest.Context(t), eventlog.Event{Session: c.Session, Life: c.Life, Sole: true, Stream: "another", Data: []byte(note(1))}))(t)
	}
	refresh(stateless.TaskCheck-1, 1)
	refresh(1, 2) // in the oldest part of the log
	refresh(stateless.TaskCheck, 2)
	refresh(time.Hour/2, 3) // half of the log's age
	close(release)
	s.becomes(t, c.Session, mcp.TaskCompleted)
	refresh(time.Hour, 4)
	if all := s.states(t, c.Session); all[len(all)-1].Status != mcp.TaskCompleted {
		t.Errorf("the states are %+v", all)
	}
}

// A task is not promised for longer than the log keeps its last state.
func TestTask_TTL(t *testing.T) {
	for age, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, 2 * time.Hour: time.Hour, -1: time.Hour} {
		s := newSystem(t, eventlog.Settings{MaxAge: age})
		if got := stateless.TaskTTL(s.start(t, testConfig(newStateless(t).URL)).host); got != want {
			t.Errorf("where the log keeps events for %s it is %s", age, got)
		}
	}
}

func TestConfig_TaskTools(t *testing.T) {
	got, err := config.Config{TaskTools: []string{"a=never", "b=c=required"}}.TaskPolicies()
	if want := (map[string]config.TaskPolicy{"a": config.TaskNever, "b=c": config.TaskRequired}); err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"a", "=never", "a=often", ""} {
		if err := (config.Config{Upstream: "http://x", TaskTools: []string{text}}).Validate(); err == nil || !strings.Contains(err.Error(), "--task-tools") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
