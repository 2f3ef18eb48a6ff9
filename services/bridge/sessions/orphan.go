package sessions

import (
	"crypto/sha256"
	"net/http"
	"slices"
	"sync"
	"time"

	"rejoin/services/bridge/host"
	"rejoin/shared/rpc"
)

// orphans are calls whose clients have gone, and may come back: a client that makes its call again
// instead ends the first one. It is safe for concurrent use.
type orphans struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte][]chan struct{}
}

func (o *orphans) add(key [sha256.Size]byte) chan struct{} {
	again := make(chan struct{})
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[[sha256.Size]byte][]chan struct{}{}
	}
	o.all[key] = append(o.all[key], again)
	return again
}

func (o *orphans) remove(key [sha256.Size]byte, again chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	left := slices.DeleteFunc(o.all[key], func(other chan struct{}) bool { return other == again })
	if o.all[key] = left; len(left) == 0 {
		delete(o.all, key)
	}
}

// count returns how many wait.
func (o *orphans) count() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, all := range o.all {
		n += len(all)
	}
	return n
}

// made ends the orphans of a call that its client has made again.
func (o *orphans) made(key [sha256.Size]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, again := range o.all[key] {
		close(again)
	}
	delete(o.all, key)
}

// Cancel ends a call that no client waits for: after --cancel-grace, where the client may come back.
func (h *Session) Cancel(c rpc.Call) rpc.Answer {
	if h.OnDemand && h.Call(c.Stream) != nil && !h.IsTask() && !h.Demand.hasNewer(c.Since) {
		if c.Resumable {
			h.Go(func() { h.cancelUnlessAsked(c.Stream, time.Now()) })
		} else {
			h.Finish(host.ErrEnded)
		}
	}
	return rpc.Answer{Status: http.StatusAccepted}
}

// cancelUnlessAsked ends a call if no edge asks about it for --cancel-grace, or until the same client
// makes it again, and it does not wait for its client's answers.
func (h *Session) cancelUnlessAsked(stream string, since time.Time) {
	s, d := h.Host, h.Demand
	again := h.table.orphans.add(d.client)
	defer h.table.orphans.remove(d.client, again)
	select {
	case <-h.Ctx.Done():
		return
	case <-s.Times.After(s.Config.CancelGrace):
	case <-again:
	}
	d.mu.Lock()
	asked := d.asked.After(since)
	d.mu.Unlock()
	if !asked && h.Call(stream) != nil && !h.needsNoClient() {
		h.Finish(host.ErrEnded)
	}
}

// OrphanedAfter is how long no edge may ask about a call before it is cancelled: the edge has gone,
// and the client's connection with it. Edges ask every 10 s.
const OrphanedAfter = 35 * time.Second

// IsOrphaned reports whether no client waits for the session's call any more. since is when edges
// could be heard again, or zero.
func (h *Session) IsOrphaned(now, since time.Time) bool {
	d := h.Demand
	if d == nil || h.needsNoClient() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened && now.Sub(d.asked) > OrphanedAfter && now.Sub(since) > OrphanedAfter
}

// mayBeTask is the MCP server's side of a call that may continue while no client is connected for it.
type mayBeTask interface {
	// Held reports whether the call waits for its client's answers, for --input-wait.
	Held() bool
	// IsTask reports whether it has become a task.
	IsTask() bool
	// RefreshTask stores the state of the task again that has not changed for long, if it is one.
	RefreshTask(now time.Time)
}

// IsTask reports whether the session's call has become a task.
func (h *Session) IsTask() bool {
	u, ok := h.Up.(mayBeTask)
	return ok && u.IsTask()
}

// needsNoClient reports whether the call continues while no client is connected for it: it has become
// a task, or waits for its client's answers for --input-wait.
func (h *Session) needsNoClient() bool {
	u, ok := h.Up.(mayBeTask)
	return !ok || u.Held() || u.IsTask()
}

// RefreshTask stores the state of the session's task again that has not changed for long, if it has one.
func (h *Session) RefreshTask(now time.Time) {
	if u, ok := h.Up.(mayBeTask); ok {
		u.RefreshTask(now)
	}
}
