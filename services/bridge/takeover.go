package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/retry"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// takeOver continues the open sessions of this bridge's name, and their calls. Records of sessions that are over
// are left to [records.Bucket.Run] to remove.
func (s *Service) takeOver(ctx context.Context) error {
	all, err := s.records.Load(ctx)
	if err != nil {
		return err
	}
	// The copy of this process may lack the last changes of the previous bridge.
	registry, err := session.OpenRegistry(ctx, s.host.Backend.Log, s.host.Logger)
	if err != nil {
		return err
	}
	defer registry.Close()
	names := map[string]bool{} // of sessions that are to be confirmed
	for _, rec := range registry.Sessions() {
		if _, ok := s.own(rec); ok {
			names[rec.Session] = true
		}
	}
	calls := map[string]map[string]records.Record{} // by session and stream
	for key, rec := range all {
		name, stream, _ := records.ParseKey(key) // Load has read it
		known, found := registry.Session(name)
		if found && known.State != session.Open {
			s.records.Adopt(key, rec) // no bridge works on it: it will be removed
			continue
		}
		if !found { // the bridge may have been killed before it wrote the index
			names[name] = true
		}
		if calls[name] == nil {
			calls[name] = map[string]records.Record{}
		}
		calls[name][stream] = rec
	}
	asked := slices.Collect(maps.Keys(names))
	confirmed, err := s.confirm(ctx, asked)
	if err != nil {
		return err
	}
	for i, name := range asked {
		meta, own := s.own(confirmed[i])
		if own || confirmed[i].State != session.Open {
			for stream, at := range calls[name] {
				s.records.Adopt(records.Key(name, stream), at)
			}
		}
		if !own {
			continue
		}
		s.host.Metrics.Takeovers.Inc()
		if err := s.takeOverSession(ctx, confirmed[i], meta, calls[name]); err != nil {
			return err
		}
	}
	if n := len(s.table.All()); n > 0 {
		s.host.Logger.Info("sessions are taken over", "sessions", n)
	}
	return nil
}

// own reports whether a record is of an open session of this bridge's name.
func (s *Service) own(rec session.Record) (meta records.Metadata, own bool) {
	own = rec.State == session.Open && json.Unmarshal(rec.Metadata, &meta) == nil && meta.MCP.Bridge == s.host.Name
	return meta, own
}

// confirmsAtOnce is how many sessions the log is asked for at a time.
const confirmsAtOnce = 64

// confirm reads the records of sessions from the log, in the order of the names. The record of a name
// that no session has any more is empty. It tries until ctx ends.
func (s *Service) confirm(ctx context.Context, names []string) ([]session.Record, error) {
	confirmed := make([]session.Record, len(names))
	var asking errgroup.Group
	asking.SetLimit(confirmsAtOnce)
	for i, name := range names {
		asking.Go(func() error {
			return retry.Do(ctx, func() (err error) {
				confirmed[i], err = s.host.Backend.Sessions.Get(ctx, name)
				if errors.Is(err, session.ErrNotFound) {
					return nil
				}
				if err != nil {
					s.host.Logger.Info("a session cannot be taken over yet", "session", name, "error", err)
				}
				return err
			})
		})
	}
	_ = asking.Wait() // fails with ctx alone
	return confirmed, ctx.Err()
}

func (s *Service) takeOverSession(ctx context.Context, rec session.Record, meta records.Metadata, calls map[string]records.Record) error {
	for _, at := range calls {
		if at.At != nil && meta.MCP.Call != nil {
			meta.MCP.Upstream, meta.MCP.ProtocolVersion, meta.MCP.Call = at.At.Upstream, at.At.ProtocolVersion, &at.At.Call
		}
	}
	up := s.server.Restore(meta)
	from := map[string]call.Cursor{}
	for stream, at := range calls {
		from[stream] = call.Cursor{ID: at.ID, Sequence: at.Sequence}
	}
	var h *sessions.Session
	if meta.MCP.Call != nil {
		var err error
		if h, err = s.stateless.TakeOver(ctx, rec, meta, up, from); err != nil {
			return err
		}
	} else {
		h = s.table.New(rec.Session, rec.Life, rec.Owner, rec.Owner)
		h.Upstream = up
		h.ResumeAll(from)
		h.Listen(new(from[rpc.Standalone]))
	}
	err := s.table.Hold(h)
	if s.server.HasProcesses() {
		h.Finish(upstream.ErrExited)
	} else if h.OneCall && !h.Busy() {
		h.Finish(host.ErrEnded) // the previous bridge had not done that yet
	}
	return err
}
