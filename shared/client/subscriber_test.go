package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/client"
	"rejoin/shared/must"
)

// subscriberTo returns a subscriber to a stream named main, or to the one of cfg.
func subscriberTo(t *testing.T, edge *fakeEdge, cfg client.SubscriberConfig, faults ...connFault) *client.Subscriber {
	t.Helper()
	_, c := serve(t, edge, faults...)
	cfg.URL, cfg.HTTPClient = "http://edge", c
	if cfg.Session == "" {
		cfg.Session, cfg.Stream = "demo", "main"
	}
	return must.Value(client.NewSubscriber(cfg))(t)
}

// counts returns n events of the stream main.
func counts(n int) []edgeEvent {
	var events []edgeEvent
	for i := range n {
		events = append(events, edgeEvent{stream: "main", message: string(count(i + 1))})
	}
	return events
}

// short describes an event in a few words.
func short(e client.Event) string {
	switch e.Kind {
	case client.KindGap:
		return "gap " + string(e.Gap.Reason)
	case client.KindCursor:
		return "cursor " + e.Cursor
	default:
		return fmt.Sprint(numberOf(string(e.Message)))
	}
}

// read returns the next events of a subscriber, at most n, and the error that it
// ended with.
func read(ctx context.Context, s *client.Subscriber, n int) (got []string, err error) {
	for e, err := range s.Events(ctx) {
		if err != nil {
			return got, err
		}
		if got = append(got, short(e)); len(got) == n {
			break
		}
	}
	return got, nil
}

func wantRead(t *testing.T, s *client.Subscriber, want ...string) {
	t.Helper()
	wantNext(t, s, len(want), want)
}

// wantEnd expects all remaining events, and then an end without error.
func wantEnd(t *testing.T, s *client.Subscriber, want ...string) {
	t.Helper()
	wantNext(t, s, -1, want)
}

