package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"rejoin/services/bridge/resultcache"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// stateless is the MCP server's side of one call of a client without sessions: passed on, where
// the server speaks the revision too, else translated.
type stateless struct {
	session *clientSession
	request mcp.Request
	rule    taskRule
	kept    *resultcache.Request // nil for one whose result is not kept

	mu   sync.Mutex
	to   *translated // nil where the request is passed on
	work taskWork    // nil for a request that becomes no task
}

func (u *stateless) service() *Service { return u.session.service }

// translation returns the call as the server has it, if that speaks earlier revisions.
func (u *stateless) translation() *translated {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.to
}

// serve hands the request over. ctx ends with the call.
func (u *stateless) serve(ctx context.Context, c *call, client http.Header, data []byte) {
	if t := u.translation(); t != nil {
		r, err := mcp.Parse(data)
		if err != nil {
			c.refuse(upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, err.Error()))
			return
		}
		t.join(ctx, c, r)
		return
	}
	modern, refused := u.service().isModern(ctx, client)
	switch {
	case refused != nil:
		c.refuse(*refused)
	case mcp.IsTaskMethod(u.request.Method) && !u.service().hasOwnTasks():
		c.refuse(unknownTask())
	case modern:
		if mcp.IsTaskMethod(u.request.Method) {
			if refused := u.session.refuseTask(ctx, u.request.Name); refused != nil {
				c.refuse(*refused)
				return
			}
		}
		u.pass(ctx, c, client, data)
	default:
		t := &translated{
			session: u.session, request: u.request, client: upstream.WithoutRepeated(client),
			asks: translate.Askable(u.request), rule: u.rule,
		}
		u.mu.Lock()
		u.to, u.work = t, t
		u.mu.Unlock()
		u.session.setReceiver(t)
		t.serve(ctx, c)
	}
}

func (s *Service) modernRemote() *remote {
	return &remote{service: s, endpoint: s.endpoint, modern: true}
}

// pass hands the request over as it is, but for what its server may read in another way than the edge.
func (u *stateless) pass(ctx context.Context, c *call, client http.Header, data []byte) {
	r := u.service().modernRemote()
	data = translate.Plain(data)
	if u.kept != nil {
		u.service().metrics.cached.WithLabelValues(cacheMiss).Inc()
		data = u.kept.Data
		c.keep = func(result json.RawMessage) { u.service().cache.Put(*u.kept, result) }
	}
	switch u.request.Method {
	case mcp.MethodDiscover:
		c.to = &discovered{call: c}
	case mcp.MethodListen:
		l := u.session.newListener(ctx, c, u.request)
		c.to = l
		data = translate.WithoutTasks(data, func(id string) bool {
			_, ours := mcp.ParseTaskID(id)
			return ours || u.session.refuseTask(ctx, id) != nil
		})
	}
	if u.rule.may && !u.service().hasOwnTasks() {
		p := &passed{session: u.session, request: u.request, rule: u.rule, up: r}
		u.mu.Lock()
		u.work = p
		u.mu.Unlock()
		defer p.stop()
		p.serve(ctx, c, client, data)
		return
	}
	r.serve(ctx, c, client, data)
}

func (u *stateless) send(context.Context, http.Header, []byte) rpc.Answer {
	return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "a call without a session takes no messages")
}

// resume continues a call of another bridge: at a server of earlier revisions, if that gives event
// IDs. The revision itself has no resuming.
func (u *stateless) resume(ctx context.Context, c *call, client http.Header) {
	t := u.translation()
	if t == nil {
		if p, ok := u.work.(*passed); ok {
			c.to = p
		}
		c.over(upstream.ErrUnanswered)
		return
	}
	t.resume(ctx, c, client)
}

// held reports whether the call waits for its client.
func (u *stateless) held() bool {
	t := u.translation()
	return t != nil && t.held()
}

// listen listens to what the server sends of itself, for the one call.
func (u *stateless) listen(ctx context.Context, c *call, _ func() http.Header) {
	if t := u.translation(); t != nil {
		t.up.listen(ctx, c, func() http.Header { return t.client })
	}
}

// close ends the session upstream.
func (u *stateless) close(ctx context.Context, _ http.Header) {
	if t := u.translation(); t != nil && t.up != nil {
		t.stop()
		t.up.close(ctx, t.client)
	}
}

// discovered changes the result of server/discover: the client learns what Rejoin speaks.
type discovered struct{ call *call }

