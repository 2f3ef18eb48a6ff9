package bridge

import (
	"context"
	"log/slog"
	"net/http"

	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// initialize hands over a client's initialize request. A server that speaks other revisions is asked
// in its own way.
func (s *mcpServer) initialize(ctx context.Context, c rpc.Call, m rpc.Message) (connected, *rpc.Answer) {
	d, refused := s.dial(ctx, c, m.ID)
	response := d.response
	if refused != nil {
		response = refused.Data
	}
	supported, others := speaksOthers(response)
	switch {
	case s.wantsModern(ctx, c, m, d, refused, others):
		return s.dialModern(ctx, c, m)
	case others:
		s.host.Trouble("revisions", "the MCP server speaks only revisions of MCP that Rejoin does not", slog.Any("supported", supported))
		refused = &errOtherRevisions
	}
	return d, refused
}

// wantsModern reports whether a client of earlier revisions is served by requests of the new one,
// after the server's response to initialize: where it speaks no other, or where it has no session in
// which it could ask the client what the client can be asked.
func (s *mcpServer) wantsModern(ctx context.Context, c rpc.Call, m rpc.Message, d connected, refused *rpc.Answer, others bool) bool {
	if s.command != nil {
		return false
	}
	switch {
	case refused != nil:
		if upstream.SaysNothing(refused.Status) {
			return false
		}
		s.forgetEra()
	case d.up == nil:
		if !others {
			return false
		}
		s.forgetEra()
	case d.id != "" || !translate.ParseClient(m).Askable():
		return false
	}
	modern, _ := s.isModern(ctx, c.Header)
	return modern
}

// errOtherRevisions is answered for an MCP server that has no initialize any more. Its own answer
// names revisions that no edge speaks: a client would ask for one of them, in vain.
var errOtherRevisions = upstream.Failure(http.StatusBadGateway, rpc.CodeInternal, "the MCP server speaks only revisions of MCP that Rejoin does not")

// speaksOthers reports whether an answer to initialize is the error of an MCP server that does not
// speak the revision, and which it speaks.
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
