package bridge

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestListen_ServerMessages(t *testing.T) {
	s, up, first := bridged(t, newServer(t))
	up.onGet(func(w *writing, r *http.Request) {
		w.stream()
		w.send("", note(1))
		<-r.Context().Done()
	})
	name := s.ready(t)
	noted := func(want ...string) {
		t.Helper()
		waittest.Until(t, "the note is in the log", func() bool {
			all, final := s.read(t, name, rpc.Standalone)
			return slices.Equal(all, want) && !final
		})
	}
	noted(note(1))
	first.stop()
	// Another note of the same text: the log may have forgotten the key of an attempt.
	s.start(t, testConfig(up.URL), func(s *Service) { s.host.Times.Doubt = -1 })
	noted(note(1), note(1))
}

func TestInitialize_ResponseStream(t *testing.T) {
	s, _, in := bridged(t, newServer(t))
	stream := newStream(t, "0")
	a := s.do(t, rpc.Ask{Action: rpc.Open, Session: "legacy", Stream: stream, Data: []byte(initialize)})
	wantStatus(t, a, http.StatusOK)
	wantMessages(t, s.finished(t, "legacy", stream), string(a.Data))
	waittest.Until(t, "the message is counted", func() bool { return in.metric(t, "messages_total") == 1 })
}

func TestSession_RegisteredUntilDeleted(t *testing.T) {
	s, up, in := bridged(t, newServer(t))
	name := s.open(t)
	rec, err := s.b.Sessions.Get(waittest.Context(t), name)
	if err != nil || !strings.Contains(string(rec.Metadata), `"bridge":"test","upstream":"up-`) || !strings.Contains(string(rec.Metadata), `"protocolVersion":"2025-11-25"`) {
		t.Fatalf("the record is %+v %s, %v", rec, rec.Metadata, err)
	}
	in.wantMetric(t, 1, "sessions")
	s.end(t, name)
	s.wantState(t, name, session.Closed)
	waittest.Until(t, "it has ended upstream", func() bool { return len(up.ended()) == 1 })
	waittest.Until(t, "it is forgotten", func() bool { return in.metric(t, "sessions") == 0 })
}

func TestCall_UpstreamRefuses(t *testing.T) {
	s, up, _, name := begun(t)
	up.handle("secret", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="x"`)
		w.Header().Set("X-Internal", "1")
		w.WriteHeader(http.StatusUnauthorized)
	})
	stream, a := s.request(t, name, "1", "secret")
	if a.Status != http.StatusUnauthorized || len(a.Header) != 1 || a.Header.Get("WWW-Authenticate") != `Bearer resource_metadata="x"` {
		t.Errorf("it was answered %+v", a)
	}
	wantErrorFor(t, a.Data, "1")
	wantMessages(t, s.messages(t, name, stream))
}

func TestReply_TooLargeForNATS(t *testing.T) {
	s, up, _ := bridged(t, newServer(t))
	up.handle("secret", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.Header().Set("WWW-Authenticate", "Bearer realm="+strings.Repeat("x", 9<<20))
		w.WriteHeader(http.StatusUnauthorized)
	})
	wantStatus(t, second(s.request(t, s.ready(t), "1", "secret")), http.StatusBadGateway)
}

// A session outlives the bridge that stops: a 404 would have its client begin another one.
func TestPost_WhileTheBridgeStops(t *testing.T) {
	s, _, in := bridged(t, newServer(t))
	ended, h := in.table.Session(s.ready(t)), in.table.Session(s.ready(t))
	request := func(h *sessions.Session) rpc.Ask {
		return rpc.Ask{Action: rpc.Post, Session: h.Name, Stream: newStream(t, "1"), Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"quick"}`)}
	}
	notification := rpc.Ask{Action: rpc.Post, Session: h.Name, Data: []byte(`{"jsonrpc":"2.0","method":"note"}`)}
	s.do(t, rpc.Ask{Action: rpc.End, Session: ended.Name})
	wantStatus(t, ended.Post(request(ended)), http.StatusNotFound)
	in.host.Stop(upstream.ErrStopping)
	for _, c := range []rpc.Ask{request(h), notification} {
		wantBusy(t, h.Post(c))
	}
}
