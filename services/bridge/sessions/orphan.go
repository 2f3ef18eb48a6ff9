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

// orphans are the sessions of calls whose clients have disconnected, and may resume: a client that makes its call
// again instead ends the first one. It is safe for concurrent use.
type orphans struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte][]*Session // by [OnDemand.client]
}

// add adds a session, until remove, which follows the session's end.
func (o *orphans) add(h *Session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if key := h.Demand.client; !h.HasEnded() && !slices.Contains(o.all[key], h) {
		o.all[key] = append(o.all[key], h)
	}
}

func (o *orphans) remove(h *Session) {
	if h.Demand == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	key := h.Demand.client
	if left := slices.DeleteFunc(o.all[key], func(other *Session) bool { return other == h }); len(left) > 0 {
		o.all[key] = left
	} else {
		delete(o.all, key)
	}
}

// made ends the orphans of a call that its client has made again.
func (o *orphans) made(key [sha256.Size]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.all[key] {
		h.Go(func() {
			if h.Demand.left.Load() && !h.needsNoClient() {
				h.Finish(host.ErrEnded)
			}
		})
	}
}

// Cancel ends a call that no client waits for: after --cancel-grace, where the client may resume it.
func (h *Session) Cancel(c rpc.Ask) rpc.Answer {
	if h.OneCall && h.Call(c.Stream) != nil && !h.IsTask() && !h.Demand.hasNewer(c.Since) {
		if c.Resumable {
			h.leave()
			h.table.orphans.add(h)
		} else {
			h.Finish(host.ErrEnded)
		}
	}
	return rpc.Answer{Status: http.StatusAccepted}
}

// WasAsked notes that an edge has asked about the call, for a connection that began at since; zero if the
// edge did not report that.
func (h *Session) WasAsked(since time.Time) {
	d := h.Demand
	d.left.Store(false)
	h.looks.Store(0)
	d.asking.Lock()
	defer d.asking.Unlock()
	if since.After(d.newest) {
		d.newest = since
	}
}

// leave notes that the client has disconnected, and may resume.
func (h *Session) leave() {
	if !h.Demand.left.Swap(true) {
		h.looks.Store(0)
	}
}

// LookEvery is the time between two looks of the bridge at its sessions.
const LookEvery = time.Second

// OrphanedAfter is how long no edge may ask about a call before the call is cancelled: the edge is down,
// and the client's connection with it. Edges ask every 10 s.
const OrphanedAfter = 35 * time.Second

// CountLook notes a look at the session. heard says that edges could be heard since the last one; else their
// questions may still come, and the time without questions begins again.
func (h *Session) CountLook(heard bool) {
	if heard {
		h.looks.Add(1)
	} else {
		h.looks.Store(0)
	}
}

// unasked returns for how long no edge has asked about the session's call.
func (h *Session) unasked() time.Duration { return time.Duration(h.looks.Load()) * LookEvery }

// IsOrphaned reports whether no client waits for the session's call any more: edges have asked nothing for
// [OrphanedAfter], or for --cancel-grace since the client disconnected.
func (h *Session) IsOrphaned() bool {
	d := h.Demand
	if d == nil || !d.isOpened() || h.needsNoClient() {
		return false
	}
	limit := OrphanedAfter
	if d.left.Load() {
		limit = h.Host.Config.CancelGrace
	}
	return h.unasked() > limit
}

// mayBeTask is the MCP server's side of a call that may continue while no client is connected for it.
type mayBeTask interface {
	// Held reports whether the call waits for its client's answers, for --input-wait.
	Held() bool
	// IsTask reports whether the call has become a task.
	IsTask() bool
	// RefreshTask stores the state of the task again if it has not changed for long, and the call is a task.
	RefreshTask(now time.Time)
}

// IsTask reports whether the session's call has become a task.
func (h *Session) IsTask() bool {
	u, ok := h.Upstream.(mayBeTask)
	return ok && u.IsTask()
}

// needsNoClient reports whether the call continues while no client is connected for it: it has become
// a task, or waits for its client's answers for --input-wait.
func (h *Session) needsNoClient() bool {
	u, ok := h.Upstream.(mayBeTask)
	return !ok || u.Held() || u.IsTask()
}

// RefreshTask stores the state of the session's task again, if it has one, and the state has not changed for long.
func (h *Session) RefreshTask(now time.Time) {
	if u, ok := h.Upstream.(mayBeTask); ok {
		u.RefreshTask(now)
	}
}
