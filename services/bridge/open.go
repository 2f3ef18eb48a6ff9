package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// openSession hands over an initialize request, and makes the session when the upstream
// has accepted it.
func (s *Service) openSession(c rpc.Call) rpc.Answer {
	m, err := rpc.ParseMessage(c.Data)
	if err != nil || !m.IsRequest() || !m.Is(rpc.MethodInitialize) {
		return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "this is not an initialize request")
	}
	id := m.ID
	client, n := clientOf(c), int64(len(c.Data))
	if !s.memory.Take(client, n) {
		return upstream.About(upstream.Busy(noMemory), []json.RawMessage{id})
	}
	defer s.memory.Give(client, n)
	leave, err := s.limits.Enter(newRecord(c, nil))
	if err != nil {
		a := upstream.Busy(err.Error())
		a.Status = http.StatusTooManyRequests
		return upstream.About(a, []json.RawMessage{id})
	}
	defer leave()
	ctx, cancel := context.WithTimeout(s.life, s.cfg.OpenTimeout)
	defer cancel()
	dial := s.dialHTTP
	if s.command != nil {
		dial = s.dialStdio
	}
	d, refused := dial(ctx, c, id)
	response := d.response
	if refused != nil {
		response = refused.Data
	}
	supported, others := speaksOthers(response)
	switch {
	case s.wantsModern(ctx, c, m, d, refused, others):
		d, refused = s.dialModern(ctx, c, m)
	case others:
		s.troubles.Note(s.life, "revisions", "the MCP server speaks only revisions of MCP that Rejoin does not", slog.Any("supported", supported))
		refused = &errOtherRevisions
	}
	if refused != nil {
		return upstream.About(*refused, []json.RawMessage{id})
	}
	if d.up == nil { // an error: there is no session
		return rpc.Answer{Status: http.StatusOK, Data: d.response}
	}
	life, err := s.register(ctx, c, d)
	if err != nil {
		s.log.Warn("a session is not made", "session", c.Session, "error", err)
		d.up.close(s.life, c.Header)
		return upstream.About(upstream.Busy("the session cannot be registered now"), []json.RawMessage{id})
	}
	if c.Stream != "" {
		w := newWriter(s, c.Session, life, c.Stream)
		w.trace = c.Trace
		if _, err := w.put(ctx, item{data: d.response, final: true}); err != nil {
			s.log.Warn("the response to initialize is not stored", "session", c.Session, "error", err)
			if h := s.session(c.Session); h != nil {
				h.finish(errEnded)
			}
			return upstream.About(upstream.Busy("the response cannot be stored now"), []json.RawMessage{id})
		}
	}
	return rpc.Answer{Status: http.StatusOK, Data: d.response}
}

// wantsModern reports whether a client of earlier revisions is served by requests of the new one,
// after the server's response to initialize: where it speaks no other, or where it has no session in
// which it could ask the client what the client can be asked.
func (s *Service) wantsModern(ctx context.Context, c rpc.Call, m rpc.Message, d connected, refused *rpc.Answer, others bool) bool {
	if s.command != nil {
		return false
	}
	switch {
	case refused != nil:
		if saysNothing(refused.Status) {
			return false
		}
		s.forgetEra()
	case d.up == nil:
		if !others {
			return false
		}
		s.forgetEra()
	case d.id != "" || !translate.ParseClient(m).Askable():
		return false
	}
	modern, _ := s.isModern(ctx, c.Header)
	return modern
}

// connected is a session at the upstream, or why there is none.
type connected struct {
	up       mcpServer // nil when the response is an error
	attach   func(*clientSession)
	id       string // the upstream's own name of the session
	version  string
	response []byte
	modern   *modernSession // of a session that the upstream knows nothing of
}

// readVersion reads what an initialize response is; up stays unless it is an error.
func (d *connected) readVersion(m rpc.Message) error {
	if m.Error != nil {
		d.up = nil
		return nil
	}
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	err := rpc.Unmarshal(m.Result, &result)
	d.version = result.ProtocolVersion
	return err
}

// dialHTTP posts an initialize request. An answer that is no success is the client's.
func (s *Service) dialHTTP(ctx context.Context, c rpc.Call, id json.RawMessage) (connected, *rpc.Answer) {
	r := &remote{service: s, endpoint: s.endpoint}
	resp, refused := r.post(ctx, c.Header, c.Data)
	if refused != nil {
		return connected{}, refused
	}
	r.id = resp.Header.Get(upstream.HeaderSession)
	m, data, err := s.response(resp, id)
	if !s.run(func() { upstream.Finish(resp) }) { // a server may leave the stream open
		_ = resp.Body.Close()
	}
	d := connected{up: r, id: r.id, response: data}
	if err == nil {
		err = d.readVersion(m)
	}
	if len(r.id) > maxIDBytes || !upstream.IsFieldValue(r.id) {
		err = upstream.ErrSession // the registry could not keep it as it is
	}
	r.version = d.version
	if err != nil || d.up == nil {
		s.run(func() { r.close(s.life, c.Header) })
	}
	return d, s.connectError(err)
}

