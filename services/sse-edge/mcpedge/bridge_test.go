package mcpedge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// bridge plays a bridge, whose answers the test decides.
type bridge struct {
	f *fixture
	// post, check, request and open answer; nil means 202, 202, 202, and a session.
	post, check, request, open func(rpc.Ask) rpc.Answer

	mu    sync.Mutex
	calls []rpc.Ask
	subs  []*nats.Subscription
}

const initialized = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"test","version":"1"}}}`

func (f *fixture) bridge() *bridge {
	f.t.Helper()
	b := &bridge{f: f}
	b.listen(rpc.OpenSubject)
	f.t.Cleanup(b.leave)
	return b
}

// bridged is a fixture with a bridge.
func bridged(t *testing.T) (*fixture, *bridge) {
	t.Helper()
	f := newFixture(t)
	b := f.bridge()
	return f, b
}

func (b *bridge) listen(subject string) {
	sub, err := b.f.Backend.Conn.QueueSubscribe(subject, rpc.Queue, b.take)
	if err == nil {
		err = b.f.Backend.Conn.Flush()
	}
	if err != nil {
		b.f.t.Error(err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs = append(b.subs, sub)
}

// leave ends the subscription.
func (b *bridge) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, sub := range b.subs {
		_ = sub.Unsubscribe()
	}
	_ = b.f.Backend.Conn.Flush() // fails on a connection that is closed; a request on another one must find no bridge
	b.subs = nil
}

func (b *bridge) take(msg *nats.Msg) {
	ask, err := rpc.ParseAsk(msg)
	if err != nil {
		b.f.t.Error(err)
		return
	}
	b.mu.Lock()
	b.calls = append(b.calls, ask)
	b.mu.Unlock()
	if err := b.answer(ask).Respond(msg); err != nil {
		b.f.t.Error(err)
	}
}

func (b *bridge) answer(ask rpc.Ask) rpc.Answer {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // without a deadline NATS has a few seconds
	defer cancel()
	switch ask.Action {
	case rpc.Open:
		if b.open != nil {
			return b.open(ask)
		}
		return b.make(ctx, ask)
	case rpc.Post:
		if b.post != nil {
			return b.post(ask)
		}
	case rpc.Check:
		if b.check != nil {
			return b.check(ask)
		}
	case rpc.End:
		if err := b.f.Backend.Sessions.End(ctx, ask.Session, "", false); err != nil {
			b.f.t.Error(err)
		}
		return rpc.Answer{Status: http.StatusNoContent}
	case rpc.Request:
		if b.request != nil {
			return b.request(ask)
		}
	case rpc.Cancel:
	}
	return rpc.Answer{Status: http.StatusAccepted}
}

// make creates a session.
func (b *bridge) make(ctx context.Context, ask rpc.Ask) rpc.Answer {
	if _, err := b.f.Backend.Sessions.Create(ctx, session.New(ask.Session, ask.Owner, nil, time.Now())); err != nil {
		b.f.t.Error(err)
	}
	b.listen(rpc.Subject(ask.Session))
	if ask.Stream != "" {
		b.say(ask.Session, ask.Stream, true, initialized)
	}
	return rpc.Answer{Status: http.StatusOK, Data: []byte(initialized)}
}

// takesCall has a client call a tool, and returns the call once the bridge has it.
func (b *bridge) takesCall(u *mcpUser, headers ...string) (*client, rpc.Ask) {
	b.f.t.Helper()
	calls := b.accepts()
	c := u.follow(u.post(statelessTool, headers...))
	return c, waittest.Receive(b.f.t, "the bridge has the request", calls)
}

// sent returns the calls of an action so far.
func (b *bridge) sent(action rpc.Action) (calls []rpc.Ask) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.calls {
		if c.Action == action {
			calls = append(calls, c)
		}
	}
	return calls
}

// say publishes messages on a stream; the last one may be its last.
func (b *bridge) say(sessionName, stream string, final bool, messages ...string) {
	for i, m := range messages {
		_, err := b.f.Backend.Log.Publish(context.Background(), eventlog.Event{
			Life: b.f.Life(sessionName), Sole: true,
			Session: sessionName, Stream: stream, Data: []byte(m), Final: final && i == len(messages)-1,
		})
		if err != nil {
			b.f.t.Error(err)
		}
	}
}

func progress(n int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":%d}}`, n)
}

