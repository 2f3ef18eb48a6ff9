package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/presence"
	"rejoin/shared/quota"
	"rejoin/shared/tracing"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

func TestMain(m *testing.M) {
	os.Exit(leaktest.Run(m, append(webtest.IgnoreFasthttp(), natstest.IgnoreLeaks()...)...))
}

// fixture is a log of one partition, and edges on it. The test is the janitor.
type fixture struct {
	*edgetest.Log
	t    *testing.T
	tune func(*Service) // before it runs; nil for nothing
	// memory bounds the memory of the edges' clients; nil for any amount.
	memory *quota.Pool
	// traces receives the edges' spans; nil for none.
	traces *tracing.Traces
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{Log: edgetest.NewLog(t), t: t}
}

// edge starts an edge and returns its URL.
func (f *fixture) edge(change func(*Config)) string {
	f.t.Helper()
	url, _ := f.startEdge(change)
	return url
}

func (f *fixture) startEdge(change func(*Config)) (url string, stop func()) {
	f.t.Helper()
	s, stop := f.startService(change)
	return s.url(), stop
}

func (s *Service) url() string { return "http://" + s.Addr().String() }

// startService starts an edge, until the test or stop ends it.
func (f *fixture) startService(change func(*Config)) (s *Service, stop func()) {
	f.t.Helper()
	env := daemon.NewEnv(nil)
	env.Traces, env.Memory = f.traces, f.memory
	b := must.Value(backend.Open(waittest.Context(f.t), backend.Config{NATSURL: f.Server.URL()}, "edge", env.Log))(f.t)
	cfg := Config{EdgeAddr: "127.0.0.1:0", Config: subscriber.Config{
		WindowBytes: 1 << 20, LogReads: 2, Heartbeat: 15 * time.Second, Retry: 3 * time.Second,
		MaxAge: 10 * time.Minute, WriteTimeout: time.Minute, MaxConnections: 100, MaxSessionConnections: 100, MaxConnectionSessions: 100, MaxAddressConnections: 100,
		PartitionLinger: -1, LedgerPatience: 20 * time.Second, // longer than a slow machine takes
	}}
	if change != nil {
		change(&cfg)
	}
	s = must.Value(New(cfg, b, env))(f.t)
	if f.tune != nil {
		f.tune(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("the edge ended with %v", err)
		}
		b.Close()
	})
	f.t.Cleanup(stop)
	waittest.Until(f.t, "the edge is ready", func() bool { return s.subs.Parts.Ready() == nil })
	return s, stop
}

// has waits until the window of an edge has received a sequence.
func (s *Service) has(t *testing.T, sequence uint64) {
	t.Helper()
	waittest.Until(t, "the window has it", func() bool { return s.subs.Parts.Of("s").Stats().End >= sequence })
}

// client is one connection to an event stream.
type client struct{ *edgetest.Client }

// subscribe opens an event stream; headers are pairs of names and values.
func subscribe(t *testing.T, url string, headers ...string) *client {
	t.Helper()
	return &client{edgetest.Subscribe(t, url, headers...)}
}

// connect opens an event stream, and reads its connect event.
func connect(t *testing.T, url string, headers ...string) *client {
	t.Helper()
	c := subscribe(t, url, headers...)
	c.Next("connect")
	return c
}

func (c *client) gap() delivery.GapData {
	c.T.Helper()
	var g delivery.GapData
	if err := json.Unmarshal(c.Next("gap").Data, &g); err != nil {
		c.T.Fatal(err)
	}
	return g
}

// page is the answer to a poll, and object an event in it.
type page struct {
	Events []object
	Cursor string
	Gaps   []delivery.GapData
	Closed bool
}

type object struct {
	ID, Stream, Type string
	Time             time.Time
	Message          json.RawMessage
}

// poll fetches a page, again while it is answered 503, as by an edge that has no time for it.
func poll(t *testing.T, url string) (p page) {
	t.Helper()
	waittest.Until(t, "there is a page", func() bool {
		a := edgetest.Ask(t, http.MethodGet, url, "Accept", "application/json")
		switch a.StatusCode {
		case http.StatusServiceUnavailable:
			return false
		case http.StatusOK:
		default:
			t.Fatalf("%d %s", a.StatusCode, a.Text)
		}
		p = page{}
		must.NoError(t, json.Unmarshal([]byte(a.Text), &p))
		return true
	})
	return p
}

