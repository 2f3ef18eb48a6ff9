package bridge

import (
	"net/http"
	"testing"

	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

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
		if a := h.Post(c); a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s is answered %d %s", c.Data, a.Status, a.Data)
		}
	}
}
