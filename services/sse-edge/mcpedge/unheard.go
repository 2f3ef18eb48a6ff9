package mcpedge

import (
	"sync"
	"time"
)

// absence records an edge's checks of a bridge that does not listen. The zero value has none. It counts the time
// that the edge has watched: a bridge may have listened between two checks that are more than half of the limit
// apart, so the second one is the first of a new absence.
type absence struct {
	first, last time.Time
	lost        bool
}

// begun reports whether the last check found no bridge.
func (a *absence) begun() bool { return !a.first.IsZero() }

// note notes a check that finds no bridge, and reports whether none has listened for the limit. Once true, it stays
// true, however far apart the checks are.
func (a *absence) note(now time.Time, limit time.Duration) (lost bool) {
	if !a.begun() || now.Sub(a.last) > limit/2 {
		a.first = now
	}
	a.last, a.lost = now, a.lost || now.Sub(a.first) >= limit
	return a.lost
}

// maxUnheard bounds the sessions of which an edge remembers that no bridge listens.
const maxUnheard = 10_000

// unheard are the absences of the bridges of tasks, by session. It is safe for concurrent use.
type unheard struct {
	mu  sync.Mutex
	all map[string]*absence
}

// note notes whether a session has no listener, and reports whether it has had none for the limit. begun is the
// absence of which this is the first check, else nil.
func (u *unheard) note(name string, silent bool, now time.Time, limit time.Duration) (lost bool, begun *absence) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !silent {
		delete(u.all, name)
		return false, nil
	}
	a, ok := u.all[name]
	if !ok {
		if u.all == nil {
			u.all = map[string]*absence{}
		}
		if len(u.all) >= maxUnheard {
			clear(u.all) // the edge asks about them again
		}
		a = &absence{}
		u.all[name], begun = a, a
	}
	return a.note(now, limit), begun
}

// lasts reports whether an absence continues and is no loss yet.
func (u *unheard) lasts(name string, a *absence) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all[name] == a && !a.lost
}
