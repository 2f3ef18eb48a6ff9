package bridge

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/flagtype"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestCall_NATSIsDown(t *testing.T) {
	t.Parallel()
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	eventlogtest.Begin(t, s.b.Log)
	const notes = 200
	half, more := make(chan struct{}), make(chan struct{})
	up.handle("slow", func(w *writing, _ *http.Request, m rpc.Message) {
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
	waittest.Until(t, "a publish has failed", func() bool { return in.metric(t, "publish_retries_total") > 0 })
	s.srv.Start()
	var want []string
	for n := range notes {
		want = append(want, note(n))
	}
	if diff := cmp.Diff(append(want, response("1")), s.finished(t, name, stream)); diff != "" {
		t.Error(diff)
	}
}

func TestCall_ServerDies(t *testing.T) {
	s, up, in, name := begun(t)
	up.handle("die", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.stream()
		w.send("", note(0))
		panic(http.ErrAbortHandler)
	})
	up.handle("end", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.stream()
		w.send("", note(0))
	})
	up.handle("text", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write([]byte("x"))
	})
	up.handle("nothing", func(w *writing, _ *http.Request, _ rpc.Message) { w.WriteHeader(http.StatusAccepted) })
	for method, messages := range map[string]int{"die": 2, "end": 2, "text": 1, "nothing": 1} {
		stream, a := s.request(t, name, "1", method)
		wantStatus(t, a, http.StatusAccepted)
		wantError(t, s.finished(t, name, stream), messages, "1")
	}
	in.wantMetric(t, 4, "failed_calls_total", host.FailLost)
	up.CloseClientConnections()
	up.Close()
	_, a := s.request(t, name, "1", "any")
	wantStatus(t, a, http.StatusBadGateway)
	wantErrorFor(t, a.Data, "1")
}

