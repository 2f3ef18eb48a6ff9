package mcpedge

import (
	"sync"
	"time"
)

// maxUnheard is for how many sessions an edge remembers that no bridge listens.
const maxUnheard = 10_000

// unheard is since when no bridge listens for the sessions of tasks. It is safe for concurrent use.
type unheard struct {
	mu  sync.Mutex
	all map[string]absence
}

// absence is what is known of a session that no bridge listens for. Between two looks that are
// longer apart than the limit a bridge may have been there.
type absence struct {
	first, last time.Time
	lost        bool
}

// note notes whether a session has no listener, and reports whether it has had none for the limit, and
// whether this is the first that is known of it.
func (u *unheard) note(name string, silent bool, now time.Time, limit time.Duration) (lost, begun bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !silent {
		delete(u.all, name)
		return false, false
	}
	if u.all == nil {
		u.all = map[string]absence{}
	}
	a, ok := u.all[name]
	if begun = !ok || !a.lost && now.Sub(a.last) > 2*limit; begun {
		if len(u.all) >= maxUnheard {
			clear(u.all) // they are asked about again
		}
		a = absence{first: now}
	}
	a.last, a.lost = now, a.lost || now.Sub(a.first) >= limit
	u.all[name] = a
	return a.lost, begun
}
