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
	up := newStateless(t)
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
	s, up, first := bridged(t, withTasks(t))
	wantHas(t, s.do(t, owned(t, "alice", mcp.MethodCallTool, `"name":"42"`)).Data, `"taskId":"42"`)
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
		up.wantPosted(t, 0, method)
		wantStatus(t, s.do(t, owned(t, "alice", method, `"taskId":"42"`)), http.StatusOK, `"served":"42"`)
	}
	s.do(t, owned(t, "bob", mcp.MethodCallTool, `"name":"mine"`))
	for _, params := range []string{`"TaskId":"42","taskId":"mine"`, `"taskId":"42","taskId":"mine"`} {
		s.do(t, owned(t, "bob", mcp.MethodGetTask, params))
		up.wantPosted(t, 0, `"42","taskId"`)
	}
	l := owned(t, "bob", mcp.MethodListen, `"notifications":{"taskIds":["42","mine"]}`)
	wantStatus(t, s.do(t, l), http.StatusAccepted)
	wantHas(t, s.listenedTo(t, l, 1)[0], `"taskIds":["mine"]`)
}

// A client that listens to more tasks of the server than the limit costs no more than the limit, and nothing
// where the server has no tasks.
func TestOwnTask_ManyListenedTo(t *testing.T) {
	for _, tt := range []struct {
		name string
		up   *server
		most uint64
	}{{"with tasks", withTasks(t), 3 * stateless.MaxWatched}, {"without", listens(newStateless(t)), stateless.MaxWatched}} {
		s := newSystem(t, eventlog.Settings{})
		in := s.start(t, testConfig(tt.up.URL))
		ids := make([]string, 10*stateless.MaxWatched)
		for i := range ids {
			ids[i] = fmt.Sprint("t", i)
		}
		before := in.b.Conn.Stats().OutMsgs
		l := owned(t, "bob", mcp.MethodListen, fmt.Sprintf(`"notifications":{"taskIds":%s}`, event.MustJSON(ids)))
		wantStatus(t, s.do(t, l), http.StatusAccepted)
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
		wantHas(t, s.do(t, owned(t, "", mcp.MethodGetTask, fmt.Sprintf(`"taskId":%q`, id))).Data, `"served"`)
	}
	ids := make([]string, stateless.MaxWatched+1)
	for i := range ids {
		ids[i] = fmt.Sprint("t", i)
	}
	l := owned(t, "", mcp.MethodListen, fmt.Sprintf(`"notifications":{"taskIds":%s}`, event.MustJSON(ids)))
	s.do(t, l)
	wantHas(t, s.listenedTo(t, l, 1)[0], string(event.MustJSON(ids)))
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
	s, up, first := bridged(t, newServer(t))
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
		wantStatus(t, a, http.StatusOK, `"id":`+id+`,`)
		return string(a.Data)
	}
	for owner, task := range map[string]string{"alice": "a", "bob": "b"} {
		wantHas(t, send(owner, mcp.MethodCallTool, fmt.Sprintf(`"name":%q,"task":{}`, task)), fmt.Sprintf(`"taskId":%q`, task))
	}
	in := s.restart(t, first)
	for _, method := range methods {
		wantHas(t, send("alice", method, `"taskId":"a"`), `"served":"a"`)
		before := up.posted(method)
		for _, params := range []string{`"taskId":"b"`, `"taskId":"none"`, `"taskId":5`, ``} {
			wantHas(t, send("alice", method, params), "-32602")
		}
		for _, body := range []string{
			fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":"ping","Method":%q,"params":{"taskId":"b"}}`, method),
			fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":%q,"method":"ping","params":{"taskId":"b"}}`, method),
		} {
			s.post(t, sessions["alice"], newStream(t, `"x"`), body)
		}
		s.post(t, sessions["alice"], "", fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{"taskId":"b"}}`, method))
		s.post(t, sessions["alice"], newStream(t, "1"), fmt.Sprintf(`[{"jsonrpc":"2.0","id":1,"method":%q,"params":{"taskId":"b"}}]`, method))
		up.wantPosted(t, before, method)
	}
	for owner, want := range map[string]string{"alice": `"tasks":[{"taskId":"a"}]`, "bob": `"tasks":[{"taskId":"b"}]`, "": `"tasks":[{"taskId":"a"},{"taskId":"b"},{"taskId":"c"}]`} {
		wantHas(t, send(owner, "tasks/list", ""), want, `"nextCursor":"2"`)
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
		stream, _ := s.request(t, session, fmt.Sprint(id), mcp.MethodCallTool, fmt.Sprintf(`"name":"%d","task":{}`, id))
		s.finished(t, session, stream)
	}
	listing.Store(true)
	stream, _ := s.request(t, session, "1", "tasks/list")
	wantHas(t, strings.Join(s.finished(t, session, stream), ""), `"tasks":[{"taskId":"7"},{"taskId":"12"},{"taskId":"31"}]`)
}

// The answer that names a task waits only a moment until the task's owner is stored, and the bridge that
// gave it knows the owner.
func TestOwnTask_NoteCannotBeStored(t *testing.T) {
	s, _, in := bridged(t, withTasks(t))
	s.do(t, statelessCall(t, "1", mcp.MethodDiscover, "", "")) // the bridge has started
	r := s.records(t)
	must.NoError(t, r.JS.DeleteKeyValue(waittest.Context(t), rpc.CallsBucket))
	wantStatus(t, s.do(t, owned(t, "alice", mcp.MethodCallTool, `"name":"42"`)), http.StatusOK, `"taskId":"42"`)
	wantHas(t, s.do(t, owned(t, "alice", mcp.MethodGetTask, `"taskId":"42"`)).Data, `"served":"42"`)
	wantStatus(t, s.do(t, owned(t, "bob", mcp.MethodGetTask, `"taskId":"42"`)), http.StatusServiceUnavailable)
	s.records(t) // makes the bucket
	waittest.Until(t, "the note is stored", func() bool { return in.table.Owners.Unwritten() == 0 })
	wantStatus(t, s.do(t, owned(t, "bob", mcp.MethodGetTask, `"taskId":"42"`)), http.StatusBadRequest)
}

// taskTool is a server of 2025-11-25 whose tool runs only as a task, and asks meanwhile. It is like one
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
		w.ask("", "question")
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
				wantHas(t, second(s.ask(t, statelessCall(t, "1", mcp.MethodCallTool, fmt.Sprintf(`"name":%q,"task":{}`, tool), meta))).Data, "done")
			}
			wantStatus(t, s.do(t, statelessCall(t, "1", mcp.MethodCallTool, `"name":"broken"`, meta)), http.StatusOK, `"message":"broken"`)
			wantStatus(t, s.do(t, statelessCall(t, "1", mcp.MethodCallTool, `"name":"down"`, meta)), http.StatusForbidden, `"id":1`)
			c := toolCall(t, meta)
			if meta == tasks {
				s.created(t, c)
				s.becomes(t, c.Session, mcp.TaskInputRequired)
				s.acknowledged(t, c, mcp.MethodUpdateTask, `,"inputResponses":{"q1":{"action":"accept"}}`)
				close(release)
				s.becomes(t, c.Session, mcp.TaskCompleted, "done")
			} else {
				asked, a := s.ask(t, c)
				if len(asked.Result.InputRequests) != 1 {
					t.Fatalf("the call is answered %d %s", a.Status, a.Data)
				}
				close(release)
				wantHas(t, second(s.ask(t, repeated(t, c, "2", asked, `{}`))).Data, "done")
				wantHas(t, s.messages(t, c.Session, c.Stream)[0], `"progressToken":"mine"`)
			}
			up.wantPosted(t, 2, `"tools/list"`)
		})
	}
}

// A tool whose task runs is not refused in a way that makes the client call it again.
func TestRequiredTask_ResultIsRefused(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), taskTool(t, nil)
	up.responds(mcp.MethodCallTool, `"result":{"task":{"taskId":"inner","status":"working","ttl":null}}`)
	up.handle("tasks/result", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	s.start(t, testConfig(up.URL))
	a := s.do(t, toolCall(t, asks))
	wantUnknown(t, a)
	wantHas(t, a.Data, `"id":1`)
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
