package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// OnDemand opens the session of one call in the log, when there is something to store: a message
// that is not the response, or none for [host.AnswerWithin]. A quick call leaves nothing in the log.
// It is safe for concurrent use.
type onDemand struct {
	at atomic.Pointer[records.CallAt] // nil until the call has a session at the MCP server

	call    rpc.Call          // that began it, without its data
	content string            // see [mcp.Request.Content]
	client  [sha256.Size]byte // the same for the same call of the same client
	listens bool              // it is no call, but listens

	mu     sync.Mutex
	meta   records.Metadata
	opened bool
	failed error     // why it cannot be opened
	asked  time.Time // when an edge asked about the call last
}

// newOnDemand returns the session of a call, of the bridge of a name. task says that it may become a task.
func newOnDemand(bridge string, c rpc.Call, r mcp.Request, task bool) *onDemand {
	content := r.Content()
	d := &onDemand{
		call: c, content: content, client: sha256.Sum256(event.MustJSON([]any{c.Owner, c.Client, r.ClientInfo, content})),
		listens: r.Method == mcp.MethodListen,
	}
	d.call.Data = nil
	d.meta.MCP.Bridge, d.meta.MCP.ProtocolVersion, d.meta.MCP.Call = bridge, mcp.Modern, &records.OneCall{Method: r.Method, Task: task}
	d.meta.Retention = &records.Retention{KeepClosed: int64(callKept / time.Second)}
	return d
}

// takenOver returns the session of an owner's call that another bridge has opened. at is where the call
// is at an MCP server that has sessions, else nil.
func takenOver(owner string, at *records.CallAt) *onDemand {
	d := &onDemand{call: rpc.Call{Owner: owner}}
	d.at.Store(at)
	d.setOpened(time.Now())
	return d
}

// setOpened notes that the session is in the log, and when an edge asked about the call last.
func (d *onDemand) setOpened(asked time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened, d.asked = true, asked
}

// rpcCall returns the call, without its data.
func (d *onDemand) rpcCall() rpc.Call { return d.call }

// isRepeatedBy reports whether a request is the one of the call, made once more by the same client.
func (d *onDemand) isRepeatedBy(c rpc.Call, r mcp.Request) bool {
	return c.Owner == d.call.Owner && r.Content() == d.content
}

// InLog reports whether the session is in the log.
func (h *clientSession) InLog() bool {
	d := h.demand
	if d == nil {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened
}

// wasAsked notes that an edge has asked about the call.
func (d *onDemand) wasAsked() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = time.Now()
}

// connected notes what the next bridge has to know to go on.
func (d *onDemand) connected(id, version string, r mcp.Request, server json.RawMessage, asks map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meta.MCP.Upstream, d.meta.MCP.ProtocolVersion = id, version
	of := d.meta.MCP.Call
	of.Token, of.LogLevel, of.Server, of.Asks = r.Meta["progressToken"], r.LogLevel, translate.BriefInfo(server), asks
	d.at.Store(&records.CallAt{Upstream: id, ProtocolVersion: version, Call: *of})
}

// AnswerOrOpen is called before an event of a call is stored. It answers the client itself where that is
// all that there will be, and reports so; otherwise it sees to it that the session is in the log,
// and tells the client to look there. Where there are too many sessions, what is not the response is
// left out. Errors are call.ErrClosed, and [upstream.ErrTooLarge] for what NATS does not carry.
func (h *clientSession) AnswerOrOpen(c *call.Call, it call.Item) (told bool, err error) {
	d := h.demand
	if d == nil {
		return false, nil
	}
	if int64(len(it.Data)) > h.Host.Backend.Conn.MaxPayload()-eventlog.HeaderRoom {
		return false, upstream.ErrTooLarge
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if it.Final && c.Tell(rpc.Answer{Status: mcp.StatusOf(it.Data), Data: it.Data}) {
		return true, nil
	}
	if c.WasAnswered() {
		return false, nil // at once, by somebody else
	}
	d.openOnce(h)
	if errors.Is(d.failed, errLimit) && !d.listens {
		return true, nil // the response is the answer, if it comes in time
	}
	if d.failed != nil {
		c.Tell(upstream.About(asBusy(d.failed), c.IDs()))
		return false, call.ErrClosed
	}
	c.Tell(rpc.Answer{Status: http.StatusAccepted})
	return false, nil
}

// openForTask sees to it that the session is in the log, and is kept there for as long as its task
// once that is over.
func (h *clientSession) openForTask() error {
	d, s := h.demand, h.Host
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meta.Retention.KeepClosed = int64(max(callKept, s.Config.TaskTTL) / time.Second)
	if !d.opened || d.failed != nil {
		d.openOnce(h)
		return d.failed
	}
	ctx, cancel := context.WithTimeout(s.Life, s.Config.CloseTimeout())
	defer cancel()
	data, err := json.Marshal(d.meta)
	if err == nil {
		_, err = s.Backend.Sessions.SetMetadata(ctx, h.Name, h.Life, data)
	}
	return err
}

// openOnce opens the session in the log, unless that was tried before. The caller holds the lock.
func (d *onDemand) openOnce(h *clientSession) {
	if d.opened || d.failed != nil {
		return
	}
	d.failed = h.open(d)
	d.asked = time.Now()
}

// open opens the session in the log, and begins to answer for it. The caller holds the lock.
func (h *clientSession) open(d *onDemand) error {
	s := h.Host
	ctx, cancel := context.WithTimeout(s.Life, s.Config.CloseTimeout())
	defer cancel()
	data, err := json.Marshal(d.meta)
	if err != nil {
		return err
	}
	rec := newRecord(d.call, data)
	rec.Life = h.Life
	leave, err := s.CallLimits.Enter(rec)
	if err != nil {
		s.Trouble("calls", "calls are not in the log, and are lost with their connections: they begin while less than half of --max-sessions and --max-metadata-bytes is taken", slog.Any("error", err))
		return errors.Join(errLimit, err)
	}
	defer leave()
	d.opened = true // also when the answer does not come
	if _, err := s.Backend.Sessions.Create(ctx, rec); err != nil {
		s.Log.Warn("a session is not made", "session", h.Name, "error", err)
		return err
	}
	return h.hold(ctx)
}

// callKept is how long the log keeps a call that is over.
const callKept = 5 * time.Minute

// errLimit is joined to why a session may not be opened.
var errLimit = errors.New("too many sessions")

func asBusy(err error) rpc.Answer {
	if errors.Is(err, errLimit) {
		a := upstream.Busy(err.Error())
		a.Status = http.StatusTooManyRequests
		return a
	}
	return upstream.Busy("the session cannot be registered now")
}

// newRecord returns the record of the session that a call opens.
func newRecord(c rpc.Call, metadata json.RawMessage) session.Record {
	rec := session.New(c.Session, c.Owner, metadata, time.Now())
	if c.Owner == "" {
		rec.Client = c.Client
	}
	return rec
}
