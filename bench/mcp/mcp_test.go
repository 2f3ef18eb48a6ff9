package mcp

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"rejoin/shared/leaktest"
	"rejoin/shared/must"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// The benchmark's counts of lost and repeated messages are as good as its client.
func TestMCPClient_Resumes(t *testing.T) {
	const progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":%d}}`
	asked := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case strings.Contains(string(body), `"initialize"`):
			w.Header().Set("Mcp-Session-Id", "a")
		case r.Header.Get("Mcp-Session-Id") != "a":
			w.WriteHeader(http.StatusNotFound)
		case strings.Contains(string(body), `"tools/call"`):
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "id: 0\ndata:\n\nid: 1\ndata: "+progress+"\n\nid: 2\ndata: half", 1)
		case r.Method == http.MethodGet:
			asked <- r.Header.Get("Last-Event-ID")
			if len(asked) == 1 {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "id: 2\ndata: "+progress+"\n\nid: 3\ndata: "+`{"jsonrpc":"2.0","id":1,"result":{}}`+"\n\n", 2)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	defer s.Close()
	h := mcpHTTP()
	defer h.CloseIdleConnections()
	gone := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer gone.Close() // until then no other program gets its port
	c := must.Value(openMCP(t.Context(), h, s.URL))(t)
	c.urls = append(c.urls, gone.URL) // another edge, which is ending
	var steps []int
	must.NoError(t, c.call(t.Context(), "count", "{}", func(n int) { steps = append(steps, n) }))
	if !slices.Equal(steps, []int{1, 2}) {
		t.Errorf("the steps are %v", steps)
	}
	for range 2 {
		if id := <-asked; id != "1" {
			t.Errorf("it comes back behind %q", id)
		}
	}
}

func TestMCPClient_CountsLossAndDuplicates(t *testing.T) {
	all := make([]int, mcpSteps)
	for i := range all {
		all[i] = i + 1
	}
	s := &mcpCallSet{
		steps: [][]int{slices.Clone(all), append(slices.Clone(all), 7, 7), slices.Clone(all[1:]), slices.Clone(all)},
		errs:  []error{nil, nil, nil, io.EOF},
	}
	if lost, twice := s.check(); lost != 2 || twice != 2 {
		t.Errorf("%d lost, %d twice; want 2 and 2", lost, twice)
	}
}