const streamPath = "/v1/sessions/s/streams/a/events"

// A subscriber may begin at a time: in the window, in the log, and where events are removed.
func TestFrom_Time(t *testing.T) {
	f := newFixture(t)
	before := time.Now()
	f.Publish("a", 2)
	f.Publish("b", 1)
	third := f.Publish("a", 3)
	for name, backfill := range map[string]flagtype.Bytes{"window": 0, "log": -1} {
		s, _ := f.startService(func(c *Config) { c.WindowBackfill = backfill })
		s.has(t, third)
		all := poll(t, s.url()+streamPath).Events
		for i, e := range all {
			from := "?from=" + e.Time.Format(time.RFC3339Nano)
			c := connect(t, s.url()+streamPath+from)
			if got := c.Next("message"); got.ID != e.ID {
				t.Errorf("%s: from the time of %s the first one is %s", name, e.ID, got.ID)
			}
			c = connect(t, s.url()+"/v1/events?session=s&from="+e.Time.Format(time.RFC3339Nano))
			if got := c.groupEvents(1)[0]; got.ID != e.ID {
				t.Errorf("%s: of several sessions, from the time of %s the first one is %s", name, e.ID, got.ID)
			}
			if got := poll(t, s.url()+streamPath+from).Events; len(got) != len(all)-i {
				t.Errorf("%s: from event %d there are %d", name, i, len(got))
			}
		}
		for from, n := range map[string]int{"earliest": 5, "start": 5, "now": 0, "-1h": 5, "-7d": 5, "-0s": 0, before.Add(-time.Hour).UTC().Format(time.RFC3339): 5, "2100-01-01T00:00:00Z": 0} {
			if got := poll(t, s.url()+streamPath+"?from="+from).Events; len(got) != n {
				t.Errorf("%s: from %s there are %d", name, from, len(got))
			}
		}
		for _, from := range []string{"", "x", "5m", "--5m", "-", "-5", "2026-01-31"} {
			if a := edgetest.Ask(t, http.MethodGet, s.url()+streamPath+"?from="+from); a.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: from %q: %d", name, from, a.StatusCode)
			}
		}
	}
}

// A subscriber begins with the newest events, or with all when there are fewer, and continues.
func TestLast(t *testing.T) {
	f := newFixture(t)
	f.Publish("a", 3)
	last := f.Publish("b", 2)
	for name, backfill := range map[string]flagtype.Bytes{"window": 0, "log": -1} {
		s, _ := f.startService(func(c *Config) { c.WindowBackfill = backfill })
		s.has(t, last)
		all := poll(t, s.url()+"/v1/sessions/s/events").Events
		for n := 1; n <= len(all)+1; n++ {
			query := fmt.Sprint("?last=", n)
			if got := poll(t, s.url()+"/v1/sessions/s/events"+query).Events; len(got) != min(n, len(all)) || got[0].ID != all[max(len(all)-n, 0)].ID {
				t.Errorf("%s: the last %d are %+v", name, n, got)
			}
		}
		c := connect(t, s.url()+streamPath+"?last=2")
		c.Messages(2)
		f.Publish("a", 1)
		at := c.Messages(1)
		c = subscribe(t, s.url()+streamPath+"?last=2", "Last-Event-ID", at)
		last = f.Publish("a", 1)
		c.Next("connect")
		if got := c.Messages(1); edgetest.SequenceOf(t, got) != last {
			t.Errorf("%s: after %s comes %s", name, at, got)
		}
		for _, query := range []string{"last=0", "last=-1", "last=1001", "last=", "last=x", "last=5&from=now"} {
			if a := edgetest.Ask(t, http.MethodGet, s.url()+streamPath+"?"+query); a.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: %s: %d", name, query, a.StatusCode)
			}
		}
	}
}

