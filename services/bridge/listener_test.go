package bridge

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/services/bridge/translate"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// listens has a server take requests to listen, and acknowledge all that they name.
func listens(up *server) *server {
	announces(up)
	return up
}

// announces is listens with two channels: say has the server send a message to a client that listens, "" for the end;
// begun receives a value when a client begins to listen.
func announces(up *server) (say chan<- string, begun <-chan struct{}) {
	said, listening := make(chan string), make(chan struct{}, 100)
	up.handle(mcp.MethodListen, func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		w.send("", `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":`+string(m.ID)+`},"notifications":`+string(m.Param("notifications"))+`}}`)
		listening <- struct{}{}
		for {
			select {
			case text := <-said:
				if text == "" {
					return
				}
				w.send("", text)
			case <-r.Context().Done():
				return
			}
		}
	})
	return said, listening
}

// listenedTo waits until a client that listens has received n messages, and returns all of them.
func (s *system) listenedTo(t testing.TB, c rpc.Ask, n int) []string {
	t.Helper()
	return s.has(t, c.Session, c.Stream, n)
}

// A client that listens receives the states of its tasks, at servers of both eras.
func TestListen_Tasks(t *testing.T) {
	eachEra(t, func(t *testing.T, era string, up *server) {
		s, release := newSystem(t, eventlog.Settings{}), make(chan struct{})
		s.start(t, taskConfig(listens(slow(up, release, outcome)).URL))
		c := toolCall(t, tasks)
		c.Owner = "alice"
		s.created(t, c)
		own, unknown := mcp.TaskID(c.Session), mcp.TaskID("5b3c9a52-8a4b-4b0e-9a0e-000000000000")
		listen := func(owner string) rpc.Ask {
			l := statelessCall(t, `"sub"`, mcp.MethodListen, fmt.Sprintf(`"notifications":{"taskIds":[%q,%q,%q]}`, own, own, unknown), tasks)
			l.Owner = owner
			wantStatus(t, s.do(t, l), http.StatusAccepted)
			return l
		}
		l, others := listen("alice"), listen("bob")
		all := s.listenedTo(t, l, 2)
		wantHas(t, all[0], `"taskIds":["`+own+`"]`, `"io.modelcontextprotocol/subscriptionId":"sub"`)
		if !strings.Contains(all[1], `"status":"working"`) || !strings.Contains(all[1], `"io.modelcontextprotocol/subscriptionId":"sub"`) || strings.Contains(all[1], "asked") {
			t.Errorf("the first state is %s", all[1])
		}
		close(release)
		wantHas(t, s.listenedTo(t, l, 3)[2], `"status":"completed"`, "done")
		if all := s.listenedTo(t, others, 1); len(all) != 1 || strings.Contains(all[0], own) {
			t.Errorf("another user receives %q", all)
		}
		if n := up.posted(unknown); n != 0 && era == "earlier" {
			t.Errorf("the server was asked about tasks %d times", n)
		}
		up.wantPosted(t, 0, `"taskIds":["`+own)
	})
}

// A task whose session was ended elsewhere has failed, for its listeners.
func TestListen_TaskIsEnded(t *testing.T) {
	s, release := newSystem(t, eventlog.Settings{}), make(chan struct{})
	defer close(release)
	_, c := s.task(t, taskConfig(slow(newEarlier(t), release, outcome).URL))
	l := statelessCall(t, `"sub"`, mcp.MethodListen, fmt.Sprintf(`"notifications":{"taskIds":[%q]}`, mcp.TaskID(c.Session)), tasks)
	s.do(t, l)
	s.listenedTo(t, l, 2)
	must.NoError(t, s.b.Sessions.End(waittest.Context(t), c.Session, "", false))
	wantHas(t, s.listenedTo(t, l, 3)[2], `"status":"failed"`, mcp.TaskEnded)
}

