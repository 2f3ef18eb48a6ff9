package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/config"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/mcpserver"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// begin opens a session whose client can be asked.
func (s *system) begin(t testing.TB) string {
	t.Helper()
	name := uuid.NewString()
	a := s.do(t, rpc.Ask{Action: rpc.Open, Session: name, Data: []byte(strings.Replace(initialize, `"capabilities":{}`, `"capabilities":{"elicitation":{}}`, 1))})
	want := `{"id":0,"jsonrpc":"2.0","result":{"capabilities":{"tools":{"listChanged":true}},"protocolVersion":"2025-11-25","serverInfo":{"name":"s","version":"1"}}}`
	if a.Status != http.StatusOK || string(a.Data) != want {
		t.Fatalf("initialize was answered %d %s", a.Status, a.Data)
	}
	return name
}

func TestStatelessServer_Call(t *testing.T) {
	s, up, _ := bridged(t, newStateless(t))
	var header http.Header
	up.responds("tools/list", `"result":{"resultType":"complete","ttlMs":1,"cacheScope":"public","tools":[{"name":"caf\u00e9","inputSchema":{"type":"object","properties":{"place":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}}}]}`)
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, m rpc.Message) {
		header = r.Header
		w.stream()
		w.send("", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":"mine"}}`)
		w.send("", `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"resultType":"complete","content":[],"structuredContent":[1]}}`)
	})
	name := s.begin(t)
	wantStatus(t, s.post(t, name, "", `{"jsonrpc":"2.0","method":"notifications/initialized"}`), http.StatusAccepted)
	stream, _ := s.request(t, name, "7", mcp.MethodCallTool, `"name":"caf\u00e9"`, `"arguments":{"place":{"region":"north"}}`, `"_meta":{"progressToken":"mine"}`)
	wantMessages(t, s.finished(t, name, stream)[1:], `{"id":7,"jsonrpc":"2.0","result":{"content":[]}}`)
	for field, want := range map[string]string{
		mcp.HeaderVersion: mcp.Stateless, mcp.HeaderMethod: "tools/call", mcp.HeaderName: "=?base64?Y2Fmw6k=?=", "Mcp-Param-Region": "north", "Mcp-Session-Id": "",
	} {
		if got := header.Get(field); got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
	}
	stream, _ = s.request(t, name, "8", "ping")
	wantMessages(t, s.finished(t, name, stream), `{"id":8,"jsonrpc":"2.0","result":{}}`)
	up.wantPosted(t, 0, `"ping"`)
}

// requiresInput has a server without sessions ask the client of a tool call.
func requiresInput(up *server) {
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		switch {
		case m.Param("inputResponses") == nil:
			w.json(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"resultType":"input_required","requestState":"s1","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"?"}}}}}`)
		default:
			w.json(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"resultType":"complete","got":` + string(m.Param("inputResponses")) + `,"state":` + string(m.Param("requestState")) + `}}`)
		}
	})
}

// question waits for the question that begins a stream, and returns its ID.
func (s *system) question(t testing.TB, name, stream string) (id json.RawMessage) {
	t.Helper()
	m := must.Value(rpc.ParseMessage([]byte(s.has(t, name, stream, 1)[0])))(t)
	if !m.Is(translate.MethodElicit) {
		t.Fatalf("the client is asked %s", *m.Method)
	}
	return m.ID
}

// The client receives the server's questions on the stream of its request, and the request is made
// again with the answers.
func TestStatelessServer_ServerAsks(t *testing.T) {
	s, up, in := bridged(t, newStateless(t))
	requiresInput(up)
	name := s.begin(t)
	stream, _ := s.request(t, name, "1", mcp.MethodCallTool, `"name":"x"`)
	question := s.question(t, name, stream)
	wantStatus(t, s.post(t, name, "", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, question)), http.StatusAccepted)
	wantMessages(t, s.finished(t, name, stream)[1:], `{"id":1,"jsonrpc":"2.0","result":{"got":{"a":{"action":"accept"}},"state":"s1"}}`)

	// The session continues at the next bridge.
	s.restart(t, in)
	stream, _ = s.request(t, name, "2", "prompts/list")
	if all := s.finished(t, name, stream); len(all) != 1 || !strings.Contains(all[0], `"id":2`) || up.posted(`"elicitation":{}`) < 3 {
		t.Errorf("the next bridge answers %q", all)
	}
}

// A request that the server has begun is not refused later in a way that makes the client repeat it.
func TestStatelessServer_RefusesTheSecondRound(t *testing.T) {
	s, up, _ := bridged(t, newStateless(t))
	up.handle("work", func(w *writing, _ *http.Request, m rpc.Message) {
		if m.Param("requestState") == nil {
			w.json(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"resultType":"input_required","requestState":"s1"}}`)
			return
		}
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	name := s.begin(t)
	stream, a := s.request(t, name, "1", "work")
	wantStatus(t, a, http.StatusAccepted)
	wantError(t, s.finished(t, name, stream), 1, "1")
}

