package bridge

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"rejoin/services/bridge/host"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// openAs begins a session of an owner, or of a client without a token.
func (s *system) openAs(t *testing.T, owner, client string) (name string, a rpc.Answer) {
	t.Helper()
	name = uuid.NewString()
	return name, s.do(t, rpc.Ask{Action: rpc.Open, Session: name, Owner: owner, Client: client, Data: []byte(initialize)})
}

// M10: one client begins as many sessions as there are processes.
func TestAttackProcessesTakenByOneClient(t *testing.T) {
	for name, clients := range map[string][2][2]string{ // owner and address
		"tokens":    {{"mallory", "127.0.0.1"}, {"alice", "127.0.0.1"}},
		"addresses": {{"", "192.0.2.1"}, {"", "192.0.2.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			mallory, alice := clients[0], clients[1]
			s := newSystem(t, eventlog.Settings{})
			cfg := stdioConfig(t)
			cfg.MaxProcesses = 8
			in := s.start(t, cfg)
			var own []string
			for i := range 6 { // three quarters
				name, a := s.openAs(t, mallory[0], mallory[1])
				if a.Status != http.StatusOK {
					t.Fatalf("session %d was answered %d %s", i, a.Status, a.Data)
				}
				own = append(own, name)
			}
			_, a := s.openAs(t, mallory[0], mallory[1])
			wantBusy(t, a)
			for range 2 {
				if _, a := s.openAs(t, alice[0], alice[1]); a.Status != http.StatusOK {
					t.Errorf("another client was answered %d %s", a.Status, a.Data)
				}
			}
			_, a = s.openAs(t, alice[0], alice[1])
			wantBusy(t, a)
			// The places of sessions that end are given back.
			for _, name := range own {
				s.do(t, rpc.Ask{Action: rpc.End, Session: name})
			}
			waittest.Until(t, "the processes have ended", func() bool { return in.metric(t, "processes") == 2 })
			if _, a := s.openAs(t, mallory[0], mallory[1]); a.Status != http.StatusOK {
				t.Errorf("after the end it was answered %d %s", a.Status, a.Data)
			}
		})
	}
}

// A process takes files of the program, as connections do.
func TestAttackFilesTakenByProcesses(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	cfg := stdioConfig(t)
	cfg.MaxProcesses = 100
	in := s.start(t, cfg, func(s *Service) { s.host.Files = quota.NewPool(12) })
	var last string
	for range 2 { // three quarters are 9 files
		name, a := s.openAs(t, "mallory", "")
		wantStatus(t, a, http.StatusOK)
		last = name
	}
	_, a := s.openAs(t, "mallory", "")
	wantBusy(t, a)
	if files, processes := in.host.Files.Used(), in.metric(t, "processes"); files != 8 || processes != 2 {
		t.Errorf("%d files, %v processes", files, processes)
	}
	s.end(t, last)
	waittest.Until(t, "what was taken is given back", func() bool { return in.host.Files.Used() == 4 && in.metric(t, "processes") == 1 })
}

// A session keeps the forwarded fields of its client's header, which count for the client.
func TestAttackHeadersOfSessions(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	cfg := stdioConfig(t)
	cfg.MaxProcesses = 100
	in := s.start(t, cfg, func(s *Service) { s.host.Memory = quota.NewPool(100_000) })
	large := strings.Repeat("x", 8000)
	open := func() (name string, a rpc.Answer) {
		name = uuid.NewString()
		return name, s.do(t, rpc.Ask{
			Action: rpc.Open, Session: name, Owner: "mallory", Data: []byte(initialize), Header: http.Header{"Accept-Language": {large}, "X-Other": {large}, "Baggage": {large}},
		})
	}
	name, a := open()
	each := int64(len("Accept-Language") + len(large))
	if n := in.host.Memory.Used(); n != each {
		t.Errorf("a session holds %d bytes", n)
	}
	for n := int64(1); ; n++ {
		wantStatus(t, a, http.StatusOK)
		if _, a = open(); n == 75_000/each { // without its header the session could not be ended at the MCP server
			wantBusy(t, a)
			break
		}
	}
	before := in.host.Memory.Used()
	s.end(t, name)
	waittest.Until(t, "what the session took is given back", func() bool { return in.host.Memory.Used() < before })
}

