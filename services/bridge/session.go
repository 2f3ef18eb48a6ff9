package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// clientSession is a session that this bridge holds. It is safe for concurrent use.
//
//	post ──▶ call, one goroutine each ─┐
//	initialized ──▶ listen: one        ├─ end with h.ctx; work waits for them
//	finish ──▶ one, which waits for the others, ends the session upstream and closes it
type clientSession struct {
	*callSession
	table *table
	tasks *guard // of the MCP server's own
	owner string // whose share it is of; see [clientOf]
	begun time.Time
	up    serverSide
	ended chan struct{} // closed when the session has ended in the log
	// demand opens the session in the log; nil for one that a client has opened.
	demand  *onDemand
	looking atomic.Bool // the patrol is, and may wait for its call

	mu         sync.Mutex
	sub        *nats.Subscription
	calls      map[string]*call
	used       bool        // its client has sent more than that it is ready
	standalone *call       // nil until listen
	client     http.Header // of the newest call
}

// noteTasks notes the tasks of the MCP server's own that a response names, and returns the response
// without those of others.
func (h *clientSession) noteTasks(m rpc.Message, data []byte) ([]byte, error) {
	return h.tasks.response(m, data, !h.onDemand)
}

// has reports whether a record says that the session is open.
func (h *clientSession) has(rec session.Record) bool {
	return rec.State == session.Open && rec.Life == h.life
}

// perRequest are header fields that belong to one request of the client's.
var perRequest = []string{"Traceparent", "Tracestate", "Baggage", "Mcp-Method", "Mcp-Name"}

// remember keeps the client's header for what the bridge asks of itself.
func (h *clientSession) remember(client http.Header) {
	client = client.Clone()
	for _, name := range perRequest {
		client.Del(name)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.client = client
}

func (h *clientSession) header() http.Header {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.client
}

// finish ends the session here, upstream, and in the log. It returns at once, and does
// nothing the second time. cause is errEnded, errGone or [upstream.ErrExited].
//
// A request counts as answered once its response is stored, so a bridge that stops in between
// leaves it to the next one.
func (h *clientSession) finish(cause error) {
	if !h.stop(cause) {
		return
	}
	h.host.run(func() {
		h.wait() // calls that the upstream has lost end with an error
		if errors.Is(cause, errEnded) {
			// Some servers answer when their tools have ended; that is not waited for.
			h.host.run(func() { h.up.close(h.host.life, h.header()) })
		}
		if h.inLog() {
			h.table.close(h)
		} else {
			close(h.ended)
		}
		h.table.release(h)
	})
}

// use notes that the client uses the session.
func (h *clientSession) use() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used = true
}

// cancelled notes what requests the client has cancelled.
func (h *clientSession) cancelled(keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range keys {
		for _, c := range h.calls {
			c.cancel(key)
		}
	}
}

// forget ends what request began. A call that another bridge will go on with stays, to be
// written down.
func (h *clientSession) forget(c *call, leave func()) {
	leave()
	if !c.done() && h.host.life.Err() != nil {
		return
	}
	if h.removeCall(c) && h.onDemand {
		h.finish(errEnded)
	}
}

// addCall makes a call the one of its stream, unless that has one.
func (h *clientSession) addCall(c *call) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, twice := h.calls[c.stream]; twice {
		return false
	}
	h.calls[c.stream] = c
	return true
}

// removeCall undoes addCall, and reports whether no call is left.
func (h *clientSession) removeCall(c *call) (none bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.calls, c.stream)
	return len(h.calls) == 0
}

// call returns the call of a stream, or nil.
func (h *clientSession) call(stream string) *call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[stream]
}

// listen begins to listen to the upstream's standalone stream, once. The channel is closed when the
// upstream has answered, or will not.
func (h *clientSession) listen(from cursor) <-chan struct{} {
	h.mu.Lock()
	was := h.standalone != nil
	if !was {
		h.standalone = newStandalone(h.callSession, h.receiver())
		h.standalone.startAt(from)
	}
	c := h.standalone
	h.mu.Unlock()
	if was {
		return c.tried
	}
	if !h.run(func() {
		defer c.wasTried()
		if from.ID == "" || c.reload(h.ctx) {
			h.up.listen(h.ctx, c, h.header)
		}
	}) {
		c.wasTried()
	}
	return c.tried
}

// busy reports whether a call is open.
func (h *clientSession) busy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.calls) > 0
}

func (h *clientSession) unsubscribe() {
	h.mu.Lock()
	sub := h.sub
	h.mu.Unlock()
	if sub != nil {
		_ = sub.Unsubscribe() // the connection may be closed already
	}
}

// streams returns what is open of the session: calls, and the standalone stream.
func (h *clientSession) streams() []*call {
	ending := h.hasEnded()
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*call, 0, len(h.calls)+1)
	for _, c := range h.calls {
		all = append(all, c)
	}
	if h.standalone != nil && !ending {
		all = append(all, h.standalone)
	}
	return all
}

// resume continues a call that another bridge has begun.
func (h *clientSession) resume(stream string, ids []json.RawMessage, from cursor) {
	c := newCall(h.callSession, stream, ids)
	c.startAt(from)
	c.expectNoAnswer()
	h.mu.Lock()
	h.calls[c.stream] = c
	h.mu.Unlock()
	h.host.metrics.calls.Inc()
	h.run(func() {
		defer h.forget(c, h.host.metrics.calls.Dec)
		if c.reload(h.host.life) && !c.done() {
			h.up.resume(h.ctx, c, h.header())
		}
	})
}

// hold begins to answer for the session, once.
func (h *clientSession) hold(ctx context.Context) error {
	h.mu.Lock()
	held := h.sub != nil
	h.mu.Unlock()
	if held {
		return nil
	}
	if err := h.table.hold(h); err != nil {
		return err
	}
	return h.host.backend.Conn.FlushWithContext(ctx)
}

// resumeAll continues the calls that another bridge has begun.
func (h *clientSession) resumeAll(from map[string]cursor) {
	for stream, at := range from {
		if ids, _ := rpc.RequestIDs(stream); len(ids) > 0 {
			h.resume(stream, ids, at)
		}
	}
}
