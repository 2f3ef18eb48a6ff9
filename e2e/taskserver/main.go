// Command taskserver is an MCP server of the Go SDK that knows nothing of tasks, and has the tools that
// the official suite's scenarios for them call. With -stateless it speaks 2026-07-28, too, else only
// revisions with sessions. It prints its URL.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// slow is how long the tool works that becomes a task because it is slow: twice --task-after of the test,
// after which the suite still waits for 5 s.
const slow = 10 * time.Second

func main() {
	stateless := flag.Bool("stateless", false, "speak 2026-07-28")
	flag.Parse()
	server := mcp.NewServer(&mcp.Implementation{Name: "tasks", Version: "1"}, nil)
	add(server, "greet", func(_ context.Context, _ *mcp.CallToolRequest, args named) (*mcp.CallToolResult, error) {
		return text("Hello, " + args.Name + "!"), nil
	})
	add(server, "slow_compute", func(ctx context.Context, _ *mcp.CallToolRequest, args computing) (*mcp.CallToolResult, error) {
		return after(ctx, time.Duration(args.Seconds)*time.Second, "computed "+args.Label)
	})
	add(server, "failing_job", func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, error) {
		result, err := after(ctx, time.Second, "it does not work")
		if result != nil {
			result.IsError = true
		}
		return result, err
	})
	add(server, "protocol_error_job", func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the tool is broken"}
	})
	asking(server, "confirm_delete", 0, "confirm")
	asking(server, "multi_input", 0, "name", "confirm")
	asking(server, "test_tool_with_task", slow, "user_name")
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test program
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("http://" + listener.Addr().String())
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: *stateless})
	log.Fatal(http.Serve(listener, handler)) //nolint:gosec // a test program
}

type (
	named struct {
		Name string `json:"name"`
	}
	computing struct {
		Seconds int    `json:"seconds"`
		Label   string `json:"label,omitempty"`
	}
	// file is for tools that take no arguments, too.
	file struct {
		Filename string `json:"filename,omitempty"`
	}
)

func add[T any](server *mcp.Server, name string, tool func(context.Context, *mcp.CallToolRequest, T) (*mcp.CallToolResult, error)) {
	mcp.AddTool(server, &mcp.Tool{Name: name}, func(ctx context.Context, req *mcp.CallToolRequest, args T) (*mcp.CallToolResult, any, error) {
		result, err := tool(ctx, req, args)
		return result, nil, err
	})
}

// asking adds a tool that asks its client questions at once, and answers with the client's answers, after
// a while. The SDK asks clients of either era.
func asking(server *mcp.Server, name string, wait time.Duration, keys ...string) {
	add(server, name, func(ctx context.Context, req *mcp.CallToolRequest, _ file) (*mcp.CallToolResult, error) {
		if len(req.Params.InputResponses) == len(keys) {
			said := name
			for _, key := range keys {
				if answer, ok := req.Params.InputResponses[key].(*mcp.ElicitResult); ok {
					said += fmt.Sprintf(" %s: %v", answer.Action, answer.Content)
				}
			}
			return after(ctx, wait, said)
		}
		requests := mcp.InputRequestMap{}
		for _, key := range keys {
			requests[key] = &mcp.ElicitParams{Message: key, RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}}
		}
		return &mcp.CallToolResult{InputRequests: requests}, nil
	})
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// after returns a text after a while.
func after(ctx context.Context, wait time.Duration, s string) (*mcp.CallToolResult, error) {
	select {
	case <-time.After(wait):
		return text(s), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
