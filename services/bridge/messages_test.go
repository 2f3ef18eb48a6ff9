package bridge

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

func TestBatch_LastResponseIsFinal(t *testing.T) {
	s, up, in, name := begun(t)
	up.handle("array", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.json("[" + response("2") + " , " + response("1") + "]")
	})
	up.handle("stream", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.stream()
		w.send("", response(`"1"`)) // another ID, which is left out
		w.send("", response("1"))
		w.send("", response("1")) // as is another response
		w.send("", note(1))
		w.send("", "["+note(2)+","+response("2.0")+"]")
	})
	up.handle("half", func(w *writing, _ *http.Request, _ rpc.Message) { w.json("[" + response("2") + "]") })
	for method, want := range map[string][]string{
		"array":  {response("2"), response("1")},
		"stream": {response("1"), note(1), note(2), response("2.0")},
		"half":   {response("2"), `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"` + upstream.ErrUnanswered.Error() + `"}}`},
	} {
		stream := newStream(t, "1", "2")
		body := fmt.Sprintf(`[{"jsonrpc":"2.0","id":1,"method":%q},{"jsonrpc":"2.0","id":2,"method":"x"}]`, method)
		wantStatus(t, s.post(t, name, stream, body), http.StatusAccepted)
		wantMessages(t, s.finished(t, name, stream), want...)
	}
	in.wantMetric(t, 2, "dropped_messages_total", host.DropLate)
}

func TestCall_InvalidOrTooLargeMessage(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{MaxMessageBytes: 10_000}), newServer(t)
	large := strings.Repeat("x", 11_000)
	up.responds("json", `"result":{"x":"`+large+`"}`)
	up.handle("stream", func(w *writing, _ *http.Request, m rpc.Message) {
		w.stream()
		w.send("", "rubbish")
		w.send("", `{"jsonrpc":"2.0","method":"n","params":{"x":"`+large+`"}}`)
		w.send("", `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"x":"`+large+`"}}`)
	})
	up.handle("endless", func(w *writing, _ *http.Request, _ rpc.Message) {
		w.stream()
		w.send("", strings.Repeat(large, 20))
	})
	in := s.start(t, testConfig(up.URL))
	name := s.ready(t)
	for _, method := range []string{"json", "stream", "endless"} {
		stream, _ := s.request(t, name, "1", method)
		all := s.finished(t, name, stream)
		wantError(t, all, 1, "1")
		wantHas(t, all[0], upstream.ErrTooLarge.Error())
	}
	for reason, want := range map[string]float64{host.DropInvalid: 1, host.DropTooLarge: 1} {
		in.wantMetric(t, want, "dropped_messages_total", reason)
	}
}

func TestListen_TooLargeEvent(t *testing.T) {
	t.Parallel()
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
	s.receives(t, name, rpc.Standalone, note(1), note(2))
}

// A server need not send messages without an event ID again: on the next connection the same notification may be new.
func TestListen_ChangesWithoutAnID(t *testing.T) {
	t.Parallel()
	s, up, _ := bridged(t, newServer(t))
	const most = 3
	var connections atomic.Int64
	changed := fmt.Sprintf(`{"jsonrpc":"2.0","method":%q}`, translate.ToolsChanged)
	up.onGet(func(w *writing, r *http.Request) {
		w.stream()
		_, _ = fmt.Fprint(w, "retry: 1\n\n")
		if r.Header.Get("Last-Event-ID") == "" {
			w.send("1", note(1))
		}
		if connections.Add(1) <= most {
			w.send("", changed)
			return
		}
		<-r.Context().Done()
	})
	name := s.ready(t)
	waittest.Until(t, "the last connection is there", func() bool { return connections.Load() > most })
	wantMessages(t, s.messages(t, name, rpc.Standalone), note(1), changed, changed, changed)
}

func TestHeaders_Forwarded(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	cfg := testConfig(up.URL)
	cfg.UpstreamHeader = []string{"X-Key: secret, twice"}
	s.start(t, cfg)
	name := s.ready(t)
	stream := newStream(t, "1")
	s.do(t, rpc.Ask{
		Action: rpc.Post, Session: name, Stream: stream, Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"x"}`),
		Header: http.Header{"Accept-Language": {"de"}, "Authorization": {"Bearer a"}, "Cookie": {"a"}, "X-Key": {"mine"}, upstream.HeaderVersion: {"2025-06-18"}},
	})
	s.finished(t, name, stream)
	up.mu.Lock()
	defer up.mu.Unlock()
	var got http.Header
	for _, h := range up.headers {
		if h.Get("Content-Type") != "" {
			got = h // of the last POST; a GET may come after it
		}
	}
	for field, want := range map[string]string{
		"Accept-Language": "de", "Authorization": "", "Cookie": "", "X-Key": "secret, twice", upstream.HeaderVersion: "2025-06-18",
		"Accept": "application/json, text/event-stream", "Content-Type": "application/json",
	} {
		if got.Get(field) != want {
			t.Errorf("%s is %q, want %q", field, got.Get(field), want)
		}
	}
	if !strings.HasPrefix(got.Get(upstream.HeaderSession), "up-") {
		t.Errorf("the session is %q", got.Get(upstream.HeaderSession))
	}
}
