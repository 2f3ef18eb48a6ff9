package mcpstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"rejoin/shared/must"
	"rejoin/shared/sse"
	"rejoin/shared/waittest"
)

const steps = 8

// worker is a server with a tool that reports its progress, step by step as the test
// lets it.
type worker struct {
	*mcp.Server
	runs atomic.Int32
	next chan struct{} // one for each step; closed: all of them
	done chan struct{} // closed when the tool has returned
}

func newWorker() *worker {
	w := &worker{
		Server: mcp.NewServer(&mcp.Implementation{Name: "worker", Version: "1"}, nil),
		next:   make(chan struct{}), done: make(chan struct{}),
	}
	mcp.AddTool(w.Server, &mcp.Tool{Name: "work"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		defer close(w.done)
		w.runs.Add(1)
		for n := range steps {
			<-w.next
			if err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(n)}); err != nil {
				return nil, nil, err
			}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, nil
	})
	return w
}

// serve serves a handler until the test ends.
func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv
}

// The SDK's own client and server: the connection is cut in the middle of a call, and
// NATS is restarted, and the client misses nothing and gets nothing twice.
func TestSDK_CutsAndARestart(t *testing.T) {
	w := newWorld(t)
	tool := newWorker()
	store := w.store(Config{})
	srv := serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tool.Server }, &mcp.StreamableHTTPOptions{EventStore: store}))

	var mu sync.Mutex
	var got []float64
	seen := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(got)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, req.Params.Progress)
		},
	})
	session := must.Value(client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: srv.URL}, nil))(t)
	defer func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}()
	result := make(chan error, 1)
	go func() {
		params := &mcp.CallToolParams{Name: "work"}
		params.SetProgressToken("p")
		res, err := session.CallTool(t.Context(), params)
		if err == nil && (res.IsError || len(res.Content) != 1) {
			err = fmt.Errorf("the result is %+v", res)
		}
		result <- err
	}()
	for n := range 3 {
		tool.next <- struct{}{}
		waittest.Until(t, "a step has arrived", func() bool { return seen() == n+1 })
	}
	srv.CloseClientConnections()
	tool.next <- struct{}{}
	tool.next <- struct{}{}
	waittest.Until(t, "what was missed has arrived", func() bool { return seen() == 5 })
	w.restart()
	srv.CloseClientConnections()
	close(tool.next)
	must.NoError(t, <-result)
	waittest.Until(t, "all steps have arrived", func() bool { return seen() >= steps })
	if !slices.Equal(got, []float64{0, 1, 2, 3, 4, 5, 6, 7}) || tool.runs.Load() != 1 {
		t.Errorf("progress %v of %d runs", got, tool.runs.Load())
	}
}

// reply is the response to a request.
type reply struct {
	status int
	header http.Header
	body   io.ReadCloser // closed with the test
}

// raw speaks Streamable HTTP without a client's own ideas of resuming.
type raw struct {
	t       *testing.T
	url     string
	session string
}

func (r *raw) do(method, body, lastID string) reply {
	r.t.Helper()
	req := must.Value(http.NewRequestWithContext(r.t.Context(), method, r.url, strings.NewReader(body)))(r.t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	if r.session != "" {
		req.Header.Set("Mcp-Session-Id", r.session)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-Id", lastID)
	}
	res, err := http.DefaultClient.Do(req)
	must.NoError(r.t, err)
	r.t.Cleanup(func() { _ = res.Body.Close() })
	return reply{res.StatusCode, res.Header, res.Body}
}

func (r *raw) initialize() {
	r.t.Helper()
	res := r.do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`, "")
	if _, err := io.Copy(io.Discard, res.body); err != nil || res.status != http.StatusOK {
		r.t.Fatal(res.status, err)
	}
	r.session = res.header.Get("Mcp-Session-Id")
	if res := r.do(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""); res.status != http.StatusAccepted {
		r.t.Fatal(res.status)
	}
}

// read reads events until there are n, or the stream ends.
func read(t *testing.T, body io.Reader, n int) (ids, data []string) {
	t.Helper()
	d := sse.NewDecoder(body, 1<<20)
	for len(ids) < n {
		e, err := d.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.NoError(t, err)
		ids, data = append(ids, d.LastID()), append(data, string(e.Data))
	}
	return ids, data
}

// A call is answered at one replica and resumed at another, which holds the session with
// a transport of its own.
func TestSDK_ResumeAtAnotherReplica(t *testing.T) {
	w := newWorld(t)
	tool := newWorker()
	first := w.store(Config{})
	r := &raw{t: t, url: serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tool.Server }, &mcp.StreamableHTTPOptions{EventStore: first})).URL}
	r.initialize()
	defer func(url string) {
		r.url = url
		r.do(http.MethodDelete, "", "")
	}(r.url)
	res := r.do(http.MethodPost, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"work","arguments":{},"_meta":{"progressToken":"p"}}}`, "")
	tool.next <- struct{}{}
	ids, data := read(t, res.body, 2)
	_ = res.body.Close()
	if len(ids) != 2 || data[0] != "" || !strings.Contains(data[1], `"progressToken":"p"`) {
		t.Fatalf("the priming event and a step are %q %q", ids, data)
	}
	close(tool.next)
	<-tool.done
	stream, _, _ := strings.Cut(ids[0], "_")
	waittest.Until(t, "the response is stored", func() bool {
		all, err := after(t, first, r.session, stream, -1)
		return err == nil && len(all) == steps+2
	})
	second := w.store(Config{})
	transport := &mcp.StreamableServerTransport{SessionID: r.session, EventStore: second}
	other := newWorker()
	session := must.Value(other.Connect(t.Context(), transport, nil))(t)
	r.url = serve(t, transport).URL
	again := r.do(http.MethodGet, "", stream+"_1")
	ids, data = read(t, again.body, 100)
	var want []string
	for n := range steps {
		want = append(want, fmt.Sprintf("%s_%d", stream, n+2))
	}
	if !slices.Equal(ids, want) || !strings.Contains(data[0], `"progress":1`) || !strings.Contains(data[len(data)-1], "done") {
		t.Errorf("resumed with %q %q", ids, data)
	}
	if tool.runs.Load() != 1 || other.runs.Load() != 0 {
		t.Errorf("the tool ran %d and %d times", tool.runs.Load(), other.runs.Load())
	}
	w.trim(r.session, stream, 3) // the priming event, and two steps
	if res := r.do(http.MethodGet, "", stream+"_1"); res.status != http.StatusBadRequest {
		t.Errorf("a resume of what is gone: %d", res.status)
	}
	if ids, _ := read(t, r.do(http.MethodGet, "", stream+"_2").body, 100); !slices.Equal(ids, want[1:]) {
		t.Errorf("a resume of what is left: %q", ids)
	}
	must.NoError(t, session.Close()) // which closes it for all
	if _, err := after(t, w.store(Config{}), r.session, stream, 2); err == nil {
		t.Error("the session is closed, and still tells")
	}
}
