package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// mcpServer is a session's side of the MCP server. It is safe for concurrent use.
type mcpServer interface {
	// serve hands over requests and sees to them until the end. ctx ends with the session.
	serve(ctx context.Context, c *call, client http.Header, data []byte)
	// send hands over messages that are no requests.
	send(ctx context.Context, client http.Header, data []byte) rpc.Answer
	// resume continues a call that another bridge has begun.
	resume(ctx context.Context, c *call, client http.Header)
	// listen stores what is about no request, until ctx ends or there is nothing of it.
	listen(ctx context.Context, c *call, client func() http.Header)
	// close ends the session upstream.
	close(ctx context.Context, client http.Header)
}

// clientSession is a session that this bridge holds. It is safe for concurrent use.
//
//	post ──▶ call, one goroutine each ─┐
//	initialized ──▶ listen: one        ├─ end with h.ctx; work waits for them
//	finish ──▶ one, which waits for the others, ends the session upstream and closes it
type clientSession struct {
	service *Service
	name    string
	life    string
	owner   string // whose share it is of; see [clientOf]
	// principal owns the session in the log; empty without access control.
	principal string
	begun     time.Time
	up        mcpServer
	ctx       context.Context //nolint:containedctx // of all that is done for the session
	end       context.CancelCauseFunc
	over      chan struct{} // closed when the session has ended, and its streams with it
	ended     chan struct{} // closed when the session has ended in the log
	// onDemand opens the session in the log; nil for one that a client has opened.
	onDemand *onDemand
	looking  atomic.Bool // the patrol is, and may wait for its call

	mu         sync.Mutex
	sub        *nats.Subscription
	work       sync.WaitGroup // of calls and listen; grows only until ending
	calls      map[string]*call
	used       bool        // its client has sent more than that it is ready
	standalone *call       // nil until listen
	client     http.Header // of the newest call
	ending     bool
	outside    receiver // gets what is about no call, in place of the client; nil for none
}

func newClientSession(s *Service, name, life, owner string, up mcpServer) *clientSession {
	h := &clientSession{service: s, name: name, life: life, owner: owner, begun: time.Now(), up: up, calls: map[string]*call{}, over: make(chan struct{}), ended: make(chan struct{})}
	h.ctx, h.end = context.WithCancelCause(s.life)
	return h
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

// run runs what belongs to the session, unless it has ended.
func (h *clientSession) run(work func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ending {
		return false
	}
	h.work.Add(1)
	ok := h.service.run(func() {
		defer h.work.Done()
		work()
	})
	if !ok {
		h.work.Done()
	}
	return ok
}

// post hands over what a client posted.
func (h *clientSession) post(c rpc.Call) rpc.Answer {
	all, batch, err := rpc.Messages(c.Data)
	if err != nil || batch && len(all) == 0 {
		return upstream.Failure(http.StatusBadRequest, rpc.CodeParse, "the body is not JSON-RPC")
	}
	var ids []json.RawMessage
	var cancel []string
	initialized, answers := false, true
	for _, data := range all {
		m, err := rpc.ParseMessage(data)
		switch {
		case err != nil:
			return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, err.Error())
		case m.IsRequest():
			ids = append(ids, m.ID)
		case m.Is(upstream.MethodCancelled):
			cancel = append(cancel, upstream.IDKey(m.Param("requestId")))
		case m.Is(upstream.MethodInitialized):
			initialized, answers = true, false
		case m.Method != nil:
			answers = false
		}
	}
	if refused := h.guardTasks(&c, all, batch); refused != nil {
		return upstream.About(*refused, ids)
	}
	h.remember(c.Header)
	if !initialized || len(all) > 1 {
		h.use()
	}
	h.cancelled(cancel)
	if len(ids) == 0 {
		client := h.owner
		if answers { // a call of the client's may wait for them, and hold what it has until then
			client = ""
		}
		return h.notify(c, initialized, client)
	}
	if c.Stream == "" || c.Stream == rpc.Standalone {
		return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "there is no stream for the responses")
	}
	return h.request(c, ids)
}

// use notes that the client uses the session.
func (h *clientSession) use() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used = true
}

// unusedAfter is how long a session is kept that its client does not use, when others want
// its process. Clients list the tools as soon as they are ready.
const unusedAfter = time.Minute

