package bridge

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

func TestNothingIsLostOrStoredTwiceWhileNATSIsAway(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	s.begin(t)
	const notes = 200
	half, more := make(chan struct{}), make(chan struct{})
	up.handle("slow", func(w *writing, _ *http.Request, m message) {
		w.stream()
		for n := range notes {
			if n == notes/2 {
				close(half)
				<-more
			}
			w.send("", note(n))
		}
		w.send("", response(m.ID))
	})
	in := s.start(t, testConfig(up.URL))
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "slow")
	<-half
	s.srv.Stop()
	close(more)
	eventually(t, "a publish has failed", func() bool { return in.metric(t, "publish_retries_total") > 0 })
	s.srv.Start()
	var want []string
	for n := range notes {
		want = append(want, note(n))
	}
	if diff := cmp.Diff(append(want, response("1")), s.finished(t, name, stream)); diff != "" {
		t.Error(diff)
	}
}

func TestAServerThatDiesInTheMiddleOfACallIsAnError(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.handle("die", func(w *writing, _ *http.Request, _ message) {
		w.stream()
		w.send("", note(0))
		panic(http.ErrAbortHandler)
	})
	up.handle("end", func(w *writing, _ *http.Request, _ message) {
		w.stream()
		w.send("", note(0))
	})
	up.handle("text", func(w *writing, _ *http.Request, _ message) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write([]byte("x"))
	})
	up.handle("nothing", func(w *writing, _ *http.Request, _ message) { w.WriteHeader(http.StatusAccepted) })
	in := s.start(t, testConfig(up.URL))
	name := s.ready(t)
	for method, messages := range map[string]int{"die": 2, "end": 2, "text": 1, "nothing": 1} {
		stream, a := s.request(t, name, "1", method)
		if a.Status != http.StatusAccepted {
			t.Errorf("%s was answered %d", method, a.Status)
		}
		wantError(t, s.finished(t, name, stream), messages, "1")
	}
	if n := in.metric(t, "failed_calls_total", failLost); n != 4 {
		t.Errorf("%v calls are counted", n)
	}
	up.CloseClientConnections()
	up.Close()
	_, a := s.request(t, name, "1", "any")
	if m, err := parse(a.Data); a.Status != http.StatusBadGateway || err != nil || string(m.ID) != "1" {
		t.Errorf("without a server it was answered %d %s", a.Status, a.Data)
	}
}

func TestAStreamThatBreaksIsResumedWhereTheServerOffersThat(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.handle("poll", func(w *writing, _ *http.Request, _ message) {
		w.stream()
		w.send("a", "") // primed
		_, _ = fmt.Fprint(w, "retry: 10\n\n")
	})
	up.onGet(func(w *writing, r *http.Request) {
		switch r.Header.Get("Last-Event-ID") {
		case "":
			w.WriteHeader(http.StatusMethodNotAllowed)
		case "a":
			w.stream()
			w.send("b", note(1))
			w.send("c", "")
		case "c":
			w.stream()
			w.send("d", note(2))
			w.send("d", note(3)) // an ID that is used twice loses nothing
			panic(http.ErrAbortHandler)
		case "d":
			w.stream()
			w.send("e", response("1"))
		}
	})
	in := s.start(t, testConfig(up.URL))
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "poll")
	if diff := cmp.Diff([]string{note(1), note(2), note(3), response("1")}, s.finished(t, name, stream)); diff != "" {
		t.Error(diff)
	}
	if n := in.metric(t, "upstream_resumes_total"); n != 3 {
		t.Errorf("%v resumes are counted", n)
	}
}

