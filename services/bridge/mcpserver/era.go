package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// eraFor is how long a bridge relies on the known revisions of its MCP server: by then it notices
// an upgrade.
const eraFor = 5 * time.Minute

// IsStateless reports whether the MCP server speaks the revision without sessions. It asks the server, unless
// that is known. When the server cannot be asked, the answer is for the client.
func (s *Server) IsStateless(ctx context.Context, client http.Header) (bool, *rpc.Answer) {
	if ctx.Err() != nil {
		return false, new(upstream.Unreachable(context.Cause(ctx)))
	}
	if stateless, known := s.knownEra(); known {
		return stateless, nil
	}
	// Of clients with the same credentials one asks for all. Clients with other credentials do not wait for it:
	// the server may refuse it, and answer slowly.
	v, _, _ := s.era.asked.Do(s.credentialsKey(client), func() (any, error) { return s.askEra(client), nil })
	if refused, _ := v.(*rpc.Answer); refused != nil {
		return false, refused
	}
	stateless, _ := s.knownEra()
	return stateless, nil
}

// knownEra returns the era if it is known, without asking the server.
func (s *Server) knownEra() (stateless, known bool) {
	s.era.mu.Lock()
	defer s.era.mu.Unlock()
	return s.era.stateless, time.Now().Before(s.era.until)
}

// askEra asks the server for its era. When it cannot be asked, the answer is for the client.
func (s *Server) askEra(client http.Header) *rpc.Answer {
	stateless, tasks, refused := s.probe(client)
	if refused != nil {
		return refused
	}
	s.era.mu.Lock()
	defer s.era.mu.Unlock()
	if stateless != s.era.stateless || s.era.until.IsZero() {
		s.host.Logger.Info("the revision of the MCP server is known", "revision "+mcp.Stateless, stateless)
	}
	s.era.stateless, s.era.tasks, s.era.until = stateless, tasks, time.Now().Add(eraFor)
	return nil
}

// credentials are the fields of a client's header by which the server may recognize the client: all forwarded
// fields but those that a client usually sends with every request, or that differ in each.
func (s *Server) credentials(client http.Header) http.Header {
	h := s.endpoint.Chosen(upstream.WithoutRepeated(client))
	for _, name := range []string{"Accept-Language", "Traceparent", "Tracestate", "Baggage"} {
		h.Del(name)
	}
	return h
}

// credentialsKey returns a text that is the same for clients with the same credentials.
func (s *Server) credentialsKey(client http.Header) string {
	var fields strings.Builder
	_ = s.credentials(client).Write(&fields) // a Builder takes all
	return fields.String()
}

// HasOwnTasks reports whether the MCP server has tasks of its own: then it decides which calls become tasks.
func (s *Server) HasOwnTasks() bool {
	s.era.mu.Lock()
	defer s.era.mu.Unlock()
	return s.era.tasks
}

// forgetEra makes the bridge ask the MCP server again if it was taken to speak earlier revisions: it has
// refused initialize.
func (s *Server) forgetEra() {
	s.era.mu.Lock()
	defer s.era.mu.Unlock()
	if now := time.Now(); !s.era.stateless && now.Before(s.era.until) {
		s.era.until = now // not zero: then the log would have the same line for each refusal
	}
}

// probe asks the MCP server for its revisions, with a client's credentials alone: it asks for all clients with
// these, and another field of one of them could make the server refuse them all.
func (s *Server) probe(client http.Header) (stateless, tasks bool, refused *rpc.Answer) {
	ctx, cancel := context.WithTimeout(s.host.Life, s.host.Config.OpenTimeout)
	defer cancel()
	if s.command != nil {
		return false, false, nil
	}
	discover := rpc.Message{ID: json.RawMessage(`"rejoin"`), Method: new(mcp.MethodDiscover)}
	u := s.newEmulatedSession(records.OwnSession{Client: translate.Client{Info: json.RawMessage(`{"name":"rejoin","version":"1"}`), Capabilities: json.RawMessage("{}")}})
	resp, refused := u.post(ctx, u.repeat(s.credentials(client), discover), u.client.Later(discover, "", nil)) //nolint:bodyclose // Finish closes it
	if refused != nil && upstream.SaysNothing(refused.Status) {
		return false, false, refused
	}
	if refused != nil {
		return false, false, nil
	}
	m, _, err := u.response(resp, discover.ID, nil)
	upstream.Finish(resp)
	if err != nil && !errors.Is(err, upstream.ErrUnanswered) { // the response broke off
		s.host.Unreachable(err)
		return false, false, new(upstream.Unreachable(err))
	}
	if err != nil || m.Error != nil {
		return false, false, nil
	}
	var result translate.Discovered
	err = rpc.Unmarshal(m.Result, &result)
	stateless = err == nil && slices.Contains(result.Versions, mcp.Stateless)
	return stateless, stateless && mcp.HasTasks(event.MustJSON(result.Capabilities)), nil
}

// Direct returns the server's side of a request of the revision without sessions.
func (s *Server) Direct() call.Upstream {
	return &remote{host: s.host, endpoint: s.endpoint, stateless: true}
}

// DirectHeader returns the header that such a request has at the server.
func (s *Server) DirectHeader(client http.Header) http.Header {
	return (&remote{endpoint: s.endpoint, stateless: true}).header(client)
}

// SetEra sets, for a time, whether the server speaks the revision without sessions, or earlier ones.
func (s *Server) SetEra(stateless bool, ttl time.Duration) {
	s.era.mu.Lock()
	defer s.era.mu.Unlock()
	s.era.stateless, s.era.until = stateless, time.Now().Add(ttl)
}
