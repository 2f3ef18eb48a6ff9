package bridge

import (
	"context"
	"encoding/json"
	"net/http"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
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
	if !s.host.memory.Take(client, n) {
		return upstream.About(upstream.Busy(noMemory), []json.RawMessage{id})
	}
	defer s.host.memory.Give(client, n)
	leave, err := s.host.limits.Enter(newRecord(c, nil))
	if err != nil {
		a := upstream.Busy(err.Error())
		a.Status = http.StatusTooManyRequests
		return upstream.About(a, []json.RawMessage{id})
	}
	defer leave()
	ctx, cancel := context.WithTimeout(s.host.life, s.host.cfg.OpenTimeout)
	defer cancel()
	d, refused := s.server.initialize(ctx, c, m)
	if refused != nil {
		return upstream.About(*refused, []json.RawMessage{id})
	}
	if d.up == nil { // an error: there is no session
		return rpc.Answer{Status: http.StatusOK, Data: d.response}
	}
	life, err := s.register(ctx, c, d)
	if err != nil {
		s.host.log.Warn("a session is not made", "session", c.Session, "error", err)
		d.up.close(s.host.life, c.Header)
		return upstream.About(upstream.Busy("the session cannot be registered now"), []json.RawMessage{id})
	}
	if c.Stream != "" {
		w := newWriter(s.host, c.Session, life, c.Stream)
		w.trace = c.Trace
		if _, err := w.put(ctx, item{data: d.response, final: true}); err != nil {
			s.host.log.Warn("the response to initialize is not stored", "session", c.Session, "error", err)
			if h := s.table.session(c.Session); h != nil {
				h.finish(errEnded)
			}
			return upstream.About(upstream.Busy("the response cannot be stored now"), []json.RawMessage{id})
		}
	}
	return rpc.Answer{Status: http.StatusOK, Data: d.response}
}

// register opens the session in the log, begins to answer for it and returns its life.
func (s *Service) register(ctx context.Context, c rpc.Call, d connected) (life string, err error) {
	data, err := json.Marshal(s.server.newMetadata(d))
	if err != nil {
		return "", err
	}
	rec, err := s.host.backend.Sessions.Create(ctx, newRecord(c, data))
	if err != nil {
		return "", err
	}
	h := s.table.newSession(c.Session, rec.Life, clientOf(c), c.Owner)
	h.up = d.up
	h.remember(c.Header)
	if d.attach != nil {
		d.attach(h.callSession)
	}
	err = h.hold(ctx)
	if err != nil {
		h.finish(errEnded)
	}
	return rec.Life, err
}
