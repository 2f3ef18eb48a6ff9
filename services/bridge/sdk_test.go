package bridge

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// opening tells when the server has begun to answer.
type opening struct {
	http.ResponseWriter
	opened func()
}

func (o *opening) WriteHeader(status int) {
	o.opened()
	o.ResponseWriter.WriteHeader(status)
}

func (o *opening) Unwrap() http.ResponseWriter { return o.ResponseWriter }

func (o *opening) Flush() { _ = http.NewResponseController(o.ResponseWriter).Flush() }

// sdkServer is a server of the official Go SDK. Its tool "work" sends progress before and
// after it was let go on. listened counts the streams that were opened with GET.
func sdkServer(t *testing.T, opts *mcp.StreamableHTTPOptions) (up *httptest.Server, server *mcp.Server, goOn chan struct{}, listened *atomic.Int64) {
	t.Helper()
	goOn, listened = make(chan struct{}), &atomic.Int64{}
	server = mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "work"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		progress := func(n int) error {
			return req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(n)})
		}
		for n := range 3 {
			if err := progress(n); err != nil {
				return nil, nil, err
			}
		}
		<-goOn
		answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "?", RequestedSchema: map[string]any{"type": "object"}})
		if err != nil {
			return nil, nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: answer.Action}}}, nil, progress(3)
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, opts)
	up = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w = &opening{w, func() { listened.Add(1) }}
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		for s := range server.Sessions() {
			_ = s.Close()
		}
		up.CloseClientConnections()
		up.Close()
	})
	return up, server, goOn, listened
}

const callWork = `{"jsonrpc":"2.0","id":"w","method":"tools/call","params":{"name":"work","arguments":{},"_meta":{"progressToken":"p"}}}`

func (s *system) openAsked(t *testing.T) string {
	t.Helper()
	a := s.do(t, rpc.Ask{Action: rpc.Open, Session: "sdk", Data: []byte(strings.Replace(initialize, `"capabilities":{}`, `"capabilities":{"elicitation":{"form":{}}}`, 1))})
	wantStatus(t, a, http.StatusOK, `"result"`)
	wantStatus(t, s.post(t, "sdk", "", `{"jsonrpc":"2.0","method":"notifications/initialized"}`), http.StatusAccepted)
	return "sdk"
}

// wantWork expects the messages of a whole call.
func wantWork(t *testing.T, all []string, text string) {
	t.Helper()
	progress := 0
	for _, data := range all {
		if strings.Contains(data, `"method":"notifications/progress"`) {
			wantHas(t, data, fmt.Sprintf(`"progress":%d`, progress))
			progress++
		}
	}
	if last := all[len(all)-1]; progress != 4 || !strings.Contains(last, `"id":"w"`) || !strings.Contains(last, text) {
		t.Errorf("the stream has %v", all)
	}
}

func TestGoSDK_Sessions(t *testing.T) {
	for name, opts := range map[string]*mcp.StreamableHTTPOptions{
		"with an event store": {EventStore: mcp.NewMemoryEventStore(nil)},
		"without":             {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t, eventlog.Settings{})
			up, server, goOn, listened := sdkServer(t, opts)
			in := s.start(t, testConfig(up.URL))
			name := s.openAsked(t)
			stream := newStream(t, `"w"`)
			wantStatus(t, s.post(t, name, stream, callWork), http.StatusAccepted)
			s.has(t, name, stream, 3)
			if opts.EventStore != nil {
				up.CloseClientConnections() // the server answers what resumes it with the next message
			}
			close(goOn)
			waittest.Until(t, "the server asks", func() bool {
				all, _ := s.read(t, name, stream)
				if len(all) == 0 {
					return false // it was not read in time
				}
				m, err := rpc.ParseMessage([]byte(all[len(all)-1]))
				if err != nil || !m.Is("elicitation/create") {
					return false
				}
				a := s.post(t, name, "", `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"action":"decline"}}`)
				return a.Status == http.StatusAccepted
			})
			wantWork(t, s.finished(t, name, stream), "decline")
			if resumed := in.metric(t, "upstream_resumes_total") > 0; resumed != (opts.EventStore != nil) {
				t.Errorf("the stream was resumed: %v", resumed)
			}

			// What the server says of itself. Without a store it says it to who listens.
			waittest.Until(t, "the bridge listens to the server", func() bool { return listened.Load() > 0 })
			server.AddTool(&mcp.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return nil, nil })
			wantParts(t, s.has(t, name, rpc.Standalone, 1), "notifications/tools/list_changed")
			s.end(t, name)
			waittest.Until(t, "the server has no session", func() bool {
				for range server.Sessions() {
					return false
				}
				return true
			})
			s.wantState(t, name, session.Closed)
		})
	}
}
