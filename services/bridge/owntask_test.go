package bridge

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/stateless"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// withTasks is a server of the revision without sessions that has tasks of its own, and no notion of users.
func withTasks(t testing.TB) *server {
	t.Helper()
	up := newModern(t)
	up.responds(mcp.MethodDiscover, `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}`)
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"task","taskId":%s,"status":"working","ttlMs":60000}}`, m.ID, m.Param("name")))
	})
	for _, method := range []string{mcp.MethodGetTask, mcp.MethodUpdateTask, mcp.MethodCancelTask} {
		up.handle(method, func(w *writing, _ *http.Request, m rpc.Message) {
			w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","served":%s}}`, m.ID, m.Param("taskId")))
		})
	}
	return listens(up)
}

// owned is a request of a principal.
func owned(t testing.TB, owner, method, params string) rpc.Ask {
	t.Helper()
	c := statelessCall(t, "1", method, params, tasks)
	c.Owner = owner
	return c
}

// A server's own task is known to the principal that made it, at any bridge, and after a restart.
func TestOwnTask_OfAnotherPrincipal(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), withTasks(t)
	first := s.start(t, testConfig(up.URL))
	if a := s.do(t, owned(t, "alice", mcp.MethodCallTool, `"name":"42"`)); !strings.Contains(string(a.Data), `"taskId":"42"`) {
		t.Fatalf("the call is answered %d %s", a.Status, a.Data)
	}
	other := testConfig(up.URL)
	other.BridgeName = "other"
	s.start(t, other)
	first.stop() // all requests go to the other one
	for _, method := range []string{mcp.MethodGetTask, mcp.MethodUpdateTask, mcp.MethodCancelTask} {
		unknown := s.do(t, owned(t, "bob", method, `"taskId":"unknown"`))
		for name, params := range map[string]string{"another's": `"taskId":"42"`, "twice": `"taskId":"42","taskId":"mine"`, "other case": `"TaskId":"42","taskId":"mine"`} {
			a := s.do(t, owned(t, "bob", method, params))
			if a.Status != http.StatusBadRequest || !strings.Contains(string(a.Data), "-32602") || !bytes.Equal(a.Data, unknown.Data) {
				t.Errorf("%s of a task that is %s is answered %d %s, and of an unknown one %d %s", method, name, a.Status, a.Data, unknown.Status, unknown.Data)
			}
		}
		if n := up.posted(method); n != 0 {
			t.Errorf("the server received %s %d times", method, n)
		}
		if a := s.do(t, owned(t, "alice", method, `"taskId":"42"`)); a.Status != http.StatusOK || !strings.Contains(string(a.Data), `"served":"42"`) {
			t.Errorf("%s of the client's own task is answered %d %s", method, a.Status, a.Data)
		}
	}
	s.do(t, owned(t, "bob", mcp.MethodCallTool, `"name":"mine"`))
	for _, params := range []string{`"TaskId":"42","taskId":"mine"`, `"taskId":"42","taskId":"mine"`} {
		s.do(t, owned(t, "bob", mcp.MethodGetTask, params))
		if n := up.posted(`"42","taskId"`); n != 0 {
			t.Errorf("the server received %s", up.seen[len(up.seen)-1])
		}
	}
	l := owned(t, "bob", mcp.MethodListen, `"notifications":{"taskIds":["42","mine"]}`)
	wantStatus(t, s.do(t, l), http.StatusAccepted)
	if all := s.listenedTo(t, l, 1); !strings.Contains(all[0], `"taskIds":["mine"]`) {
		t.Errorf("the listener is acknowledged with %s", all[0])
	}
}

