package mcpedge

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/rpc"
	"rejoin/shared/web/webtest"
)

// legacy opens or resumes the event stream of the old transport, and returns the address to post to.
func legacy(t *testing.T, url, lastID string) (c *client, endpoint string) {
	t.Helper()
	c = subscribe(t, url+"/sse", "Last-Event-ID", lastID)
	if c.Response.StatusCode != http.StatusOK {
		t.Fatalf("no stream: %d", c.Response.StatusCode)
	}
	return c, string(c.Next("endpoint").Data)
}

func postLegacy(t *testing.T, url, body string) webtest.Answer {
	t.Helper()
	return webtest.Ask(t, http.MethodPost, url, body, "Content-Type", "application/json")
}

func TestOldTransport_Session(t *testing.T) {
	f, b := bridged(t)
	first, stop := f.mcpService(nil)
	one, two := first.url(), f.mcpEdge(nil)
	c, endpoint := legacy(t, one, "")
	name := strings.TrimPrefix(endpoint, "/messages?session=")
	if a := postLegacy(t, one+endpoint, toolList); a.Status != http.StatusNotFound {
		t.Errorf("before initialize: %d %s", a.Status, a.Text)
	}
	if a := postLegacy(t, two+endpoint, `{"jsonrpc":"2.0","id":0,"method":"initialize"}`); a.Status != http.StatusAccepted || a.Text != "" {
		t.Fatalf("initialize: %d %s", a.Status, a.Text)
	}
	c.says(initialized)
	for _, body := range []string{toolCall, `{"jsonrpc":"2.0","method":"notifications/x"}`} {
		if a := postLegacy(t, one+endpoint, body); a.Status != http.StatusAccepted {
			t.Errorf("%s: %d %s", body, a.Status, a.Text)
		}
	}
	stream := b.sent(rpc.Post)[0].Stream
	b.say(name, rpc.Standalone, false, progress(1))
	b.say(name, stream, false, progress(2))
	id := c.says(progress(1), progress(2))
	stop()
	b.say(name, stream, true, result(`"a"`))
	c, again := legacy(t, two, id)
	if again != endpoint {
		t.Errorf("the endpoint is %s, was %s", again, endpoint)
	}
	c.says(result(`"a"`))
	if c := subscribe(t, two+"/sse", "Last-Event-ID", "x"); c.Response.StatusCode != http.StatusBadRequest {
		t.Errorf("resumed from nowhere: %d", c.Response.StatusCode)
	}
}

func TestOldTransport_Refusal(t *testing.T) {
	f, b := bridged(t)
	const no = `{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no"}}`
	b.open = func(rpc.Ask) rpc.Answer { return rpc.Answer{Status: http.StatusOK, Data: []byte(no)} }
	url := f.mcpEdge(nil)
	_, endpoint := legacy(t, url, "")
	if a := postLegacy(t, url+endpoint, `{"jsonrpc":"2.0","id":0,"method":"initialize"}`); a.Status != http.StatusBadRequest || a.Text != no {
		t.Errorf("%d %s", a.Status, a.Text)
	}
	u := &mcpUser{t: t, url: url}
	if a := u.read(u.post(`{"jsonrpc":"2.0","id":0,"method":"initialize"}`)); a.StatusCode != http.StatusOK || a.Text != no || a.Header.Get("Mcp-Session-Id") != "" {
		t.Errorf("%d %s %s", a.StatusCode, a.Header, a.Text)
	}
}

// A session is its owner's and its members', also when another client's stream has waited for it.
func TestOldTransport_SessionOfAnother(t *testing.T) {
	f, b := bridged(t)
	guard := guarded(t)
	s, _ := f.mcpService(func(c *config) {
		guard(c)
		c.Heartbeat = 50 * time.Millisecond
	})
	alice, bob := edgetest.Bearer(authtest.Of(t, "alice", "*")), edgetest.Bearer(authtest.Of(t, "bob", "*"))
	wait := func() (c *client, endpoint, name string) {
		c = subscribe(t, s.url()+"/sse", alice...)
		endpoint = string(c.Next("endpoint").Data)
		return c, endpoint, strings.TrimPrefix(endpoint, "/messages?session=")
	}
	c, endpoint, name := wait()
	if a := webtest.Ask(t, http.MethodPost, s.url()+endpoint, `{"jsonrpc":"2.0","id":0,"method":"initialize"}`, append(bob, "Content-Type", "application/json")...); a.Status != http.StatusAccepted {
		t.Fatalf("initialize: %d %s", a.Status, a.Text)
	}
	b.say(name, rpc.Standalone, false, progress(1))
	c.WantEnd()

	c, _, name = wait()
	release := f.HoldTails()
	f.Create(name, "bob")
	f.SetMembers(name, "alice")
	release()
	b.say(name, rpc.Standalone, false, progress(1))
	c.says(progress(1))
	f.SetMembers(name)
	c.WantEnd()
}