func wantNext(t *testing.T, s *client.Subscriber, n int, want []string) {
	t.Helper()
	got, err := read(t.Context(), s, n)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestSubscriber_StoredAndNewEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{}
		edge.publish(edgeEvent{"main", "progress", `{"jsonrpc":"2.0","method":"a",` + "\r\n" + `"params":{"n":1}}`})
		s := subscriberTo(t, edge, client.SubscriberConfig{Token: func(context.Context) (string, error) { return "secret", nil }})
		go func() {
			time.Sleep(time.Minute)
			edge.publish(counts(2)[1:]...)
			edge.close()
		}()
		var got []client.Event
		for e, err := range s.Events(t.Context()) {
			must.NoError(t, err)
			if s.Cursor() != e.Cursor {
				t.Errorf("the cursor is %q at %q", s.Cursor(), e.Cursor)
			}
			got = append(got, e)
		}
		want := []client.Event{
			{Cursor: "main_0000000_1", ID: "main_0000000_1", Stream: "main", Type: "progress", Message: []byte("{\"jsonrpc\":\"2.0\",\"method\":\"a\",\n\"params\":{\"n\":1}}")},
			{Cursor: "main_0000000_2", ID: "main_0000000_2", Stream: "main", Type: "message", Message: count(2)},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		head := edgeHead{URI: "/v1/sessions/demo/streams/main/events", Auth: "Bearer secret", Accept: "text/event-stream"}
		if diff := cmp.Diff([]edgeHead{head}, edge.seen()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSubscriber_SessionNamesStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{closed: true}
		edge.publish(edgeEvent{"a", "", string(count(1))}, edgeEvent{"*", "x", string(count(2))})
		s := subscriberTo(t, edge, client.SubscriberConfig{Session: "d/e"})
		var got []client.Event
		for e, err := range s.Events(t.Context()) {
			must.NoError(t, err)
			got = append(got, e)
		}
		want := []client.Event{
			{Cursor: "*_0000000_1", ID: "a_0000000_1", Stream: "a", Type: "message", Time: time.Unix(1, 0).UTC(), Message: count(1)},
			{Cursor: "*_0000000_2", ID: "=2A_0000000_2", Stream: "*", Type: "x", Time: time.Unix(2, 0).UTC(), Message: count(2)},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if uri := edge.seen()[0].URI; uri != "/v1/sessions/d%2Fe/events" {
			t.Errorf("it asked for %s", uri)
		}
	})
}

func TestSubscriber_After(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  client.SubscriberConfig
		want []string
		head edgeHead
	}{
		"oldest": {client.SubscriberConfig{}, []string{"1", "2", "3", "4"}, edgeHead{}},
		"now":    {client.SubscriberConfig{Start: client.StartNow}, []string{"4"}, edgeHead{URI: "?from=now"}},
		"time": {
			client.SubscriberConfig{Since: time.Date(2026, 5, 1, 12, 0, 0, 5, time.FixedZone("", 3600))},
			[]string{"1", "2", "3", "4"},
			edgeHead{URI: "?from=2026-05-01T11%3A00%3A00.000000005Z"},
		},
		"newest": {client.SubscriberConfig{Last: 20}, []string{"1", "2", "3", "4"}, edgeHead{URI: "?last=20"}},
		"cursor": {client.SubscriberConfig{After: "main_0000000_2"}, []string{"3", "4"}, edgeHead{LastEventID: "main_0000000_2"}},
		"methods and level": {
			client.SubscriberConfig{Methods: []string{"ping", "notifications/*"}, Level: "error"},
			[]string{"1", "2", "3", "4"},
			edgeHead{URI: "?level=error&method=ping%2Cnotifications%2F%2A"},
		},
		"times": {client.SubscriberConfig{Times: true}, []string{"1", "2", "3", "4"}, edgeHead{URI: "?envelope=true"}},
		"cursor that beats now": {
			client.SubscriberConfig{After: "main_0000000_2", Start: client.StartNow},
			[]string{"3", "4"},
			edgeHead{LastEventID: "main_0000000_2"},
		},
		"foreign cursor": {
			client.SubscriberConfig{After: "other_0000000_9"},
			[]string{"gap unknown", "1", "2", "3", "4"},
			edgeHead{LastEventID: "other_0000000_9"},
		},
		"cursor from the future": {
			client.SubscriberConfig{After: "main_0000000_9"},
			[]string{"gap unknown", "1", "2", "3", "4"},
			edgeHead{LastEventID: "main_0000000_9"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				edge := &fakeEdge{}
				edge.publish(counts(3)...)
				s := subscriberTo(t, edge, tt.cfg)
				go func() {
					time.Sleep(time.Second)
					edge.publish(counts(4)[3:]...)
				}()
				wantRead(t, s, tt.want...)
				tt.head.URI = "/v1/sessions/demo/streams/main/events" + tt.head.URI
				tt.head.Accept = "text/event-stream"
				if diff := cmp.Diff(tt.head, edge.seen()[0]); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestSubscriber_StreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{closed: true}
		edge.publish(counts(1)...)
		s := subscriberTo(t, edge, client.SubscriberConfig{})
		wantEnd(t, s, "1")
		edge.faults = []edgeFault{{Status: 204}}
		wantEnd(t, s)
		if got := len(edge.seen()); got != 2 {
			t.Errorf("it connected %d times, want 2", got)
		}
	})
}

func TestSubscriber_Gap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{closed: true, faults: []edgeFault{{EndAfter: 1}}}
		edge.publish(counts(5)...)
		s := subscriberTo(t, edge, client.SubscriberConfig{})
		var gaps []client.Gap
		var got []string
		for e, err := range s.Events(t.Context()) {
			must.NoError(t, err)
			got = append(got, short(e))
			if e.Gap != nil {
				gaps = append(gaps, *e.Gap)
				if e.Cursor != e.Gap.ResumesAt || s.Cursor() != e.Cursor {
					t.Errorf("the cursor is %s and %s", e.Cursor, s.Cursor())
				}
			}
			edge.trim(3)
		}
		if diff := cmp.Diff([]string{"1", "gap trimmed", "4", "5"}, got); diff != "" {
			t.Error(diff)
		}
		want := []client.Gap{{Reason: client.ReasonTrimmed, Certain: true, Requested: "main_0000000_1", ResumesAt: "main_0000000_3"}}
		if diff := cmp.Diff(want, gaps); diff != "" {
			t.Error(diff)
		}
	})
}