func result(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"result":{}}` }

// mcpUser is a client of /mcp that a test drives.
type mcpUser struct {
	t       *testing.T
	url     string
	version string
	session string
	headers []string // in pairs
}

// join begins a session.
func join(t *testing.T, url, version string, headers ...string) *mcpUser {
	t.Helper()
	u := &mcpUser{t: t, url: url, version: version, headers: headers}
	resp := u.read(u.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`))
	if u.session = resp.Header.Get("Mcp-Session-Id"); resp.StatusCode != http.StatusOK || u.session == "" || resp.Text != initialized {
		t.Fatalf("initialize: %d %s %s", resp.StatusCode, u.session, resp.Text)
	}
	return u
}

// announcedBytes is the length up to which a body is sent. A longer one is only announced: the edge
// refuses it by its length, and a write of its bytes may meet the end of the connection.
const announcedBytes = 8 << 20

// do makes a request. Headers are in pairs; an empty value removes one.
func (u *mcpUser) do(method, body string, headers ...string) reply {
	u.t.Helper()
	req := must.Value(http.NewRequestWithContext(u.t.Context(), method, u.url+"/mcp", strings.NewReader(body)))(u.t)
	if len(body) > announcedBytes {
		var w *io.PipeWriter
		req.Body, w = io.Pipe()
		u.t.Cleanup(func() { _ = w.Close() })
	}
	all := append([]string{
		"Mcp-Session-Id", u.session, "Mcp-Protocol-Version", u.version, "Content-Type", "application/json",
		"Accept", "application/json, text/event-stream",
	}, append(u.headers, headers...)...)
	for i := 0; i+1 < len(all); i += 2 {
		if req.Header.Set(all[i], all[i+1]); all[i+1] == "" {
			req.Header.Del(all[i])
		}
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	must.NoError(u.t, err)
	u.t.Cleanup(func() { _ = resp.Body.Close() })
	return reply{resp}
}

// reply is a response whose body is closed with the test.
type reply struct{ *http.Response }

func (u *mcpUser) post(body string, headers ...string) reply {
	u.t.Helper()
	return u.do(http.MethodPost, body, headers...)
}

func (u *mcpUser) read(resp reply) edgetest.Answered {
	u.t.Helper()
	return edgetest.Read(u.t, resp.Response)
}

// follow reads a response that is an event stream.
func (u *mcpUser) follow(resp reply) *client {
	u.t.Helper()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		a := u.read(resp)
		u.t.Fatalf("no event stream: %d %s", a.StatusCode, a.Text)
	}
	return &client{edgetest.Follow(u.t, resp.Response)}
}

// get opens the standalone stream, or resumes the one of an event ID.
func (u *mcpUser) get(lastID string) *client {
	u.t.Helper()
	return u.follow(u.do(http.MethodGet, "", "Last-Event-ID", lastID, "Content-Type", ""))
}

// primed reads an event without data and returns its ID.
func (c *client) primed() string {
	c.T.Helper()
	e := c.Next("message")
	if len(e.Data) != 0 || e.ID == "" {
		c.T.Fatalf("got %s with id %s, want an empty event", e.Data, e.ID)
	}
	return e.ID
}

// primedUntilEnd reads empty events, at least one, until the stream ends, and returns the ID of the last one.
func (c *client) primedUntilEnd() (id string) {
	c.T.Helper()
	id = c.primed()
	for {
		e, err := c.Decoder.Next()
		switch {
		case errors.Is(err, io.EOF):
			return id
		case err != nil, len(e.Data) > 0, e.ID == "":
			c.T.Fatalf("the stream continues with %s, id %s, %v", e.Data, e.ID, err)
		}
		id = e.ID
	}
}

// says reads the next messages, and returns the ID of the last one.
func (c *client) says(messages ...string) (id string) {
	c.T.Helper()
	for _, want := range messages {
		e := c.Next("message")
		if string(e.Data) != want {
			c.T.Fatalf("got %s, want %s", e.Data, want)
		}
		id = e.ID
	}
	return id
}

// ends reads the last messages, and the end, and returns the ID of the last one.
func (c *client) ends(messages ...string) (id string) {
	c.T.Helper()
	id = c.says(messages...)
	c.WantEnd()
	return id
}

// resumes continues a call after an ID, and reads its messages and the end.
func (u *mcpUser) resumes(after string, messages ...string) {
	u.t.Helper()
	c := u.get(after)
	c.primed()
	c.ends(messages...)
}

// fails reads an error for a request, and the end.
func (c *client) fails(id string) {
	c.T.Helper()
	var m struct {
		ID    json.RawMessage
		Error struct{ Code int }
	}
	e := c.Next("message")
	if err := json.Unmarshal(e.Data, &m); err != nil || string(m.ID) != id || m.Error.Code == 0 {
		c.T.Errorf("got %s, want an error for %s", e.Data, id)
	}
	c.WantEnd()
}
