// Package admission counts the connections of an edge, refuses those above its limits, and
// remembers which sessions were used, for the janitor.
package admission

import (
	"crypto/rand"
	"net/netip"
	"slices"
	"sync"
	"time"

	"rejoin/shared/inspect"
	"rejoin/shared/presence"
	"rejoin/shared/quota"
)

// Admission counts the open event streams and the waiting polls, and refuses those above
// its limits. It is safe for concurrent use.
type Admission struct {
	perSession, perAddress int         // the largest numbers
	places                 *quota.Pool // of which each client has a share
	// registered reports whether a session exists: unknown names are not remembered, so
	// that made-up ones evict no session.
	registered func(session string) bool

	// inside counts the open visits and the holds. Wait may wait for it after Close.
	inside sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	sessions  map[string]int
	addresses map[netip.Addr]int
	networks  map[netip.Addr]int // the /48 of IPv6 addresses
	visitors  *visitors
}

// Visit is one event stream or poll, as admission counts it.
type Visit struct {
	Sessions []string // each once
	Address  netip.Addr
	Client   string // the client whose share it takes; empty for none
}

// network returns the /48 network of an IPv6 address, which may have four times as many as one
// of its 65,536 networks /64; false for others.
func (v Visit) network() (netip.Addr, bool) {
	if !v.Address.Is6() {
		return netip.Addr{}, false
	}
	p, err := v.Address.Prefix(48)
	return p.Addr(), err == nil
}

// New returns an admission for so many connections in total, for each session and for each address
// (IPv6: a /64 network, and four times as many for a /48). It calls registered under no lock.
func New(connections, perSession, perAddress int, registered func(session string) bool) *Admission {
	return &Admission{
		places: quota.NewPool(int64(connections)), perSession: perSession, perAddress: perAddress,
		registered: registered,
		sessions:   map[string]int{}, addresses: map[netip.Addr]int{}, networks: map[netip.Addr]int{}, visitors: newVisitors(),
	}
}

// Closed is the reason with which visits are refused after [Admission.Close].
const Closed = "drain"

// Enter counts a visit, or returns the reason why it is refused, as the metric has it.
func (a *Admission) Enter(v Visit) (refused string) {
	a.note(v) // a refused client reconnects
	a.mu.Lock()
	defer a.mu.Unlock()
	network, six := v.network()
	switch {
	case a.closed:
		return Closed
	case a.places.Used() >= a.places.Capacity():
		return "limit"
	case slices.ContainsFunc(v.Sessions, func(name string) bool { return a.sessions[name] >= a.perSession }):
		return "session_limit"
	case a.addresses[v.Address] >= a.perAddress:
		return "address_limit"
	case six && a.networks[network] >= 4*a.perAddress:
		return "address_limit"
	case !a.places.Take(v.Client, 1):
		return "share_limit"
	}
	a.inside.Add(1) // under the lock: never after Close
	a.count(v, 1)
	return ""
}

// count counts a visit, or, with -1, that it has ended. The caller holds mu.
func (a *Admission) count(v Visit, n int) {
	add(a.sessions, v.Sessions, n)
	add(a.addresses, []netip.Addr{v.Address}, n)
	if network, six := v.network(); six {
		add(a.networks, []netip.Addr{network}, n)
	}
}

func add[K comparable](to map[K]int, keys []K, n int) {
	for _, key := range keys {
		if to[key] += n; to[key] == 0 {
			delete(to, key)
		}
	}
}

// Move counts an admitted visit for other sessions instead, whatever their limit.
func (a *Admission) Move(v *Visit, to []string) {
	if slices.Equal(v.Sessions, to) {
		return
	}
	a.note(*v)
	a.mu.Lock()
	defer a.mu.Unlock()
	add(a.sessions, v.Sessions, -1)
	add(a.sessions, to, 1)
	v.Sessions = to
}

// note notes a visit's sessions.
func (a *Admission) note(v Visit) {
	var names []string
	for _, name := range v.Sessions {
		if a.registered(name) {
			names = append(names, name)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range names {
		a.visitors.note(name, time.Now())
	}
}

// Leave ends an admitted visit.
func (a *Admission) Leave(v Visit) {
	a.note(v)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.places.Give(v.Client, 1)
	a.count(v, -1)
	a.inside.Done()
}

// Close refuses all later visits.
func (a *Admission) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
}

// Hold has Wait return only after a Release. It may be called for an open connection.
func (a *Admission) Hold() { a.inside.Add(1) }

// Release ends a hold.
func (a *Admission) Release() { a.inside.Done() }

// Wait returns when no visit is open or held, after Close.
func (a *Admission) Wait() { a.inside.Wait() }

// Answerer returns the function that answers the janitor: which sessions have connections,
// and which ones clients have requested since the edge began.
func (a *Admission) Answerer() func(presence.Question) presence.Answer {
	id := rand.Text()
	return func(q presence.Question) presence.Answer {
		a.mu.Lock()
		defer a.mu.Unlock()
		answer, now := presence.Answer{Edge: id}, time.Now().Unix()
		for i, s := range q.Sessions {
			last := a.visitors.last(s.Name)
			switch {
			case a.sessions[s.Name] > 0:
				answer.Present = append(answer.Present, presence.Present{Session: i})
			case last > 0 && now-last <= s.Within:
				answer.Present = append(answer.Present, presence.Present{Session: i, Ago: max(now-last, 0)})
			}
		}
		return answer
	}
}

// Clients returns the number of clients, of the question's session if it names one, and the
// number for each of the question's sessions.
func (a *Admission) Clients(q inspect.Question) (all int, of []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if all = int(a.places.Used()); q.Session != "" {
		all = a.sessions[q.Session]
	}
	for _, name := range q.Sessions {
		of = append(of, a.sessions[name])
	}
	return all, of
}
