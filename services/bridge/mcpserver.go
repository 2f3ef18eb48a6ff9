package bridge

import (
	"context"
	"net/http"
	"os"

	"rejoin/services/bridge/upstream"
)

// mcpServer is the MCP server that the bridge stands beside: an endpoint, or a command that starts a
// process for each session. It is safe for concurrent use.
type mcpServer struct {
	host     *host
	endpoint *upstream.Endpoint
	command  *upstream.Command // of a server that speaks stdio; nil when it speaks HTTP
	running  slots             // processes
	// endUnused ends sessions that their clients do not use, when there are too many processes.
	endUnused func()
	era       era
	spares    spares
}

// newMCPServer returns the MCP server of the flags.
func newMCPServer(h *host) (*mcpServer, error) {
	static, err := h.cfg.Header()
	if err != nil {
		return nil, err
	}
	command, err := h.cfg.Command(os.Environ())
	if err != nil {
		return nil, err
	}
	return &mcpServer{
		host: h, endpoint: upstream.NewEndpoint(h.cfg.Upstream, static, h.cfg.ForwardHeader), command: command,
		running: newSlots(h.cfg.MaxProcesses, h.metrics.processes),
	}, nil
}

// disconnect ends the connections to the server that are idle.
func (s *mcpServer) disconnect() { s.endpoint.Close() }

// hasProcesses reports whether each session has a process of the server, which ends with the bridge.
func (s *mcpServer) hasProcesses() bool { return s.command != nil }

// check says in the log whether the MCP server can be reached. A request of the method
// OPTIONS begins nothing there, and any answer will do.
func (s *mcpServer) check() {
	if s.command != nil {
		return // each session starts a process
	}
	ctx, cancel := context.WithTimeout(s.host.life, upstream.DialTimeout)
	defer cancel()
	resp, err := s.endpoint.Do(ctx, http.MethodOptions, nil, nil) //nolint:bodyclose // Finish closes it
	if err != nil {
		s.host.unreachable(err)
		return
	}
	upstream.Finish(resp)
	s.host.log.Info("the MCP server can be reached", "upstream", s.host.cfg.ShownUpstream(), "status", resp.StatusCode)
}
