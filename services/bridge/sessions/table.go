package sessions

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/owners"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/retry"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// Table has the sessions that the bridge answers for. It is safe for concurrent use.
type Table struct {
	host    *host.Host
	inbox   chan *nats.Msg // gets the requests of edges
	Owners  *owners.Notes  // of the tasks that the MCP server makes itself
	closing chan struct{}  // one token for a session that is being ended in the log
	orphans orphans

	mu       sync.Mutex
	sessions map[string]*Session
}

// NewTable returns an empty table. inbox gets the requests of edges for its sessions.
func NewTable(h *host.Host, inbox chan *nats.Msg) *Table {
	return &Table{host: h, inbox: inbox, closing: make(chan struct{}, ClosesAtOnce), orphans: orphans{all: map[[sha256.Size]byte][]*Session{}}, sessions: map[string]*Session{}}
}

// Hold begins to answer for a session.
func (t *Table) Hold(h *Session) error {
	t.mu.Lock()
	t.sessions[h.Name] = h
	t.host.Metrics.Sessions.Set(float64(len(t.sessions)))
	t.mu.Unlock()
	h.mu.Lock()
	var err error
	if h.sub == nil { // else the call or its question has subscribed
		h.sub, err = t.host.Backend.Conn.ChanQueueSubscribe(rpc.Subject(h.Name), rpc.Queue, t.inbox)
	}
	released := h.released
	h.mu.Unlock()
	if err != nil || released { // a call that was taken over was at its end
		t.release(h)
	}
	return err
}

// release undoes Hold, also one that is about to begin.
func (t *Table) release(h *Session) {
	h.mu.Lock()
	h.released = true
	h.held.Release()
	h.mu.Unlock()
	h.leaveNATS((*nats.Subscription).Unsubscribe)
	t.orphans.remove(h)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sessions[h.Name] == h {
		delete(t.sessions, h.Name)
	}
	t.host.Metrics.Sessions.Set(float64(len(t.sessions)))
}

// Session returns the session of a name, or nil.
func (t *Table) Session(name string) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[name]
}

// All returns all sessions, in no order.
func (t *Table) All() []*Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.sessions))
}

// EndUnused ends the sessions that their clients do not use. The session of a single call is in use
// while the call runs.
func (t *Table) EndUnused() {
	for _, h := range t.All() {
		if !h.used.Load() && !h.OneCall && h.unasked() > t.host.Times.Unused {
			t.host.Logger.Info("a session that was never used ends, since there are too many processes", "session", h.Name)
			h.Finish(host.ErrEnded)
		}
	}
}

// ClosesAtOnce is how many sessions are ended in the log at a time. An overloaded log ends none of
// them in time when all are tried at once, and has no time left for calls.
const ClosesAtOnce = 32

// Turn waits until a session may be ended in the log; done ends its turn. The error is that of ctx.
func (t *Table) Turn(ctx context.Context) (done func(), err error) {
	select {
	case t.closing <- struct{}{}:
		return func() { <-t.closing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// close ends a session in the log, however long that takes.
func (t *Table) close(h *Session) {
	_ = retry.Do(t.host.Life, func() error { // the next bridge ends the session if the service stops first
		done, err := t.Turn(t.host.Life)
		if err != nil {
			return err
		}
		defer done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.host.Life), t.host.Config.CloseTimeout())
		defer cancel()
		if err = t.host.Confirm(ctx); err == nil {
			err = t.closeOnce(ctx, h)
		}
		if err != nil {
			t.host.Logger.Info("a session is not ended yet", "session", h.Name, "error", err)
		}
		return err
	})
}

// closeOnce is one attempt to end a session in the log, also where another process has begun
// to. A session of the same name that was opened since is a different one.
func (t *Table) closeOnce(ctx context.Context, h *Session) error {
	rec, err := t.host.Backend.Sessions.Get(ctx, h.Name)
	if err == nil && rec.Life == h.Life {
		err = t.host.Backend.Sessions.EndLife(ctx, rec)
	}
	if err == nil || errors.Is(err, session.ErrNotFound) {
		close(h.ended)
		return nil
	}
	return err
}

// CloseAll ends the sessions whose processes have ended with the service: no other
// bridge can continue them. One deadline for all bounds the stop.
func (t *Table) CloseAll() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.host.Life), t.host.Config.CloseTimeout())
	defer cancel()
	var closing sync.WaitGroup
	for _, h := range t.All() {
		closing.Go(func() {
			if err := t.closeExited(ctx, h); err != nil {
				t.host.Logger.Warn("a session is left to the next bridge to end", "session", h.Name, "error", err)
				return
			}
			t.release(h)
		})
	}
	closing.Wait()
}

// closeExited ends the calls of a session whose process has ended, and the session in the log, when
// it is its turn; see [ClosesAtOnce].
func (t *Table) closeExited(ctx context.Context, h *Session) error {
	done, err := t.Turn(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := t.host.Confirm(ctx); err != nil {
		return err
	}
	for _, c := range h.streams() {
		if c.IsUnknown() { // it may be a response
			if _, err := c.ReloadOnce(ctx); err != nil {
				return err
			}
		}
		c.End(upstream.ErrExited)
	}
	return t.closeOnce(ctx, h)
}

// Drain ends the sessions' subscriptions. Messages that NATS has sent already arrive before the next flush ends.
func (t *Table) Drain() {
	for _, h := range t.All() {
		h.leaveNATS((*nats.Subscription).Drain)
	}
}

// New returns a session of a client's share, which principal owns in the log; principal is empty
// without access control.
func (t *Table) New(name, life, share, principal string) *Session {
	h := &Session{table: t, Share: share, calls: map[string]*call.Call{}, arriving: map[string]int{}, held: t.host.Memory.Part(share), ended: make(chan struct{})}
	h.Scope = call.NewScope(t.host, name, life, h)
	h.Tasks = owners.NewGuard(h.Ctx, t.host, t.Owners, name, principal)
	return h
}

// NewForCall returns the session of one call, which is in the log when there is something to store.
func (t *Table) NewForCall(name, life, share, principal string, d *OnDemand) *Session {
	h := t.New(name, life, share, principal)
	h.OneCall, h.Demand = true, d
	return h
}

// Open returns the open streams of all sessions.
func (t *Table) Open() (all []records.OpenCall) {
	for _, h := range t.All() {
		var at *records.CallAt
		if h.Demand != nil {
			at = h.Demand.at.Load()
		}
		for _, c := range h.streams() {
			is := c.Stored()
			all = append(all, records.OpenCall{Session: h.Name, Stream: c.Stream, Began: c.Began, ID: is.ID, Sequence: is.Sequence, At: at})
		}
	}
	return all
}

// MadeAgain ends the calls without a client that a client has made again.
func (t *Table) MadeAgain(d *OnDemand) { t.orphans.made(d.client) }