func (d *discovered) take(m rpc.Message, it item) error {
	if result := d.call.session.service.discovery(m.Result); result != nil {
		it.data = translate.Message(map[string]any{"id": m.ID, "result": result})
	}
	it.final = m.IsResponse()
	return d.put(it)
}

// discovery returns the result of server/discover as clients have it; nil for none that is an object.
func (s *Service) discovery(result json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if result == nil || rpc.Unmarshal(result, &members) != nil || members == nil {
		return nil
	}
	members["supportedVersions"] = event.MustJSON(mcp.Revisions)
	members["capabilities"] = translate.WithTasks(members["capabilities"], s.cfg.TaskAfter >= 0)
	return event.MustJSON(members)
}

func (d *discovered) put(it item) error {
	_, err := d.call.store(it)
	return err
}

// eraFor is how long a bridge believes what revisions its MCP server speaks: one that is upgraded
// is found out by then.
const eraFor = 5 * time.Minute

// refusedFor is how long a server that could not be asked is not asked again: those who waited for
// the answer have it.
const refusedFor = time.Second

// isModern reports whether the MCP server speaks the revision without sessions. It asks, unless that
// is known. The answer is the client's when the server cannot be asked.
func (s *Service) isModern(ctx context.Context, client http.Header) (bool, *rpc.Answer) {
	s.era.mu.Lock()
	defer s.era.mu.Unlock()
	switch now := time.Now(); {
	case ctx.Err() != nil:
		a := upstream.Unreachable(context.Cause(ctx))
		return false, &a
	case now.Before(s.era.until):
		return s.era.modern, nil
	case now.Before(s.era.refusedUntil):
		return false, s.era.refused
	}
	modern, tasks, refused := s.probe(client)
	if refused != nil {
		s.era.refused, s.era.refusedUntil = refused, time.Now().Add(refusedFor)
		return false, refused
	}
	if modern != s.era.modern || s.era.until.IsZero() {
		s.log.Info("what the MCP server speaks is known", "revision "+mcp.Modern, modern)
	}
	s.era.modern, s.era.tasks, s.era.until = modern, tasks, time.Now().Add(eraFor)
	return modern, nil
}

// hasOwnTasks reports whether the MCP server has tasks of its own: then it says what becomes one.
func (s *Service) hasOwnTasks() bool {
	s.era.mu.Lock()
	defer s.era.mu.Unlock()
	return s.era.tasks
}

// forgetEra has the MCP server asked again that was taken to speak earlier revisions, and has refused
// initialize.
func (s *Service) forgetEra() {
	s.era.mu.Lock()
	defer s.era.mu.Unlock()
	if !s.era.modern {
		s.era.until = time.Time{}
	}
}

// probe asks the MCP server for what it speaks, for all who want to know.
func (s *Service) probe(client http.Header) (modern, tasks bool, refused *rpc.Answer) {
	ctx, cancel := context.WithTimeout(s.life, s.cfg.OpenTimeout)
	defer cancel()
	if s.command != nil {
		return false, false, nil
	}
	method := mcp.MethodDiscover
	discover := rpc.Message{ID: json.RawMessage(`"rejoin"`), Method: &method}
	u := s.newModernServer(modernSession{Client: translate.Client{Info: json.RawMessage(`{"name":"rejoin","version":"1"}`), Capabilities: json.RawMessage("{}")}})
	resp, refused := u.post(ctx, u.repeat(client, discover), u.client.Later(discover, "", nil)) //nolint:bodyclose // Finish closes it
	if refused != nil && saysNothing(refused.Status) {
		return false, false, refused
	}
	if refused != nil {
		return false, false, nil
	}
	m, _, err := s.response(resp, discover.ID)
	upstream.Finish(resp)
	if err != nil && !errors.Is(err, upstream.ErrUnanswered) { // the response broke off
		s.unreachable(err)
		a := upstream.Unreachable(err)
		return false, false, &a
	}
	if err != nil || m.Error != nil {
		return false, false, nil
	}
	var result translate.Discovered
	err = rpc.Unmarshal(m.Result, &result)
	modern = err == nil && slices.Contains(result.Versions, mcp.Modern)
	return modern, modern && mcp.HasTasks(event.MustJSON(result.Capabilities)), nil
}