// A client that listens to more tasks of the server than it may costs no more than that, and nothing where
// the server has none.
func TestOwnTask_ManyListenedTo(t *testing.T) {
	for _, tt := range []struct {
		name string
		up   *server
		most uint64
	}{{"with tasks", withTasks(t), 3 * stateless.MaxWatched}, {"without", listens(newModern(t)), stateless.MaxWatched}} {
		s := newSystem(t, eventlog.Settings{})
		in := s.start(t, testConfig(tt.up.URL))
		ids := make([]string, 10*stateless.MaxWatched)
		for i := range ids {
			ids[i] = fmt.Sprint("t", i)
		}
		before := in.b.Conn.Stats().OutMsgs
		l := owned(t, "bob", mcp.MethodListen, fmt.Sprintf(`"notifications":{"taskIds":%s}`, event.MustJSON(ids)))
		if a := s.do(t, l); a.Status != http.StatusAccepted {
			t.Fatalf("%s: the listener is answered %d %s", tt.name, a.Status, a.Data)
		}
		if all := s.listenedTo(t, l, 1); strings.Contains(all[0], `"taskIds"`) {
			t.Errorf("%s: the listener is acknowledged with %s", tt.name, all[0])
		}
		if n := in.b.Conn.Stats().OutMsgs - before; n > tt.most {
			t.Errorf("%s: %d messages are sent to NATS", tt.name, n)
		}
	}
}

// Without access control there is one principal, whose tasks are not noted.
func TestOwnTask_WithoutAccessControl(t *testing.T) {
	s, _, _ := bridged(t, withTasks(t))
	s.do(t, owned(t, "", mcp.MethodCallTool, `"name":"42"`))
	for _, id := range []string{"42", "from before"} {
		if a := s.do(t, owned(t, "", mcp.MethodGetTask, fmt.Sprintf(`"taskId":%q`, id))); !strings.Contains(string(a.Data), `"served"`) {
			t.Errorf("the request is answered %d %s", a.Status, a.Data)
		}
	}
	ids := make([]string, stateless.MaxWatched+1)
	for i := range ids {
		ids[i] = fmt.Sprint("t", i)
	}
	l := owned(t, "", mcp.MethodListen, fmt.Sprintf(`"notifications":{"taskIds":%s}`, event.MustJSON(ids)))
	s.do(t, l)
	if all := s.listenedTo(t, l, 1); !strings.Contains(all[0], string(event.MustJSON(ids))) {
		t.Errorf("the listener is acknowledged with %s", all[0])
	}
	if keys, err := s.records(t).KV.ListKeys(waittest.Context(t)); err != nil {
		t.Error(err)
	} else {
		for key := range keys.Keys() {
			if strings.HasPrefix(key, "=task") {
				t.Errorf("there is the key %s", key)
			}
		}
	}
}