func TestResume_BelowWindow(t *testing.T) {
	t.Parallel()
	for _, flow := range []bool{false, true} {
		t.Run(fmt.Sprint("flow_", flow), func(t *testing.T) {
			f := newFixture(t)
			s, _ := f.startService(func(c *Config) { c.WindowBytes = 4 << 10 })
			url, path := s.url(), streamPath
			if flow {
				path = "/v1/sessions/s/events"
			}
			c := connect(t, url+path)
			f.Publish("a", 10)
			tenth := c.Messages(10)
			c.Close()
			last := f.Publish("a", 2500)
			s.has(t, last) // or the edge waits for its window, and does not stop waiting
			c = connect(t, url+path+"?after="+tenth)
			for n := uint64(11); n <= last; n++ {
				if e := c.Next("message"); edgetest.SequenceOf(t, e.ID) != n {
					t.Fatalf("got %s, want sequence %d", e.ID, n)
				}
			}
		})
	}
}

// The log's evidence of a removal decides between silence and a gap, and each gap is sent
// once.
func TestEvidence(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		// Events of stream a are sequences 1 to 20; remove removes some, b follows.
		remove func(*fixture)
		after  uint64
		want   []uint64
		gap    *delivery.GapData
	}{
		{name: "nothing", remove: func(*fixture) {}, after: 10, want: edgetest.Sequences(11, 20)},
		{
			name: "trim", after: 10, want: edgetest.Sequences(16, 20), gap: &delivery.GapData{Reason: cursor.ReasonTrimmed, Certain: true},
			remove: func(f *fixture) { f.Trim("a", eventlog.Trimmed, edgetest.Sequences(1, 15)...) },
		},
		{
			name: "two trims", after: 10, want: edgetest.Sequences(16, 20), gap: &delivery.GapData{Reason: cursor.ReasonTrimmed, Certain: true},
			remove: func(f *fixture) {
				f.Trim("a", eventlog.Expired, edgetest.Sequences(1, 12)...)
				f.Trim("a", eventlog.Trimmed, edgetest.Sequences(13, 15)...)
			},
		},
		{
			name: "trim before the cursor", after: 10, want: edgetest.Sequences(11, 20),
			remove: func(f *fixture) { f.Trim("a", eventlog.Trimmed, edgetest.Sequences(1, 10)...) },
		},
		{
			name: "trim of the life", after: 10, want: edgetest.Sequences(13, 20), gap: &delivery.GapData{Reason: cursor.ReasonCleared},
			remove: func(f *fixture) { f.Trim("", eventlog.Cleared, edgetest.Sequences(1, 12)...) },
		},
		{
			name: "trim of the life before the cursor", after: 10, want: edgetest.Sequences(11, 20),
			remove: func(f *fixture) { f.Trim("", eventlog.Cleared, edgetest.Sequences(1, 10)...) },
		},
		{
			name: "floor without a copy of the birth", after: 10, want: edgetest.Sequences(13, 20), gap: &delivery.GapData{Reason: cursor.ReasonExpired},
			remove: func(f *fixture) { f.Purge(13) },
		},
		{
			name: "floor with a copy of the birth", after: 10, want: edgetest.Sequences(13, 20), gap: &delivery.GapData{Reason: cursor.ReasonExpired, Certain: true},
			remove: func(f *fixture) {
				f.Rewrite("a", eventlog.BirthCopy{Newest: 20, NewestRemoved: 12, Through: 20})
				f.Purge(13)
			},
		},
		{
			name: "floor at the cursor", after: 10, want: edgetest.Sequences(11, 20),
			remove: func(f *fixture) { f.Purge(11) },
		},
	}
	// The same answers are due from the log, when the cursor is below the window, and
	// from a window that was filled after the removals.
	for _, backfill := range []int{0, -1} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/backfill_%d", tt.name, backfill), func(t *testing.T) {
				f := newFixture(t)
				first, stop := f.startEdge(nil)
				f.Publish("a", 20)
				c := connect(t, first+streamPath)
				id := c.Messages(int(tt.after)) //nolint:gosec // small
				c.Close()
				stop()
				tt.remove(f)
				f.Publish("b", 1)
				c = connect(t, f.edge(func(c *Config) { c.WindowBackfill = flagtype.Bytes(backfill) })+streamPath+"?after="+id)
				if tt.gap != nil {
					g := c.gap()
					if g.Reason != tt.gap.Reason || g.Certain != tt.gap.Certain || g.Requested != id || *g.Stream != "a" {
						t.Errorf("gap is %+v", g)
					}
					if at := edgetest.SequenceOf(t, g.ResumesAt); at != tt.want[0]-1 {
						t.Errorf("the gap resumes at %d, want %d", at, tt.want[0]-1)
					}
				}
				for _, n := range tt.want {
					if e := c.Next("message"); edgetest.SequenceOf(t, e.ID) != n {
						t.Fatalf("got %s, want sequence %d", e.ID, n)
					}
				}
				f.Publish("a", 1)
				c.Messages(1)
			})
		}
	}
}

