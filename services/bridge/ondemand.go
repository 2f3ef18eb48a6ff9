package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// answerWithin is how long a request without a session may take to be answered without the log. It
// is lost with the bridge until then.
const answerWithin = 250 * time.Millisecond

// onDemand opens the session of one call in the log, when there is something to store: a message
// that is not the response, or none for [answerWithin]. A quick call leaves nothing in the log.
// It is safe for concurrent use.
type onDemand struct {
	call    rpc.Call // that began it, without its data
	content [sha256.Size]byte
	client  [sha256.Size]byte // the same for the same call of the same client

	mu     sync.Mutex
	meta   metadata
	opened bool
	failed error     // why it cannot be opened
	asked  time.Time // when an edge asked about the call last
}

// oneCall is what the registry holds of the one call of a session: what the next bridge needs to
// go on with it at a server of earlier revisions.
type oneCall struct {
	Method   string          `json:"method"`
	Token    json.RawMessage `json:"progressToken,omitempty"`
	LogLevel string          `json:"logLevel,omitempty"`
	Server   json.RawMessage `json:"serverInfo,omitempty"`
}

// request serves a request that has no session.
func (s *Service) request(c rpc.Call) rpc.Answer {
	r, err := mcp.Parse(c.Data)
	if err != nil || c.Stream == "" || c.Stream == rpc.Standalone || c.Life == "" {
		return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "the request is not whole")
	}
	content := contentOf(r)
	d := &onDemand{call: c, content: content, client: sha256.Sum256(mustMarshal([]any{c.Owner, c.Client, content}))}
	d.call.Data = nil
	s.orphans.made(d.client)
	d.meta.MCP.Bridge, d.meta.MCP.ProtocolVersion, d.meta.MCP.Call = s.name, mcp.Modern, &oneCall{Method: r.Method}
	h := newClientSession(s, c.Session, c.Life, clientOf(c), nil)
	h.onDemand, h.up = d, &stateless{session: h, request: r}
	h.remember(c.Header)
	return h.request(c, []json.RawMessage{r.ID})
}

// connected notes what the next bridge has to know to go on.
func (d *onDemand) connected(to connected, r mcp.Request, server json.RawMessage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meta.MCP.Upstream, d.meta.MCP.ProtocolVersion = to.id, to.version
	d.meta.MCP.Call = &oneCall{r.Method, r.Meta["progressToken"], r.LogLevel, server}
}

// takeOverCall returns the session of a call that another bridge has begun.
func (s *Service) takeOverCall(rec session.Record, meta metadata) *clientSession {
	h := newClientSession(s, rec.Session, rec.Life, rec.Owner, nil)
	h.onDemand = &onDemand{opened: true, asked: time.Now(), call: rpc.Call{Owner: rec.Owner}}
	of := meta.MCP.Call
	u := &stateless{session: h, request: mcp.Request{Method: of.Method, LogLevel: of.LogLevel, Meta: map[string]json.RawMessage{"progressToken": of.Token}}}
	if of.Token == nil {
		u.request.Meta = nil
	}
	if meta.MCP.ProtocolVersion != mcp.Modern {
		u.to = &translated{session: h, request: u.request, server: translate.Server{Info: of.Server}, turned: make(chan struct{})}
		u.to.up = &remote{service: s, endpoint: s.endpoint, id: meta.MCP.Upstream, version: meta.MCP.ProtocolVersion}
		if s.command != nil {
			u.to.up = &stdio{service: s} // its process has ended with the bridge before
		}
	}
	h.up = u
	return h
}

// again continues a call that waits for its client, by the client's repeated request.
func (h *clientSession) again(c rpc.Call) rpc.Answer {
	u, ok := h.up.(*stateless)
	r, err := mcp.Parse(c.Data)
	if !ok || err != nil || c.Stream == "" || c.Stream == rpc.Standalone {
		return ended()
	}
	if t := u.translation(); t == nil || !t.again(c, r) {
		return upstream.About(upstream.Failure(mcp.ErrState.Status, mcp.ErrState.Code, mcp.ErrState.Message), []json.RawMessage{r.ID})
	}
	return h.request(c, []json.RawMessage{r.ID})
}