// Messages that are no requests count in a batch with requests too, which revision 2025-03-26 has.
func TestStatelessServer_Batch(t *testing.T) {
	s, up, _ := bridged(t, newStateless(t))
	requiresInput(up)
	name, batch := s.begin(t), newStream(t, "2", "3")
	stream, _ := s.request(t, name, "1", mcp.MethodCallTool, `"name":"x"`)
	s.post(t, name, batch, fmt.Sprintf(`[{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":2,"method":"ping"},{"jsonrpc":"2.0","id":3,"method":"ping"},{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}]`, s.question(t, name, stream)))
	wantParts(t, s.finished(t, name, batch), "", "")
	wantHas(t, last(s.finished(t, name, stream)), `"got":{"a":{"action":"accept"}}`)
	waittest.Until(t, "the bridge listens", func() bool { return up.posted(mcp.MethodListen) > 0 })
}

// A 404 of a server that has no sessions does not mean that the client's session has ended.
func TestStatelessServer_NotFound(t *testing.T) {
	s, up, _ := bridged(t, newStateless(t))
	name := s.begin(t)
	body := ""
	up.handle("gone", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(body))
	})
	for body = range map[string]bool{"": true, "no such page": true, `{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}`: true} {
		_, a := s.request(t, name, "1", "gone")
		wantStatus(t, a, http.StatusBadGateway)
		wantErrorFor(t, a.Data, "1")
	}
	stream, _ := s.request(t, name, "2", "prompts/list")
	wantParts(t, s.finished(t, name, stream), `"result"`)
}

// An unreadable message before the response is counted, and does not decide how the client is answered.
func TestStatelessServer_Unreadable(t *testing.T) {
	s, up, in := bridged(t, newStateless(t))
	up.handle("lost", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.stream()
		w.send("", "rubbish")
	})
	wantStatus(t, second(s.request(t, s.begin(t), "1", "lost")), http.StatusBadGateway, `"id":1`)
	in.wantMetric(t, 1, "dropped_messages_total", host.DropInvalid)
}

// A server that has no sessions learns that a request is cancelled by the end of its connection, also while it
// reports progress all the time.
func TestStatelessServer_Cancelled(t *testing.T) {
	s, up, in := bridged(t, newStateless(t))
	gone := make(chan struct{})
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, _ rpc.Message) {
		defer close(gone)
		w.stream()
		for n := 0; ; n++ {
			w.send("", fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d,"progressToken":"mine"}}`, n))
			select {
			case <-r.Context().Done():
				return
			case <-time.After(20 * time.Millisecond): // until the next progress
			}
		}
	})
	name := s.begin(t)
	stream, _ := s.request(t, name, "1", mcp.MethodCallTool, `"name":"x"`, `"_meta":{"progressToken":"mine"}`)
	wantStatus(t, s.post(t, name, "", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`), http.StatusAccepted)
	waittest.Receive(t, "the request has ended at the server", gone)
	s.ended(t, name, stream)
	waittest.Until(t, "the call is over", func() bool { return in.metric(t, "calls") == 0 })
	if all, final := s.read(t, name, stream); final {
		t.Errorf("the client receives %s", all[len(all)-1])
	}
}

