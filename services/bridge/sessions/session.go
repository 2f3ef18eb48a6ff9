// Package sessions has the sessions of clients: the requests of edges for one, its opening in the log, and its
// end.
package sessions

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/owners"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/quota"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// Session is a session that this bridge holds. It is safe for concurrent use.
//
//	Post ──▶ call, one goroutine each ─┐
//	initialized ──▶ Listen: one        ├─ end with the context of [call.Scope]
//	Finish ──▶ one, which waits for the others, ends the session upstream and closes it
type Session struct {
	*call.Scope
	table    *Table
	Tasks    *owners.Guard // of the MCP server's own
	Share    string        // the client whose share the session is of; see [host.ClientOf]
	Upstream call.Upstream
	ended    chan struct{} // closed when the session has ended in the log
	// Demand opens the session in the log; nil for one that a client has opened.
	Demand  *OnDemand
	looking atomic.Bool // the patrol looks at the session, and may wait for its call
	used    atomic.Bool // its client has sent more than notifications/initialized
	// looks counts the looks of the patrol since the session began, an edge asked about its call, or the client
	// disconnected; see [Session.CountLook].
	looks atomic.Int64

	mu         sync.Mutex
	sub        *nats.Subscription
	released   bool // the session has ended, and the bridge does not answer for it any more
	calls      map[string]*call.Call
	arriving   map[string]int // by stream, how many bodies are about to be posted
	standalone *call.Call     // nil until Listen
	client     http.Header    // of the newest call
	held       *quota.Part    // the memory that client takes
}

// NoteTasks notes the tasks of the MCP server's own that a response names, and returns the response
// without those of others.
func (h *Session) NoteTasks(m rpc.Message, data []byte) ([]byte, error) {
	return h.Tasks.Response(m, data, !h.OneCall)
}

// InLog reports whether the session is in the log.
func (h *Session) InLog() bool { return h.Demand == nil || h.Demand.isOpened() }

// Has reports whether a record says that the session is open.
func (h *Session) Has(rec session.Record) bool {
	return rec.State == session.Open && rec.Life == h.Life
}

// perRequest are header fields that belong to one request of the client's.
var perRequest = []string{"Traceparent", "Tracestate", "Baggage", "Mcp-Method", "Mcp-Name"}

// Remember keeps the fields of the client's header that the MCP server gets, for the bridge's own requests. They take
// of the client's memory until the session ends: a client may have many sessions. Without room it returns false, and
// the previous fields stay.
func (h *Session) Remember(client http.Header) bool {
	kept, n := http.Header{}, 0
	for _, name := range append([]string{upstream.HeaderVersion}, h.Host.Config.ForwardHeader...) {
		name = http.CanonicalHeaderKey(name)
		if values := client[name]; len(values) > 0 && kept[name] == nil && !slices.Contains(perRequest, name) {
			kept[name], n = values, n+len(name)+len(strings.Join(values, ""))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released || !h.held.Resize(int64(n)) {
		return false
	}
	h.client = kept
	return true
}

func (h *Session) header() http.Header {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.client
}

// Finish ends the session here, upstream, and in the log. It returns at once, and does
// nothing the second time. cause is [host.ErrEnded], [upstream.ErrGone] or [upstream.ErrExited].
//
// A request counts as answered once its response is stored, so a bridge that stops in between
// leaves it to the next one.
func (h *Session) Finish(cause error) {
	if !h.Stop(cause) {
		return
	}
	h.Host.Go(func() {
		h.Wait() // calls that the upstream has lost end with an error
		if errors.Is(cause, host.ErrEnded) {
			// Some servers answer when their tools have ended; the bridge does not wait for that.
			h.Host.Go(func() { h.Upstream.Close(h.Host.Life, h.header()) })
		}
		if h.Demand != nil {
			h.Demand.settle()
		}
		if h.InLog() {
			h.table.close(h)
		} else {
			close(h.ended)
		}
		h.table.release(h)
	})
}

// cancelled notes the requests that the client has cancelled.
func (h *Session) cancelled(keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range keys {
		for _, c := range h.calls {
			c.Cancel(key)
		}
	}
}

// Look runs do. In a session of one call do may wait for the call: Look then does not wait for do, and runs
// it only once at a time.
func (h *Session) Look(do func()) {
	if !h.OneCall {
		do()
	} else if h.looking.CompareAndSwap(false, true) {
		h.Go(func() {
			defer h.looking.Store(false)
			do()
		})
	}
}

// forget removes a call that has ended, and with the last one ends a session of one call. A call that another bridge
// will continue stays, to be written down.
func (h *Session) forget(c *call.Call, leave func()) {
	leave()
	if !c.Done() && h.Host.Life.Err() != nil {
		return
	}
	if h.removeCall(c) && h.OneCall {
		h.Finish(host.ErrEnded)
	}
}

// Arrives notes, until arrived is called, that a body is about to be posted whose responses go to a stream: a
// later question about the stream may overtake it.
func (h *Session) Arrives(stream string) (arrived func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.arriving[stream]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.arriving[stream]--; h.arriving[stream] == 0 {
			delete(h.arriving, stream)
		}
	}
}

// isArriving reports whether a body is about to be posted for a stream.
func (h *Session) isArriving(stream string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.arriving[stream] > 0
}

// maxRepeated is how many requests of the session of one call are open at once. A newer request that repeats the call
// ends the previous one, except while the log is unavailable; they take no place of --max-calls.
const maxRepeated = 8

// addCall makes a call the one of its stream, unless that has one, or the session's one call has too many requests.
func (h *Session) addCall(c *call.Call) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, twice := h.calls[c.Stream]; twice || h.OneCall && len(h.calls) == maxRepeated {
		return false
	}
	h.calls[c.Stream] = c
	return true
}

