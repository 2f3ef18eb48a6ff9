package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// A server of others that speaks on its standard input and output, behind the bridge.
func TestMCP_StdioServer(t *testing.T) {
	t.Parallel()
	packages := npm(t)
	p := startProc(t, "--upstream-command="+packages.node()+" "+packages.path("@modelcontextprotocol", "server-everything", "dist", "index.js")+" stdio")
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Timeout)
	defer cancel()
	steps := make(chan float64, 100)
	session := connectGo(ctx, t, p.api()+"/mcp", &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Rejoin's own"}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { steps <- r.Params.Progress },
	})
	defer func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}()

	list := must.Value(session.ListTools(ctx, nil))(t)
	if !slices.ContainsFunc(list.Tools, func(tool *mcp.Tool) bool { return tool.Name == "echo" }) {
		t.Errorf("the tools are %v", list.Tools)
	}
	call := func(tool string, args map[string]any) string {
		t.Helper()
		params := &mcp.CallToolParams{Name: tool, Arguments: args}
		params.SetProgressToken("steps")
		result := must.Value(session.CallTool(ctx, params))(t)
		return textOf(result)
	}
	if text := call("trigger-long-running-operation", map[string]any{"duration": 0.5, "steps": 5}); !strings.Contains(text, "completed") {
		t.Errorf("the result is %q", text)
	}
	for want := 1.0; want <= 5; want++ {
		select {
		case got := <-steps:
			if got != want {
				t.Errorf("step %v, want %v", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("step %v did not come", want)
		}
	}
	if text := call("trigger-elicitation-request", map[string]any{}); !strings.Contains(text, "provided") {
		t.Errorf("elicitation: %q", text)
	}
}
