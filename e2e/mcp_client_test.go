package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	mcprev "rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// told is a client's report about a call, with one of the fields.
type told struct {
	Progress float64 `json:"progress"`
	Result   string  `json:"result"`
	Error    string  `json:"error"`   // the call's end, instead of a result
	Trouble  string  `json:"trouble"` // with a connection, which the client may get over
}

// mcpCall is a call in progress.
type mcpCall struct {
	t testing.TB
	// silent means that the client reports no progress.
	silent bool
	end    func()
	ended  chan struct{}

	mu   sync.Mutex
	told []told
}

func (c *mcpCall) tell(line told) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, line)
}

func (c *mcpCall) lines() []told {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]told(nil), c.told...)
}

// waitFor waits until the client has reported a step.
func (c *mcpCall) waitFor(step int) {
	c.t.Helper()
	if c.silent {
		return
	}
	c.wait(fmt.Sprintf("the client has step %d", step), func(l told) bool { return l.Progress == float64(step) })
}

func (c *mcpCall) wait(what string, is func(told) bool) {
	c.t.Helper()
	waittest.Value(c.t, what, c.lines, func(lines []told) bool {
		for _, l := range lines {
			if is(l) {
				return true
			}
			if l.Error != "" {
				c.t.Fatalf("waited until %s, and it was told %+v", what, lines)
			}
		}
		return false
	})
}

// finish waits for the result, ends the client and expects each step and the result once.
func (c *mcpCall) finish(name string, steps int) {
	c.t.Helper()
	c.waitFor(steps)
	c.wait("there is a result", func(l told) bool { return l.Result != "" })
	c.end()
	var progress []float64
	var results []string
	for _, l := range c.lines() {
		switch {
		case l.Progress != 0:
			progress = append(progress, l.Progress)
		case l.Result != "":
			results = append(results, l.Result)
		}
	}
	if len(results) != 1 || results[0] != fmt.Sprintf("%s has counted to %d", name, steps) {
		c.t.Errorf("the results are %q", results)
	}
	if c.silent {
		return
	}
	ok := len(progress) == steps
	for i, p := range progress {
		ok = ok && p == float64(i+1)
	}
	if !ok {
		c.t.Errorf("the steps that arrived are %v, want 1 to %d, each once", progress, steps)
	}
}

// troubles returns the client's reports about its connections.
func (c *mcpCall) troubles() (all []string) {
	for _, l := range c.lines() {
		if l.Trouble != "" {
			all = append(all, l.Trouble)
		}
	}
	return all
}

// revisionSessions is the newest revision with sessions.
var revisionSessions = mcprev.WithSessions[0]

// mcpClients are clients that others wrote: each calls count at a URL.
var mcpClients = map[string]func(t testing.TB, url string, args counting) *mcpCall{
	"TypeScript v1": func(t testing.TB, url string, args counting) *mcpCall {
		return typeScript(t, "@modelcontextprotocol/sdk", url, "count", args)
	},
	"TypeScript v2": func(t testing.TB, url string, args counting) *mcpCall {
		return typeScript(t, "@modelcontextprotocol/client", url, "count", args)
	},
	"Go": func(t testing.TB, url string, args counting) *mcpCall {
		return callWithGo(t, url, revisionSessions, args)
	},
	"Inspector": inspector,
	"TypeScript v2, 2026-07-28": func(t testing.TB, url string, args counting) *mcpCall {
		return typeScript(t, "@modelcontextprotocol/client", url, "count", args, mcprev.Stateless)
	},
	"Go, 2026-07-28": func(t testing.TB, url string, args counting) *mcpCall {
		return callWithGo(t, url, mcprev.Stateless, args)
	},
}

// typeScript calls a tool with a TypeScript SDK, in a Node of its own.
func typeScript(t testing.TB, sdk, url, tool string, args any, revision ...string) *mcpCall {
	t.Helper()
	packages := npm(t)
	text := must.Value(json.Marshal(args))(t)
	c := &mcpCall{t: t}
	c.run(packages.node(), append([]string{filepath.Join("testdata", "mcp", "client.mjs"), packages.path(sdk), url, tool, string(text)}, revision...)...)
	return c
}

