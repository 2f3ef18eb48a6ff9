package edge

import (
	"net/netip"
	"sync"
	"time"

	"rejoin/shared/quota"
)

// admission counts the event streams that are open and the polls that wait, and turns
// away those that are one too many. It is safe for concurrent use.
type admission struct {
	perSession, perAddress int         // the largest numbers
	places                 *quota.Pool // of which each client has a share
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
	networks  map[netip.Addr]int // the /48 of IPv6 addresses
	visitors  visitors
}

// visit is one event stream or poll, as admission counts it.
type visit struct {
	session string
	address netip.Addr
	client  string // whose share it is of; empty for nobody's in particular
}

// network returns the /48 network of an IPv6 address, which may have four times as many as one
// of its 65,536 networks /64; false for others.
func (v visit) network() (netip.Addr, bool) {
	if !v.address.Is6() {
		return netip.Addr{}, false
	}
	p, err := v.address.Prefix(48)
	return p.Addr(), err == nil
}

func newAdmission(cfg Config, registered func(session string) bool) *admission {
	return &admission{
		places: quota.NewPool(int64(cfg.MaxConnections)), perSession: cfg.MaxSessionConnections, perAddress: cfg.MaxAddressConnections,
		registered: registered,
		sessions:   map[string]int{}, addresses: map[netip.Addr]int{}, networks: map[netip.Addr]int{}, visitors: newVisitors(),
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
	network, six := v.network()
	switch {
	case a.closed:
		return "drain"
	case int64(a.open) >= a.places.Capacity():
		return "limit"
	case a.sessions[v.session] >= a.perSession:
		return "session_limit"
	case a.addresses[v.address] >= a.perAddress:
		return "address_limit"
	case six && a.networks[network] >= 4*a.perAddress:
		return "address_limit"
	case !a.places.Take(v.client, 1):
		return "share_limit"
	}
	if six {
		a.networks[network]++
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
	a.places.Give(v.client, 1)
	if network, six := v.network(); six {
		if a.networks[network]--; a.networks[network] == 0 {
			delete(a.networks, network)
		}
	}
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
