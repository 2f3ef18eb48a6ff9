package bridge

import (
	"bytes"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// While a stream changes its leader, JetStream refuses at once, or does not answer. The tool of a call runs by then:
// a client that is refused, and makes its call again, has it run twice.
func TestSession_OpenedWhileALeaderIsElected(t *testing.T) {
	for name, tt := range map[string]struct{ request, instead string }{
		"refused":    {"$JS.API.STREAM.MSG.GET.KV_" + session.Bucket, "$NO.API.STREAM.MSG.GET.KV_" + session.Bucket}, // which has no responders
		"unanswered": {".=open ", ".=open x"},                                                                        // the reply goes to another inbox
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, up, left := newSystem(t, eventlog.Settings{}), newStateless(t), atomic.Int32{}
			s.sending(func(data []byte) {
				if bytes.Contains(data, []byte(tt.request)) && left.Add(-1) >= 0 {
					replace(data, tt.request, tt.instead)
				}
			})
			up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
				w.stream()
				w.send("", note(1))
				w.send("", response(m.ID))
			})
			s.start(t, testConfig(up.URL))
			for _, c := range []rpc.Ask{
				{Action: rpc.Open, Session: uuid.NewString(), Data: []byte(initialize)},
				toolCall(t, ""),
			} {
				left.Store(1)
				if a := s.do(t, c); a.Status >= http.StatusBadRequest {
					t.Errorf("%s is answered %d %s", c.Action, a.Status, a.Data)
				}
				if left.Load() > 0 {
					t.Errorf("%s is opened without a refusal", c.Action)
				}
			}
			up.wantPosted(t, 1, mcp.MethodCallTool)
		})
	}
}

// A response needs no log: its client receives it while the log does not take the session, and the session ends.
func TestSession_ResponseWhileTheLogIsUnavailable(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newStateless(t)
	tried := make(chan struct{})
	once := sync.OnceFunc(func() { close(tried) })
	s.sending(func(data []byte) {
		if replace(data, ".=open ", ".=open x") { // the reply goes to another inbox
			once()
		}
	})
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		w.stream()
		waittest.Receive(t, "the bridge tries to open the session", tried)
		w.send("", response(m.ID))
	})
	svc := s.start(t, testConfig(up.URL), func(svc *Service) { svc.host.Times.Answer = 0 })
	wantStatus(t, s.do(t, toolCall(t, "")), http.StatusOK, `"result"`)
	waittest.Until(t, "the session is over", func() bool { return len(svc.table.All()) == 0 })
}
