package bridge

import (
	"context"
	"net/http"
	"os"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/upstream"
)

// mcpServer is the MCP server that the bridge stands beside: an endpoint, or a command that starts a
// process for each session. It is safe for concurrent use.
type mcpServer struct {
	host     *host.Host
	endpoint *upstream.Endpoint
	command  *upstream.Command // of a server that speaks stdio; nil when it speaks HTTP
	running  host.Slots        // processes
	// endUnused ends sessions that their clients do not use, when there are too many processes.
	endUnused func()
	era       era
	spares    spares
}

// newMCPServer returns the MCP server of the flags.
func newMCPServer(h *host.Host) (*mcpServer, error) {
	static, err := h.Config.Header()
	if err != nil {
		return nil, err
	}
	command, err := h.Config.Command(os.Environ())
	if err != nil {
		return nil, err
	}
	return &mcpServer{
		host: h, endpoint: upstream.NewEndpoint(h.Config.Upstream, static, h.Config.ForwardHeader), command: command,
		running: host.NewSlots(h.Config.MaxProcesses, h.Metrics.Processes),
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
	ctx, cancel := context.WithTimeout(s.host.Life, upstream.DialTimeout)
	defer cancel()
	resp, err := s.endpoint.Do(ctx, http.MethodOptions, nil, nil) //nolint:bodyclose // Finish closes it
	if err != nil {
		s.host.Unreachable(err)
		return
	}
	upstream.Finish(resp)
	s.host.Log.Info("the MCP server can be reached", "upstream", s.host.Config.ShownUpstream(), "status", resp.StatusCode)
}
