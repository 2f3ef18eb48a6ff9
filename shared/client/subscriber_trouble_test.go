package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/client"
	"rejoin/shared/must"
)

// TestSubscriber_Retries has one kind of fault; every event still arrives once.
func TestSubscriber_Retries(t *testing.T) {
	for name, tt := range map[string]struct {
		edge       []edgeFault
		connection []connFault
	}{
		"refused connections":  {connection: []connFault{{Refused: true}, {Refused: true}}},
		"cut in the head":      {connection: []connFault{{CutWrite: 20}}},
		"cut in an event":      {connection: []connFault{{CutWrite: 500}}},
		"ends":                 {edge: []edgeFault{{EndAfter: 1}, {EndAfter: 1}}},
		"silence":              {edge: []edgeFault{{StallAfter: 2}}},
		"no answer":            {edge: []edgeFault{{Mute: true}}},
		"later":                {edge: []edgeFault{{Later: 1}, {Later: 10}}},
		"503":                  {edge: []edgeFault{{EndAfter: 2}, {Status: 503, Code: "unavailable", RetryAfter: 3}}},
		"refused tokens":       {edge: []edgeFault{{Status: 401}, {EndAfter: 2}, {Status: 401}}},
		"429":                  {edge: []edgeFault{{Status: 429, RetryAfter: 1000}}},
		"502":                  {edge: []edgeFault{{Status: 502}, {Status: 504}}},
		"a proxy's 202 or 300": {edge: []edgeFault{{Status: 202}, {Status: 300}}},
		"a page of a proxy":    {edge: []edgeFault{{EndAfter: 2}, {Raw: "<p>Log in!", ContentType: "text/html"}}},
		"forgotten cursors":    {edge: []edgeFault{{EndAfter: 2}, {Forgets: true, EndAfter: 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				edge := &fakeEdge{faults: tt.edge, closed: true}
				edge.publish(counts(4)...)
				wantEnd(t, subscriberTo(t, edge, client.SubscriberConfig{Token: newTokens()}, tt.connection...), "1", "2", "3", "4")
			})
		})
	}
}

// newTokens returns another token each time.
func newTokens() client.TokenFunc {
	var n atomic.Int64
	return func(context.Context) (string, error) { return fmt.Sprint(n.Add(1)), nil }
}

// A token function may be a client itself, so its error may be one that ends a subscription.
func TestSubscriber_TokenFails(t *testing.T) {
	for _, failure := range []error{client.ErrProtocol, &client.Error{Status: 403}} {
		synctest.Test(t, func(t *testing.T) {
			edge, asked := &fakeEdge{closed: true}, 0
			edge.publish(counts(1)...)
			wantEnd(t, subscriberTo(t, edge, client.SubscriberConfig{Token: func(context.Context) (string, error) {
				if asked++; asked == 1 {
					return "", failure
				}
				return "a", nil
			}}), "1")
		})
	}
}

// TestSubscriber_EmptyMessage has a proxy that answers with an event without data while no edge is available.
func TestSubscriber_EmptyMessage(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg   client.SubscriberConfig
		first string // event of the proxy
		ids   []string
	}{
		"a stream": {client.SubscriberConfig{}, "data:\n\n", []string{"", "", "main_0000000_2", "main_0000000_2.17"}},
		"a session": {
			client.SubscriberConfig{Session: "demo"}, ":\ndata:\n\n", []string{"", "", "*_0000000_2", "*_0000000_2.17"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				edge := &fakeEdge{closed: true, faults: []edgeFault{
					{Raw: tt.first}, {EndAfter: 2}, {Raw: "id: " + tt.ids[3] + "\ndata:\n\n"},
				}}
				edge.publish(counts(4)...)
				wantEnd(t, subscriberTo(t, edge, tt.cfg), "1", "2", "3", "4")
				var ids []string
				for _, head := range edge.seen() {
					ids = append(ids, head.LastEventID)
				}
				if diff := cmp.Diff(tt.ids, ids); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestSubscriber_PermanentRefusal(t *testing.T) {
	for status, stallAfter := range map[int]int{400: 0, 401: 0, 403: 0, 404: 0, 406: 0, 410: 1} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				edge := &fakeEdge{faults: []edgeFault{{EndAfter: 1}, {Status: status, Code: "a_code", StallAfter: stallAfter}}}
				edge.publish(counts(2)...)
				got, err := read(t.Context(), subscriberTo(t, edge, client.SubscriberConfig{}), -1)
				refused, ok := errors.AsType[*client.Error](err)
				if !ok || refused.Status != status || refused.Code != "a_code" || refused.Detail != "A fault." {
					t.Errorf("error is %v", err)
				}
				if diff := cmp.Diff([]string{"1"}, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestSubscriber_ProtocolViolation(t *testing.T) {
	id := "id: main_0000000_1\n"
	for name, tt := range map[string]struct {
		fault edgeFault
		cfg   client.SubscriberConfig
	}{
		"HTML":              {edgeFault{Raw: "<p>Log in!", ContentType: "text/html"}, client.SubscriberConfig{}},
		"compressed":        {edgeFault{Encoding: "gzip"}, client.SubscriberConfig{}},
		"gap":               {edgeFault{Raw: "event: gap\n" + id + "data: oops\n\n"}, client.SubscriberConfig{}},
		"envelope":          {edgeFault{Raw: id + "data: oops\n\n"}, client.SubscriberConfig{Session: "demo"}},
		"no JSON":           {edgeFault{Raw: id + "data: {\"n\":1<p>Bad gateway\n\n"}, client.SubscriberConfig{}},
		"no message inside": {edgeFault{Raw: id + "data: {}\n\n"}, client.SubscriberConfig{Session: "demo"}},
		"block too large":   {edgeFault{Raw: id + "data: " + strings.Repeat("x", 200) + "\n\n"}, client.SubscriberConfig{MaxEventBytes: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				edge := &fakeEdge{faults: []edgeFault{tt.fault}}
				_, err := read(t.Context(), subscriberTo(t, edge, tt.cfg), -1)
				if !errors.Is(err, client.ErrProtocol) {
					t.Errorf("error is %v, want ErrProtocol", err)
				}
			})
		})
	}
}

// A proxy that fails in the middle of an event may write an error into it. The next connection brings the event.
func TestSubscriber_EventIsBrokenOff(t *testing.T) {
	for name, tt := range map[string]struct{ session, broken string }{
		"a stream":  {"", "id: main_0000000_1\ndata: {\"n\":1<p>Bad gateway\n\n"},
		"a session": {"demo", "id: *_0000000_1\ndata: {\"message\":{\"n\":1<p>Bad gateway\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				edge := &fakeEdge{closed: true, faults: []edgeFault{{Raw: "event: connect\ndata: {}\n\n" + tt.broken}}}
				edge.publish(counts(2)...)
				wantEnd(t, subscriberTo(t, edge, client.SubscriberConfig{Session: tt.session}), "1", "2")
			})
		})
	}
}