// A call that its client cancels before the bridge waits for the server ends all the same.
func TestCall_CancelledBeforeItWaits(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	in := s.start(t, testConfig(newStateless(t).URL))
	ids := []json.RawMessage{[]byte("1"), []byte("2")}
	for n, want := range []error{nil, nil, upstream.ErrCancelled} {
		c := call.New(in.table.Session(s.begin(t)).Scope, newStream(t, "1", "2"), ids)
		c.CancelAtOnce = true
		for _, id := range ids[:n] {
			c.Cancel(rpc.IDKey(id))
		}
		ctx, p := c.WithIdleTimer(t.Context())
		if err := context.Cause(ctx); !errors.Is(err, want) {
			t.Errorf("with %d of 2 requests cancelled it ends with %v", n, err)
		}
		p.End()
	}
}

// A question that the log does not take ends the request: it is not made again without an answer.
func TestStatelessServer_QuestionIsTooLarge(t *testing.T) {
	s := newSystem(t, eventlog.Settings{MaxMessageBytes: 4096})
	up := newStateless(t)
	s.start(t, testConfig(up.URL))
	up.responds(mcp.MethodCallTool, `"result":{"resultType":"input_required","requestState":"s1","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"`+strings.Repeat("x", 8000)+`"}}}}`)
	name := s.begin(t)
	stream, _ := s.request(t, name, "1", mcp.MethodCallTool, `"name":"x"`)
	all := s.finished(t, name, stream)
	wantError(t, all, 1, "1")
	wantHas(t, all[0], "--max-message-bytes")
	up.wantPosted(t, 1, "tools/call")
}

// A client of earlier revisions receives changes without asking, and each kind once when the bridge did
// not listen for a while.
func TestStatelessServer_Changes(t *testing.T) {
	s, up, _ := bridged(t, newStateless(t))
	say, begun := announces(up)
	name := s.begin(t)
	s.post(t, name, "", `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	waittest.Receive(t, "the bridge listens", begun)
	say <- `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"x"}}}`
	heard := func(n int) {
		t.Helper()
		waittest.Until(t, fmt.Sprintf("%d changes are stored", n), func() bool {
			all, _ := s.read(t, name, rpc.Standalone)
			for _, message := range all {
				if strings.Contains(message, "subscriptionId") || !strings.Contains(message, translate.ToolsChanged) {
					t.Errorf("the client gets %s", message)
				}
			}
			return len(all) == n
		})
	}
	heard(1)
	say <- "" // the server ends the subscription
	waittest.Receive(t, "the bridge listens again", begun)
	heard(2)
	say <- `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	heard(3)
}

// withSubscriptions returns a server without sessions that has resources and log messages.
func withSubscriptions(t testing.TB) *server {
	t.Helper()
	up := newStateless(t)
	up.responds(mcp.MethodDiscover, `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"resources":{"subscribe":true},"logging":{}}}`)
	return listens(up)
}

// set makes a request that changes the settings of a session, and returns the response.
func (s *system) set(t testing.TB, name, id, method, params string) string {
	t.Helper()
	stream := newStream(t, id)
	s.post(t, name, stream, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params))
	return strings.Join(s.finished(t, name, stream), " ")
}

// updated waits until a client has received for the nth time that a resource may have changed.
func (s *system) updated(t testing.TB, name, uri string, n int) {
	t.Helper()
	waittest.Until(t, fmt.Sprintf("%s may have changed, %d times", uri, n), func() bool {
		all, _ := s.read(t, name, rpc.Standalone)
		return strings.Count(strings.Join(all, ""), fmt.Sprintf(`"method":%q,"params":{"uri":%q}`, translate.ResourceUpdated, uri)) == n
	})
}

