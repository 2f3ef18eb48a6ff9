package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpServer is an MCP server of the Go SDK, which knows nothing of Rejoin. Its one tool, count,
// reports its steps as the test allows them.
type mcpServer struct {
	url string // of its Streamable HTTP endpoint

	mu      sync.Mutex
	allowed map[string]int    // steps, by call; one more than there are for the result
	changed chan struct{}     // closed when allowed changes
	ran     map[string]int    // how often each call was begun
	sent    map[string]int    // steps, by call
	bridges map[string]string // of each call, from --upstream-header
	closed  bool
}

// headerBridge has the name of the bridge.
const headerBridge = "X-Bridge"

// counting are count's arguments.
type counting struct {
	Call  string `json:"call" jsonschema:"what the test calls it"`
	Gate  string `json:"gate,omitempty" jsonschema:"whose steps it may take; its own without"`
	Steps int    `json:"steps" jsonschema:"how many it takes"`
	Pause int    `json:"pause,omitempty" jsonschema:"milliseconds before each step"`
}

// newMCPServer starts the server. It ends with the test. With an event store it gives event IDs.
func newMCPServer(t testing.TB, store mcp.EventStore) *mcpServer {
	t.Helper()
	m := &mcpServer{allowed: map[string]int{}, changed: make(chan struct{}), ran: map[string]int{}, sent: map[string]int{}, bridges: map[string]string{}}
	server := mcp.NewServer(&mcp.Implementation{Name: "count", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "count", Description: "Counts, and reports it."}, m.count)
	m.url = serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{EventStore: store}).ServeHTTP).URL
	t.Cleanup(func() {
		m.mu.Lock()
		m.closed = true
		close(m.changed)
		m.mu.Unlock()
		for session := range server.Sessions() {
			_ = session.Close() // its client has disconnected
		}
	})
	return m
}

func (m *mcpServer) count(ctx context.Context, req *mcp.CallToolRequest, args counting) (*mcp.CallToolResult, any, error) {
	m.begin(args.Call, req.Extra.Header.Get(headerBridge))
	if args.Gate == "" {
		args.Gate = args.Call
	}
	for step := 1; step <= args.Steps; step++ {
		if err := m.wait(ctx, args.Gate, step); err != nil {
			return nil, nil, err
		}
		select {
		case <-time.After(time.Duration(args.Pause) * time.Millisecond):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		if token := req.Params.GetProgressToken(); token != nil {
			p := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(step), Total: float64(args.Steps)}
			if err := req.Session.NotifyProgress(ctx, p); err != nil {
				return nil, nil, err
			}
		}
		m.step(args.Call)
	}
	if err := m.wait(ctx, args.Gate, args.Steps+1); err != nil {
		return nil, nil, err
	}
	text := fmt.Sprintf("%s has counted to %d", args.Call, args.Steps)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
}

// begin notes that a call has reached the tool.
func (m *mcpServer) begin(call, bridge string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ran[call]++
	m.bridges[call] = bridge
}

// step notes that a call has sent a step.
func (m *mcpServer) step(call string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent[call]++
}

// wait waits until a step is allowed.
func (m *mcpServer) wait(ctx context.Context, gate string, step int) error {
	for {
		m.mu.Lock()
		allowed, changed, closed := m.allowed[gate], m.changed, m.closed
		m.mu.Unlock()
		switch {
		case closed:
			return errors.New("the test is over")
		case allowed >= step:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// allow lets a call, or all calls of a gate, take so many steps.
func (m *mcpServer) allow(gate string, steps int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.allowed[gate] = steps
	close(m.changed)
	m.changed = make(chan struct{})
}

// runs returns how often a call was begun.
func (m *mcpServer) runs(call string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ran[call]
}

// ranOnce makes sure that a call was begun once.
func (m *mcpServer) ranOnce(t testing.TB, call string) {
	t.Helper()
	if n := m.runs(call); n != 1 {
		t.Errorf("%s: the tool ran %d times", call, n)
	}
}

// steps returns how many steps a call has sent.
func (m *mcpServer) steps(call string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent[call]
}