// TestSubscriber_SequencesAfterARollback loses two events of the log, whose sequences
// are given to others.
func TestSubscriber_SequencesAfterARollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw := "event: connect\ndata: {}\n\n" +
			"event: gap\nid: main_1111111_1\ndata: {\"reason\":\"rolled_back\",\"certain\":true,\"stream\":\"main\"}\n\n" +
			"id: main_1111111_2\ndata: " + string(count(22)) + "\n\n" +
			"event: close\nid: main_1111111_2\ndata: {}\n\n"
		edge := &fakeEdge{faults: []edgeFault{{EndAfter: 3}, {Raw: raw}}}
		edge.publish(counts(3)...)
		s := subscriberTo(t, edge, client.SubscriberConfig{})
		wantEnd(t, s, "1", "2", "3", "gap rolled_back", "22")
		if s.Cursor() != "main_1111111_2" {
			t.Errorf("the cursor is %s", s.Cursor())
		}
	})
}

// TestSubscriber_SeveralGaps cuts the connection between two gaps of
// a flow: only the last one has an ID.
func TestSubscriber_SeveralGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := "event: connect\ndata: {}\n\nevent: gap\ndata: {\"reason\":\"expired\",\"stream\":\"a\"}\n\n"
		both := one + "event: gap\nid: *_0000000_7\ndata: {\"reason\":\"trimmed\",\"stream\":\"b\"}\n\nevent: close\ndata: {}\n\n"
		edge := &fakeEdge{faults: []edgeFault{{Raw: one}, {Raw: both}}}
		s := subscriberTo(t, edge, client.SubscriberConfig{Session: "demo", After: "*_0000000_3"})
		wantEnd(t, s, "gap expired", "gap expired", "gap trimmed")
		if again := edge.seen()[1].LastEventID; again != "*_0000000_3" {
			t.Errorf("it came back with %s", again)
		}
		if s.Cursor() != "*_0000000_7" {
			t.Errorf("the cursor is %s", s.Cursor())
		}
	})
}

// A network that drops all packets leaves a connection of HTTP/2 open, and the next request on it is lost, too.
func TestSubscriber_DeadConnectionOfHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{}
		n, _ := serve(t, edge, connFault{LostAfter: 50 * time.Second})
		n.isDefault(t, true)
		s := must.Value(client.NewSubscriber(client.SubscriberConfig{URL: "http://edge", Session: "demo", Stream: "main"}))(t)
		time.AfterFunc(time.Minute, func() { edge.publish(counts(1)...) })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, err := read(ctx, s, 1); err != nil || n.dials != 2 {
			t.Errorf("error is %v after %d connections", err, n.dials)
		}
	})
}

func TestSubscriber_QuietStreamIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{}
		s := subscriberTo(t, edge, client.SubscriberConfig{})
		go func() {
			time.Sleep(time.Hour)
			edge.publish(counts(1)...)
		}()
		wantRead(t, s, "1")
		if got := len(edge.seen()); got != 1 {
			t.Errorf("it connected %d times, want 1", got)
		}
	})
}

