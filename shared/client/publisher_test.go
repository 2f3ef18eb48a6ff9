package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/client"
	"rejoin/shared/event"
	"rejoin/shared/must"
)

// publisherTo returns a publisher to a server over a network with faults. It is
// closed with the test.
func publisherTo(t *testing.T, ingest *fakeIngest, cfg client.PublisherConfig, faults ...connFault) (*client.Publisher, *network) {
	t.Helper()
	n, c := serve(t, ingest, faults...)
	cfg.URL, cfg.HTTPClient = "http://ingest", c
	p := must.Value(client.NewPublisher(cfg))(t)
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p, n
}

func count(n int) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"count","params":{"n":%d}}`, n)
}

func message(stream string, n int) client.Message {
	return client.Message{Session: "demo", Stream: stream, Data: count(n)}
}

func publish(t *testing.T, p *client.Publisher, m client.Message) *client.Result {
	t.Helper()
	return must.Value(p.Publish(t.Context(), m))(t)
}

func flush(t *testing.T, p *client.Publisher) {
	t.Helper()
	must.NoError(t, p.Flush(t.Context()))
}

func outcome(r *client.Result) (client.Stored, error) {
	select {
	case <-r.Done():
		return r.Wait(context.Background())
	default:
		return client.Stored{}, errors.New("there is no outcome")
	}
}

const mainPath = "/v1/sessions/demo/streams/main/events"

func TestPublish_StoresTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{
			Token: func(context.Context) (string, error) { return "secret", nil },
		})
		got, err := p.PublishAndWait(t.Context(), client.Message{
			Session: "a/b?", Stream: "*", Type: "progress \"1\"", Key: `k <"\> 1`,
			Data: []byte("{\"jsonrpc\":\"2.0\",\r\n\"method\":\"a\\nb\"\n}"),
		})
		must.NoError(t, err)
		if want := (client.Stored{ID: "s_0000000_1"}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		want := []logged{{
			path: "/v1/sessions/a%2Fb%3F/streams/%2A/events", id: "s_0000000_1", typ: "progress \"1\"", key: `k <"\> 1`,
			message: "{\"jsonrpc\":\"2.0\",  \"method\":\"a\\nb\" }",
		}}
		if diff := cmp.Diff(want, ingest.log(), cmp.AllowUnexported(logged{})); diff != "" {
			t.Error(diff)
		}
		if auth := ingest.seen()[0].auth; auth != "Bearer secret" {
			t.Errorf("the token is %q", auth)
		}
	})
}

