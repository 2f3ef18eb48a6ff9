package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// Connected is a session at the upstream, or the response that refuses one.
type Connected struct {
	Up        call.Upstream     // nil when the response is an error
	Attach    func(*call.Scope) // to be called with the session; nil for nothing
	ID        string            // the upstream's name of the session
	Version   string
	Response  []byte
	stateless *records.OwnSession // of a session that the upstream does not know
}

// readVersion reads the version from an initialize response; it clears Up if the response is an error.
func (d *Connected) readVersion(m rpc.Message) error {
	if m.Error != nil {
		d.Up = nil
		return nil
	}
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	err := rpc.Unmarshal(m.Result, &result)
	d.Version = result.ProtocolVersion
	return err
}

// dial begins a session with an initialize request. An answer that is no success is for the client.
func (s *Server) dial(ctx context.Context, c rpc.Ask, id json.RawMessage) (Connected, *rpc.Answer) {
	if s.command != nil {
		return s.dialStdio(ctx, c, id)
	}
	return s.dialHTTP(ctx, c, id)
}

// dialHTTP posts an initialize request. An answer that is no success is for the client.
func (s *Server) dialHTTP(ctx context.Context, c rpc.Ask, id json.RawMessage) (Connected, *rpc.Answer) {
	r := &remote{host: s.host, endpoint: s.endpoint}
	resp, refused := r.post(ctx, c.Header, c.Data)
	if refused != nil {
		return Connected{}, refused
	}
	r.id = resp.Header.Get(upstream.HeaderSession)
	m, data, err := r.response(resp, id, nil)
	if !s.host.Go(func() { upstream.Finish(resp) }) { // a server may leave the stream open
		_ = resp.Body.Close()
	}
	d := Connected{Up: r, ID: r.id, Response: data}
	if err == nil {
		err = d.readVersion(m)
	}
	if len(r.id) > call.MaxIDBytes || !upstream.IsFieldValue(r.id) {
		err = upstream.ErrSession // the registry could not keep it as it is
	}
	r.version = d.Version
	if err != nil || d.Up == nil {
		s.host.Go(func() { r.Close(s.host.Life, c.Header) })
	}
	return d, s.host.ConnectError(err)
}

// dialStdio starts a process and sends it the initialize request.
func (s *Server) dialStdio(ctx context.Context, c rpc.Ask, id json.RawMessage) (Connected, *rpc.Answer) {
	u, err := s.startStdio(c.Session, host.ClientOf(c))
	if errors.Is(err, errBusy) {
		s.host.Trouble(errBusy.Error(), "a session is refused: there are too many processes, or too many of one client's (--max-processes, or the limit of open files)",
			slog.Int("processes", s.host.Config.MaxProcesses), slog.String("client", host.ClientOf(c)))
		return Connected{}, new(upstream.Busy(errBusy.Error()))
	}
	if err != nil {
		return Connected{}, s.host.ConnectError(err)
	}
	d := Connected{Up: u, Attach: u.attach}
	var m rpc.Message
	if d.Response, err = u.initialize(ctx, id, c.Data); err == nil {
		if m, err = rpc.ParseMessage(d.Response); err == nil {
			err = d.readVersion(m)
		}
	}
	if err != nil || d.Up == nil {
		u.Close(ctx, nil)
	}
	return d, s.host.ConnectError(err)
}

// Metadata returns the metadata of a session for the registry.
func (s *Server) Metadata(d Connected) (meta records.Metadata) {
	meta.MCP.Bridge, meta.MCP.Upstream, meta.MCP.ProtocolVersion, meta.MCP.Own = s.host.Name, d.ID, d.Version, d.stateless
	if s.command != nil && s.host.Config.ProcessIdleAfter > 0 {
		meta.Retention = &records.Retention{IdleAfter: int64(time.Duration(s.host.Config.ProcessIdleAfter) / time.Second)}
	}
	return meta
}