// removeCall undoes addCall, and reports whether no call is left.
func (h *Session) removeCall(c *call.Call) (none bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.calls, c.Stream)
	return len(h.calls) == 0
}

// Call returns the call of a stream, or nil.
func (h *Session) Call(stream string) *call.Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[stream]
}

// Listen begins to listen to the upstream's standalone stream, once. from is the cursor of another bridge, or nil if
// none has listened. The channel is closed when the upstream has answered, or will not.
func (h *Session) Listen(from *call.Cursor) <-chan struct{} {
	h.mu.Lock()
	was := h.standalone != nil
	if !was {
		h.standalone = call.NewStandalone(h.Scope, h.Receiver)
		if from != nil {
			h.standalone.StartAt(*from)
		}
	}
	c := h.standalone
	h.mu.Unlock()
	if was {
		return c.Tried
	}
	if !h.Go(func() {
		defer c.WasTried()
		if from == nil || c.Reload(h.Ctx) {
			h.Upstream.Listen(h.Ctx, c, h.header)
		}
	}) {
		c.WasTried()
	}
	return c.Tried
}

// Busy reports whether a call is open.
func (h *Session) Busy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.calls) > 0
}

func (h *Session) leaveNATS(how func(*nats.Subscription) error) {
	h.mu.Lock()
	sub := h.sub
	h.mu.Unlock()
	if sub != nil {
		_ = how(sub) // the connection may be closed already
	}
}

// streams returns the open streams of the session: those of calls, and the standalone stream.
func (h *Session) streams() []*call.Call {
	ending := h.HasEnded()
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Collect(maps.Values(h.calls))
	if h.standalone != nil && !ending {
		all = append(all, h.standalone)
	}
	return all
}

// Hold begins to answer for the session, once.
func (h *Session) Hold(ctx context.Context) error {
	h.mu.Lock()
	held := h.sub != nil
	h.mu.Unlock()
	if held {
		return nil
	}
	if err := h.table.Hold(h); err != nil {
		return err
	}
	return h.Host.Backend.Conn.FlushWithContext(ctx)
}

// ResumeAll continues the calls that another bridge has begun.
func (h *Session) ResumeAll(from map[string]call.Cursor) {
	for stream, at := range from {
		ids, _ := rpc.RequestIDs(stream)
		if len(ids) == 0 {
			continue
		}
		c := call.New(h.Scope, stream, ids)
		c.StartAt(at)
		c.ExpectNoAnswer()
		h.addCall(c)
		h.Host.Metrics.Calls.Inc()
		h.Go(func() {
			defer h.forget(c, h.Host.Metrics.Calls.Dec)
			if c.Reload(h.Host.Life) && !c.Done() {
				h.Upstream.Resume(h.Ctx, c, h.header())
			}
		})
	}
}