// An edge of a later version may have events of its own that this client does not know.
func TestSubscriber_EventOfALaterEdge(t *testing.T) {
	for name, cfg := range map[string]client.SubscriberConfig{"stream": {}, "session": {Session: "demo"}} {
		synctest.Test(t, func(t *testing.T) {
			prefix := "main"
			if cfg.Session != "" {
				prefix = "*"
			}
			edge := &fakeEdge{faults: []edgeFault{{Raw: "event: rejoin.later\nid: " + prefix + "_0000000_2\ndata: {}\n\nevent: close\nid: " + prefix + "_0000000_2\ndata: {}\n\n"}}}
			s := subscriberTo(t, edge, cfg)
			wantEnd(t, s)
			if want := prefix + "_0000000_2"; s.Cursor() != want {
				t.Errorf("of a %s, the cursor is %s", name, s.Cursor())
			}
		})
	}
}

func TestSubscriber_CursorWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{}
		edge.publish(counts(1)...)
		s := subscriberTo(t, edge, client.SubscriberConfig{Cursors: true})
		go func() {
			time.Sleep(20 * time.Second)
			edge.publish(edgeEvent{stream: "other", message: string(count(9))})
		}()
		wantRead(t, s, "1", "cursor main_0000000_2")
		if s.Cursor() != "main_0000000_2" {
			t.Errorf("the cursor is %s", s.Cursor())
		}
	})
}

func TestSubscriber_OneLoopAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &fakeEdge{}
		edge.publish(counts(2)...)
		s := subscriberTo(t, edge, client.SubscriberConfig{})
		for _, err := range s.Events(t.Context()) {
			must.NoError(t, err)
			if _, err := read(t.Context(), s, -1); !errors.Is(err, client.ErrBusy) {
				t.Errorf("error is %v, want ErrBusy", err)
			}
			break
		}
		if s.Cursor() != "main_0000000_1" { // though more has been read
			t.Errorf("the cursor is %s", s.Cursor())
		}
		edge.close()
		wantEnd(t, s, "2")
	})
}

func TestSubscriber_ContextEnds(t *testing.T) {
	errEnough := errors.New("enough")
	for name, faults := range map[string][]edgeFault{
		"while it waits for events":     nil,
		"while it waits for the answer": {{Mute: true}},
		"while it waits to reconnect":   {{Status: 503, RetryAfter: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				time.AfterFunc(10*time.Second, func() { cancel(errEnough) })
				start := time.Now()
				_, err := read(ctx, subscriberTo(t, &fakeEdge{faults: faults}, client.SubscriberConfig{}), -1)
				if !errors.Is(err, errEnough) {
					t.Errorf("error is %v, want the context's cause", err)
				}
				if took := time.Since(start); took != 10*time.Second {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

func TestNewSubscriber_InvalidConfig(t *testing.T) {
	good := client.SubscriberConfig{URL: "http://127.0.0.1", Session: "demo"}
	for name, change := range map[string]func(*client.SubscriberConfig){
		"no URL":     func(c *client.SubscriberConfig) { c.URL = "" },
		"no session": func(c *client.SubscriberConfig) { c.Session = "" },
		"stream":     func(c *client.SubscriberConfig) { c.Stream = "a b" },
		"cursor":     func(c *client.SubscriberConfig) { c.After = "a\nb" },
		"start":      func(c *client.SubscriberConfig) { c.Start = 7 },
		"negative":   func(c *client.SubscriberConfig) { c.MaxEventBytes = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := client.NewSubscriber(cfg); !errors.Is(err, client.ErrInvalidConfig) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	must.Value(client.NewSubscriber(good))(t)
}
