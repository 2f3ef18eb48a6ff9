// Command stdiocount is an MCP server on its standard input and output with the tool count of the
// end-to-end tests. It asks the test over HTTP for each step.
//
//	stdiocount URL BRIDGE
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// counting are the arguments of count.
type counting struct {
	Call  string `json:"call"`
	Gate  string `json:"gate"`
	Steps int    `json:"steps"`
	Pause int    `json:"pause,omitempty"`
}

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "count", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "count"}, count)
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

func count(ctx context.Context, req *mcp.CallToolRequest, args counting) (*mcp.CallToolResult, any, error) {
	if err := ask("begin", args, 0); err != nil {
		return nil, nil, err
	}
	for step := 1; step <= args.Steps; step++ {
		if err := ask("wait", args, step); err != nil {
			return nil, nil, err
		}
		time.Sleep(time.Duration(args.Pause) * time.Millisecond)
		if token := req.Params.GetProgressToken(); token != nil {
			p := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(step), Total: float64(args.Steps)}
			if err := req.Session.NotifyProgress(ctx, p); err != nil {
				return nil, nil, err
			}
		}
		if err := ask("step", args, step); err != nil {
			return nil, nil, err
		}
	}
	if err := ask("wait", args, args.Steps+1); err != nil {
		return nil, nil, err
	}
	text := fmt.Sprintf("%s has counted to %d", args.Call, args.Steps)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
}

// ask reports to the test, and returns once that lets it continue.
func ask(what string, args counting, step int) error {
	resp, err := http.PostForm(os.Args[1]+"/"+what, url.Values{
		"call": {args.Call}, "gate": {args.Gate}, "step": {fmt.Sprint(step)}, "bridge": {os.Args[2]},
	})
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the test answered %s", resp.Status)
	}
	return nil
}