func TestPublish_InvalidMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{MaxBufferedBytes: 200})
		good := message("main", 1)
		with := func(change func(*client.Message)) client.Message {
			m := good
			change(&m)
			return m
		}
		for name, tt := range map[string]struct {
			m    client.Message
			want error
		}{
			"session":        {with(func(m *client.Message) { m.Session = "*" }), event.ErrInvalidName},
			"no stream":      {with(func(m *client.Message) { m.Stream = "" }), event.ErrInvalidName},
			"reserved type":  {with(func(m *client.Message) { m.Type = "gap" }), event.ErrReservedType},
			"type":           {with(func(m *client.Message) { m.Type = "a\nb" }), event.ErrInvalidType},
			"key with a tab": {with(func(m *client.Message) { m.Key = "a\tb" }), client.ErrInvalidKey},
			"long key":       {with(func(m *client.Message) { m.Key = strings.Repeat("k", 257) }), client.ErrInvalidKey},
			"no JSON":        {with(func(m *client.Message) { m.Data = []byte("{}\n{}") }), event.ErrInvalidJSON},
			"too large": {with(func(m *client.Message) {
				m.Data = fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q}`, strings.Repeat("x", 200))
			}), client.ErrTooLarge},
		} {
			if _, err := p.Publish(t.Context(), tt.m); !errors.Is(err, tt.want) {
				t.Errorf("%s: error is %v, want %v", name, err, tt.want)
			}
		}
		if seen := ingest.seen(); len(seen) != 0 {
			t.Errorf("something was sent: %v", seen)
		}
	})
}

func TestPublisher_BatchesDuringARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{faults: []ingestFault{{Delay: time.Second}}}
		p, n := publisherTo(t, ingest, client.PublisherConfig{MaxBatchMessages: 10})
		publish(t, p, message("main", 0))
		synctest.Wait()
		for i := range 25 {
			publish(t, p, message("main", i+1))
		}
		flush(t, p)
		if diff := cmp.Diff([]int{1, 10, 10, 5}, ingest.sizes()); diff != "" {
			t.Error(diff)
		}
		if n.dials != 1 {
			t.Errorf("%d connections were made, want 1", n.dials)
		}
	})
}

func TestPublisher_BatchIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{faults: []ingestFault{{Delay: time.Second}}}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{MaxBatchBytes: 250})
		for i := range 4 {
			publish(t, p, message("main", i)) // about 110 bytes each
			synctest.Wait()
		}
		flush(t, p)
		if diff := cmp.Diff([]int{1, 2, 1}, ingest.sizes()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestPublisher_ConcurrentStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{}
		for range 20 {
			ingest.faults = append(ingest.faults, ingestFault{Delay: time.Second})
		}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{MaxRequests: 3})
		for i := range 20 {
			publish(t, p, message(fmt.Sprintf("stream%d", i), i))
		}
		flush(t, p)
		if got := len(ingest.log()); got != 20 {
			t.Errorf("%d messages are stored, want 20", got)
		}
		if ingest.crowd != 3 {
			t.Errorf("at most %d requests were under way at a time, want 3", ingest.crowd)
		}
	})
}

func TestPublish_BufferIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{faults: []ingestFault{{Delay: time.Minute}}}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{MaxBufferedMessages: 2, AnswerTimeout: time.Hour})
		publish(t, p, message("main", 0))
		publish(t, p, message("main", 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Publish(ctx, message("main", 2)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v, want that of the context", err)
		}
		start := time.Now()
		publish(t, p, message("main", 3))
		if waited := time.Since(start); waited == 0 {
			t.Error("the publisher did not wait")
		}
		flush(t, p)
		if got := len(ingest.log()); got != 3 {
			t.Errorf("%d messages are stored, want 3", got)
		}
	})
}

func TestClose_WaitsForPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{faults: []ingestFault{{Status: 502}, {Delay: time.Second}}}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{})
		r := publish(t, p, message("main", 1))
		must.NoError(t, p.Close(t.Context()))
		must.Value(outcome(r))(t)
		if _, err := p.Publish(t.Context(), message("main", 2)); !errors.Is(err, client.ErrClosed) {
			t.Errorf("error is %v, want ErrClosed", err)
		}
	})
}

func TestClose_ContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{faults: []ingestFault{{Delay: 20 * time.Second}}}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{MaxBatchMessages: 1, MaxBufferedMessages: 2})
		sent := publish(t, p, message("main", 1))
		queued := publish(t, p, message("main", 2))
		waiting := make(chan error)
		go func() {
			_, err := p.Publish(context.Background(), message("main", 3))
			waiting <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		closing := make(chan error)
		go func() { closing <- p.Close(ctx) }()
		if err := <-waiting; !errors.Is(err, client.ErrClosed) || ctx.Err() != nil {
			t.Errorf("a publisher that waited got %v, want ErrClosed at once", err)
		}
		if err := <-closing; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close returned %v, want the end of its context", err)
		}
		if _, err := outcome(sent); !errors.Is(err, client.ErrUnknown) || !errors.Is(err, client.ErrClosed) {
			t.Errorf("the outcome of what was sent is %v", err)
		}
		if _, err := outcome(queued); errors.Is(err, client.ErrUnknown) || !errors.Is(err, client.ErrClosed) {
			t.Errorf("the outcome of what was not sent is %v", err)
		}
	})
}

func TestWaitAndFlush_ContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{faults: []ingestFault{{Delay: 10 * time.Second}}}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := publish(t, p, message("main", 1))
		if _, err := r.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait returned %v", err)
		}
		if err := p.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Flush returned %v", err)
		}
		if stored, err := r.Wait(t.Context()); err != nil || stored.ID == "" {
			t.Errorf("got %+v, %v", stored, err)
		}
	})
}

func TestNewPublisher_InvalidConfig(t *testing.T) {
	for name, cfg := range map[string]client.PublisherConfig{
		"no URL":       {},
		"no host":      {URL: "http://"},
		"other scheme": {URL: "nats://127.0.0.1"},
		"query":        {URL: "http://127.0.0.1?a=b"},
		"empty query":  {URL: "http://127.0.0.1/rejoin?"},
		"control":      {URL: "http://127.0.0.1\n"},
		"negative":     {URL: "http://127.0.0.1", Retry: -1},
	} {
		if _, err := client.NewPublisher(cfg); !errors.Is(err, client.ErrInvalidConfig) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}
