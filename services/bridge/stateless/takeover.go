package stateless

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/retry"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// TakeOver continues a call of another bridge, from the cursors of its streams. It tries until ctx ends.
func (s *Calls) TakeOver(ctx context.Context, rec session.Record, meta records.Metadata, up call.Upstream, from map[string]call.Cursor) (*sessions.Session, error) {
	of := meta.MCP.Call
	var at *records.CallAt
	if meta.MCP.ProtocolVersion != mcp.Stateless {
		at = &records.CallAt{Upstream: meta.MCP.Upstream, ProtocolVersion: meta.MCP.ProtocolVersion, Call: *of}
	}
	h := s.table.NewForCall(rec.Session, rec.Life, rec.Owner, rec.Owner, sessions.TakenOver(rec.Owner, meta, at))
	u := &side{env: &s.env, session: h, request: mcp.Request{Method: of.Method, LogLevel: of.LogLevel, Meta: map[string]json.RawMessage{"progressToken": of.Token}}}
	h.Upstream = u
	if meta.MCP.ProtocolVersion != mcp.Stateless {
		t := newTranslated(&s.env, h, u.request)
		t.up, t.server, t.askable, t.heard, t.turned = up, translate.ServerInfo{Info: of.Server}, of.Asks, from[rpc.Standalone], make(chan struct{})
		t.rule = taskRule{may: of.Task && s.host.Config.TaskAfter >= 0}
		u.work = t
		h.Receiver = t
	}
	over, err := s.takeOverTask(ctx, h, u)
	if err != nil {
		return nil, err
	}
	if over {
		return h, nil // the previous bridge did not end the session
	}
	if len(from) == 0 && u.IsTask() {
		h.Go(func() { // the log may be down, and a takeover must end when the service stops
			_ = u.work.Put(call.Item{Data: rpc.ErrorMessage(nil, rpc.CodeInternal, upstream.ErrRestarted.Error(), nil)}) // it fails at the end of the service alone
		})
	}
	h.ResumeAll(from)
	return h, nil
}

// takeOverTask continues the call as a task, if it has become one, and reports whether the task is
// over. It tries until ctx ends.
func (s *Calls) takeOverTask(ctx context.Context, h *sessions.Session, u *side) (over bool, err error) {
	err = retry.Do(ctx, func() error {
		is, sequence, err := s.taskState(ctx, s.taskSubject(h.Name, h.Life))
		switch {
		case errors.Is(err, eventlog.ErrNotFound):
			return nil
		case errors.Is(err, mcp.ErrNoTask):
			s.host.Logger.Warn("the state of a task cannot be read", "session", h.Name, "error", err)
			return nil
		case err != nil:
			return err
		}
		k := newTask(h.Scope, is)
		k.stored, k.out.Last = time.Now(), sequence
		over = is.Status.IsTerminal()
		u.continueTask(k)
		return nil
	})
	return over, err
}