// In sessions, too, a task belongs to the principal: of 2025-11-25, whose lists have it as well.
func TestOwnTask_InSessions(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":{"taskId":%s,"status":"working","ttl":null}}}`, m.ID, m.Param("name")))
	})
	up.responds("tasks/list", `"result":{"nextCursor":"2","tasks":[{"taskId":"a"},{"taskId":"b"},{"taskId":"c"}]}`)
	methods := []string{"tasks/get", "tasks/result", "tasks/cancel"}
	for _, method := range methods {
		up.handle(method, func(w *writing, _ *http.Request, m rpc.Message) {
			w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"served":%s}}`, m.ID, m.Param("taskId")))
		})
	}
	first := s.start(t, testConfig(up.URL))
	sessions := map[string]string{}
	for _, owner := range []string{"alice", "bob", ""} {
		sessions[owner], _ = s.openAs(t, owner, "192.0.2.1")
	}
	n := 0
	send := func(owner, method, params string) string {
		t.Helper()
		n++
		id := fmt.Sprint(n)
		stream := newStream(t, id)
		a := s.post(t, sessions[owner], stream, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s}}`, id, method, params))
		if a.Status == http.StatusAccepted {
			return strings.Join(s.finished(t, sessions[owner], stream), "")
		}
		if a.Status != http.StatusOK || !strings.Contains(string(a.Data), `"id":`+id+`,`) {
			t.Errorf("%s is answered %d %s", method, a.Status, a.Data)
		}
		return string(a.Data)
	}
	for owner, task := range map[string]string{"alice": "a", "bob": "b"} {
		if got := send(owner, mcp.MethodCallTool, fmt.Sprintf(`"name":%q,"task":{}`, task)); !strings.Contains(got, fmt.Sprintf(`"taskId":%q`, task)) {
			t.Errorf("the call is answered %s", got)
		}
	}
	first.stop()
	in := s.start(t, testConfig(up.URL))
	for _, method := range methods {
		if got := send("alice", method, `"taskId":"a"`); !strings.Contains(got, `"served":"a"`) {
			t.Errorf("%s of the client's own task is answered %s", method, got)
		}
		before := up.posted(method)
		for _, params := range []string{`"taskId":"b"`, `"taskId":"none"`, `"taskId":5`, ``} {
			if got := send("alice", method, params); !strings.Contains(got, "-32602") {
				t.Errorf("%s with %s is answered %s", method, params, got)
			}
		}
		for _, body := range []string{
			fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":"ping","Method":%q,"params":{"taskId":"b"}}`, method),
			fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":%q,"method":"ping","params":{"taskId":"b"}}`, method),
		} {
			s.post(t, sessions["alice"], newStream(t, `"x"`), body)
		}
		s.post(t, sessions["alice"], "", fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{"taskId":"b"}}`, method))
		s.post(t, sessions["alice"], newStream(t, "1"), fmt.Sprintf(`[{"jsonrpc":"2.0","id":1,"method":%q,"params":{"taskId":"b"}}]`, method))
		if after := up.posted(method); after != before {
			t.Errorf("the server received %s", up.seen[len(up.seen)-1])
		}
	}
	for owner, want := range map[string]string{"alice": `"tasks":[{"taskId":"a"}]`, "bob": `"tasks":[{"taskId":"b"}]`, "": `"tasks":[{"taskId":"a"},{"taskId":"b"},{"taskId":"c"}]`} {
		if got := send(owner, "tasks/list", ""); !strings.Contains(got, want) || !strings.Contains(got, `"nextCursor":"2"`) {
			t.Errorf("%q is told %s", owner, got)
		}
	}
	// A batch has the bucket read so many times, however long it is.
	before, batch := in.b.Conn.Stats().OutMsgs, make([]string, 1000)
	for i := range batch {
		batch[i] = fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tasks/get","params":{"taskId":"a"}}`, i)
	}
	a := s.post(t, sessions["alice"], newStream(t, "0"), "["+strings.Join(batch, ",")+"]")
	if sent := in.b.Conn.Stats().OutMsgs - before; a.Status != http.StatusBadRequest || !strings.Contains(string(a.Data), "64 requests") || sent > 100 {
		t.Errorf("a long batch is answered %d %.200s after %d messages to NATS", a.Status, a.Data, sent)
	}
}

// A list waits once for NATS, and not once for each task of the server.
func TestOwnTask_LongList(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	tasks := make([]string, 40)
	for i := range tasks {
		tasks[i] = fmt.Sprintf(`{"taskId":"%d"}`, i)
	}
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":{"taskId":%s,"status":"working","ttl":null}}}`, m.ID, m.Param("name")))
	})
	up.handle("tasks/list", func(w *writing, _ *http.Request, m rpc.Message) {
		w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tasks":[%s]}}`, m.ID, strings.Join(tasks, ",")))
	})
	var listing atomic.Bool
	var asked atomic.Int32 // for how many notes
	var seen sync.Map
	notes, several := regexp.MustCompile("=task[.][0-9a-f]+"), make(chan struct{})
	s.options = []nats.Option{nats.SetCustomDialer(&natstest.Link{
		Before: func(data []byte) {
			if !listing.Load() {
				return
			}
			for _, key := range notes.FindAllString(string(data), -1) {
				if _, again := seen.LoadOrStore(key, nil); !again && asked.Add(1) == 2 {
					close(several)
				}
			}
		},
		After: func([]byte) {
			if asked.Load() > 0 {
				<-several // no answer before another question
			}
		},
	})}
	s.start(t, testConfig(up.URL))
	session, _ := s.openAs(t, "alice", "192.0.2.1")
	for _, id := range []int{7, 31, 12} {
		stream := newStream(t, fmt.Sprint(id))
		s.post(t, session, stream, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%d","task":{}}}`, id, id))
		s.finished(t, session, stream)
	}
	listing.Store(true)
	stream, _ := s.request(t, session, "1", "tasks/list")
	if got := strings.Join(s.finished(t, session, stream), ""); !strings.Contains(got, `"tasks":[{"taskId":"7"},{"taskId":"12"},{"taskId":"31"}]`) {
		t.Errorf("the list is %s", got)
	}
}

