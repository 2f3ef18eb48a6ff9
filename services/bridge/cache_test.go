package bridge

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/translate"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

func cacheConfig(server string) config.Config {
	cfg := testConfig(server)
	cfg.CacheBytes = 1 << 20
	return cfg
}

// listing has a server answer tools/list with the value of a counter, for all clients.
func listing(up *server, scope string) *atomic.Int32 {
	var version atomic.Int32
	up.handle("tools/list", func(w *writing, _ *http.Request, m rpc.Message) {
		w.json(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","ttlMs":3600000,"cacheScope":%q,"tools":[],"version":%d}}`, m.ID, scope, version.Load()))
	})
	return &version
}

func TestCache_OtherClient(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	up := newStateless(t)
	up.responds(mcp.MethodDiscover, `"result":{"resultType":"complete","ttlMs":3600000,"cacheScope":"public","supportedVersions":["2026-07-28"],"capabilities":{}}`)
	version := listing(up, "public")
	in := s.start(t, cacheConfig(up.URL))
	for _, method := range []string{"tools/list", mcp.MethodDiscover} {
		first := statelessCall(t, "1", method, "", "")
		first.Owner = "alice"
		a := s.do(t, first)
		asked := up.posted(method)
		version.Add(1)
		second := statelessCall(t, `"b"`, method, "", "")
		second.Owner = "bob"
		b := s.do(t, second)
		m, err := rpc.ParseMessage(b.Data)
		var got, want map[string]any
		if err != nil || rpc.Unmarshal(m.Result, &got) != nil || b.Status != http.StatusOK || string(m.ID) != `"b"` {
			t.Fatalf("%s: %d %s", method, b.Status, b.Data)
		}
		was, _ := rpc.ParseMessage(a.Data)
		_ = rpc.Unmarshal(was.Result, &want)
		ttl, _ := got["ttlMs"].(float64)
		if ttl <= 0 || ttl > 3600000 {
			t.Errorf("%s: it stays fresh for %v ms", method, ttl)
		}
		delete(got, "ttlMs")
		delete(want, "ttlMs")
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, and the first client got %v", method, got, want)
		}
		up.wantPosted(t, asked, method)
	}
	other := statelessCall(t, "3", "tools/list", "", "")
	other.Header.Set("Accept-Language", "de") // which is forwarded
	wantHas(t, s.do(t, other).Data, `"version":2`)
	s.do(t, statelessCall(t, "4", "tools/list", `"cursor":"evil","cursor":"good"`, ""))
	if up.posted("evil") != 0 || up.posted(`"cursor":"good"`) != 1 {
		t.Error("the server gets what the key of the result does not have")
	}
	if hits, misses := in.metric(t, "cache_requests_total", "hit"), in.metric(t, "cache_requests_total", "miss"); hits != 2 || misses != 4 {
		t.Errorf("%v hits and %v misses are counted", hits, misses)
	}
}

// Private results, and translated ones, are not kept; without the flag, no result is.
func TestCache_NotKept(t *testing.T) {
	for name, tt := range map[string]struct {
		up    *server
		scope string
		bytes int
	}{
		"private":    {newStateless(t), "private", 1 << 20},
		"off":        {newStateless(t), "public", 0},
		"translated": {newEarlier(t), "public", 1 << 20},
	} {
		s := newSystem(t, eventlog.Settings{})
		listing(tt.up, tt.scope)
		cfg := testConfig(tt.up.URL)
		cfg.CacheBytes = flagtype.Bytes(tt.bytes)
		s.start(t, cfg)
		for range 2 {
			a := s.do(t, statelessCall(t, "1", "tools/list", "", ""))
			if name == "translated" && (!strings.Contains(string(a.Data), `"ttlMs":0`) || !strings.Contains(string(a.Data), `"cacheScope":"private"`)) {
				t.Errorf("%s: %s", name, a.Data)
			}
		}
		tt.up.wantPosted(t, 2, `"tools/list"`)
	}
}

// After a client has received that a list has changed, no bridge has the old list.
func TestCache_ListChanges(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	up := newStateless(t)
	say, _ := announces(up)
	version := listing(up, "public")
	cfg := cacheConfig(up.URL)
	bridges := []*instance{s.start(t, cfg), nil}
	cfg.BridgeName = "other"
	bridges[1] = s.start(t, cfg)
	listen := statelessCall(t, `"sub"`, mcp.MethodListen, `"notifications":{"toolsListChanged":true}`, "")
	wantStatus(t, s.do(t, listen), http.StatusAccepted)
	s.listenedTo(t, listen, 1)
	for round := range 5 {
		for _, in := range bridges {
			in.stateless.Request(statelessCall(t, "1", "tools/list", "", "")) // is kept now
		}
		version.Add(1)
		wantHas(t, s.do(t, statelessCall(t, "2", "tools/list", "", "")).Data, fmt.Sprintf(`"version":%d`, round))
		say <- `{"jsonrpc":"2.0","method":"` + translate.ToolsChanged + `","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"sub"}}}`
		s.listenedTo(t, listen, round+2)
		for range 30 { // to one bridge or the other
			wantHas(t, s.do(t, statelessCall(t, "3", "tools/list", "", "")).Data, fmt.Sprintf(`"version":%d`, round+1))
		}
	}
}

// A client that listens again, and receives every kind of change, gets the current list.
func TestCache_ListensAgain(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	up := listens(newStateless(t))
	version := listing(up, "public")
	cfg := cacheConfig(up.URL)
	cfg.ListenMemory = time.Hour
	s.start(t, cfg)
	for n, want := range []string{`"version":0`, `"version":1`} {
		listen := statelessCall(t, `"sub"`, mcp.MethodListen, `"notifications":{"toolsListChanged":true}`, "")
		s.do(t, listen)
		s.listenedTo(t, listen, n+1) // the acknowledgement, and after the second one that the tools have changed
		wantHas(t, s.do(t, statelessCall(t, "1", "tools/list", "", "")).Data, want)
		version.Add(1)
	}
}

// A list that was asked for before it changed is not kept when it arrives afterwards.
func TestCache_ChangeInFlight(t *testing.T) {
	s := newSystem(t, eventlog.Settings{})
	up := newStateless(t)
	asked, release := make(chan struct{}), make(chan struct{})
	up.handle("tools/list", func(w *writing, _ *http.Request, m rpc.Message) {
		asked <- struct{}{}
		<-release
		w.json(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"resultType":"complete","ttlMs":3600000,"cacheScope":"public","tools":[]}}`)
	})
	in := s.start(t, cacheConfig(up.URL))
	c := statelessCall(t, "1", "tools/list", "", "")
	answered := later(func() rpc.Answer { return in.stateless.Request(c) })
	waittest.Receive(t, "the server has the request", asked)
	method := translate.ToolsChanged
	in.host.NoteChange(rpc.Message{Method: &method})
	close(release)
	wantStatus(t, waittest.Receive(t, "the client is answered", answered), http.StatusOK)
	answered = later(func() rpc.Answer { return in.stateless.Request(statelessCall(t, "2", "tools/list", "", "")) })
	waittest.Receive(t, "the server is asked again", asked)
	waittest.Receive(t, "the client is answered", answered)
}
