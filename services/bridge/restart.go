package bridge

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// takeOver continues the open sessions of this bridge's name, and with their calls.
// Records of sessions that are over are left to the recorder to remove.
func (s *Service) takeOver(ctx context.Context, r *records) error {
	all, err := r.load(ctx)
	if err != nil {
		return err
	}
	// The copy of this process may lack what the bridge before did last.
	registry, err := session.OpenRegistry(ctx, s.backend.Log, s.log)
	if err != nil {
		return err
	}
	defer registry.Close()
	calls := map[string]map[string]record{} // by session and stream
	for key, rec := range all {
		name, stream, ok := names(key)
		if known, found := registry.Session(name); !ok || !found || known.State != session.Open {
			r.written[key] = rec // no bridge works on it: it will be removed
			continue
		}
		if calls[name] == nil {
			calls[name] = map[string]record{}
		}
		calls[name][stream] = rec
	}
	var own []string
	for _, rec := range registry.Sessions() {
		if _, ok := s.own(rec); ok {
			own = append(own, rec.Session)
		}
	}
	confirmed, err := s.confirm(ctx, own)
	if err != nil {
		return err
	}
	for i, name := range own {
		for stream, call := range calls[name] {
			r.written[recordKey(name, stream)] = call
		}
		meta, ok := s.own(confirmed[i])
		if !ok {
			continue
		}
		s.metrics.takeovers.Inc()
		if err := s.takeOverSession(confirmed[i], meta, calls[name]); err != nil {
			return err
		}
	}
	if n := len(s.all()); n > 0 {
		s.log.Info("sessions are taken over", "sessions", n)
	}
	return nil
}

// own reports whether a record is of an open session of this bridge's name.
func (s *Service) own(rec session.Record) (meta metadata, own bool) {
	own = rec.State == session.Open && json.Unmarshal(rec.Metadata, &meta) == nil && meta.MCP.Bridge == s.name
	return meta, own
}

// confirmsAtOnce is how many sessions the log is asked for at a time.
const confirmsAtOnce = 64

// confirm asks the log for sessions. Their records come in the same order; of a name that
// no session has any more the record is empty. It tries until ctx ends.
func (s *Service) confirm(ctx context.Context, names []string) ([]session.Record, error) {
	confirmed := make([]session.Record, len(names))
	slots := make(chan struct{}, confirmsAtOnce)
	var asking sync.WaitGroup
	for i, name := range names {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			_ = retry(ctx, func() (err error) { // fails with ctx alone
				confirmed[i], err = s.backend.Sessions.Get(ctx, name)
				if errors.Is(err, session.ErrNotFound) {
					return nil
				}
				if err != nil {
					s.log.Info("a session cannot be taken over yet", "session", name, "error", err)
				}
				return err
			})
		})
	}
	asking.Wait()
	return confirmed, ctx.Err()
}

func (s *Service) takeOverSession(rec session.Record, meta metadata, calls map[string]record) error {
	for _, call := range calls {
		if call.At != nil && meta.MCP.Call != nil {
			meta.MCP.Upstream, meta.MCP.ProtocolVersion, meta.MCP.Call = call.At.Upstream, call.At.ProtocolVersion, &call.At.Call
		}
	}
	var up mcpServer = &remote{service: s, endpoint: s.endpoint, id: meta.MCP.Upstream, version: meta.MCP.ProtocolVersion}
	if s.command != nil {
		up = &stdio{service: s} // its process has ended with the bridge before
	}
	if meta.MCP.Modern != nil {
		modern := s.newModernServer(*meta.MCP.Modern)
		modern.missed = true
		up = modern
	}
	h := newClientSession(s, rec.Session, rec.Life, rec.Owner, up)
	h.principal = rec.Owner
	if meta.MCP.Call != nil {
		h = s.takeOverCall(rec, meta, up)
		over, err := h.takeOverTask()
		if err != nil {
			return err
		}
		if work := h.task(); over {
			calls = nil // the bridge before has not come to the end of the session
		} else if work != nil && len(calls) == 0 {
			_ = work.put(item{data: rpc.ErrorMessage(nil, rpc.CodeInternal, upstream.ErrUnanswered.Error(), nil)}) // it fails at the end of the service alone
		}
	}
	standalone := calls[rpc.Standalone]
	heard := cursor{ID: standalone.ID, Sequence: standalone.Sequence}
	if u, ok := h.up.(*stateless); ok && u.to != nil {
		u.to.heard = heard
	}
	for stream, call := range calls {
		ids, _ := rpc.RequestIDs(stream)
		if len(ids) == 0 {
			continue
		}
		c := newCall(h, stream, ids)
		c.at, c.told = cursor{ID: call.ID, Sequence: call.Sequence}, true
		h.resume(c)
	}
	if h.onDemand == nil {
		h.listen(heard)
	}
	err := s.hold(h)
	if s.command != nil {
		h.finish(upstream.ErrExited)
	} else if h.onDemand != nil && len(h.streams()) == 0 {
		h.finish(errEnded) // the bridge before has not come to that
	}
	return err
}

