// Package mcpserver speaks with the MCP server: over HTTP with sessions, over HTTP without them (revision
// 2026-07-28), or with a process for each session.
package mcpserver

import (
	"context"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/upstream"
)

// Server is the MCP server that the bridge stands beside: an endpoint, or a command that starts a
// process for each session. It is safe for concurrent use.
type Server struct {
	host     *host.Host
	endpoint *upstream.Endpoint
	command  *upstream.Command // of a server that speaks stdio; nil when it speaks HTTP
	// EndUnused ends sessions that their clients do not use, when there are too many processes.
	EndUnused func()
	era       era
	spares    spares
}

// era is whether the MCP server speaks the revision without sessions. It is a property of the
// server, not of a request (MCP 2026-07-28, Versioning). It is safe for concurrent use.
type era struct {
	asked     singleflight.Group // by the credentials of clients
	mu        sync.Mutex
	stateless bool
	tasks     bool // it has tasks of its own
	until     time.Time
}

// New returns the MCP server of the flags.
func New(h *host.Host) (*Server, error) {
	static, err := h.Config.Header()
	if err != nil {
		return nil, err
	}
	command, err := h.Config.Command(os.Environ())
	if err != nil {
		return nil, err
	}
	return &Server{
		host: h, endpoint: upstream.NewEndpoint(h.Config.Upstream, static, h.Config.ForwardHeader, h.Files), command: command,
	}, nil
}

// Disconnect ends the connections to the server that are idle.
func (s *Server) Disconnect() { s.endpoint.Close() }

// HasProcesses reports whether each session has a process of the server, which ends with the bridge.
func (s *Server) HasProcesses() bool { return s.command != nil }

// Check logs whether the MCP server can be reached, or that its program is missing. A
// request of the method OPTIONS begins nothing there, and any answer will do.
func (s *Server) Check() {
	if s.command != nil { // each session starts a process
		if err := s.command.Look(); err != nil {
			s.host.Unreachable(err)
		}
		return
	}
	ctx, cancel := context.WithTimeout(s.host.Life, upstream.DialTimeout)
	defer cancel()
	resp, err := s.endpoint.Do(ctx, http.MethodOptions, nil, nil) //nolint:bodyclose // Finish closes it
	if err != nil {
		s.host.Unreachable(err)
		return
	}
	upstream.Finish(resp)
	s.host.Logger.Info("the MCP server can be reached", "upstream", s.host.Config.ShownUpstream(), "status", resp.StatusCode)
}