// dialStdio starts a process and hands it the initialize request.
func (s *Service) dialStdio(ctx context.Context, c rpc.Call, id json.RawMessage) (connected, *rpc.Answer) {
	u, err := startStdio(s, c.Session, clientOf(c))
	if errors.Is(err, errBusy) {
		s.troubles.Note(s.life, errBusy.Error(), "a session is refused: there are too many processes, or too many of one client's (--max-processes)",
			slog.Int("processes", s.cfg.MaxProcesses), slog.String("client", clientOf(c)))
		a := upstream.Busy(errBusy.Error())
		return connected{}, &a
	}
	if err != nil {
		return connected{}, s.connectError(err)
	}
	d := connected{up: u, attach: u.attach}
	var m rpc.Message
	if d.response, err = u.initialize(ctx, id, c.Data); err == nil {
		if m, err = rpc.ParseMessage(d.response); err == nil {
			err = d.readVersion(m)
		}
	}
	if err != nil || d.up == nil {
		u.close(ctx, nil)
	}
	return d, s.connectError(err)
}

// connectError makes an answer of what went wrong; nil of nothing.
func (s *Service) connectError(err error) *rpc.Answer {
	if err == nil {
		return nil
	}
	s.troubles.Note(s.life, "initialize: "+innermost(err), "the MCP server did not answer initialize", slog.Any("error", err))
	a := upstream.Unreachable(err)
	return &a
}

// response reads an answer up to the response to a request. What comes before it has no
// session to belong to, and is left out.
func (s *Service) response(resp *http.Response, id json.RawMessage) (rpc.Message, []byte, error) {
	b := upstream.NewBody(resp.Header, resp.Body, s.maxBytes())
	if b == nil {
		return rpc.Message{}, nil, fmt.Errorf("%w: it sent %q", upstream.ErrUnanswered, resp.Header.Get("Content-Type"))
	}
	for {
		in, err := b.Next()
		if errors.Is(err, io.EOF) {
			return rpc.Message{}, nil, upstream.ErrUnanswered
		}
		if err != nil {
			return rpc.Message{}, nil, err
		}
		for _, data := range in.Messages {
			if m, err := rpc.ParseMessage(data); err == nil && m.IsResponse() && upstream.IDKey(m.ID) == upstream.IDKey(id) {
				return m, data, nil
			}
		}
	}
}

// newRecord returns the record of the session that a call opens.
func newRecord(c rpc.Call, metadata json.RawMessage) session.Record {
	rec := session.New(c.Session, c.Owner, metadata, time.Now())
	if c.Owner == "" {
		rec.Client = c.Client
	}
	return rec
}

// newMetadata returns what the registry holds of a session.
func (s *Service) newMetadata(d connected) (meta metadata) {
	meta.MCP.Bridge, meta.MCP.Upstream, meta.MCP.ProtocolVersion, meta.MCP.Modern = s.name, d.id, d.version, d.modern
	if s.command != nil && s.cfg.ProcessIdleAfter > 0 {
		meta.Retention = &retention{IdleAfter: int64(time.Duration(s.cfg.ProcessIdleAfter) / time.Second)}
	}
	return meta
}

// register opens the session in the log, begins to answer for it and returns its life.
func (s *Service) register(ctx context.Context, c rpc.Call, d connected) (life string, err error) {
	data, err := json.Marshal(s.newMetadata(d))
	if err != nil {
		return "", err
	}
	rec, err := s.backend.Sessions.Create(ctx, newRecord(c, data))
	if err != nil {
		return "", err
	}
	h := newClientSession(s, c.Session, rec.Life, clientOf(c), d.up)
	h.principal = c.Owner
	h.remember(c.Header)
	if d.attach != nil {
		d.attach(h)
	}
	if err = s.hold(h); err == nil {
		err = s.backend.Conn.FlushWithContext(ctx)
	}
	if err != nil {
		h.finish(errEnded)
	}
	return rec.Life, err
}

const (
	// maxSpares is how many processes are kept that no call has used.
	maxSpares = 16
	// spareFor is how long one is kept.
	spareFor = time.Minute
)

// begun is a session at a server of earlier revisions that is ready for a call.
type begun struct {
	connected
	server translate.Server
	until  time.Time
}