// takeOverTask has the call of another bridge go on as the task that it has become, if it has, and
// reports whether that is over. It tries until the service stops.
func (h *clientSession) takeOverTask() (over bool, err error) {
	s, u := h.service, h.up.(*stateless) //nolint:forcetypeassert,errcheck // takeOverCall has made it
	err = retry(s.life, func() error {
		is, sequence, err := s.taskState(s.life, s.taskSubject(h.name, h.life))
		switch {
		case errors.Is(err, eventlog.ErrNotFound):
			return nil
		case errors.Is(err, mcp.ErrNoTask):
			s.log.Warn("the state of a task cannot be read", "session", h.name, "error", err)
			return nil
		case err != nil:
			return err
		}
		k := newTask(h, is)
		k.stored, k.out.last = time.Now(), sequence
		over = is.Status.Over()
		u.takeOverTask(k)
		return nil
	})
	return over, err
}

// takeOverTask continues a task.
func (u *stateless) takeOverTask(k *task) {
	if u.to == nil {
		u.work = &passed{session: u.session, request: u.request, made: k, over: k.is.Status.Over()}
		return
	}
	u.to.made, u.to.over, u.work = k, k.is.Status.Over(), u.to
	if k.is.Status == mcp.TaskInputRequired {
		u.to.expiry = time.AfterFunc(u.service().cfg.InputWait, func() { u.to.cancelTask(noInput) })
	}
	for key, id := range k.is.Asked {
		var q translate.Question
		_ = rpc.Unmarshal(k.is.Requests[key], &q) // a bridge has written it
		u.to.open = append(u.to.open, question{q, id, key})
	}
	u.to.keys = rand.Text() // the keys of questions that were answered are not known, and a task has each once
}

// resume continues a call that another bridge has begun.
func (h *clientSession) resume(c *call) {
	h.mu.Lock()
	h.calls[c.stream] = c
	h.mu.Unlock()
	h.service.metrics.calls.Inc()
	h.run(func() {
		defer h.forget(c, h.service.metrics.calls.Dec)
		if c.reload(h.service.life) && !c.done() {
			h.up.resume(h.ctx, c, h.header())
		}
	})
}

// reload reads what the log has of a stream: which requests are answered, and what the
// upstream may send once more. It reports whether the stream can go on.
func (c *call) reload(ctx context.Context) bool {
	s := c.session.service
	over := false
	err := retry(ctx, func() (err error) {
		if over, err = c.hasEnd(ctx); err == nil && !over {
			over, err = c.reloadOnce(ctx)
		}
		if err != nil {
			s.log.Debug("a stream cannot be read yet", "session", c.session.name, "stream", c.stream, "error", err)
		}
		return err
	})
	return err == nil && !over
}

func (c *call) reloadOnce(ctx context.Context) (final bool, err error) {
	s := c.session.service
	state, err := s.backend.Log.Look(ctx, s.backend.Log.Partition(c.session.name))
	if err != nil {
		return false, err
	}
	q := eventlog.Query{Session: c.session.name, Life: c.session.life, Stream: c.stream, UpTo: state.Last, MaxEvents: 500, MaxBytes: reloadBytes}
	if c.standalone() {
		q.After = c.at.Sequence // others may write there, and nothing is a response
	}
	c.out.last = state.Last
	var again [][]byte
	for q.After < q.UpTo {
		page, err := s.backend.Log.Read(ctx, q)
		if err != nil {
			return false, err
		}
		for _, e := range page.Entries {
			if e.Subject.Kind != event.Message {
				continue
			}
			if final = e.Final && (c.session.task() == nil || !isTaskCreated(e.Data)); e.Final && !final {
				continue // the call has become a task: the MCP server still works on it
			}
			if e.Sequence > c.at.Sequence {
				again = append(again, e.Data)
			}
			if m, err := rpc.ParseMessage(e.Data); err == nil && m.IsResponse() {
				c.answeredTo(m.ID)
			}
		}
		if page.Through <= q.After {
			break
		}
		q.After = page.Through
	}
	c.mu.Lock()
	c.again = again
	c.mu.Unlock()
	return final, nil
}

// resume continues a call of another bridge, where the upstream offers that.
func (r *remote) resume(ctx context.Context, c *call, client http.Header) {
	if c.cursor().ID == "" {
		c.over(upstream.ErrUnanswered)
		return
	}
	ctx, p := c.wait(ctx)
	defer p.Over()
	resp, err := r.reconnect(ctx, c, client, 0) //nolint:bodyclose // follow closes it
	if err == nil {
		err = r.follow(ctx, p, c, client, resp)
	}
	r.finish(c, client, err)
}

// takeOverCall returns the session of a call that another bridge has begun.
func (s *Service) takeOverCall(rec session.Record, meta metadata, up mcpServer) *clientSession {
	h := newClientSession(s, rec.Session, rec.Life, rec.Owner, nil)
	h.principal = rec.Owner
	h.onDemand = &onDemand{opened: true, asked: time.Now(), call: rpc.Call{Owner: rec.Owner}}
	of := meta.MCP.Call
	if meta.MCP.ProtocolVersion != mcp.Modern {
		h.onDemand.at.Store(&callAt{meta.MCP.Upstream, meta.MCP.ProtocolVersion, *of})
	}
	u := &stateless{session: h, request: mcp.Request{Method: of.Method, LogLevel: of.LogLevel, Meta: map[string]json.RawMessage{"progressToken": of.Token}}}
	if meta.MCP.ProtocolVersion != mcp.Modern {
		u.to = &translated{session: h, request: u.request, up: up, server: translate.Server{Info: of.Server}, asks: of.Asks, turned: make(chan struct{})}
		h.setReceiver(u.to)
	}
	h.up = u
	return h
}