func TestSubscriber_SlowLoopIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{closed: true}
		edge.publish(counts(3)...)
		for _, err := range subscriberTo(t, edge, client.SubscriberConfig{}).Events(t.Context()) {
			must.NoError(t, err)
			time.Sleep(time.Hour)
		}
		if got := len(edge.seen()); got != 1 {
			t.Errorf("it connected %d times, want 1", got)
		}
	})
}

func TestSubscriber_RetryIntervalOfTheServer(t *testing.T) {
	for name, tt := range map[string]struct {
		faults      []edgeFault
		least, most time.Duration
	}{
		"retry":                       {[]edgeFault{{Later: 10}}, 10 * time.Second, 15 * time.Second},
		"retry, twice in a row":       {[]edgeFault{{Later: 4}, {Later: 4}}, 8 * time.Second, 12 * time.Second},
		"retry, next to nothing":      {[]edgeFault{{Raw: "retry: 1\n\n"}}, 100 * time.Millisecond, 150 * time.Millisecond},
		"retry, for weeks":            {[]edgeFault{{Raw: "retry: 2000000000\n\n"}}, 20 * time.Second, 30 * time.Second},
		"retry, for ever":             {[]edgeFault{{Raw: "retry: 99999999999999999999\n\n"}}, 3 * time.Second, 4500 * time.Millisecond},
		"502, twice in a row":         {[]edgeFault{{Status: 502}, {Status: 502}}, 9 * time.Second, 13500 * time.Millisecond},
		"Retry-After":                 {[]edgeFault{{Status: 503, RetryAfter: 12}}, 12 * time.Second, 18 * time.Second},
		"never longer than MaxRetry":  {[]edgeFault{{Status: 503, RetryAfter: 3600}}, 20 * time.Second, 30 * time.Second},
		"the edge's retry at an end":  {[]edgeFault{{EndAfter: 1}}, 3 * time.Second, 4500 * time.Millisecond},
		"a dead connection":           {[]edgeFault{{StallAfter: 1}}, client.DefaultIdleTimeout, client.DefaultIdleTimeout + 5*time.Second},
		"its own, without any answer": {[]edgeFault{{Status: 502}}, 3 * time.Second, 4500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				edge := &fakeEdge{faults: tt.faults}
				edge.publish(counts(2)...)
				start := time.Now()
				wantRead(t, subscriberTo(t, edge, client.SubscriberConfig{}), "1", "2")
				if took := time.Since(start); took < tt.least || took > tt.most {
					t.Errorf("it took %s, want %s to %s", took, tt.least, tt.most)
				}
			})
		})
	}
}

// A server ends a connection in its routine, but one that ends before it has begun is a failure.
func TestSubscriber_ReportsFailures(t *testing.T) {
	for name, tt := range map[string]struct {
		fault edgeFault
		want  int
	}{
		"ends":                    {edgeFault{EndAfter: 1}, 0},
		"503":                     {edgeFault{Status: 503}, 1},
		"later":                   {edgeFault{Later: 1}, 1},
		"a proxy without an edge": {edgeFault{Raw: "retry: 3000\n:\n:\n\n"}, 1},
		"a proxy's empty message": {edgeFault{Raw: "data:\n\n"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				edge, failures := &fakeEdge{faults: []edgeFault{tt.fault}}, 0
				edge.publish(counts(2)...)
				wantRead(t, subscriberTo(t, edge, client.SubscriberConfig{OnFailure: func(error) { failures++ }}), "1", "2")
				if failures != tt.want {
					t.Errorf("%d failures are reported, want %d", failures, tt.want)
				}
			})
		})
	}
}

func TestSubscriber_LogsReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{faults: []edgeFault{{EndAfter: 1}}}
		edge.publish(counts(2)...)
		var out bytes.Buffer
		s := subscriberTo(t, edge, client.SubscriberConfig{Logger: slog.New(slog.NewTextHandler(&out, nil))})
		wantRead(t, s, "1", "2")
		if got := out.String(); strings.Count(got, "msg=reconnecting") != 1 || !strings.Contains(got, "cursor=main_0000000_1") {
			t.Errorf("the log says %s", got)
		}
	})
}

// TestSubscriber_HostileIDIsNotSentBack has an ID that no header may hold.
func TestSubscriber_HostileIDIsNotSentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{faults: []edgeFault{{Raw: "id: main_0000000_1\ndata: " + string(count(1)) + "\n\nid: \x01\x7f\ndata: " + string(count(2)) + "\n\n"}, {Status: 404}}}
		got, err := read(t.Context(), subscriberTo(t, edge, client.SubscriberConfig{}), -1)
		if _, ok := errors.AsType[*client.Error](err); !ok {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"1", "2"}, got); diff != "" {
			t.Error(diff)
		}
		if id := edge.seen()[1].LastEventID; id != "main_0000000_1" {
			t.Errorf("it came back with %q", id)
		}
	})
}