func TestResume_UnknownID(t *testing.T) {
	f := newFixture(t)
	url := f.edge(nil)
	f.Publish("a", 2)
	c := subscribe(t, url+"/v1/sessions/s/streams/b/events")
	foreign := c.Next("connect").ID
	f.PublishTo("other", "a", 1)
	another := cursorAt(t, url, "/v1/sessions/other/streams/a/events", 1)
	for _, id := range []string{"rubbish", strings.Repeat("x", 5000), foreign, another, "a_0000000_1", "*_0000000_1"} {
		c := connect(t, url+streamPath+"?after="+id)
		if g := c.gap(); g.Reason != cursor.ReasonUnknown || !g.Certain || g.Requested != id {
			t.Errorf("%s: gap is %+v", id, g)
		}
		c.Messages(2)
	}
}

// No sequence is so large that its client receives a gap and then no events.
func TestResume_IDBeyondLog(t *testing.T) {
	f := newFixture(t)
	url := f.edge(nil)
	f.Publish("a", 2)
	var c *client
	for _, sequence := range []uint64{3, math.MaxInt64, math.MaxUint64 - 1, math.MaxUint64} {
		id := cursorAt(t, url, streamPath, sequence)
		c = connect(t, url+streamPath+"?after="+id)
		if g := c.gap(); g.Reason != cursor.ReasonRolledBack || g.Requested != id || edgetest.SequenceOf(t, g.ResumesAt) != 2 {
			t.Errorf("%d: gap is %+v", sequence, g)
		}
	}
	f.Publish("a", 1)
	c.Messages(1)
}

func TestClose_StreamThen204(t *testing.T) {
	f := newFixture(t)
	url := f.edge(nil)
	f.Create("s", "")
	f.Publish("a", 2)
	c := connect(t, url+streamPath)
	id := c.Messages(2)
	must.NoError(t, f.Backend.Sessions.End(waittest.Context(t), "s", "a", false))
	closed := c.Next("close")
	if string(closed.Data) != `{"status":"closed","session":"s","stream":"a"}` {
		t.Errorf("close is %s", closed.Data)
	}
	if _, err := c.Decoder.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream continues: %v", err)
	}
	for _, after := range []string{id, closed.ID} {
		if again := subscribe(t, url+streamPath+"?after="+after); again.Response.StatusCode != http.StatusNoContent {
			t.Errorf("a resume of a stream that is over answers %d", again.Response.StatusCode)
		}
	}
	c = connect(t, url+streamPath)
	c.Messages(2)
	c.Next("close")
}

func TestClear_ConnectedAndNewClients(t *testing.T) {
	f := newFixture(t)
	url := f.edge(nil)
	f.Publish("a", 3)
	c := connect(t, url+streamPath)
	first := c.Messages(1)
	c.Close()
	f.mark(event.Clear, "a")
	f.Publish("a", 1)
	waittest.Until(t, "the edge has seen the clear", func() bool {
		events := poll(t, url+streamPath).Events
		return len(events) == 1 && edgetest.SequenceOf(t, events[0].ID) == 5
	})
	c = connect(t, url+streamPath+"?after="+first)
	if g := c.gap(); g.Reason != cursor.ReasonCleared || !g.Certain {
		t.Errorf("gap is %+v", g)
	}
	if id := c.Messages(1); edgetest.SequenceOf(t, id) != 5 {
		t.Errorf("got %s, want the event after the clear", id)
	}
	c = connect(t, url+streamPath)
	if id := c.Messages(1); edgetest.SequenceOf(t, id) != 5 {
		t.Errorf("a new client got %s", id)
	}
}