// inspector calls count with the Inspector's command line, which reports only the result.
func inspector(t testing.TB, url string, args counting) *mcpCall {
	t.Helper()
	packages := npm(t)
	c := &mcpCall{t: t, silent: true}
	c.run(packages.node(), packages.path("@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js"),
		"--cli", "--transport", "http", "--server-url", url, "--method", "tools/call", "--tool-name", "count",
		"--tool-arg", "call="+args.Call, fmt.Sprintf("steps=%d", args.Steps), "--tool-metadata", "progressToken=1", "--format", "json", "--quiet")
	return c
}

// run starts a program that prints the messages that it receives, and ends when its input does.
func (c *mcpCall) run(program string, args ...string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "HOME="+c.t.TempDir(), "MCP_INSPECTOR_SECRET_STORE=memory")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in := must.Value(cmd.StdinPipe())(c.t)
	out := must.Value(cmd.StdoutPipe())(c.t)
	must.NoError(c.t, cmd.Start())
	c.ended = make(chan struct{})
	go func() {
		defer close(c.ended)
		c.read(out)
		if err := cmd.Wait(); err != nil {
			c.tell(told{Error: fmt.Sprintf("the client ended: %v\n%s", err, &stderr)})
		}
	}()
	c.end = func() {
		_ = in.Close()
		waittest.Receive(c.t, "the client ends", c.ended)
	}
	c.t.Cleanup(func() {
		cancel()
		<-c.ended
	})
}

// read reads reports, one a line, or a tool's result in any lines.
func (c *mcpCall) read(out interface{ Read([]byte) (int, error) }) {
	in := json.NewDecoder(bufio.NewReader(out))
	for {
		var line struct {
			told
			Result json.RawMessage `json:"result"`
		}
		if in.Decode(&line) != nil {
			return
		}
		var result struct {
			Content []struct{ Text string }
		}
		if json.Unmarshal(line.Result, &line.told.Result) != nil && json.Unmarshal(line.Result, &result) == nil && len(result.Content) > 0 {
			line.told.Result = result.Content[0].Text
		}
		c.tell(line.told)
	}
}

// callWithGo calls count with the Go SDK.
func callWithGo(t testing.TB, url, revision string, args counting) *mcpCall {
	t.Helper()
	c := &mcpCall{t: t, ended: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), 2*waittest.Timeout)
	session := connectGo(ctx, t, "rejoin-e2e", url, revision, "", &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			c.tell(told{Progress: r.Params.Progress})
		},
	})
	params := &mcp.CallToolParams{Name: "count", Arguments: args}
	params.SetProgressToken("1")
	go func() {
		defer close(c.ended)
		result, err := session.CallTool(ctx, params)
		if err != nil {
			c.tell(told{Error: err.Error()})
			return
		}
		c.tell(told{Result: textOf(result)})
	}()
	c.end = func() {
		<-c.ended
		if err := session.Close(); err != nil {
			t.Errorf("the session's end: %v", err)
		}
	}
	t.Cleanup(func() {
		cancel()
		<-c.ended
		_ = session.Close() // it was, unless the test has failed
	})
	return c
}

// connectGo opens a session of a revision with the Go SDK, on connections of its own that end with the test. Its
// requests have a token, unless that is empty.
func connectGo(ctx context.Context, t testing.TB, name, url, revision, token string, options *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	own := ownClient(t)
	if token != "" {
		own.Transport = withToken{token, own.Transport}
	}
	c := mcp.NewClient(&mcp.Implementation{Name: name, Version: "1"}, options)
	return must.Value(c.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: own}, &mcp.ClientSessionOptions{ProtocolVersion: revision}))(t)
}

// ownClient returns a client whose connections end with the test.
func ownClient(t testing.TB) *http.Client {
	t.Helper()
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:errcheck // it is one
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// textOf is the text of a tool's result.
func textOf(result *mcp.CallToolResult) string {
	if len(result.Content) == 0 {
		return ""
	}
	text, _ := result.Content[0].(*mcp.TextContent)
	if text == nil {
		return ""
	}
	return text.Text
}