// The answer that names a task does not wait for longer than a moment until it is stored whose the task
// is, and the bridge that gave it knows.
func TestOwnTask_NoteCannotBeStored(t *testing.T) {
	s, _, in := bridged(t, withTasks(t))
	s.do(t, statelessCall(t, "1", mcp.MethodDiscover, "", "")) // the bridge has started
	r := s.records(t)
	must.NoError(t, r.JS.DeleteKeyValue(waittest.Context(t), rpc.CallsBucket))
	if a := s.do(t, owned(t, "alice", mcp.MethodCallTool, `"name":"42"`)); a.Status != http.StatusOK || !strings.Contains(string(a.Data), `"taskId":"42"`) {
		t.Errorf("the call is answered %d %s", a.Status, a.Data)
	}
	if a := s.do(t, owned(t, "alice", mcp.MethodGetTask, `"taskId":"42"`)); !strings.Contains(string(a.Data), `"served":"42"`) {
		t.Errorf("its client is answered %d %s", a.Status, a.Data)
	}
	wantStatus(t, s.do(t, owned(t, "bob", mcp.MethodGetTask, `"taskId":"42"`)), http.StatusServiceUnavailable)
	s.records(t) // makes the bucket
	waittest.Until(t, "the note is stored", func() bool { return in.table.Owners.Unwritten() == 0 })
	wantStatus(t, s.do(t, owned(t, "bob", mcp.MethodGetTask, `"taskId":"42"`)), http.StatusBadRequest)
}

// taskTool is a server of 2025-11-25 whose tool runs only as a task, and asks meanwhile. It is as one
// of the TypeScript SDK 1.32.
func taskTool(t testing.TB, release chan struct{}) *server {
	t.Helper()
	up := newEarlier(t)
	up.has(`{"tools":{},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}}`)
	up.handle("tools/list", func(w *writing, _ *http.Request, m rpc.Message) {
		if m.Param("cursor") == nil {
			w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"plain"}],"nextCursor":"2"}}`, m.ID))
			return
		}
		w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"x","execution":{"taskSupport":"required"}},{"name":"optional","execution":{"taskSupport":"optional"}},{"name":"broken","execution":{"taskSupport":"required"}},{"name":"down","execution":{"taskSupport":"required"}}]}}`, m.ID))
	})
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		name := string(m.Param("name"))
		switch {
		case name == `"broken"`:
			w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"broken"}}`, m.ID))
		case name == `"down"`:
			w.WriteHeader(http.StatusForbidden)
		case (name == `"x"`) != (m.Param("task") != nil):
			w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"isError":true,"content":[{"type":"text","text":"no task augmentation"}]}}`, m.ID))
		case name != `"x"`:
			w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, outcome))
		default:
			w.stream()
			w.send("", fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, m.Param("_meta", "progressToken")))
			w.send("", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":{"taskId":"inner","status":"working","ttl":null}}}`, m.ID))
		}
	})
	up.handle("tasks/result", func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		w.send("", `{"jsonrpc":"2.0","id":"question","method":"elicitation/create","params":{}}`)
		select {
		case <-release:
		case <-r.Context().Done():
			return
		}
		w.send("", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, outcome))
	})
	return up
}