func TestAServerThatDoesNotKnowTheSessionAnyMoreEndsIt(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	hanging := make(chan struct{})
	up.handle("hang", func(w *writing, r *http.Request, _ message) {
		w.stream()
		close(hanging)
		<-r.Context().Done()
	})
	gone := func(w *writing, _ *http.Request, _ message) { w.WriteHeader(http.StatusNotFound) }
	up.handle("gone", gone)
	in := s.start(t, testConfig(up.URL))
	name := s.ready(t)
	hang, _ := s.request(t, name, "1", "hang")
	<-hanging
	if _, a := s.request(t, name, "2", "gone"); a.Status != http.StatusNotFound {
		t.Errorf("it was answered %d", a.Status)
	}
	wantError(t, s.finished(t, name, hang), 1, "1")
	s.wantState(t, name, "", session.Closed)
	eventually(t, "the session is forgotten", func() bool { return in.metric(t, "sessions") == 0 })
	if len(up.deleted) > 0 {
		t.Error("it was deleted upstream")
	}
}

func TestAServerWithoutSessionsWorks(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.session = ""
	up.handle("gone", func(w *writing, _ *http.Request, _ message) { w.WriteHeader(http.StatusNotFound) })
	s.start(t, testConfig(up.URL))
	name := s.ready(t)
	if _, a := s.request(t, name, "2", "gone"); a.Status != http.StatusBadGateway {
		t.Errorf("a 404 was answered %d", a.Status)
	}
	stream, _ := s.request(t, name, "1", "quick")
	s.finished(t, name, stream)
	if a := s.do(t, rpc.Call{Action: rpc.End, Session: name}); a.Status != http.StatusNoContent {
		t.Errorf("the end was answered %d", a.Status)
	}
	for _, h := range up.headers {
		if h.Get(headerSession) != "" {
			t.Error("it was given a session")
		}
	}
}

func TestACancelledRequestEndsWithoutAMessage(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	cancelled := make(chan struct{})
	up.handle("hang", func(w *writing, _ *http.Request, _ message) {
		w.stream()
		w.send("", note(0))
		<-cancelled
	})
	up.handle(methodCancelled, func(w *writing, _ *http.Request, _ message) {
		w.WriteHeader(http.StatusAccepted)
		close(cancelled)
	})
	in := s.start(t, testConfig(up.URL))
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "hang")
	if a := s.post(t, name, "", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`); a.Status != http.StatusAccepted {
		t.Fatalf("it was answered %d", a.Status)
	}
	s.wantState(t, name, stream, session.Closed)
	if all, final := s.read(t, name, stream); len(all) != 1 || final {
		t.Errorf("the stream has %v", all)
	}
	eventually(t, "the call is over", func() bool { return in.metric(t, "calls") == 0 })
}

func TestARequestWithoutAnyMessageIsCancelled(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	up.handle("hang", func(w *writing, _ *http.Request, _ message) {
		w.stream()
		w.send("", note(0))
		<-over
	})
	cfg := testConfig(up.URL)
	cfg.CallTimeout = Timeout(200 * time.Millisecond)
	in := s.start(t, cfg)
	name := s.ready(t)
	stream, _ := s.request(t, name, `"x"`, "hang")
	all := s.finished(t, name, stream)
	wantError(t, all, 2, `"x"`)
	if !strings.Contains(all[1], "-32001") {
		t.Errorf("the error is %s", all[1])
	}
	if up.posted(`"requestId":"x"`) != 1 {
		t.Error("the server has not been told")
	}
	if n := in.metric(t, "failed_calls_total", failTimeout); n != 1 {
		t.Errorf("%v calls are counted", n)
	}
}

func TestAServerThatIsPolledWithoutAnyMessageIsGivenUp(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	poll := func(w *writing) {
		w.stream()
		w.send("a", "")
		_, _ = fmt.Fprint(w, "retry: 5\n\n")
	}
	up.handle("poll", func(w *writing, _ *http.Request, _ message) { poll(w) })
	up.onGet(func(w *writing, _ *http.Request) { poll(w) })
	cfg := testConfig(up.URL)
	cfg.CallTimeout = Timeout(300 * time.Millisecond)
	s.start(t, cfg)
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "poll")
	wantError(t, s.finished(t, name, stream), 1, "1")
}

func TestARefusalThatComesLateIsAnErrorInTheStream(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	late := make(chan struct{})
	up.handle("late", func(w *writing, _ *http.Request, _ message) {
		<-late
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32099,"message":"not you"}}`)
	})
	cfg := testConfig(up.URL)
	cfg.AcceptAfter = time.Millisecond
	in := s.start(t, cfg)
	name := s.ready(t)
	stream, a := s.request(t, name, "1", "late")
	if a.Status != http.StatusAccepted {
		t.Errorf("it was answered %d", a.Status)
	}
	close(late)
	if diff := cmp.Diff([]string{`{"jsonrpc":"2.0","id":1,"error":{"code":-32099,"message":"not you"}}`}, s.finished(t, name, stream)); diff != "" {
		t.Error(diff)
	}
	if n := in.metric(t, "failed_calls_total", failRefused); n != 1 {
		t.Errorf("%v calls are counted", n)
	}
}

