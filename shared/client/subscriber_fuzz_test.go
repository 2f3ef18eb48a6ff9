package client_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"rejoin/shared/client"
	"rejoin/shared/event"
	"rejoin/shared/must"
)

// rawEdge answers the first request with any bytes, and every other one with 204.
type rawEdge struct {
	stream string
	ids    []string // the Last-Event-ID of each request
}

func (e *rawEdge) RoundTrip(r *http.Request) (*http.Response, error) {
	e.ids = append(e.ids, r.Header.Get("Last-Event-ID"))
	resp := &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: r}
	if len(e.ids) == 1 {
		resp.StatusCode = http.StatusOK
		resp.Header.Set("Content-Type", "text/event-stream")
		resp.Body = io.NopCloser(strings.NewReader(e.stream))
	}
	return resp, nil
}

// FuzzSubscriber reads any event stream: sequences grow unless a gap is between them,
// no block is larger than allowed, and the cursor is the one that is sent next.
func FuzzSubscriber(f *testing.F) {
	f.Add("retry: 1\nevent: connect\nid: s_0000000_1\ndata: {}\n\nid: s_0000000_2\ndata: 1\n\nid: s_0000000_2\ndata: 1\n\n", false)
	f.Add("event: gap\nid: s_0000000_1\ndata: {\"reason\":\"expired\",\"stream\":null}\n\nevent: cursor\nid: x\ndata: {}\n\nid:\ndata: 2\n\n", false)
	f.Add("id: *_0000000_1\ndata: {\"id\":\"a_0000000_1\",\"stream\":\"a\",\"message\":{}}\n\nevent: close\ndata\n\n", true)
	f.Fuzz(func(t *testing.T, stream string, flow bool) {
		edge := &rawEdge{stream: stream}
		cfg := client.SubscriberConfig{
			URL: "http://edge", HTTPClient: &http.Client{Transport: edge}, Session: "demo", Stream: "s",
			Cursors: true, Retry: 1, MaxRetry: 1, MaxEventBytes: 1 << 10,
		}
		if flow {
			cfg.Stream = ""
		}
		s := must.Value(client.NewSubscriber(cfg))(t)
		var last uint64
		for e, err := range s.Events(t.Context()) {
			if err != nil {
				break
			}
			if e.Cursor != s.Cursor() || len(e.Message) > 1<<10 {
				t.Fatalf("the cursor is %q at %+v", s.Cursor(), e)
			}
			id, err := event.ParseID(e.Cursor)
			if err != nil || id.Stream != cfg.Stream {
				last = 0
				continue
			}
			if id.Sequence < last && e.Kind != client.KindGap {
				t.Fatalf("%d came after %d", id.Sequence, last)
			}
			last = id.Sequence
		}
		if len(edge.ids) == 2 && edge.ids[1] != s.Cursor() {
			t.Fatalf("it came back with %q, and its cursor is %q", edge.ids[1], s.Cursor())
		}
	})
}
