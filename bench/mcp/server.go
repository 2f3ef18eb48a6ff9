package mcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"rejoin/bench/system"
)

// bareMCP is the argument that makes this program an MCP server of the Go SDK.
const bareMCP = "mcp"

// statelessPath is where it speaks 2026-07-28; elsewhere it speaks no later revision than 2025-11-25.
const statelessPath = "/stateless"

// mcpTools are its tools: now answers at once; count reports as many steps as it is asked for.
type mcpTools struct {
	runs atomic.Int64 // calls of count

	mu      sync.Mutex
	allowed int64         // steps that a call may take now
	changed chan struct{} // closed when allowed changes
}

// Serve serves MCP, takes the allowed steps at /allow?steps=n, and serves the number of runs at
// /runs. The first line that it prints is its address. It returns nil at once when the arguments
// ask for something else.
func Serve(args []string) error {
	if !slices.Equal(args, []string{bareMCP}) {
		return nil
	}
	tools := &mcpTools{changed: make(chan struct{})}
	server := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "now"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "count"}, tools.count)
	mux := http.NewServeMux()
	mux.Handle("/", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	mux.Handle(statelessPath, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true}))
	mux.HandleFunc("/allow", func(_ http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.FormValue("steps"), 10, 64)
		if err == nil {
			tools.allow(n)
		}
	})
	mux.HandleFunc("/runs", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, tools.runs.Load()) })
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	return http.Serve(ln, mux) //nolint:gosec // its clients are this program and the bridge
}

func (m *mcpTools) count(ctx context.Context, req *mcp.CallToolRequest, args struct {
	Steps int64 `json:"steps"`
},
) (*mcp.CallToolResult, any, error) {
	m.runs.Add(1)
	for step := int64(1); step <= args.Steps; step++ {
		if err := m.wait(ctx, step); err != nil {
			return nil, nil, err
		}
		p := &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(step)}
		if err := req.Session.NotifyProgress(ctx, p); err != nil {
			return nil, nil, err
		}
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "counted"}}}, nil, nil
}

func (m *mcpTools) allow(steps int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.allowed = steps
	close(m.changed)
	m.changed = make(chan struct{})
}

// wait waits until a step is allowed.
func (m *mcpTools) wait(ctx context.Context, step int64) error {
	for {
		m.mu.Lock()
		ok, changed := m.allowed >= step, m.changed
		m.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// mcpServer is the MCP server in a process of its own.
type mcpServer struct {
	cmd *exec.Cmd
	url string
}

func startMCPServer(ctx context.Context) (*mcpServer, error) {
	cmd, addr, err := system.StartSelf(ctx, bareMCP)
	if err != nil {
		return nil, errors.Join(errors.New("the MCP server did not start"), err)
	}
	return &mcpServer{cmd, "http://" + addr}, nil
}

// allow lets all calls of count take so many steps.
func (m *mcpServer) allow(ctx context.Context, steps int) error {
	_, err := system.Get(ctx, m.url+"/allow?steps="+strconv.Itoa(steps))
	return err
}

// runs returns how many calls of count there were.
func (m *mcpServer) runs(ctx context.Context) (float64, error) {
	text, err := system.Get(ctx, m.url+"/runs")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(text), 64)
}

func (m *mcpServer) close() { system.End(m.cmd) }
