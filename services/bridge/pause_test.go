package bridge

import (
	"bytes"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// A bridge that was paused gets a request and the edge's question about it at once, and may look at the
// question first: the call must not be reported as lost while it runs.
func TestCheck_RequestIsTakenMeanwhile(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	goOn := make(chan struct{})
	up.handle("slow", func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		select {
		case <-goOn:
			w.send("", response(m.ID))
		case <-r.Context().Done():
		}
	})
	stream := newStream(t, "1")
	asking, answer, once := make(chan struct{}), make(chan struct{}), sync.Once{}
	s.options = []nats.Option{nats.SetCustomDialer(&natstest.Link{Before: func(data []byte) {
		if bytes.Contains(data, []byte(".=end."+event.Token(stream))) {
			once.Do(func() { close(asking); <-answer })
		}
	}})}
	in := s.start(t, testConfig(up.URL))
	h := in.table.Session(s.ready(t))
	checked := make(chan rpc.Answer)
	go func() { checked <- h.Check(rpc.Call{Action: rpc.Check, Session: h.Name, Stream: stream}) }()
	waittest.Receive(t, "the log is asked for the call's end", asking)
	if a := h.Post(rpc.Call{Action: rpc.Post, Session: h.Name, Stream: stream, Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"slow"}`)}); a.Status != http.StatusAccepted {
		t.Fatalf("the request is answered %d %s", a.Status, a.Data)
	}
	close(answer)
	if a := waittest.Receive(t, "the check is answered", checked); a.Status != http.StatusAccepted {
		t.Errorf("the check is answered %d %s", a.Status, a.Data)
	}
	close(goOn)
	if all := s.finished(t, h.Name, stream); !slices.Equal(all, []string{response("1")}) {
		t.Errorf("the stream has %v", all)
	}
}
