package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// takeOver continues the open sessions of this bridge's name, and with their calls.
// Records of sessions that are over are left to the recorder to remove.
func (s *Service) takeOver(ctx context.Context) error {
	all, err := s.records.load(ctx)
	if err != nil {
		return err
	}
	// The copy of this process may lack what the bridge before did last.
	registry, err := session.OpenRegistry(ctx, s.host.backend.Log, s.host.log)
	if err != nil {
		return err
	}
	defer registry.Close()
	calls := map[string]map[string]record{} // by session and stream
	for key, rec := range all {
		name, stream, ok := names(key)
		if known, found := registry.Session(name); !ok || !found || known.State != session.Open {
			s.records.adopt(key, rec) // no bridge works on it: it will be removed
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
			s.records.adopt(recordKey(name, stream), call)
		}
		meta, ok := s.own(confirmed[i])
		if !ok {
			continue
		}
		s.host.metrics.takeovers.Inc()
		if err := s.takeOverSession(confirmed[i], meta, calls[name]); err != nil {
			return err
		}
	}
	if n := len(s.table.all()); n > 0 {
		s.host.log.Info("sessions are taken over", "sessions", n)
	}
	return nil
}

// own reports whether a record is of an open session of this bridge's name.
func (s *Service) own(rec session.Record) (meta metadata, own bool) {
	own = rec.State == session.Open && json.Unmarshal(rec.Metadata, &meta) == nil && meta.MCP.Bridge == s.host.name
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
				confirmed[i], err = s.host.backend.Sessions.Get(ctx, name)
				if errors.Is(err, session.ErrNotFound) {
					return nil
				}
				if err != nil {
					s.host.log.Info("a session cannot be taken over yet", "session", name, "error", err)
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
	up := s.server.restore(meta)
	from := map[string]cursor{}
	for stream, call := range calls {
		from[stream] = cursor{ID: call.ID, Sequence: call.Sequence}
	}
	var h *clientSession
	if meta.MCP.Call != nil {
		var err error
		if h, err = s.stateless.takeOver(rec, meta, up, from); err != nil {
			return err
		}
	} else {
		h = s.table.newSession(rec.Session, rec.Life, rec.Owner, rec.Owner)
		h.up = up
		h.resumeAll(from)
		h.listen(from[rpc.Standalone])
	}
	err := s.table.hold(h)
	if s.server.hasProcesses() {
		h.finish(upstream.ErrExited)
	} else if h.onDemand && !h.busy() {
		h.finish(errEnded) // the bridge before has not come to that
	}
	return err
}