// endUnused ends the sessions that their clients do not use. The session of a single call is in use
// while that runs.
func (s *Service) endUnused() {
	for _, h := range s.all() {
		h.mu.Lock()
		unused := !h.used && h.onDemand == nil && time.Since(h.begun) > s.unusedAfter
		h.mu.Unlock()
		if unused {
			s.log.Info("a session that was never used ends, since there are too many processes", "session", h.name)
			h.finish(errEnded)
		}
	}
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

// request begins a call and waits until the upstream has taken or refused it, or
// AcceptAfter has passed.
func (h *clientSession) request(c rpc.Call, ids []json.RawMessage) rpc.Answer {
	made := newCall(h, c.Stream, ids)
	made.out.trace = c.Trace
	if !h.service.open.enter(h.owner) {
		return upstream.Busy("the bridge has too many requests, or too many of this client's")
	}
	n := int64(len(c.Data))
	if !h.service.memory.Take(h.owner, n) {
		h.service.open.leave(h.owner)
		return upstream.Busy(noMemory)
	}
	leave := func() {
		h.service.memory.Give(h.owner, n)
		h.service.open.leave(h.owner)
	}
	if !h.addCall(made) {
		leave()
		return upstream.Failure(http.StatusConflict, rpc.CodeInvalid, "the stream has requests already")
	}
	if !h.run(func() {
		defer h.forget(made, leave)
		h.up.serve(h.ctx, made, c.Header, c.Data)
	}) {
		h.forget(made, leave)
		return h.unavailable()
	}
	wait := h.service.cfg.AcceptAfter
	if h.onDemand != nil {
		wait = h.service.answerWithin
	}
	select {
	case a := <-made.reply:
		return a
	case <-time.After(wait):
		made.accept()
	}
	if _, err := h.answerOrOpen(made, item{}); err != nil {
		h.finish(errEnded) // the client has the error
		return <-made.reply
	}
	select {
	case a := <-made.reply:
		return a
	case <-time.After(unloggedFor):
		if made.tell(upstream.Busy("there are too many sessions, and the response has not come in time")) {
			h.finish(errEnded)
		}
	}
	return <-made.reply
}

// forget ends what request began. A call that another bridge will go on with stays, to be
// written down.
func (h *clientSession) forget(c *call, leave func()) {
	leave()
	if !c.done() && h.service.life.Err() != nil {
		return
	}
	if h.removeCall(c) && h.onDemand != nil {
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

// unavailable returns why the session runs nothing any more: it has ended, or it continues at the next
// bridge.
func (h *clientSession) unavailable() rpc.Answer {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ending {
		return ended()
	}
	return upstream.Busy(upstream.ErrStopping.Error())
}

const noMemory = "the bridge holds too much for clients, or too much for this one"

// notifyWithin is how long a client waits for the upstream to take what is no request.
// It keeps the order of what a client sends one after the other.
const notifyWithin = 5 * time.Second

// notify hands over messages that are no requests, in the share of a client.
func (h *clientSession) notify(c rpc.Call, initialized bool, client string) rpc.Answer {
	n := int64(len(c.Data))
	if !h.service.memory.Take(client, n) {
		return upstream.Busy(noMemory)
	}
	give := func() { h.service.memory.Give(client, n) }
	reply := make(chan rpc.Answer, 1)
	if !h.run(func() {
		defer give()
		ctx, cancel := context.WithTimeout(h.ctx, h.service.cfg.OpenTimeout)
		defer cancel()
		a := h.up.send(ctx, c.Header, c.Data)
		reply <- a
		switch {
		case a.Status == http.StatusNotFound:
			h.finish(upstream.ErrGone)
		case a.Status == http.StatusAccepted && initialized:
			h.listen(cursor{})
		}
	}) {
		give()
		return h.unavailable()
	}
	select {
	case a := <-reply:
		return a
	case <-time.After(notifyWithin):
		return rpc.Answer{Status: http.StatusAccepted}
	}
}

// listen begins to listen to the upstream's standalone stream, once. The channel is closed when the
// upstream has answered, or will not.
func (h *clientSession) listen(from cursor) <-chan struct{} {
	h.mu.Lock()
	was := h.standalone != nil
	if !was {
		h.standalone = newStandalone(h, h.outside)
		h.standalone.at = from
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

// setReceiver makes another receiver than the client get what is about no call.
func (h *clientSession) setReceiver(to receiver) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outside = to
}

// receiver returns who gets what is about no call, in place of the client; nil for none.
func (h *clientSession) receiver() receiver {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.outside
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
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*call, 0, len(h.calls)+1)
	for _, c := range h.calls {
		all = append(all, c)
	}
	if h.standalone != nil && (!h.ending) {
		all = append(all, h.standalone)
	}
	return all
}

// answerWithin is how long a request without a session may take to be answered without the log. It
// is lost with the bridge until then.
const answerWithin = 250 * time.Millisecond

// unloggedFor is how long a call may take that cannot have a session in the log: less than the
// edge waits.
const unloggedFor = 25 * time.Second

// onDemand opens the session of one call in the log, when there is something to store: a message
// that is not the response, or none for [answerWithin]. A quick call leaves nothing in the log.
// It is safe for concurrent use.
type onDemand struct {
	at atomic.Pointer[callAt] // nil until the call has a session at the MCP server

	call    rpc.Call          // that began it, without its data
	content string            // see [mcp.Request.Content]
	client  [sha256.Size]byte // the same for the same call of the same client
	listens bool              // it is no call, but listens

	mu     sync.Mutex
	meta   metadata
	opened bool
	failed error     // why it cannot be opened
	asked  time.Time // when an edge asked about the call last
}

// inLog reports whether the session is in the log.
func (h *clientSession) inLog() bool {
	d := h.onDemand
	if d == nil {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened
}

// hold begins to answer for the session, once.
func (h *clientSession) hold(ctx context.Context) error {
	h.mu.Lock()
	held := h.sub != nil
	h.mu.Unlock()
	if held {
		return nil
	}
	if err := h.service.hold(h); err != nil {
		return err
	}
	return h.service.backend.Conn.FlushWithContext(ctx)
}

// wasAsked notes that an edge has asked about the call.
func (d *onDemand) wasAsked() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = time.Now()
}
