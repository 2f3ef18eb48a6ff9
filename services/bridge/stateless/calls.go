// Package stateless serves the calls of clients without sessions (revision 2026-07-28): passed on to a
// server of that revision, translated for another one, and as tasks.
package stateless

import (
	"encoding/json"
	"errors"
	"net/http"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/mcpserver"
	"rejoin/services/bridge/resultcache"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// Calls serves the calls of clients without sessions. It is safe for concurrent use.
type Calls struct{ env }

// New returns the calls whose sessions are in a table. tools are the rules of tools whose calls become
// tasks.
func New(h *host.Host, server *mcpserver.Server, t *sessions.Table, tools map[string]config.TaskPolicy) *Calls {
	return &Calls{env{host: h, server: server, table: t, tools: tools}}
}

// Request serves a request that has no session.
func (s *Calls) Request(c rpc.Ask) rpc.Answer {
	r, err := mcp.Parse(c.Data)
	if err != nil || c.Stream == "" || c.Stream == rpc.Standalone || c.Life == "" {
		return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "the request is not whole")
	}
	rule, err := s.ruleOf(r)
	if e, ok := errors.AsType[*mcp.Error](err); ok {
		return rpc.Answer{Status: e.Status, Data: rpc.ErrorMessage(r.ID, e.Code, e.Message, e.Data)}
	}
	result, kept := s.cachedResult(r, c.Header)
	if result != nil {
		return rpc.Answer{Status: http.StatusOK, Data: translate.Message(map[string]any{"id": r.ID, "result": result})}
	}
	d := sessions.NewOnDemand(s.host.Name, c, r, rule.may)
	s.table.MadeAgain(d)
	h := s.table.NewForCall(c.Session, c.Life, host.ClientOf(c), c.Owner, d)
	h.Upstream = &side{env: &s.env, session: h, request: r, rule: rule, kept: kept}
	h.Remember(c.Header)
	a := h.Request(c, []json.RawMessage{r.ID})
	if !h.Busy() {
		h.Finish(host.ErrEnded) // also when the call was not begun
	}
	return a
}

// cachedResult returns the result of a request that another client has got. Where there is none,
// kept is not nil if its result may be kept.
func (s *Calls) cachedResult(r mcp.Request, client http.Header) (result json.RawMessage, kept *resultcache.Request) {
	if s.host.Cache == nil {
		return nil, nil
	}
	result, kept = s.host.Cache.Get(r, s.server.DirectHeader(client))
	if result != nil {
		s.host.Metrics.Cached.WithLabelValues(host.CacheHit).Inc()
		if r.Method == mcp.MethodDiscover {
			result = s.discovery(result)
		}
	}
	return result, kept
}

// Again continues a call that waits for its client, by the client's repeated request.
func (s *Calls) Again(h *sessions.Session, c rpc.Ask) rpc.Answer {
	u, ok := h.Upstream.(*side)
	r, err := mcp.Parse(c.Data)
	if !ok || err != nil || c.Stream == "" || c.Stream == rpc.Standalone {
		return host.Ended()
	}
	if mcp.IsTaskMethod(r.Method) {
		return upstream.About(u.changeTask(c, r), []json.RawMessage{r.ID})
	}
	if u.translation() == nil || !h.Demand.IsRepeatedBy(c, r) {
		return upstream.About(unknownState(), []json.RawMessage{r.ID})
	}
	h.WasAsked(c.Since)
	return h.Request(c, []json.RawMessage{r.ID})
}