// A resource may change before the server has the subscription that the client has the answer to. The changes of
// earlier subscriptions have not been missed.
func TestStatelessServer_NewSubscription(t *testing.T) {
	s, _, _ := bridged(t, withSubscriptions(t))
	name := s.ready(t)
	for _, uri := range []string{"file:///a", "file:///b"} {
		s.set(t, name, "1", "resources/subscribe", `{"uri":"`+uri+`"}`)
		s.updated(t, name, uri, 1)
	}
	s.updated(t, name, "file:///a", 1)
}

// Subscriptions and the level of log messages outlive the bridge. The changes meanwhile are unknown, so
// the client receives one notification for each subscription.
func TestStatelessServer_SubscriptionsOfTheBridgeBefore(t *testing.T) {
	s, up, in := bridged(t, withSubscriptions(t))
	name := s.ready(t)
	for n, uri := range []string{"file:///a", "file:///b", "file:///a"} {
		method := "resources/subscribe"
		if n == 2 {
			method = "resources/unsubscribe"
		}
		wantHas(t, s.set(t, name, fmt.Sprint(n), method, `{"uri":"`+uri+`"}`), `"result"`)
	}
	s.set(t, name, "3", "logging/setLevel", `{"level":"debug"}`)
	s.updated(t, name, "file:///b", 1)
	s.restart(t, in)
	s.updated(t, name, "file:///b", 2)
	s.set(t, name, "4", "prompts/list", `{}`)
	up.wantPosted(t, 1, `"io.modelcontextprotocol/logLevel":"debug"`)
}

// A server that does not acknowledge a subscription in time learns of the next one all the same. With an
// acknowledgement, however late, the client receives the changes that it may have missed.
func TestStatelessServer_SubscriptionIsNotAcknowledged(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	up := withSubscriptions(t)
	acknowledges, replaced := up.on[mcp.MethodListen], make(chan struct{})
	up.handle(mcp.MethodListen, func(w *writing, r *http.Request, m rpc.Message) {
		switch uris := string(m.Params); {
		case strings.Contains(uris, "file:///c"):
			select {
			case <-replaced:
			case <-r.Context().Done():
			}
			acknowledges(w, r, m)
		case strings.Contains(uris, "file:///b"):
			acknowledges(w, r, m)
			close(replaced)
		default:
			w.stream()
			<-r.Context().Done()
		}
	})
	cfg := testConfig(up.URL)
	s.start(t, cfg, func(s *Service) {
		s.host.Times.After = func(d time.Duration) <-chan time.Time {
			if d == cfg.OpenTimeout {
				d = time.Millisecond
			}
			return time.After(d)
		}
	})
	name := s.ready(t)
	for _, uri := range []string{"file:///a", "file:///b"} {
		s.set(t, name, "1", "resources/subscribe", `{"uri":"`+uri+`"}`)
		waittest.Until(t, "the server learns of the subscription", func() bool { return up.posted(`"resourceSubscriptions":["file:///a"`) > 0 && up.posted(uri+`"]`) > 0 })
	}
	s.updated(t, name, "file:///a", 1)
	s.set(t, name, "1", "resources/subscribe", `{"uri":"file:///c"}`)
	s.updated(t, name, "file:///b", 2)
}