// M1: sessions that are opened by initialize count in the limits of all.
func TestAttackSessionsByInitialize(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	cfg := stdioConfig(t)
	cfg.Sessions.MaxSessions, cfg.MaxProcesses = 8, 100
	s.start(t, cfg)
	for i := range 6 { // three quarters
		if _, a := s.openAs(t, "mallory", ""); a.Status != http.StatusOK {
			t.Fatalf("session %d was answered %d %s", i, a.Status, a.Data)
		}
	}
	tooMany := func(owner string) {
		t.Helper()
		if _, a := s.openAs(t, owner, ""); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" || !strings.Contains(string(a.Data), "--max-sessions") {
			t.Errorf("it was answered %d %s %s", a.Status, a.Header, a.Data)
		}
	}
	tooMany("mallory")
	for range 2 {
		if _, a := s.openAs(t, "alice", ""); a.Status != http.StatusOK {
			t.Errorf("another client was answered %d %s", a.Status, a.Data)
		}
	}
	tooMany("alice")
}

// M10: clients begin sessions that they never use, which would keep their processes for a day.
func TestAttackUnusedProcesses(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	cfg := stdioConfig(t)
	cfg.MaxProcesses = 4
	in := s.start(t, cfg)
	var unused []string
	for i := range 2 {
		name, _ := s.openAs(t, fmt.Sprint("mallory ", i), "")
		s.post(t, name, "", `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		unused = append(unused, name)
	}
	used, _ := s.openAs(t, "bob", "")
	stream, _ := s.request(t, used, "1", "progress")
	s.finished(t, used, stream)
	in.host.Times.Answer = 0
	call := statelessCall(t, "1", "hang", "", "") // none is begun ahead: more than half are taken
	call.Owner = "carol"
	s.do(t, call)
	waittest.Until(t, "the call has its process", func() bool { return in.metric(t, "processes") == 4 })

	_, a := s.openAs(t, "alice", "")
	wantBusy(t, a)
	if n := in.metric(t, "sessions"); n != 4 {
		t.Errorf("%v sessions are left: those that were begun just now may be used yet", n)
	}
	in.host.Times.Unused = 0
	_, a = s.openAs(t, "alice", "")
	wantBusy(t, a)
	waittest.Until(t, "there is room for another client", func() bool {
		_, a := s.openAs(t, "alice", "")
		return a.Status == http.StatusOK
	})
	for _, name := range unused {
		s.wantState(t, name, session.Closed)
	}
	s.wantState(t, used, session.Open)
	s.wantState(t, call.Session, session.Open) // it is used by its call
}

// A process that is started ahead is of its client's share, and ends when there are too many.
func TestSpares_EndForOthers(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	cfg := stdioConfig(t)
	cfg.MaxProcesses = 4
	in := s.start(t, cfg)
	call := statelessCall(t, "1", "progress", "", "")
	call.Owner = "alice"
	s.do(t, call)
	waittest.Until(t, "one is started ahead, and no other is left", func() bool {
		ready, _ := in.server.Spares()
		return ready == 1 && in.metric(t, "processes") == 1
	})
	for _, owner := range []string{"bob", "carol", "dave"} {
		wantStatus(t, second(s.openAs(t, owner, "")), http.StatusOK)
	}
	_, a := s.openAs(t, "alice", "")
	wantBusy(t, a)
	waittest.Until(t, "no process is ahead", func() bool {
		ready, _ := in.server.Spares()
		return ready == 0
	})
	waittest.Until(t, "there is room for another client", func() bool {
		_, a := s.openAs(t, "erin", "")
		return a.Status == http.StatusOK
	})
}

// A process that ends its output before a call has it gives its place back, and ends the session that it is given to
// all the same.
func TestSpares_OutputEnds(t *testing.T) {
	s, cfg := newSystem(t, eventlog.Settings{}), stdioConfig(t)
	cfg.UpstreamCommand += " mute"
	in := s.start(t, cfg)
	c := statelessCall(t, "1", "progress", "", "")
	r := must.Value(mcp.Parse(c.Data))(t)
	spare, refused := in.server.UnusedSession(waittest.Context(t), c, r, nil)
	if refused != nil {
		t.Fatal(refused.Status)
	}
	waittest.Until(t, "no place is taken", func() bool {
		ready, starting := in.server.Spares()
		return ready == 0 && starting == 0 && in.metric(t, "processes") == 0
	})
	h := in.table.New(c.Session, c.Life, "", "")
	if spare.Attach(h.Scope); !h.HasEnded() {
		t.Error("the session has no process, and does not end")
	}
}

// One client makes as many requests as may be open.
func TestAttackCallsTakenByOneClient(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.hangs("hang")
	cfg := testConfig(up.URL)
	cfg.MaxCalls = 8
	in := s.start(t, cfg)
	mallory, _ := s.openAs(t, "mallory", "")
	alice, _ := s.openAs(t, "alice", "")
	for i := range 6 {
		if _, a := s.request(t, mallory, fmt.Sprint(i), "hang"); a.Status != http.StatusAccepted {
			t.Fatalf("request %d was answered %d %s", i, a.Status, a.Data)
		}
	}
	_, a := s.request(t, mallory, "7", "hang")
	wantBusy(t, a)
	if n := in.metric(t, "answers_total", "post", "5xx"); n != 1 {
		t.Errorf("%v answers are counted", n)
	}
	if stream, a := s.request(t, alice, "1", "x"); a.Status != http.StatusAccepted {
		t.Errorf("another client was answered %d %s", a.Status, a.Data)
	} else {
		s.finished(t, alice, stream)
	}
	s.do(t, rpc.Ask{Action: rpc.End, Session: mallory})
	waittest.Until(t, "what was taken is given back", func() bool { return in.metric(t, "calls") == 0 && in.host.Open.Used() == 0 })
}

// A client whose calls have taken its share can answer their questions, and takes no place of others for that.
func TestShares_CallsThatWaitForTheirClient(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newEarlier(t)
	up.handle(mcp.MethodCallTool, func(w *writing, r *http.Request, _ rpc.Message) {
		w.stream()
		w.ask("", "q")
		<-r.Context().Done()
	})
	cfg := testConfig(up.URL)
	cfg.MaxCalls = 4
	s.start(t, cfg)
	call := func(owner string) rpc.Ask {
		c := statelessCall(t, "1", mcp.MethodCallTool, `"name":"x","arguments":{}`, asks)
		c.Owner = owner
		return c
	}
	var c rpc.Ask
	var asked required
	for range 3 { // three quarters
		c = call("alice")
		asked, _ = s.ask(t, c)
	}
	wantBusy(t, s.do(t, call("alice")))
	c = repeated(t, c, "2", asked, `{}`)
	ended := later(func() rpc.Answer { return s.do(t, c) })
	waittest.Until(t, "the server has the answer", func() bool { return up.posted(`"id":"q"`) == 1 })
	if asked, a := s.ask(t, call("bob")); asked.Result.ResultType != "input_required" {
		t.Errorf("another client was answered %d %s", a.Status, a.Data)
	}
	s.do(t, rpc.Ask{Action: rpc.Cancel, Session: c.Session, Stream: c.Stream})
	waittest.Receive(t, "the call ends", ended)
}

// One client makes the bridge wait for the MCP server at as many requests as the limit allows.
func TestAttackWaitsTakenByOneClient(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	hanging := make(chan struct{}, 8)
	up.handle("hang", func(_ *writing, r *http.Request, _ rpc.Message) {
		hanging <- struct{}{}
		<-r.Context().Done()
	})
	cfg := testConfig(up.URL)
	cfg.MaxCalls = 8
	s.start(t, cfg)
	mallory, _ := s.openAs(t, "mallory", "")
	alice, _ := s.openAs(t, "alice", "")
	note := rpc.Ask{Action: rpc.Post, Session: mallory, Data: []byte(`{"jsonrpc":"2.0","method":"hang"}`)}
	var waiting sync.WaitGroup
	defer waiting.Wait()
	for range 6 {
		waiting.Go(func() { _, _ = note.Do(waittest.Context(t), s.b.Conn) })
		waittest.Receive(t, "the server has a notification", hanging)
	}
	wantBusy(t, s.do(t, note))
	wantStatus(t, s.post(t, alice, "", `{"jsonrpc":"2.0","method":"x"}`), http.StatusAccepted)
}

// One client makes requests that hang, with bodies that together are larger than the memory for clients.
func TestAttackBodiesOfCallsThatHang(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.hangs("hang")
	in := s.start(t, testConfig(up.URL), func(s *Service) { s.host.Memory = quota.NewPool(8 << 20) })
	mallory, _ := s.openAs(t, "mallory", "")
	alice, _ := s.openAs(t, "alice", "")
	large := func(id int) rpc.Answer {
		n := fmt.Sprint(id)
		return s.post(t, mallory, newStream(t, n), fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"hang","params":{"text":%q}}`, n, strings.Repeat("x", 700<<10)))
	}
	taken := 0
	for ; taken < 12; taken++ { // 8.2 MiB
		a := large(taken)
		if a.Status != http.StatusAccepted {
			wantBusy(t, a)
			break
		}
	}
	if !in.host.Memory.Take("bob", 1<<20) { // from now on shares count
		t.Fatal("another client takes nothing")
	}
	_, a := s.request(t, mallory, "100", "hang")
	wantBusy(t, a)
	// A request that frees something, or keeps a call from being taken for abandoned, is in no share.
	for _, a := range []rpc.Answer{
		s.do(t, rpc.Ask{Action: rpc.Check, Session: mallory, Stream: newStream(t, "0")}),
		s.post(t, mallory, "", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}`),
		s.post(t, mallory, "", `{"jsonrpc":"2.0","id":1,"result":{}}`),
	} {
		wantStatus(t, a, http.StatusAccepted)
	}
	if taken < 4 || taken > 9 || in.host.Memory.Used() > 8<<20 {
		t.Errorf("%d requests are taken, of %d bytes", taken, in.host.Memory.Used())
	}
	if stream, a := s.request(t, alice, "1", "x"); a.Status != http.StatusAccepted {
		t.Errorf("another client was answered %d %s", a.Status, a.Data)
	} else {
		s.finished(t, alice, stream)
	}
	s.do(t, rpc.Ask{Action: rpc.End, Session: mallory})
	waittest.Until(t, "what was taken is given back", func() bool { return in.host.Memory.Used() == 1<<20 })
}

// One client sends unsolicited answers while the MCP server takes none. They may exceed the client's share, but
// not without a bound.
func TestAttackAnswersTakeTheMemory(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	taking := make(chan struct{}, 16)
	up.handle("", func(_ *writing, r *http.Request, _ rpc.Message) {
		taking <- struct{}{}
		<-r.Context().Done()
	})
	in := s.start(t, testConfig(up.URL), func(s *Service) {
		s.host.Memory, s.host.Answers = quota.NewPool(8<<20), quota.NewPool(8<<20)
		s.host.Answers.Each(host.AnswerBytes)
	})
	mallory, _ := s.openAs(t, "mallory", "")
	alice, _ := s.openAs(t, "alice", "")
	large := rpc.Ask{Action: rpc.Post, Session: mallory, Data: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":{"text":%q}}`, strings.Repeat("x", 700<<10))}
	var waiting sync.WaitGroup
	defer waiting.Wait()
	refused := make(chan rpc.Answer, 12)
	for range 12 { // 8.2 MiB
		waiting.Go(func() {
			if a, _ := large.Do(waittest.Context(t), s.b.Conn); a.Status != http.StatusAccepted {
				refused <- a
			}
		})
		select {
		case <-taking:
		case a := <-refused:
			wantBusy(t, a)
		}
	}
	if used := in.host.Memory.Used(); used < 6<<20 || used > 7<<20 {
		t.Errorf("one client's answers take %d bytes of the memory for all", used)
	}
	stream := newStream(t, "1")
	if a := s.post(t, alice, stream, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"x","params":{"text":%q}}`, strings.Repeat("x", 700<<10))); a.Status != http.StatusAccepted {
		t.Errorf("another client was answered %d %s", a.Status, a.Data)
	} else {
		s.finished(t, alice, stream)
	}
	s.do(t, rpc.Ask{Action: rpc.End, Session: mallory})
	waittest.Until(t, "what was taken is given back", func() bool { return in.host.Memory.Used() == 0 && in.host.Answers.Used() == 0 })
}
