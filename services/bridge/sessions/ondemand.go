package sessions

import (
	"crypto/sha256"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/services/bridge/records"
	"rejoin/services/bridge/translate"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// CallKept is how long the log keeps a call that is over.
const CallKept = 5 * time.Minute

// OnDemand opens the session of one call in the log, when there is something to store: a message
// that is not the response, or none for [host.AnswerWithin]. A quick call leaves nothing in the log.
// It is safe for concurrent use.
type OnDemand struct {
	at   atomic.Pointer[records.CallAt] // nil until the call has a session at the MCP server
	left atomic.Bool                    // the client has disconnected, and no edge has asked since

	asked   rpc.Ask           // the request that began the call, without its data
	content string            // see [mcp.Request.Content]
	client  [sha256.Size]byte // the same for the same call of the same client
	listens bool              // the request is no call, but listens

	mu     sync.Mutex
	meta   records.Metadata
	opened bool          // the session is in the log, or may be
	tried  chan struct{} // closed when the attempts to open it are over; nil before the first
	failed error         // why the session cannot be opened

	asking sync.Mutex // never held while waiting for NATS: a question of an edge must not wait for it
	newest time.Time  // when the client's newest connection began, by its edge's clock; zero if no edge has reported one
}

// NewOnDemand returns the session of a call at the bridge of a name. task says that the call may become a task.
func NewOnDemand(bridge string, c rpc.Ask, r mcp.Request, task bool) *OnDemand {
	content := r.Content()
	d := &OnDemand{
		asked: c, content: content, client: sha256.Sum256(event.MustJSON([]any{c.Owner, c.Client, r.ClientInfo, content})),
		listens: r.Method == mcp.MethodListen,
	}
	d.asked.Data = nil
	d.meta.MCP.Bridge, d.meta.MCP.ProtocolVersion, d.meta.MCP.Call = bridge, mcp.Stateless, &records.OneCall{Method: r.Method, Task: task, Content: content}
	d.meta.Retention = &records.Retention{KeepClosed: int64(CallKept / time.Second)}
	return d
}

// TakenOver returns the session of an owner's call that another bridge has opened, with its metadata. at
// identifies the call at an MCP server that has sessions; else it is nil.
func TakenOver(owner string, meta records.Metadata, at *records.CallAt) *OnDemand {
	d := &OnDemand{asked: rpc.Ask{Owner: owner}, content: meta.MCP.Call.Content, meta: meta}
	d.at.Store(at)
	d.opened = true
	return d
}

// Asked returns the call, without its data.
func (d *OnDemand) Asked() rpc.Ask { return d.asked }

// HasLeft reports whether the client has disconnected, and no edge has asked since.
func (d *OnDemand) HasLeft() bool { return d.left.Load() }

// IsRepeatedBy reports whether a request is the one of the call, made once more by the same client.
func (d *OnDemand) IsRepeatedBy(c rpc.Ask, r mcp.Request) bool {
	return c.Owner == d.asked.Owner && r.Content() == d.content
}

// isOpened reports whether the session is in the log.
func (d *OnDemand) isOpened() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened
}

// hasNewer reports whether an edge has asked about the call for a newer connection than one that began at since.
// The end of the older one then says nothing: an edge may notice late that a connection is dead. If the clocks of
// edges differ, a newer connection may count as an older one. When it ends, the call ends after [OrphanedAfter].
func (d *OnDemand) hasNewer(since time.Time) bool {
	d.asking.Lock()
	defer d.asking.Unlock()
	return !since.IsZero() && since.Before(d.newest)
}

// Connected notes the data that the next bridge needs to continue the call.
func (d *OnDemand) Connected(id, version string, r mcp.Request, server json.RawMessage, asks map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meta.MCP.Upstream, d.meta.MCP.ProtocolVersion = id, version
	of := d.meta.MCP.Call
	of.Token, of.LogLevel, of.Server, of.Asks = r.Meta["progressToken"], r.LogLevel, translate.BriefInfo(server), asks
	d.at.Store(&records.CallAt{Upstream: id, ProtocolVersion: version, Call: *of})
}