// request serves a request that has no session.
func (s *Service) request(c rpc.Call) rpc.Answer {
	r, err := mcp.Parse(c.Data)
	if err != nil || c.Stream == "" || c.Stream == rpc.Standalone || c.Life == "" {
		return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "the request is not whole")
	}
	rule, err := s.taskRule(r)
	if e, ok := errors.AsType[*mcp.Error](err); ok {
		return rpc.Answer{Status: e.Status, Data: rpc.ErrorMessage(r.ID, e.Code, e.Message, e.Data)}
	}
	result, kept := s.cachedResult(r, c.Header)
	if result != nil {
		return rpc.Answer{Status: http.StatusOK, Data: translate.Message(map[string]any{"id": r.ID, "result": result})}
	}
	content := r.Content()
	d := &onDemand{call: c, content: content, client: sha256.Sum256(event.MustJSON([]any{c.Owner, c.Client, r.ClientInfo, content}))}
	d.call.Data, d.listens = nil, r.Method == mcp.MethodListen
	s.orphans.made(d.client)
	d.meta.MCP.Bridge, d.meta.MCP.ProtocolVersion, d.meta.MCP.Call = s.name, mcp.Modern, &oneCall{Method: r.Method, Task: rule.may}
	d.meta.Retention = &retention{KeepClosed: int64(callKept / time.Second)}
	h := newClientSession(s, c.Session, c.Life, clientOf(c), nil)
	h.principal, h.onDemand, h.up = c.Owner, d, &stateless{session: h, request: r, rule: rule, kept: kept}
	h.remember(c.Header)
	a := h.request(c, []json.RawMessage{r.ID})
	if !h.busy() {
		h.finish(errEnded) // also when the call was not begun
	}
	return a
}

// cachedResult returns the result of a request that another client has got. Where there is none,
// kept is not nil if its result may be kept.
func (s *Service) cachedResult(r mcp.Request, client http.Header) (result json.RawMessage, kept *resultcache.Request) {
	if s.cache == nil {
		return nil, nil
	}
	result, kept = s.cache.Get(r, s.modernRemote().header(client))
	if result != nil {
		s.metrics.cached.WithLabelValues(cacheHit).Inc()
		if r.Method == mcp.MethodDiscover {
			result = s.discovery(result)
		}
	}
	return result, kept
}

// changedSubject is where bridges tell each other that results of the MCP server are stale: a client
// that has heard of it through one bridge may ask the next. A name's token has no "=c".
const changedSubject = "mcp.rpc.b.=changed"

// noteChange ends the cached results, here and at the other bridges, that a notification of the MCP
// server says are stale. On one connection the bridges' message goes ahead of the notification's event, so
// it arrives ahead of the request of a client that has received that. It may get lost: then the
// results end with their time.
func (s *Service) noteChange(m rpc.Message) {
	if s.cache == nil || m.Method == nil || !s.cache.Changed(*m.Method) {
		return
	}
	if err := s.backend.Conn.Publish(changedSubject, []byte(*m.Method+" "+s.name)); err != nil {
		s.log.Info("other bridges are not told that results have changed", "error", err)
	}
}

// hearChange takes what another bridge, or this one, has sent with noteChange.
func (s *Service) hearChange(data string) {
	if method, from, _ := strings.Cut(data, " "); s.cache != nil && from != s.name {
		s.cache.Changed(method)
	}
}

// connected notes what the next bridge has to know to go on.
func (d *onDemand) connected(to connected, r mcp.Request, server json.RawMessage, asks map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meta.MCP.Upstream, d.meta.MCP.ProtocolVersion = to.id, to.version
	of := d.meta.MCP.Call
	of.Token, of.LogLevel, of.Server, of.Asks = r.Meta["progressToken"], r.LogLevel, translate.BriefInfo(server), asks
	d.at.Store(&callAt{to.id, to.version, *of})
}

// again continues a call that waits for its client, by the client's repeated request.
func (h *clientSession) again(c rpc.Call) rpc.Answer {
	u, ok := h.up.(*stateless)
	r, err := mcp.Parse(c.Data)
	if !ok || err != nil || c.Stream == "" || c.Stream == rpc.Standalone {
		return ended()
	}
	if mcp.IsTaskMethod(r.Method) {
		return h.changeTask(c, r)
	}
	if t := u.translation(); t == nil || !t.again(c, r) {
		return upstream.About(unknownState(), []json.RawMessage{r.ID})
	}
	h.onDemand.wasAsked()
	return h.request(c, []json.RawMessage{r.ID})
}

