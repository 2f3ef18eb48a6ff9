package mcpserver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

const (
	// maxSpares is how many processes are kept that no call has used.
	maxSpares = 16
	// SpareFor is how long one is kept.
	SpareFor = time.Minute
)

// Unused is a session at a server of earlier revisions that is ready for a call.
type Unused struct {
	Connected
	Server translate.ServerInfo
	until  time.Time
}

func (b *Unused) isAlive() bool {
	u, ok := b.Up.(*stdio)
	return ok && u.alive()
}

// spares are processes that are started ahead for the next call of a client, since that may take a
// second. Each is used by one call: no call meets the leftovers of another. At a stop they end with the service, as all
// processes do. It is safe for concurrent use.
type spares struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]*Unused // nil for one that is being begun
}

// spareKey is the same for calls that could use the same session: of one client, with the same
// capabilities and the same forwarded header.
func (s *Server) spareKey(c rpc.Ask, r mcp.Request, client http.Header) [sha256.Size]byte {
	return sha256.Sum256(event.MustJSON([]any{host.ClientOf(c), r.Capabilities, r.ClientInfo, s.endpoint.Chosen(client)}))
}

// UnusedSession returns a session that no call has used. With a command, whose processes start slowly, it begins the
// next one ahead.
func (s *Server) UnusedSession(ctx context.Context, c rpc.Ask, r mcp.Request, client http.Header) (*Unused, *rpc.Answer) {
	if s.command == nil {
		return s.connect(ctx, c, r, client)
	}
	key := s.spareKey(c, r, client)
	b := s.spares.take(key)
	var refused *rpc.Answer
	if b == nil {
		b, refused = s.connect(ctx, c, r, client)
	}
	if places := s.host.Processes; refused == nil && 2*places.Used() < places.Capacity() && s.spares.reserve(key) {
		next := func() {
			ctx, cancel := context.WithTimeout(s.host.Life, s.host.Config.OpenTimeout)
			defer cancel()
			b, refused := s.connect(ctx, c, r, client)
			if refused != nil {
				b = nil
			}
			s.spares.put(key, b)
		}
		if !s.host.Go(next) {
			s.spares.put(key, nil)
		}
	}
	return b, refused
}

// connect begins a session at the MCP server with the capabilities of a request's client.
func (s *Server) connect(ctx context.Context, c rpc.Ask, r mcp.Request, client http.Header) (*Unused, *rpc.Answer) {
	ctx, cancel := context.WithTimeout(ctx, s.host.Config.OpenTimeout)
	defer cancel()
	const id = "initialize"
	c.Header, c.Data = client, translate.Initialize(r, id)
	d, refused := s.dial(ctx, c, json.RawMessage(`"`+id+`"`))
	if refused != nil {
		if !upstream.SaysNothing(refused.Status) {
			s.forgetEra()
		}
		return nil, withoutID(*refused)
	}
	m, err := rpc.ParseMessage(d.Response)
	if err == nil && m.Error != nil {
		s.forgetEra()
		return nil, withoutID(rpc.Answer{Status: http.StatusBadGateway, Data: d.Response})
	}
	b := &Unused{Connected: d, until: time.Now().Add(SpareFor)}
	if err == nil {
		b.Server, err = translate.ParseServer(m.Result)
	}
	if err != nil {
		d.Up.Close(ctx, client)
		return nil, s.host.ConnectError(err)
	}
	if a := d.Up.Send(ctx, client, []byte(`{"jsonrpc":"2.0","method":"`+upstream.MethodInitialized+`"}`)); a.Status != http.StatusAccepted {
		d.Up.Close(ctx, client)
		return nil, &a
	}
	return b, nil
}

// withoutID turns an answer to the bridge's own request into one to the client's request.
func withoutID(a rpc.Answer) *rpc.Answer {
	a.Data = translate.WithID(a.Data, json.RawMessage("null"))
	return &a
}

// take takes a session; nil when there is none.
func (p *spares) take(key [sha256.Size]byte) *Unused {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.all[key]
	if b == nil || !b.isAlive() {
		return nil
	}
	delete(p.all, key)
	return b
}

// reserve reports whether a session is to be begun ahead; put has to follow.
func (p *spares) reserve(key [sha256.Size]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.all[key]; ok || len(p.all) >= maxSpares {
		return false
	}
	if p.all == nil {
		p.all = map[[sha256.Size]byte]*Unused{}
	}
	p.all[key] = nil
	return true
}

// put keeps a session that was begun ahead, nil for one that could not be.
func (p *spares) put(key [sha256.Size]byte, b *Unused) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[key] = b; b == nil {
		delete(p.all, key)
	}
}

// remove takes out the sessions that are to end, and those whose process has ended, and returns them.
func (p *spares) remove(ends func(*Unused) bool) (all []*Unused) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, b := range p.all {
		if b != nil && (ends(b) || !b.isAlive()) {
			all = append(all, b)
			delete(p.all, key)
		}
	}
	return all
}

// count returns how many processes wait for a call, and how many are being started.
func (p *spares) count() (ready, starting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.all {
		switch {
		case b == nil:
			starting++
		case b.isAlive():
			ready++
		}
	}
	return ready, starting
}

// Spares returns how many processes wait for a call, and how many are being started.
func (s *Server) Spares() (ready, starting int) { return s.spares.count() }

// CloseExpiredSpares ends the processes that have waited for too long.
func (s *Server) CloseExpiredSpares(now time.Time) {
	s.closeSpares(func(b *Unused) bool { return now.After(b.until) })
}

func (s *Server) closeSpares(ends func(*Unused) bool) {
	for _, b := range s.spares.remove(ends) {
		s.host.Go(func() { b.Up.Close(s.host.Life, http.Header{}) })
	}
}
