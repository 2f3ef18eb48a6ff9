package bridge

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/eventlog"
	"rejoin/shared/presence"
	"rejoin/shared/rpc"
)

// never returns what hangs until the test is over.
func never(t *testing.T) func() {
	t.Helper()
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return func() { <-over }
}

func TestIdle_SessionWithOpenCall(t *testing.T) {
	t.Parallel()
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	hang := never(t)
	up.handle("hang", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.stream()
		hang()
	})
	s.start(t, testConfig(up.URL))
	busy, idle := s.ready(t), s.ready(t)
	s.request(t, busy, "1", "hang")
	q := presence.Question{Sessions: []presence.Session{{Name: idle}, {Name: busy}, {Name: "unknown"}}}
	var answers []presence.Answer
	eventually(t, "there is an answer", func() bool {
		var err error
		answers, err = presence.Ask(patient(t), s.b.Conn, q, time.Second)
		return err == nil && len(answers) == 1
	})
	if diff := cmp.Diff([]presence.Present{{Session: 1}}, answers[0].Present); diff != "" {
		t.Error(diff)
	}
}

func TestBridge_NameIsInUse(t *testing.T) {
	t.Parallel()
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	hang := never(t)
	up.handle("hang", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.stream()
		hang()
	})
	first := s.start(t, testConfig(up.URL))
	name := s.ready(t)
	stream, _ := s.request(t, name, "1", "hang")
	eventually(t, "the call is written down", func() bool {
		_, err := s.records(t).kv.Get(patient(t), recordKey(name, stream))
		return err == nil
	})
	asked, err := s.b.Conn.SubscribeSync(aliveSubject("test"))
	if err != nil {
		t.Fatal(err)
	}
	second := s.launch(t, testConfig(up.URL))
	for range 2 {
		if _, err := asked.NextMsgWithContext(patient(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err := asked.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if second.taken.Load() {
		t.Error("both are open")
	}
	if all, _ := s.read(t, name, stream); len(all) > 0 {
		t.Errorf("the call of the first has got %v", all)
	}
	first.stop()
	eventually(t, "the second is open", second.taken.Load)
	wantError(t, s.finished(t, name, stream), 1, "1")
}
