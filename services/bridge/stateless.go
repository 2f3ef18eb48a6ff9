package bridge

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"

	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// stateless is the MCP server's side of one call of a client without sessions: passed on, where
// the server speaks the revision too, else translated.
type stateless struct {
	session *clientSession
	request mcp.Request

	mu sync.Mutex
	to *translated // nil where the request is passed on
}

func (u *stateless) service() *Service { return u.session.service }

// translation returns the call as the server has it, if that speaks earlier revisions.
func (u *stateless) translation() *translated {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.to
}

// serve hands the request over. ctx ends with the call.
func (u *stateless) serve(ctx context.Context, c *call, client http.Header, data []byte) {
	if t := u.translation(); t != nil {
		r, err := mcp.Parse(data)
		if err != nil {
			c.refuse(upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, err.Error()))
			return
		}
		t.join(ctx, c, r)
		return
	}
	modern, refused := u.service().isModern(ctx, client)
	switch {
	case refused != nil:
		c.refuse(*refused)
	case modern:
		u.pass(ctx, c, client, data)
	default:
		t := &translated{
			session: u.session, request: u.request, client: upstream.WithoutRepeated(client),
			asks: translate.Askable(u.request),
		}
		u.mu.Lock()
		u.to = t
		u.mu.Unlock()
		t.serve(ctx, c)
	}
}

// pass hands the request over as it is.
func (u *stateless) pass(ctx context.Context, c *call, client http.Header, data []byte) {
	c.endless = u.request.Method == mcp.MethodListen
	if u.request.Method == mcp.MethodDiscover {
		c.to = &discovered{call: c}
	}
	r := &remote{service: u.service(), endpoint: u.service().endpoint, modern: true}
	r.serve(ctx, c, client, data)
}

func (u *stateless) send(context.Context, http.Header, []byte) rpc.Answer {
	return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "a call without a session takes no messages")
}

// resume continues a call of another bridge: at a server of earlier revisions, if that gives event
// IDs. The revision itself has no resuming.
func (u *stateless) resume(ctx context.Context, c *call, client http.Header) {
	t := u.translation()
	if t == nil {
		c.over(upstream.ErrUnanswered)
		return
	}
	t.resume(ctx, c, client)
}

// held reports whether the call waits for its client.
func (u *stateless) held() bool {
	t := u.translation()
	return t != nil && t.held()
}

// listen listens to what the server sends of itself, for the one call.
func (u *stateless) listen(ctx context.Context, c *call, _ func() http.Header) {
	if t := u.translation(); t != nil {
		t.up.listen(ctx, c, func() http.Header { return t.client })
	}
}

// close ends the session upstream.
func (u *stateless) close(ctx context.Context, _ http.Header) {
	if t := u.translation(); t != nil && t.up != nil {
		t.stop()
		t.up.close(ctx, t.client)
	}
}

// discovered changes the result of server/discover: the client learns what Rejoin speaks.
type discovered struct{ call *call }

func (d *discovered) take(c *call, m rpc.Message, it item) error {
	var result map[string]json.RawMessage
	if m.Result != nil && rpc.Unmarshal(m.Result, &result) == nil {
		result["supportedVersions"] = mustMarshal(mcp.Revisions)
		it.data = mustMarshal(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result})
	}
	it.final = m.IsResponse()
	return d.put(it)
}

func (d *discovered) put(it item) error {
	_, err := d.call.store(it)
	return err
}