func TestCall_StreamBreaksAndResumes(t *testing.T) {
	t.Parallel()
	s, up, in := bridged(t, newServer(t))
	up.handle("poll", func(w *writing, _ *http.Request, _ rpc.Message) {
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
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "poll")
	wantMessages(t, s.finished(t, name, stream), note(1), note(2), note(3), response("1"))
	in.wantMetric(t, 3, "upstream_resumes_total")
}

func TestCall_UnknownSession(t *testing.T) {
	s, up, in, name := begun(t)
	hanging := make(chan struct{})
	up.handle("hang", func(w *writing, r *http.Request, _ rpc.Message) {
		w.stream()
		close(hanging)
		<-r.Context().Done()
	})
	gone := func(w *writing, _ *http.Request, _ rpc.Message) { w.WriteHeader(http.StatusNotFound) }
	up.handle("gone", gone)
	hang, _ := s.request(t, name, "1", "hang")
	<-hanging
	wantStatus(t, second(s.request(t, name, "2", "gone")), http.StatusNotFound)
	wantError(t, s.finished(t, name, hang), 1, "1")
	s.wantState(t, name, session.Closed)
	waittest.Until(t, "the session is forgotten", func() bool { return in.metric(t, "sessions") == 0 })
	if len(up.ended()) > 0 {
		t.Error("it was deleted upstream")
	}
}

func TestCall_ServerWithoutSessions(t *testing.T) {
	s, up, _ := bridged(t, newServer(t))
	up.session = ""
	up.handle("gone", func(w *writing, _ *http.Request, _ rpc.Message) { w.WriteHeader(http.StatusNotFound) })
	name := s.ready(t)
	wantStatus(t, second(s.request(t, name, "2", "gone")), http.StatusBadGateway)
	stream, _ := s.request(t, name, "1", "quick")
	s.finished(t, name, stream)
	s.end(t, name)
	up.mu.Lock()
	defer up.mu.Unlock()
	for _, h := range up.headers {
		if h.Get(upstream.HeaderSession) != "" {
			t.Error("it was given a session")
		}
	}
}

func TestCancel_NoResponse(t *testing.T) {
	s, up, in, name := begun(t)
	cancelled := make(chan struct{})
	up.handle("hang", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.stream()
		w.send("", note(0))
		<-cancelled
	})
	up.handle(upstream.MethodCancelled, func(w *writing, _ *http.Request, _ rpc.Message) {
		w.WriteHeader(http.StatusAccepted)
		close(cancelled)
	})
	stream, _ := s.request(t, name, "1", "hang")
	wantStatus(t, s.post(t, name, "", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`), http.StatusAccepted)
	s.ended(t, name, stream)
	waittest.Until(t, "the call is over", func() bool { return in.metric(t, "calls") == 0 })
	// The bridge adds no event after the end when an edge asks, nor does the next bridge.
	check := func() {
		t.Helper()
		wantStatus(t, s.do(t, rpc.Ask{Action: rpc.Check, Session: name, Stream: stream}), http.StatusAccepted)
		if all, final := s.read(t, name, stream); len(all) != 1 || final {
			t.Errorf("the stream has %v", all)
		}
	}
	check()
	in.stop()
	must.NoError(t, s.records(t).Put(waittest.Context(t), records.Key(name, stream), records.Record{}))
	in = s.start(t, testConfig(up.URL))
	waittest.Until(t, "the call is over here too", func() bool { return in.metric(t, "takeovers_total") == 1 && in.metric(t, "calls") == 0 })
	check()
}

func TestCancel_BeforeFirstMessage(t *testing.T) {
	t.Parallel()
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	up.handle("hang", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.stream()
		w.send("", note(0))
		<-over
	})
	cfg := testConfig(up.URL)
	cfg.CallTimeout = flagtype.Duration(6 * time.Second) // the note has come by then
	in := s.start(t, cfg)
	name := s.ready(t)
	stream, _ := s.request(t, name, `"x"`, "hang")
	all := s.finished(t, name, stream)
	wantError(t, all, 2, `"x"`)
	wantHas(t, all[1], "-32001")
	up.wantPosted(t, 1, `"requestId":"x"`)
	in.wantMetric(t, 1, "failed_calls_total", host.FailTimeout)
}

func TestCall_PollsWithoutMessages(t *testing.T) {
	t.Parallel()
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	poll := func(w *writing) {
		w.stream()
		w.send("a", "")
		_, _ = fmt.Fprint(w, "retry: 5\n\n")
	}
	up.handle("poll", func(w *writing, _ *http.Request, _ rpc.Message) { poll(w) })
	up.onGet(func(w *writing, _ *http.Request) { poll(w) })
	cfg := testConfig(up.URL)
	cfg.CallTimeout = flagtype.Duration(300 * time.Millisecond)
	s.start(t, cfg)
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "poll")
	wantError(t, s.finished(t, name, stream), 1, "1")
}

func TestCall_LateRefusal(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{MaxMessageBytes: 10_000}), newServer(t)
	late := make(chan struct{})
	up.handle("large", func(w *writing, _ *http.Request, _ rpc.Message) {
		<-late
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32099,"message":"not you","data":"%020000d"}}`, 0)
	})
	up.handle("late", func(w *writing, _ *http.Request, _ rpc.Message) {
		<-late
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32099,"message":"not you","data":{"supported":["2025-06-18"],"n":1.50}}}`)
	})
	cfg := testConfig(up.URL)
	cfg.AcceptAfter = time.Millisecond
	in := s.start(t, cfg)
	name := s.ready(t)
	stream, a := s.request(t, name, "1", "late")
	wantStatus(t, a, http.StatusAccepted)
	large, _ := s.request(t, name, "2", "large")
	close(late)
	wantError(t, s.finished(t, name, large), 1, "2")
	wantMessages(t, s.finished(t, name, stream), `{"jsonrpc":"2.0","id":1,"error":{"code":-32099,"message":"not you","data":{"supported":["2025-06-18"],"n":1.50}}}`)
	in.wantMetric(t, 2, "failed_calls_total", host.FailRefused)
}

// allTurns takes all turns to end a session in the log; each of done gives one back.
func allTurns(t *testing.T, in *instance) (done [sessions.ClosesAtOnce]func()) {
	t.Helper()
	for i := range done {
		var err error
		done[i], err = in.table.Turn(t.Context())
		must.NoError(t, err)
	}
	return done
}

// A session is not ended in the log before one of those that are being ended has.
func TestClose_Turns(t *testing.T) {
	t.Parallel()
	s, _, in := bridged(t, newServer(t))
	ending, other := s.ready(t), s.ready(t)
	turns := allTurns(t, in)
	in.table.Session(ending).Finish(host.ErrEnded)
	for range 10 {
		stream, _ := s.request(t, other, "1", "echo")
		s.finished(t, other, stream)
	}
	s.wantState(t, ending, session.Open) // it would have ended long before
	turns[0]()
	s.wantState(t, ending, session.Closed)
	for _, done := range turns[1:] {
		done()
	}
}

// A bridge that stops ends the sessions of its processes in the same turns.
func TestClose_TurnsAtStop(t *testing.T) {
	t.Parallel()
	s, cfg := newSystem(t, eventlog.Settings{}), stdioConfig(t)
	cfg.AckTimeout = time.Minute // all sessions are to be ended within about that
	in := s.start(t, cfg)
	name := s.ready(t)
	turns := allTurns(t, in)
	stopped := background(in.stop)
	waittest.Until(t, "the process has ended", func() bool { return in.metric(t, "processes") == 0 })
	for range 100 {
		s.wantState(t, name, session.Open) // it would have ended long before
	}
	turns[0]()
	s.wantState(t, name, session.Closed)
	for _, done := range turns[1:] {
		done()
	}
	waittest.Receive(t, "the bridge has stopped", stopped)
}