// inLog reports whether the session is in the log.
func (h *clientSession) inLog() bool {
	d := h.onDemand
	if d == nil {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened
}

// first is called before an event of a call is stored. It answers the client itself where that is
// all that there will be, and reports so; otherwise it sees to it that the session is in the log,
// and tells the client to look there. Errors are errClosed.
func (h *clientSession) first(c *call, it item) (told bool, err error) {
	d := h.onDemand
	if d == nil {
		return false, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if it.final && c.tell(rpc.Answer{Status: mcp.StatusOf(it.data), Data: it.data}) {
		return true, nil
	}
	if c.wasAnswered() {
		return false, nil // at once, by somebody else
	}
	if !d.opened && d.failed == nil {
		if d.failed = h.open(d); d.failed == nil {
			d.opened, d.asked = true, time.Now()
		}
	}
	if d.failed != nil {
		c.tell(upstream.About(asBusy(d.failed), c.ids()))
		return false, errClosed
	}
	c.tell(rpc.Answer{Status: http.StatusAccepted})
	return false, nil
}

// open opens the session in the log, and begins to answer for it.
func (h *clientSession) open(d *onDemand) error {
	s := h.service
	ctx, cancel := context.WithTimeout(s.life, s.cfg.closeTimeout())
	defer cancel()
	data, err := json.Marshal(d.meta)
	if err != nil {
		return err
	}
	rec := newRecord(d.call, data)
	rec.Life = h.life
	leave, err := s.limits.Enter(rec)
	if err != nil {
		return errors.Join(errLimit, err)
	}
	defer leave()
	if _, err := s.backend.Sessions.Create(ctx, rec); err != nil {
		s.log.Warn("a session is not made", "session", h.name, "error", err)
		return err
	}
	return h.hold(ctx)
}

// hold begins to answer for the session, once.
func (h *clientSession) hold(ctx context.Context) error {
	h.mu.Lock()
	held := h.sub != nil
	h.mu.Unlock()
	if held {
		return nil
	}
	if err := h.service.hold(h); err != nil {
		return err
	}
	return h.service.backend.Conn.FlushWithContext(ctx)
}

// errLimit is joined to why a session may not be opened.
var errLimit = errors.New("too many sessions")

func asBusy(err error) rpc.Answer {
	if errors.Is(err, errLimit) {
		a := upstream.Busy(err.Error())
		a.Status = http.StatusTooManyRequests
		return a
	}
	return upstream.Busy("the session cannot be registered now")
}

// cancel ends a call that nobody waits for: after --cancel-grace, where the client may come back.
func (h *clientSession) cancel(c rpc.Call) rpc.Answer {
	if h.onDemand != nil && h.call(c.Stream) != nil {
		if c.Resumable {
			h.run(func() { h.cancelUnlessAsked(c.Stream, time.Now()) })
		} else {
			h.finish(errEnded)
		}
	}
	return rpc.Answer{Status: http.StatusAccepted}
}

// cancelUnlessAsked ends a call if no edge asks about it for --cancel-grace, or until the same client
// makes it again.
func (h *clientSession) cancelUnlessAsked(stream string, since time.Time) {
	s, d := h.service, h.onDemand
	again := s.orphans.add(d.client)
	defer s.orphans.remove(d.client, again)
	select {
	case <-h.ctx.Done():
		return
	case <-s.after(s.cfg.CancelGrace):
	case <-again:
	}
	d.mu.Lock()
	asked := d.asked.After(since)
	d.mu.Unlock()
	if !asked && h.call(stream) != nil {
		h.finish(errEnded)
	}
}

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

// made ends the orphans of a call that its client has made again.
func (o *orphans) made(key [sha256.Size]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, again := range o.all[key] {
		close(again)
	}
	delete(o.all, key)
}

// contentOf is the same for requests that say the same, but for their answers to the server.
func contentOf(r mcp.Request) [sha256.Size]byte {
	params := maps.Clone(r.Params)
	delete(params, "_meta")
	delete(params, "inputResponses")
	delete(params, "requestState")
	return sha256.Sum256(mustMarshal([]any{r.Method, params}))
}

// orphanedAfter is how long no edge may ask about a call before it is cancelled: the edge has gone,
// and the client's connection with it. Edges ask every 10 s.
const orphanedAfter = 35 * time.Second

// wasAsked notes that an edge has asked about the call.
func (d *onDemand) wasAsked() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = time.Now()
}

// isOrphaned reports whether nobody waits for the session's call any more. since is when edges
// could be heard again, or zero.
func (h *clientSession) isOrphaned(now, since time.Time) bool {
	d := h.onDemand
	if u, ok := h.up.(*stateless); d == nil || !ok || u.held() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened && now.Sub(d.asked) > orphanedAfter && now.Sub(since) > orphanedAfter
}