// A client that listens again may have missed changes, whichever bridge it listened at before.
func TestListen_Again(t *testing.T) {
	eachEra(t, func(t *testing.T, _ string, up *server) {
		s := newSystem(t, eventlog.Settings{})
		cfg := testConfig(listens(up).URL)
		cfg.ListenMemory = time.Hour
		// A listener sets the time at which it is remembered again once it has the missed changes.
		hasMissed := make(chan struct{}, 10)
		signals := func(b *Service) {
			b.host.Times.After = func(d time.Duration) <-chan time.Time {
				if d == cfg.ListenMemory/2 {
					hasMissed <- struct{}{}
				}
				return time.After(d)
			}
		}
		b := s.start(t, cfg, signals)
		up.has(`{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true}}`)
		listen := func(id, owner, filter string) rpc.Ask {
			l := statelessCall(t, id, mcp.MethodListen, `"notifications":{`+filter+`}`, "")
			l.Owner = owner
			wantStatus(t, s.do(t, l), http.StatusAccepted)
			waittest.Receive(t, "it has what it missed", hasMissed)
			return l
		}
		const all = `"toolsListChanged":true,"resourceSubscriptions":["file:///a"]`
		first := listen("1", "alice", all)
		b.stop()
		b = s.start(t, cfg, signals)
		for id, tt := range map[string]struct {
			owner, filter string
			want          []string
		}{
			"2": {"alice", all, []string{translate.ToolsChanged, translate.ResourceUpdated}},
			"3": {"alice", `"toolsListChanged":true`, nil},
			"4": {"bob", all, nil},
		} {
			l := listen(id, tt.owner, tt.filter)
			got := s.listenedTo(t, l, 1+len(tt.want))
			if len(got) != 1+len(tt.want) {
				t.Fatalf("%s receives %q", id, got)
			}
			for i, method := range tt.want {
				wantHas(t, got[i+1], method, `"io.modelcontextprotocol/subscriptionId":`+id)
			}
		}
		wantParts(t, s.finished(t, first.Session, first.Stream), "", `"id":1`)
		b.stop() // each acknowledged listener has signalled by then
		if len(hasMissed) > 0 {
			t.Error("a listener is acknowledged twice")
		}
	})
}

// When no bridge has a task any more, its listeners receive that once, and its new state when a bridge returns.
func TestListen_TaskWithoutBridge(t *testing.T) {
	s, release := newSystem(t, eventlog.Settings{}), make(chan struct{})
	up := newEarlier(t)
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		w.send("1", `{"jsonrpc":"2.0","method":"note"}`)
		select {
		case <-release:
		case <-r.Context().Done():
			return
		}
		w.send("2", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, outcome))
	})
	gone := taskConfig(up.URL)
	gone.BridgeName = "gone"
	first, c := s.task(t, gone)
	s.start(t, taskConfig(up.URL), func(second *Service) {
		second.host.Times.Gone = 3 * time.Millisecond
		second.host.Times.After = func(d time.Duration) <-chan time.Time { return time.After(min(d, time.Millisecond)) }
	})
	first.stop()
	s.isAway(t, first)
	l := statelessCall(t, `"sub"`, mcp.MethodListen, fmt.Sprintf(`"notifications":{"taskIds":[%q]}`, mcp.TaskID(c.Session)), tasks)
	wantStatus(t, s.do(t, l), http.StatusAccepted)
	all := s.listenedTo(t, l, 3)
	if !strings.Contains(all[1], `"status":"working"`) || !strings.Contains(all[2], `"status":"failed"`) || !strings.Contains(all[2], mcp.TaskLost) || !strings.Contains(all[2], `"io.modelcontextprotocol/subscriptionId":"sub"`) {
		t.Errorf("the client has received %s", all)
	}
	close(release)
	s.start(t, gone)
	s.becomes(t, c.Session, mcp.TaskFailed)
	all = s.listenedTo(t, l, 4)
	if strings.Contains(all[3], mcp.TaskLost) || len(all) != 4 {
		t.Errorf("the client has received %s", all)
	}
}

// A client that listens, and for whose session there is no room, leaves no note: it can make up any number of
// subscriptions.
func TestAttackListenersWithoutRoom(t *testing.T) {
	for name, up := range map[string]*server{"stateless": listens(newStateless(t)), "earlier": newEarlier(t)} {
		t.Run(name, func(t *testing.T) {
			up.has(`{"resources":{"subscribe":true}}`)
			s := newSystem(t, eventlog.Settings{})
			cfg := testConfig(up.URL)
			cfg.Sessions.MaxSessions, cfg.ListenMemory = 8, time.Hour
			s.start(t, cfg)
			accepted := 0
			for i := range 6 {
				l := owned(t, "mallory", mcp.MethodListen, fmt.Sprintf(`"notifications":{"resourceSubscriptions":["x:%d"]}`, i))
				switch a := s.do(t, l); a.Status {
				case http.StatusAccepted:
					s.listenedTo(t, l, 1)
					accepted++
				case http.StatusTooManyRequests:
				default:
					t.Errorf("a listener is answered %d %s", a.Status, a.Data)
				}
			}
			keys := must.Value(s.records(t).KV.ListKeys(waittest.Context(t)))(t)
			remembered := 0
			for key := range keys.Keys() {
				if strings.HasPrefix(key, "=listen") {
					remembered++
				}
			}
			if accepted == 0 || accepted == 6 || remembered != accepted {
				t.Errorf("%d listeners are accepted, and %d are remembered", accepted, remembered)
			}
		})
	}
}
