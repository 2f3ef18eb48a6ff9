package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/mcpserver"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// openSession forwards an initialize request, and makes the session when the upstream
// has accepted it.
func (s *Service) openSession(c rpc.Ask) rpc.Answer {
	m, err := rpc.ParseMessage(c.Data)
	if err != nil || !m.IsRequest() || !m.Is(rpc.MethodInitialize) {
		return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "this is not an initialize request")
	}
	id := m.ID
	client, n := host.ClientOf(c), int64(len(c.Data))
	if !s.host.Memory.Take(client, n) {
		return upstream.About(upstream.Busy(sessions.NoMemory), []json.RawMessage{id})
	}
	defer s.host.Memory.Give(client, n)
	leave, err := s.host.Limits.Enter(sessions.NewRecord(c, nil))
	if err != nil {
		a := upstream.Busy(err.Error())
		a.Status = http.StatusTooManyRequests
		return upstream.About(a, []json.RawMessage{id})
	}
	defer leave()
	ctx, cancel := context.WithTimeout(s.host.Life, s.host.Config.OpenTimeout)
	defer cancel()
	d, refused := s.server.Initialize(ctx, c, m)
	if refused != nil {
		return upstream.About(*refused, []json.RawMessage{id})
	}
	if d.Up == nil { // an error: there is no session
		return rpc.Answer{Status: http.StatusOK, Data: d.Response}
	}
	life, err := s.register(ctx, c, d)
	if err != nil {
		s.host.Trouble("session", "a session is not made", slog.String("session", c.Session), slog.Any("error", err))
		s.host.Go(func() { d.Up.Close(s.host.Life, c.Header) })
		return upstream.About(upstream.Busy("the session cannot be registered now"), []json.RawMessage{id})
	}
	if c.Stream != "" {
		w := call.NewWriter(s.host, c.Session, life, c.Stream)
		w.Trace = c.Trace
		if _, err := w.Put(ctx, call.Item{Data: d.Response, Final: true}); err != nil {
			s.host.Trouble("response", "the response to initialize is not stored", slog.String("session", c.Session), slog.Any("error", err))
			if h := s.table.Session(c.Session); h != nil {
				h.Finish(host.ErrEnded)
			}
			return upstream.About(upstream.Busy("the response cannot be stored now"), []json.RawMessage{id})
		}
	}
	return rpc.Answer{Status: http.StatusOK, Data: d.Response}
}

// register opens the session in the log, begins to answer for it and returns its life.
func (s *Service) register(ctx context.Context, c rpc.Ask, d mcpserver.Connected) (life string, err error) {
	data, err := json.Marshal(s.server.Metadata(d))
	if err != nil {
		return "", err
	}
	rec, err := s.host.CreateSession(ctx, sessions.NewRecord(c, data))
	if err != nil {
		return "", err
	}
	h := s.table.New(c.Session, rec.Life, host.ClientOf(c), c.Owner)
	h.Upstream = d.Up
	remembers := h.Remember(c.Header) // the bridge's own requests may need a token
	if d.Attach != nil {
		d.Attach(h.Scope) // it may end the session at once
	}
	err = errors.New(sessions.NoMemory)
	if remembers {
		err = h.Hold(ctx)
	}
	if err != nil {
		h.Finish(host.ErrEnded)
	}
	return rec.Life, err
}
