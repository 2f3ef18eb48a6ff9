package edge

import (
	"net/netip"
	"sync"
	"time"
)

// admission counts the event streams that are open and the polls that wait, and turns
// away those that are one too many. It is safe for concurrent use.
type admission struct {
	total, perSession, perAddress int // the largest numbers
	// registered says whether there is such a session: strangers are not remembered, so
	// that made-up names do not make it forget.
	registered func(session string) bool

	// inside has one for each that is open, and may be waited for after close.
	inside sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	open      int
	sessions  map[string]int
	addresses map[netip.Addr]int
	visitors  visitors
}

// visit is one event stream or poll, as admission counts it.
type visit struct {
	session string
	address netip.Addr
}

func newAdmission(cfg Config, registered func(session string) bool) *admission {
	return &admission{
		total: cfg.MaxConnections, perSession: cfg.MaxSessionConnections, perAddress: cfg.MaxAddressConnections,
		registered: registered,
		sessions:   map[string]int{}, addresses: map[netip.Addr]int{}, visitors: newVisitors(),
	}
}

// enter counts a visit, or returns why it is not let in: the metric's reason.
func (a *admission) enter(v visit) (refused string) {
	registered := a.registered(v.session)
	a.mu.Lock()
	defer a.mu.Unlock()
	if registered {
		a.visitors.note(v.session, time.Now()) // who is refused comes back
	}
	switch {
	case a.closed:
		return "drain"
	case a.open >= a.total:
		return "limit"
	case a.sessions[v.session] >= a.perSession:
		return "session_limit"
	case a.addresses[v.address] >= a.perAddress:
		return "address_limit"
	}
	a.inside.Add(1) // under the lock: never when close was called before
	a.open++
	a.sessions[v.session]++
	a.addresses[v.address]++
	return ""
}

func (a *admission) leave(v visit) {
	registered := a.registered(v.session)
	a.mu.Lock()
	defer a.mu.Unlock()
	if registered {
		a.visitors.note(v.session, time.Now())
	}
	a.open--
	if a.sessions[v.session]--; a.sessions[v.session] == 0 {
		delete(a.sessions, v.session)
	}
	if a.addresses[v.address]--; a.addresses[v.address] == 0 {
		delete(a.addresses, v.address)
	}
	a.inside.Done()
}

// close lets nobody in any more.
func (a *admission) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
}