// answerOrOpen is called before an event of a call is stored. It answers the client itself where that is
// all that there will be, and reports so; otherwise it sees to it that the session is in the log,
// and tells the client to look there. Where there are too many sessions, what is not the response is
// left out. Errors are errClosed, and [upstream.ErrTooLarge] for what NATS does not carry.
func (h *clientSession) answerOrOpen(c *call, it item) (told bool, err error) {
	d := h.onDemand
	if d == nil {
		return false, nil
	}
	if int64(len(it.data)) > h.service.backend.Conn.MaxPayload()-eventlog.HeaderRoom {
		return false, upstream.ErrTooLarge
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if it.final && c.tell(rpc.Answer{Status: mcp.StatusOf(it.data), Data: it.data}) {
		return true, nil
	}
	if c.wasAnswered() {
		return false, nil // at once, by somebody else
	}
	d.openOnce(h)
	if errors.Is(d.failed, errLimit) && !d.listens {
		return true, nil // the response is the answer, if it comes in time
	}
	if d.failed != nil {
		c.tell(upstream.About(asBusy(d.failed), c.ids()))
		return false, errClosed
	}
	c.tell(rpc.Answer{Status: http.StatusAccepted})
	return false, nil
}

// openForTask sees to it that the session is in the log, and is kept there for as long as its task
// once that is over.
func (h *clientSession) openForTask() error {
	d, s := h.onDemand, h.service
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meta.Retention.KeepClosed = int64(max(callKept, s.cfg.TaskTTL) / time.Second)
	if !d.opened || d.failed != nil {
		d.openOnce(h)
		return d.failed
	}
	ctx, cancel := context.WithTimeout(s.life, s.cfg.CloseTimeout())
	defer cancel()
	data, err := json.Marshal(d.meta)
	if err == nil {
		_, err = s.backend.Sessions.SetMetadata(ctx, h.name, h.life, data)
	}
	return err
}

// openOnce opens the session in the log, unless that was tried before. The caller holds the lock.
func (d *onDemand) openOnce(h *clientSession) {
	if d.opened || d.failed != nil {
		return
	}
	d.failed = h.open(d)
	d.asked = time.Now()
}

// open opens the session in the log, and begins to answer for it. The caller holds the lock.
func (h *clientSession) open(d *onDemand) error {
	s := h.service
	ctx, cancel := context.WithTimeout(s.life, s.cfg.CloseTimeout())
	defer cancel()
	data, err := json.Marshal(d.meta)
	if err != nil {
		return err
	}
	rec := newRecord(d.call, data)
	rec.Life = h.life
	leave, err := s.callLimits.Enter(rec)
	if err != nil {
		s.troubles.Note(s.life, "calls", "calls are not in the log, and are lost with their connections: they begin while less than half of --max-sessions and --max-metadata-bytes is taken", slog.Any("error", err))
		return errors.Join(errLimit, err)
	}
	defer leave()
	d.opened = true // also when the answer does not come
	if _, err := s.backend.Sessions.Create(ctx, rec); err != nil {
		s.log.Warn("a session is not made", "session", h.name, "error", err)
		return err
	}
	return h.hold(ctx)
}

// callKept is how long the log keeps a call that is over.
const callKept = 5 * time.Minute

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

// cancel ends a call that no client waits for: after --cancel-grace, where the client may come back.
func (h *clientSession) cancel(c rpc.Call) rpc.Answer {
	if h.onDemand != nil && h.call(c.Stream) != nil && h.task() == nil {
		if c.Resumable {
			h.run(func() { h.cancelUnlessAsked(c.Stream, time.Now()) })
		} else {
			h.finish(errEnded)
		}
	}
	return rpc.Answer{Status: http.StatusAccepted}
}

// cancelUnlessAsked ends a call if no edge asks about it for --cancel-grace, or until the same client
// makes it again, and it does not wait for its client's answers.
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
	if !asked && h.call(stream) != nil && !h.needsNoClient() {
		h.finish(errEnded)
	}
}

// needsNoClient reports whether the call continues while no client is connected for it: it has become
// a task, or waits for its client's answers for --input-wait.
func (h *clientSession) needsNoClient() bool {
	u, ok := h.up.(*stateless)
	return !ok || u.held() || h.task() != nil
}

// orphanedAfter is how long no edge may ask about a call before it is cancelled: the edge has gone,
// and the client's connection with it. Edges ask every 10 s.
const orphanedAfter = 35 * time.Second

// isOrphaned reports whether no client waits for the session's call any more. since is when edges
// could be heard again, or zero.
func (h *clientSession) isOrphaned(now, since time.Time) bool {
	d := h.onDemand
	if d == nil || h.needsNoClient() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened && now.Sub(d.asked) > orphanedAfter && now.Sub(since) > orphanedAfter
}