func TestFull_Connections(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, limit := range map[string]func(*Config){
		"in total":    func(c *Config) { c.MaxConnections = 1 },
		"per session": func(c *Config) { c.MaxSessionConnections = 1 },
		"per address": func(c *Config) { c.MaxAddressConnections = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			url := f.edge(limit)
			c := connect(t, url+streamPath)
			refused := subscribe(t, url+streamPath)
			body, err := io.ReadAll(refused.Response.Body)
			if err != nil || refused.Response.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), "retry: ") {
				t.Errorf("status %d, body %q, %v", refused.Response.StatusCode, body, err)
			}
			c.Close()
			waittest.Until(t, "there is room again", func() bool {
				c := subscribe(t, url+streamPath)
				defer c.Close()
				_, err := c.Decoder.Next()
				return err == nil
			})
		})
	}
}

// Text that encoding/json would escape, compact or sort stays as it was published.
func TestMessages_ByteForByte(t *testing.T) {
	f := newFixture(t)
	url := f.edge(nil)
	const message = "{ \"jsonrpc\":\"2.0\",\"method\":\"<&>\\u003c\u2028é\\/\", \"params\":{\"z\":1.0e2,\"a\":\"\x7f\"} }"
	must.Value(f.Backend.Log.Publish(t.Context(), eventlog.Event{Session: "s", Stream: "a\"\\", Type: "ti\"ck", Data: []byte(message)}))(t)
	got := poll(t, url+"/v1/sessions/s/events?wait=30").Events
	if len(got) != 1 || string(got[0].Message) != message || got[0].Stream != "a\"\\" || got[0].Type != "ti\"ck" || got[0].Time.IsZero() {
		t.Errorf("the page has %+v", got)
	}
	c := connect(t, url+"/v1/sessions/s/events")
	var o object
	if data := c.Next("message").Data; json.Unmarshal(data, &o) != nil || string(o.Message) != message || o.ID != got[0].ID || !o.Time.Equal(got[0].Time) {
		t.Errorf("the flow has %s", data)
	}
}

func TestConnections_Present(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.startService(nil)
	url := s.url()
	for _, name := range []string{"connected", "polled", "alone"} {
		f.Create(name, "")
	}
	s.knows(t, "connected", "polled", "alone")
	c := subscribe(t, url+"/v1/sessions/connected/events")
	poll(t, url+"/v1/sessions/polled/events")
	poll(t, url+"/v1/sessions/stranger/events")
	q := presence.Question{Sessions: []presence.Session{{Name: "connected", Within: -10}, {Name: "polled", Within: 60}, {Name: "polled", Within: -10}, {Name: "alone", Within: 60}, {Name: "stranger", Within: 60}}}
	want := func(present ...int) {
		t.Helper()
		waittest.Until(t, fmt.Sprint("an answer of ", present), func() bool {
			answers, err := presence.Ask(t.Context(), f.Backend.Conn, q, 100*time.Millisecond)
			if err != nil || len(answers) != 1 {
				return false
			}
			var got []int
			for _, p := range answers[0].Present {
				got = append(got, p.Session)
			}
			return slices.Equal(got, present)
		})
	}
	want(0, 1)
	c.Close()
	want(1)
	q.Sessions[0].Within = 60
	want(0, 1)
}

// A stream ends before a proxy cuts it, and its client reconnects at once.
func TestProxyRequestLimit(t *testing.T) {
	t.Parallel()
	c := connect(t, newFixture(t).edge(func(c *Config) { c.ProxyRequestLimit, c.Retry = time.Second, time.Minute })+"/v1/sessions/quiet/events")
	c.WantEnd()
	if c.Decoder.Retry() > time.Second {
		t.Errorf("the subscriber comes back after %s", c.Decoder.Retry())
	}
}

func TestJavaScriptClient_WithoutPlayground(t *testing.T) {
	for _, playground := range []bool{false, true} {
		var paths []string
		for _, route := range (&Service{cfg: Config{Playground: playground}}).Routes() {
			paths = append(paths, route.Path)
		}
		if !slices.Contains(paths, "/rejoin.js") || slices.Contains(paths, "/") != playground {
			t.Errorf("with the playground %v, the edge serves %q", playground, paths)
		}
	}
}