func TestTheLastResponseOfABatchIsTheFinalOne(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.handle("array", func(w *writing, _ *http.Request, _ message) {
		w.json("[" + response("2") + " , " + response("1") + "]")
	})
	up.handle("stream", func(w *writing, _ *http.Request, _ message) {
		w.stream()
		w.send("", response(`"1"`)) // another ID
		w.send("", response("1"))
		w.send("", note(1))
		w.send("", "["+note(2)+","+response("2.0")+"]")
	})
	up.handle("half", func(w *writing, _ *http.Request, _ message) { w.json("[" + response("2") + "]") })
	s.start(t, testConfig(up.URL))
	name := s.ready(t)
	for method, want := range map[string][]string{
		"array":  {response("2"), response("1")},
		"stream": {response(`"1"`), response("1"), note(1), note(2), response("2.0")},
		"half":   {response("2"), `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"` + errUnanswered.Error() + `"}}`},
	} {
		stream := newStream(t, "1", "2")
		body := fmt.Sprintf(`[{"jsonrpc":"2.0","id":1,"method":%q},{"jsonrpc":"2.0","id":2,"method":"x"}]`, method)
		if a := s.post(t, name, stream, body); a.Status != http.StatusAccepted {
			t.Errorf("%s was answered %d", method, a.Status)
		}
		if diff := cmp.Diff(want, s.finished(t, name, stream)); diff != "" {
			t.Errorf("%s: %s", method, diff)
		}
	}
}

