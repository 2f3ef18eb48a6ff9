package stateless

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/mcpserver"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/translate"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// env has the parts that all calls without sessions share.
type env struct {
	host    *host.Host
	server  *mcpserver.Server
	table   *sessions.Table
	Records *records.Bucket // set before the first call
	tools   map[string]config.TaskPolicy
	support taskSupport
}

// discovery returns the result of server/discover that clients receive; nil if the server's is no object.
func (s *env) discovery(result json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if result == nil || rpc.Unmarshal(result, &members) != nil || members == nil {
		return nil
	}
	members["supportedVersions"] = event.MustJSON(mcp.Revisions)
	members["capabilities"] = translate.WithTasks(members["capabilities"], s.host.Config.TaskAfter >= 0)
	return event.MustJSON(members)
}

// taskSubject returns the subject of the states of a session's task in the log.
func (s *env) taskSubject(name, life string) event.Subject {
	return event.Subject{Partition: s.host.Backend.Log.Partition(name), Session: name, Life: life, Stream: mcp.TaskStream, Kind: event.Message}
}

// taskState returns the newest state of a task, and its sequence in the log. The error wraps
// [eventlog.ErrNotFound] when there is none.
func (s *env) taskState(ctx context.Context, at event.Subject) (is mcp.StoredTask, sequence uint64, err error) {
	e, err := s.host.Backend.Log.Newest(ctx, at)
	if err == nil {
		is, err = mcp.ParseTask(e.Data)
	}
	return is, e.Sequence, err
}

// supportFor is how long a bridge relies on the tools of a [taskSupport]: it notices by then that the server was
// upgraded.
const supportFor = 5 * time.Minute

// taskSupport has the tools of an MCP server of 2025-11-25 that run only as tasks. It is safe for concurrent
// use.
type taskSupport struct {
	mu       sync.Mutex
	required map[string]bool
	until    time.Time
}

func (s *taskSupport) of(tool string) (required, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().After(s.until) {
		return false, false
	}
	required, ok = s.required[tool]
	return required, ok
}

func (s *taskSupport) learn(tools map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.required, s.until = tools, time.Now().Add(supportFor)
}