// A tool of 2025-11-25 that runs only as a task serves clients of 2026-07-28, which cannot ask for one.
func TestRequiredTask(t *testing.T) {
	for name, meta := range map[string]string{"without tasks": asks, "with tasks": tasks} {
		t.Run(name, func(t *testing.T) {
			s, release := newSystem(t, eventlog.Settings{}), make(chan struct{})
			up := taskTool(t, release)
			cfg := testConfig(up.URL)
			if meta == tasks {
				cfg.TaskTools = []string{"x=always"}
			}
			s.start(t, cfg)
			for _, tool := range []string{"plain", "optional"} {
				if _, a := s.ask(t, statelessCall(t, "1", mcp.MethodCallTool, fmt.Sprintf(`"name":%q,"task":{}`, tool), meta)); !strings.Contains(string(a.Data), "done") {
					t.Errorf("%s is answered %d %s", tool, a.Status, a.Data)
				}
			}
			if a := s.do(t, statelessCall(t, "1", mcp.MethodCallTool, `"name":"broken"`, meta)); a.Status != http.StatusOK || !strings.Contains(string(a.Data), `"message":"broken"`) {
				t.Errorf("a call that becomes no task is answered %d %s", a.Status, a.Data)
			}
			if a := s.do(t, statelessCall(t, "1", mcp.MethodCallTool, `"name":"down"`, meta)); a.Status != http.StatusForbidden || !strings.Contains(string(a.Data), `"id":1`) {
				t.Errorf("a call that is refused is answered %d %s", a.Status, a.Data)
			}
			c := statelessCall(t, "1", mcp.MethodCallTool, `"name":"x"`, meta)
			if meta == tasks {
				s.created(t, c)
				s.becomes(t, c.Session, mcp.TaskInputRequired)
				s.acknowledged(t, c, mcp.MethodUpdateTask, `,"inputResponses":{"q1":{"action":"accept"}}`)
				close(release)
				if is := s.becomes(t, c.Session, mcp.TaskCompleted); !strings.Contains(string(is.Result), "done") {
					t.Errorf("the state is %+v", is)
				}
			} else {
				asked, a := s.ask(t, c)
				if len(asked.Result.InputRequests) != 1 {
					t.Fatalf("the call is answered %d %s", a.Status, a.Data)
				}
				close(release)
				if _, a := s.ask(t, repeated(t, c, "2", asked, `{}`)); !strings.Contains(string(a.Data), "done") {
					t.Errorf("the call is answered %d %s", a.Status, a.Data)
				}
				if all, _ := s.read(t, c.Session, c.Stream); !strings.Contains(all[0], `"progressToken":"mine"`) {
					t.Errorf("the client is told %s", all)
				}
			}
			if n := up.posted(`"tools/list"`); n != 2 {
				t.Errorf("the tools were listed %d times", n)
			}
		})
	}
}

// A tool whose task runs is not refused in a way that has the client call it again.
func TestRequiredTask_ResultIsRefused(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), taskTool(t, nil)
	up.responds(mcp.MethodCallTool, `"result":{"task":{"taskId":"inner","status":"working","ttl":null}}`)
	up.handle("tasks/result", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	s.start(t, testConfig(up.URL))
	a := s.do(t, statelessCall(t, "1", mcp.MethodCallTool, `"name":"x"`, asks))
	if a.Status != http.StatusGatewayTimeout || a.Header.Get("Retry-After") != "" || !strings.Contains(string(a.Data), `"id":1`) {
		t.Errorf("%d %v %s", a.Status, a.Header, a.Data)
	}
}

// When the call ends with its client, so does the server's task.
func TestRequiredTask_Cancelled(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), taskTool(t, make(chan struct{}))
	cfg := testConfig(up.URL)
	cfg.TaskTools = []string{"x=always"}
	_, c := s.task(t, cfg)
	s.becomes(t, c.Session, mcp.TaskInputRequired)
	s.acknowledged(t, c, mcp.MethodCancelTask, "")
	s.becomes(t, c.Session, mcp.TaskCancelled)
	waittest.Until(t, "the server's task is cancelled", func() bool { return up.posted(`"tasks/cancel"`) == 1 && up.posted(`"inner"`) == 2 })
}
