package mcpserver

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/config"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestProcess_EndsAfterFirstResponse(t *testing.T) {
	const response = `{"jsonrpc":"2.0","id":0,"result":{}}`
	ours, theirs, err := os.Pipe()
	must.NoError(t, err)
	defer func() { _ = errors.Join(ours.Close(), theirs.Close()) }()
	u := &stdio{
		host: &host.Host{Config: config.Config{OpenTimeout: time.Minute}}, process: &upstream.Process{Stdin: theirs},
		writing: make(chan struct{}, 1), first: make(chan []byte, 1), over: make(chan struct{}),
	}
	close(u.over)
	for range 100 {
		u.first <- []byte(response)
		if got, err := u.initialize(t.Context(), json.RawMessage("0"), []byte(`{"jsonrpc":"2.0","id":0,"method":"initialize"}`)); err != nil || string(got) != response {
			t.Fatalf("it has answered %s, %v", got, err)
		}
	}
}

func TestProcess_NotificationWithOneOpenCall(t *testing.T) {
	with := func(ids ...json.RawMessage) *stdioCall {
		return &stdioCall{Call: call.New(&call.Scope{Host: &host.Host{}}, "st", ids)}
	}
	open := func() *stdioCall { return with(json.RawMessage("1")) }
	answered := func() *stdioCall { return with() } // and not forgotten yet
	cancelled := func() *stdioCall {                // and not answered: MCP does not ask for it
		c := open()
		c.Cancel(rpc.IDKey(json.RawMessage("1")))
		return c
	}
	one := open()
	m := must.Value(rpc.ParseMessage([]byte(`{"jsonrpc":"2.0","method":"n"}`)))(t)
	for _, tt := range []struct {
		calls []*stdioCall
		want  *stdioCall
	}{
		{[]*stdioCall{one}, one},
		{[]*stdioCall{answered(), one, answered()}, one},
		{[]*stdioCall{one, open()}, nil},
		{[]*stdioCall{answered()}, nil},
		{[]*stdioCall{cancelled()}, nil},
		{[]*stdioCall{cancelled(), one}, one},
		{nil, nil},
	} {
		if u := (&stdio{calls: tt.calls}); u.route(m) != tt.want {
			t.Errorf("of %d it goes to another", len(tt.calls))
		}
	}
}

func TestPauseAfter_LongRun(t *testing.T) {
	for ran, want := range map[time.Duration]time.Duration{0: 8 * time.Second, listenPauseMax: 8 * time.Second, time.Hour: listenPause} {
		if got := pauseAfter(8*time.Second, ran); got != want {
			t.Errorf("after %v the pause is %v", ran, got)
		}
	}
}