func TestWhatIsTooLargeOrNoMessage(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{MaxMessageBytes: 10_000}), newServer(t)
	large := strings.Repeat("x", 11_000)
	up.handle("json", func(w *writing, _ *http.Request, m message) {
		w.json(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"x":"` + large + `"}}`)
	})
	up.handle("stream", func(w *writing, _ *http.Request, m message) {
		w.stream()
		w.send("", "rubbish")
		w.send("", `{"jsonrpc":"2.0","method":"n","params":{"x":"`+large+`"}}`)
		w.send("", `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"x":"`+large+`"}}`)
	})
	up.handle("endless", func(w *writing, _ *http.Request, _ message) {
		w.stream()
		w.send("", strings.Repeat(large, 20))
	})
	in := s.start(t, testConfig(up.URL))
	name := s.ready(t)
	for _, method := range []string{"json", "stream", "endless"} {
		stream, _ := s.request(t, name, "1", method)
		all := s.finished(t, name, stream)
		wantError(t, all, 1, "1")
		if !strings.Contains(all[0], errTooLarge.Error()) {
			t.Errorf("the error is %s", all[0])
		}
	}
	for reason, want := range map[string]float64{dropInvalid: 1, dropTooLarge: 1} {
		if n := in.metric(t, "dropped_messages_total", reason); n != want {
			t.Errorf("%v messages are counted as %s", n, reason)
		}
	}
}

func TestTheStandaloneStreamGoesOnWithoutWhatIsMuchTooLarge(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{MaxMessageBytes: 10_000}), newServer(t)
	var first sync.Once
	up.onGet(func(w *writing, r *http.Request) {
		w.stream()
		_, _ = fmt.Fprint(w, "retry: 1\n\n")
		if r.Header.Get("Last-Event-ID") != "" {
			w.send("2", strings.Repeat("x", 200_000))
			return
		}
		w.send("1", note(1))
		n := 2
		first.Do(func() { n = 0 })
		if n > 0 {
			w.send("3", note(n))
			<-r.Context().Done()
		}
	})
	s.start(t, testConfig(up.URL))
	name := s.ready(t)
	eventually(t, "what comes later is there", func() bool {
		all, _ := s.read(t, name, rpc.Standalone)
		return len(all) == 2 && all[1] == note(2)
	})
}

func TestHeadersOnTheListReachTheServer(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	cfg := testConfig(up.URL)
	cfg.UpstreamHeader = []string{"X-Key: secret, twice"}
	s.start(t, cfg)
	name := s.ready(t)
	stream := newStream(t, "1")
	s.do(t, rpc.Call{
		Action: rpc.Post, Session: name, Stream: stream, Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"x"}`),
		Header: http.Header{"Accept-Language": {"de"}, "Authorization": {"Bearer a"}, "Cookie": {"a"}, "X-Key": {"mine"}, headerVersion: {"2025-06-18"}},
	})
	s.finished(t, name, stream)
	up.mu.Lock()
	defer up.mu.Unlock()
	got := up.headers[len(up.headers)-1]
	for field, want := range map[string]string{
		"Accept-Language": "de", "Authorization": "", "Cookie": "", "X-Key": "secret, twice", headerVersion: "2025-06-18",
		"Accept": "application/json, text/event-stream", "Content-Type": "application/json",
	} {
		if got.Get(field) != want {
			t.Errorf("%s is %q, want %q", field, got.Get(field), want)
		}
	}
	if !strings.HasPrefix(got.Get(headerSession), "up-") {
		t.Errorf("the session is %q", got.Get(headerSession))
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.handle("some", func(w *writing, _ *http.Request, m message) {
		w.stream()
		for n := range 10 {
			w.send(fmt.Sprintf("%s-%d", m.ID, n), note(n))
		}
		w.send("", response(m.ID))
	})
	cfg := testConfig(up.URL)
	cfg.AcceptAfter = 10 * time.Millisecond
	in := s.start(t, cfg)
	name := s.ready(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			id := fmt.Sprint(i)
			stream := newStream(t, id)
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			a, err := rpc.Call{Action: rpc.Post, Session: name, Stream: stream, Data: []byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"some"}`)}.Do(ctx, s.b.Conn)
			if err != nil || a.Status != http.StatusAccepted {
				t.Errorf("it was answered %d, %v", a.Status, err)
				return
			}
			if all := s.finished(t, name, stream); len(all) != 11 || all[10] != response(id) {
				t.Errorf("the stream has %v", all)
			}
		})
	}
	wg.Wait()
	eventually(t, "no call is open", func() bool { return in.metric(t, "calls") == 0 })
}

func TestMoreCallsThanAllowedAreRefused(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.handle("hang", func(w *writing, r *http.Request, _ message) {
		w.stream()
		<-r.Context().Done()
	})
	cfg := testConfig(up.URL)
	cfg.MaxCalls = 1
	in := s.start(t, cfg)
	name := s.ready(t)
	s.request(t, name, "1", "hang")
	if _, a := s.request(t, name, "2", "x"); a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("one more was answered %d", a.Status)
	}
	if n := in.metric(t, "answers_total", "post", "5xx"); n != 1 {
		t.Errorf("%v answers are counted", n)
	}
}
