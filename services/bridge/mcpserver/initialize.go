package mcpserver

import (
	"context"
	"encoding/json"
	"log/slog"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// Initialize forwards a client's initialize request. A server that speaks other revisions is asked
// in its own way.
func (s *Server) Initialize(ctx context.Context, c rpc.Ask, m rpc.Message) (Connected, *rpc.Answer) {
	d, refused := s.dial(ctx, c, m.ID)
	response := d.Response
	if refused != nil {
		response = refused.Data
	}
	supported, others := speaksOthers(response)
	switch {
	case s.wantsStateless(ctx, c, m, d, refused, others):
		return s.dialStateless(ctx, c, m)
	case others:
		s.host.Trouble("revisions", "the MCP server speaks only revisions of MCP that Rejoin does not", slog.Any("supported", supported))
		refused = &errRevisions
	}
	return d, refused
}

// wantsStateless reports whether a client of earlier revisions is served by requests of the new one,
// after the server's response to initialize: where the server speaks no other, or has no session in which
// it could ask a client that can be asked.
func (s *Server) wantsStateless(ctx context.Context, c rpc.Ask, m rpc.Message, d Connected, refused *rpc.Answer, others bool) bool {
	if s.command != nil {
		return false
	}
	switch {
	case refused != nil:
		if upstream.SaysNothing(refused.Status) {
			return false
		}
		s.forgetEra()
	case d.Up == nil:
		if !others {
			return false
		}
		s.forgetEra()
	case d.ID != "" || !translate.ParseClient(m).Askable():
		return false
	}
	stateless, _ := s.IsStateless(ctx, c.Header)
	return stateless
}

// speaksOthers reports whether an answer to initialize is the error of an MCP server that does not
// speak the revision, and returns the revisions that it speaks.
func speaksOthers(answer []byte) (supported []string, others bool) {
	m, err := rpc.ParseMessage(answer)
	if err != nil || m.Error == nil {
		return nil, false
	}
	var e struct {
		Code int `json:"code"`
		Data struct {
			Supported []string `json:"supported"`
		} `json:"data"`
	}
	if rpc.Unmarshal(m.Error, &e) != nil || e.Code != mcp.CodeUnsupportedVersion {
		return nil, false
	}
	return e.Data.Supported, true
}

// responseTo reads the response to the one open request, which has an ID; see [translate.OwnError].
func responseTo(id json.RawMessage, data []byte) (m rpc.Message, response []byte, ok bool) {
	m, err := rpc.ParseMessage(data)
	if err != nil || !m.IsResponse() {
		return m, nil, false
	}
	m, data = translate.OwnError(m, data, id)
	return m, data, rpc.IDKey(m.ID) == rpc.IDKey(id)
}

// Restore returns the server's side of a session of another bridge. A process has ended with that bridge.
func (s *Server) Restore(meta records.Metadata) call.Upstream {
	if meta.MCP.Own != nil {
		u := s.newEmulatedSession(*meta.MCP.Own)
		u.missed = true
		return u
	}
	if s.command != nil {
		return &stdio{host: s.host}
	}
	return &remote{host: s.host, endpoint: s.endpoint, id: meta.MCP.Upstream, version: meta.MCP.ProtocolVersion}
}
