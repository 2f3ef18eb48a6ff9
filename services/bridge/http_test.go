package bridge

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestListen_ServerMessages(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.onGet(func(w *writing, r *http.Request) {
		w.stream()
		w.send("", note(1))
		<-r.Context().Done()
	})
	first := s.start(t, testConfig(up.URL))
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
	// Another one of the same text, of which the log may have forgotten the key of an attempt.
	s.start(t, testConfig(up.URL), func(s *Service) { s.host.Times.Doubt = -1 })
	noted(note(1), note(1))
}

func TestInitialize_ResponseStream(t *testing.T) {
	s, _, in := bridged(t, newServer(t))
	stream := newStream(t, "0")
	a := s.do(t, rpc.Ask{Action: rpc.Open, Session: "legacy", Stream: stream, Data: []byte(initialize)})
	wantStatus(t, a, http.StatusOK)
	if diff := cmp.Diff([]string{string(a.Data)}, s.finished(t, "legacy", stream)); diff != "" {
		t.Error(diff)
	}
	waittest.Until(t, "the message is counted", func() bool { return in.metric(t, "messages_total") == 1 })
}

func TestSession_RegisteredUntilDeleted(t *testing.T) {
	s, up, in := bridged(t, newServer(t))
	name := s.open(t)
	rec, err := s.b.Sessions.Get(waittest.Context(t), name)
	if err != nil || !strings.Contains(string(rec.Metadata), `"bridge":"test","upstream":"up-`) || !strings.Contains(string(rec.Metadata), `"protocolVersion":"2025-11-25"`) {
		t.Fatalf("the record is %+v %s, %v", rec, rec.Metadata, err)
	}
	if in.metric(t, "sessions") != 1 {
		t.Error("the session is not counted")
	}
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
	if m, err := rpc.ParseMessage(a.Data); err != nil || m.Error == nil || string(m.ID) != "1" {
		t.Errorf("the error is %s", a.Data)
	}
	if all, _ := s.read(t, name, stream); len(all) > 0 {
		t.Errorf("the log has %v", all)
	}
}

func TestReply_TooLargeForNATS(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	up.handle("secret", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.Header().Set("WWW-Authenticate", "Bearer realm="+strings.Repeat("x", 9<<20))
		w.WriteHeader(http.StatusUnauthorized)
	})
	s.start(t, testConfig(up.URL))
	if _, a := s.request(t, s.ready(t), "1", "secret"); a.Status != http.StatusBadGateway {
		t.Errorf("it was answered %d", a.Status)
	}
}
