package bridge

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// eraFor is how long a bridge believes what revisions its MCP server speaks: one that is upgraded
// is found out by then.
const eraFor = 5 * time.Minute

// refusedFor is how long a server that could not be asked is not asked again: those who waited for
// the answer have it.
const refusedFor = time.Second

// era is whether the MCP server speaks the revision without sessions. It is a property of the
// server, not of a request (MCP 2026-07-28, Versioning). It is safe for concurrent use.
type era struct {
	mu     sync.Mutex // held while the server is asked: others wait for the answer
	modern bool
	until  time.Time
	// refused is the answer while the server could not be asked, until then.
	refused      *rpc.Answer
	refusedUntil time.Time
}

// isModern reports whether the MCP server speaks the revision without sessions. It asks, unless that
// is known. The answer is the client's when the server cannot be asked.
func (s *Service) isModern(ctx context.Context, client http.Header) (bool, *rpc.Answer) {
	s.era.mu.Lock()
	defer s.era.mu.Unlock()
	switch now := time.Now(); {
	case ctx.Err() != nil:
		a := upstream.Unreachable(context.Cause(ctx))
		return false, &a
	case now.Before(s.era.until):
		return s.era.modern, nil
	case now.Before(s.era.refusedUntil):
		return false, s.era.refused
	}
	modern, refused := s.probe(client)
	if refused != nil {
		s.era.refused, s.era.refusedUntil = refused, time.Now().Add(refusedFor)
		return false, refused
	}
	if modern != s.era.modern || s.era.until.IsZero() {
		s.log.Info("what the MCP server speaks is known", "revision "+mcp.Modern, modern)
	}
	s.era.modern, s.era.until = modern, time.Now().Add(eraFor)
	return modern, nil
}

// forgetEra has the MCP server asked again: it did not speak as it should.
func (s *Service) forgetEra() {
	s.era.mu.Lock()
	defer s.era.mu.Unlock()
	s.era.until = time.Time{}
}

// discoverRequest asks what a server speaks.
func discoverRequest() []byte {
	return mustMarshal(map[string]any{
		"jsonrpc": "2.0", "id": "rejoin", "method": mcp.MethodDiscover,
		"params": map[string]any{"_meta": map[string]any{
			mcp.MetaVersion: mcp.Modern, mcp.MetaCapabilities: struct{}{}, mcp.MetaClientInfo: map[string]string{"name": "rejoin", "version": "1"},
		}},
	})
}

// probe asks the MCP server for what it speaks, for all who want to know.
func (s *Service) probe(client http.Header) (bool, *rpc.Answer) {
	ctx, cancel := context.WithTimeout(s.life, s.cfg.OpenTimeout)
	defer cancel()
	if s.command != nil {
		return false, nil
	}
	r := &remote{service: s, endpoint: s.endpoint, modern: true}
	client = upstream.WithoutRepeated(client)
	client.Set(mcp.HeaderVersion, mcp.Modern)
	client.Set(mcp.HeaderMethod, mcp.MethodDiscover)
	resp, refused := r.post(ctx, client, discoverRequest()) //nolint:bodyclose // Finish closes it
	if refused != nil {
		switch {
		case refused.Status >= http.StatusInternalServerError, refused.Status == http.StatusUnauthorized, refused.Status == http.StatusForbidden, refused.Status == http.StatusTooManyRequests:
			return false, refused // no evidence
		default:
			return false, nil
		}
	}
	m, _, err := s.response(resp, json.RawMessage(`"rejoin"`))
	upstream.Finish(resp)
	if err != nil || m.Error != nil {
		return false, nil
	}
	var result struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	err = rpc.Unmarshal(m.Result, &result)
	return err == nil && slices.Contains(result.SupportedVersions, mcp.Modern), nil
}

func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // what is made of texts and of JSON that was read can be written
	}
	return b
}
