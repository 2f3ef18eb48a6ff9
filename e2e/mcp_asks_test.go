package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	mcprev "rejoin/shared/mcp"
	"rejoin/shared/natsconn"
	"rejoin/shared/waittest"
)

// asking are the arguments of the tool ask.
type asking struct {
	Token string `json:"token"`
}

// newAskServer starts an MCP server with sessions. Its tool asks the client about a token, and
// returns the token with the answer. calls counts how often it was called.
func newAskServer(t testing.TB) (url string, calls *atomic.Int64) {
	t.Helper()
	calls = &atomic.Int64{}
	over, end := context.WithCancel(context.Background())
	server := mcp.NewServer(&mcp.Implementation{Name: "ask", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "ask"}, func(ctx context.Context, req *mcp.CallToolRequest, args asking) (*mcp.CallToolResult, any, error) {
		calls.Add(1)
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(over, stop)()
		answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: args.Token, RequestedSchema: map[string]any{
			"type": "object", "properties": map[string]any{"answer": map[string]any{"type": "string"}},
		}})
		if err != nil {
			return nil, nil, err
		}
		text := fmt.Sprintf("%s: %v", args.Token, answer.Content["answer"])
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	})
	s := serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil).ServeHTTP)
	t.Cleanup(func() {
		end() // or a session waits for calls whose client has disconnected
		for session := range server.Sessions() {
			_ = session.Close() // its client has disconnected
		}
	})
	return s.URL, calls
}

// withToken adds a bearer token to each request, and repeats those that the program cannot serve yet: such a
// request was not carried out.
type withToken struct {
	token string
	next  http.RoundTripper
}

func (w withToken) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		again := req.Clone(req.Context())
		again.Header.Set("Authorization", "Bearer "+w.token)
		if req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			again.Body = body
		}
		resp, err := w.next.RoundTrip(again)
		if err != nil || resp.StatusCode != http.StatusServiceUnavailable || req.GetBody == nil {
			return resp, err
		}
		_ = resp.Body.Close()
		if !natsconn.Pause(req.Context(), 100*time.Millisecond) {
			return nil, req.Context().Err()
		}
	}
}

// Two users, each with two clients of each era, call a tool that asks its client. Each question and
// each answer reaches its own call.
func TestMCP_UsersAreAskedAtOnce(t *testing.T) {
	t.Parallel()
	const calls, atOnce = 240, 16
	upstream, called := newAskServer(t)
	p := startGuarded(t, "--upstream="+upstream)
	ctx, cancel := context.WithTimeout(t.Context(), 4*waittest.Timeout)
	defer cancel()

	type client struct {
		name    string
		session *mcp.ClientSession
	}
	var clients []client
	for _, user := range []string{"anna", "berta"} {
		token := authtest.Of(t, user, auth.Pattern("*"))
		for i := range 4 {
			revision := []string{mcprev.Stateless, revisionSessions}[i%2]
			name := fmt.Sprintf("%s's client %d of %s", user, i/2, revision)
			session := connectGo(ctx, t, name, p.api()+"/mcp", revision, token, &mcp.ClientOptions{
				ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": name + " about " + r.Params.Message}}, nil
				},
			})
			clients = append(clients, client{name, session})
		}
	}
	defer func() {
		for _, c := range clients {
			if err := c.session.Close(); err != nil && !errors.Is(err, context.DeadlineExceeded) { // the SDK's own
				t.Errorf("the end of %s: %v", c.name, err)
			}
		}
	}()

	var all sync.WaitGroup
	numbers := make(chan int)
	for range atOnce {
		all.Go(func() {
			for n := range numbers {
				c := clients[rand.IntN(len(clients))] //nolint:gosec // no secret
				token := fmt.Sprintf("call %d", n)
				result, err := c.session.CallTool(ctx, &mcp.CallToolParams{Name: "ask", Arguments: asking{token}})
				if err != nil {
					t.Errorf("%s of %s: %v", token, c.name, err)
					continue
				}
				if want := fmt.Sprintf("%s: %s about %s", token, c.name, token); textOf(result) != want {
					t.Errorf("the result is %q, want %q", textOf(result), want)
				}
			}
		})
	}
	for n := range calls {
		numbers <- n
	}
	close(numbers)
	all.Wait()
	if n := called.Load(); n != calls {
		t.Errorf("the tool was called %d times", n)
	}
}