func (b *begun) isAlive() bool {
	u, ok := b.up.(*stdio)
	return ok && u.alive()
}

// spares are processes that are started ahead for the next call of a client, since that may take a
// second. Each is used by one call: no call meets what another has left behind. It is safe
// for concurrent use.
type spares struct {
	mu     sync.Mutex
	all    map[[sha256.Size]byte]*begun // nil for one that is being begun
	closed bool
}

// spareKey is the same for calls that could have the same session: of one client, with the same
// capabilities and the same forwarded header.
func (s *Service) spareKey(c rpc.Call, r mcp.Request, client http.Header) [sha256.Size]byte {
	return sha256.Sum256(event.MustJSON([]any{clientOf(c), r.Capabilities, r.ClientInfo, s.endpoint.Chosen(client)}))
}

// unusedSession returns a session that no call has used, and has the next one begun.
func (s *Service) unusedSession(ctx context.Context, c rpc.Call, r mcp.Request, client http.Header) (*begun, *rpc.Answer) {
	if s.command == nil {
		return s.connect(ctx, c, r, client)
	}
	key := s.spareKey(c, r, client)
	b := s.spares.take(key)
	var refused *rpc.Answer
	if b == nil {
		b, refused = s.connect(ctx, c, r, client)
	}
	if refused == nil && s.running.mostlyFree() && s.spares.reserve(key) {
		next := func() {
			ctx, cancel := context.WithTimeout(s.life, s.cfg.OpenTimeout)
			defer cancel()
			b, refused := s.connect(ctx, c, r, client)
			if refused != nil {
				b = nil
			}
			if late := s.spares.put(key, b); late != nil {
				late.up.close(ctx, client)
			}
		}
		if !s.run(next) {
			s.spares.put(key, nil)
		}
	}
	return b, refused
}

// connect begins a session at the MCP server with what the client of a request is capable of.
func (s *Service) connect(ctx context.Context, c rpc.Call, r mcp.Request, client http.Header) (*begun, *rpc.Answer) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.OpenTimeout)
	defer cancel()
	dial := s.dialHTTP
	if s.command != nil {
		dial = s.dialStdio
	}
	const id = "initialize"
	c.Header, c.Data = client, translate.Initialize(r, id)
	d, refused := dial(ctx, c, json.RawMessage(`"`+id+`"`))
	if refused != nil {
		if !saysNothing(refused.Status) {
			s.forgetEra()
		}
		return nil, withoutID(*refused)
	}
	m, err := rpc.ParseMessage(d.response)
	if err == nil && m.Error != nil {
		s.forgetEra()
		return nil, withoutID(rpc.Answer{Status: http.StatusBadGateway, Data: d.response})
	}
	b := &begun{connected: d, until: time.Now().Add(spareFor)}
	if err == nil {
		b.server, err = translate.ParseServer(m.Result)
	}
	if err != nil {
		d.up.close(ctx, client)
		return nil, s.connectError(err)
	}
	if a := d.up.send(ctx, client, []byte(`{"jsonrpc":"2.0","method":"`+upstream.MethodInitialized+`"}`)); a.Status != http.StatusAccepted {
		d.up.close(ctx, client)
		return nil, &a
	}
	return b, nil
}

// withoutID returns an answer to a request of our own, for the request that it was made for.
func withoutID(a rpc.Answer) *rpc.Answer {
	a.Data = translate.WithID(a.Data, json.RawMessage("null"))
	return &a
}

// take takes a session; nil when there is none.
func (p *spares) take(key [sha256.Size]byte) *begun {
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
	if _, ok := p.all[key]; ok || p.closed || len(p.all) >= maxSpares {
		return false
	}
	if p.all == nil {
		p.all = map[[sha256.Size]byte]*begun{}
	}
	p.all[key] = nil
	return true
}

// put keeps a session that was begun ahead, nil for one that could not be, and returns it when it is
// too late.
func (p *spares) put(key [sha256.Size]byte, b *begun) (late *begun) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b == nil || p.closed {
		delete(p.all, key)
		return b
	}
	p.all[key] = b
	return nil
}

// expired takes the sessions that were kept for too long; all of them when the service stops.
func (p *spares) expired(now time.Time, stops bool) (all []*begun) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = p.closed || stops
	for key, b := range p.all {
		if b != nil && (stops || now.After(b.until) || !b.isAlive()) {
			all = append(all, b)
			delete(p.all, key)
		}
	}
	return all
}

// closeSpares ends the sessions that were kept for too long.
func (s *Service) closeSpares(stops bool) {
	for _, b := range s.spares.expired(time.Now(), stops) {
		s.run(func() { b.up.close(s.life, http.Header{}) })
	}
}