// Each service has the metadata of all sessions in memory, so the part of one client is bounded.
func TestStatelessServer_TooLongSubscription(t *testing.T) {
	for want, cfg := range map[string]session.LimitsConfig{
		mcpserver.ErrSubscriptions.Error(): {}, "--max-metadata-bytes": {MaxMetadataBytes: 8 << 10},
	} {
		s := newSystem(t, eventlog.Settings{})
		bridge := testConfig(withSubscriptions(t).URL)
		bridge.Sessions = cfg
		s.start(t, bridge)
		name := s.ready(t)
		wantHas(t, s.set(t, name, "1", "resources/subscribe", `{"uri":"file:///a"}`), `"result"`)
		uri := strings.Repeat("x", mcpserver.MaxSettings)
		if cfg.MaxMetadataBytes > 0 {
			uri = uri[:mcpserver.MaxSettings/2]
		}
		wantHas(t, s.set(t, name, "2", "resources/subscribe", `{"uri":"`+uri+`"}`), want)
		escaped := strings.Repeat("&", len(uri)/6) // as stored, it is as long
		wantHas(t, s.set(t, name, "3", "resources/subscribe", `{"uri":"`+escaped+`"}`), want)
		if rec, err := s.b.Sessions.Get(waittest.Context(t), name); err != nil || !strings.Contains(string(rec.Metadata), `"uris":["file:///a"]`) {
			t.Errorf("the metadata is %s, %v", rec.Metadata, err)
		}
	}
}

// scriptConfig is for a server that is a shell script, which has a case for each of its lines.
func scriptConfig(t *testing.T, cases string) (cfg config.Config, script string) {
	t.Helper()
	script = filepath.Join(t.TempDir(), "server")
	must.NoError(t, os.WriteFile(script, []byte("while read -r line; do\ncase $line in"+cases+"\nesac\ndone"), 0o600))
	cfg = stdioConfig(t)
	cfg.UpstreamCommand = "sh " + script
	return cfg, script
}

// A process that was started ahead may have written a message and ended since: the call gets another one.
func TestSpares_EndedBeforeItsCall(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	cfg, script := scriptConfig(t, `
	*'"initialize"'*)
		mkdir "$0.first" 2>/dev/null || { mkdir "$0.second" 2>/dev/null && second=yes; }
		echo '{"jsonrpc":"2.0","id":"initialize","result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}' ;;
	*'"notifications/initialized"'*)
		if [ "$second" ]; then
			echo '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
			exit
		fi ;;
	*'"tools/list"'*) id=${line#*'"id":'}; echo '{"jsonrpc":"2.0","id":'"${id%%,*}"',"result":{"tools":[]}}' ;;`)
	in := s.start(t, cfg)
	list := func() {
		t.Helper()
		wantStatus(t, s.do(t, statelessCall(t, "1", "tools/list", "", "")), http.StatusOK, `"tools":[]`)
	}
	list()
	waittest.Until(t, "the process that was started ahead has ended", func() bool {
		if ready, starting := in.server.Spares(); ready > 0 || starting > 0 {
			return false
		}
		_, err := os.Stat(script + ".second")
		return err == nil
	})
	list()
}

// The processes that are started ahead are each used by one call, and end when none comes.
func TestSpares_UsedOnce(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	cfg, _ := scriptConfig(t, `
	*'"initialize"'*) echo '{"jsonrpc":"2.0","id":"initialize","result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}' ;;
	*'"tools/list"'*) id=${line#*'"id":'}; echo '{"jsonrpc":"2.0","id":'"${id%%,*}"',"result":{"process":'$$'}}' ;;`)
	in := s.start(t, cfg)
	seen := map[int]bool{}
	for range 3 {
		a := s.do(t, statelessCall(t, "1", "tools/list", "", ""))
		var m struct{ Result struct{ Process int } }
		if err := json.Unmarshal(a.Data, &m); err != nil || m.Result.Process == 0 {
			t.Fatalf("%d %s: %v", a.Status, a.Data, err)
		}
		if seen[m.Result.Process] {
			t.Error("a process has served two calls")
		}
		seen[m.Result.Process] = true
		waittest.Until(t, "one is started ahead, and no other is left", func() bool {
			ready, _ := in.server.Spares()
			return ready == 1 && in.metric(t, "processes") == 1
		})
	}
	in.server.CloseExpiredSpares(time.Now().Add(2 * mcpserver.SpareFor))
	waittest.Until(t, "no process is left", func() bool { return in.metric(t, "processes") == 0 })
}
