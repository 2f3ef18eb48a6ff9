package edge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/must"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestQuery_Invalid(t *testing.T) {
	f := newFixture(t)
	edge := f.edge(nil)
	many := strings.Repeat("m,", maxMethods) + "m"
	for query, want := range map[string]int{
		"method=a": 200, "method=a,b*&method=c": 200, "method=*": 200, "level=debug": 200, "level=emergency&method=a": 200, "method=a%2Cb": 200, "p=11": 200, "p=wrong&method=a": 200, "method=" + many: 200,
		"method=" + strings.Repeat("m", maxMethodLen): 200,
		"method": 400, "method=": 400, "method=a,": 400, "method=a*b": 400, "method=**": 400, "method=%ff": 400, "method=a&method=": 400,
		"method=" + strings.Repeat("m", maxMethodLen+1): 400, "method=" + distinct(maxMethods+1): 400,
		"limit=ten": 400, "limit=0": 400, "limit=1001": 400, "limit=99999999999999999999": 400, "limit=": 400, "limit=1&limit=2": 400,
		"wait=soon": 400, "wait=61": 400, "after=a&after=b": 400, "from=": 400, "from=there": 400, "on_gap=ignore": 400, "envelope": 400, "envelope=perhaps": 400,
		"level": 400, "level=": 400, "level=warn": 400, "level=ERROR": 400, "level=3": 400, "level=info&level=info": 400,
	} {
		for _, path := range []string{streamPath, flowPath} {
			for _, accept := range []string{"application/json", "text/event-stream"} {
				c := subscribe(t, edge+path+"?"+query, "Accept", accept)
				var problem struct{ Code string }
				if c.Response.StatusCode == http.StatusBadRequest {
					if err := json.NewDecoder(c.Response.Body).Decode(&problem); err != nil || problem.Code != "invalid_parameter" {
						t.Errorf("%s: the code is %q, %v", query, problem.Code, err)
					}
				}
				if c.Response.StatusCode != want {
					t.Errorf("%s: %d, want %d", query, c.Response.StatusCode, want)
				}
				c.Close()
			}
		}
	}
	edgetest.Ask(t, http.MethodGet, edge+streamPath, "Accept", "application/xml").Got(t, http.StatusNotAcceptable)
	edgetest.Ask(t, http.MethodGet, edge+"/v1/sessions/%20/events").Got(t, http.StatusBadRequest)
	edgetest.Ask(t, http.MethodGet, edge+"/v1/sessions/s/streams/%0a/events").Got(t, http.StatusBadRequest)
}

func distinct(n int) string {
	var all []string
	for n := range n {
		all = append(all, "m"+strconv.Itoa(n))
	}
	return strings.Join(all, ",")
}

func (f *fixture) store(session, stream, message string) uint64 {
	f.t.Helper()
	ack, err := f.Backend.Log.Publish(f.t.Context(), eventlog.Event{Session: session, Life: f.Life(session), Stream: stream, Data: []byte(message)})
	must.NoError(f.t, err)
	return ack.Sequence
}

const (
	hidden = `{"jsonrpc":"2.0","method":"hidden"}`
	shown  = `{"jsonrpc":"2.0","method":"shown"}`
)

func TestFilter_CursorMoves(t *testing.T) {
	f := newFixture(t)
	url := f.edge(func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
	c := connect(t, url+streamPath+"?method=shown")
	f.store("s", "a", hidden)
	last := f.store("s", "a", hidden)
	waittest.Until(t, "the cursor is after them", func() bool { return edgetest.SequenceOf(t, c.Next("cursor").ID) == last })
	f.store("s", "a", shown)
	if id := c.Next("message").ID; edgetest.SequenceOf(t, id) != last+1 {
		t.Errorf("shown as %s", id)
	}
}

func TestFilter_PollWaits(t *testing.T) {
	f := newFixture(t)
	url := f.edge(nil)
	got := make(chan page, 1)
	after := poll(t, url+streamPath).Cursor
	go func() { got <- poll(t, url+streamPath+"?method=shown&wait=60&after="+after) }()
	for range 20 {
		f.store("s", "a", hidden)
	}
	f.store("s", "a", shown)
	if p := <-got; len(p.Events) != 1 || string(p.Events[0].Message) != shown || p.Cursor != p.Events[0].ID {
		t.Errorf("%+v", p)
	}
}

// The events read for a page are bounded, also when it shows few: the following events come with the next page.
func TestFilter_PageIsBounded(t *testing.T) {
	t.Parallel()
	const reads = 10 * subscriber.MaxLimit // events, for one page
	for _, budget := range []int{4 << 10, 16 << 20} {
		f := newFixture(t)
		var all []*eventlog.Publishing
		for range 2*reads + 10 {
			w := must.Value(f.Backend.Log.PublishAsync(t.Context(), eventlog.Event{Session: "s", Stream: "a", Data: []byte(hidden)}))(t)
			all = append(all, w)
		}
		for _, w := range all {
			must.Value(w.Wait(t.Context()))(t)
		}
		f.store("s", "a", shown)
		url := f.edge(func(c *Config) { c.WindowBytes = flagtype.Bytes(budget) })
		var p page
		for at := uint64(0); len(p.Events) == 0; at = edgetest.SequenceOf(t, p.Cursor) {
			p = poll(t, url+streamPath+"?method=shown&limit=5&wait=10&after="+p.Cursor)
			if now := edgetest.SequenceOf(t, p.Cursor); now <= at || now > at+reads+subscriber.MaxLimit || len(p.Gaps) > 0 {
				t.Fatalf("a window of %d B: a page from %d: %+v", budget, at, p)
			}
		}
		if len(p.Events) != 1 || string(p.Events[0].Message) != shown {
			t.Errorf("a window of %d B: the last page is %+v", budget, p)
		}
	}
}

// A page's gap stands before its events, so a gap that is found after some events is for
// the next page, which finds it again.
func TestFilter_GapOnNextPage(t *testing.T) {
	const read, cleared, last = 10, subscriber.MaxLimit + 200, subscriber.MaxLimit + 500
	f := newFixture(t)
	for n := 1; n <= last; n++ {
		switch {
		case n > subscriber.MaxLimit && n < cleared:
			f.store("s", "b", hidden)
		case n == cleared:
			f.mark(event.Clear, "b")
		default:
			f.store("s", "a", map[bool]string{true: shown, false: hidden}[n == read || n == last-100])
		}
	}
	url := f.edge(func(c *Config) { c.WindowBackfill = -1 })
	first := poll(t, url+flowPath+"?method=shown")
	if len(first.Events) != 1 || edgetest.SequenceOf(t, first.Events[0].ID) != read || len(first.Gaps) > 0 || edgetest.SequenceOf(t, first.Cursor) != subscriber.MaxLimit {
		t.Errorf("the first page is %s at %s", first, first.Cursor)
	}
	second := poll(t, url+flowPath+"?method=shown&after="+first.Cursor)
	if g := second.Gaps; len(g) != 1 || g[0].Reason != cursor.ReasonCleared || g[0].Requested != first.Cursor || edgetest.SequenceOf(t, g[0].ResumesAt) != cleared ||
		len(second.Events) != 1 || edgetest.SequenceOf(t, second.Events[0].ID) != last-100 {
		t.Errorf("the second page is %s", second)
	}
}

func TestFilter_MixedClients(t *testing.T) {
	f := newFixture(t)
	url := f.edge(nil)
	queries := []string{"", "?method=shown", "?method=hidden", "?method=shown", "?level=error", "?method=none", ""}
	var clients []*client
	for n := range 28 {
		c := connect(t, url+streamPath+queries[n%len(queries)])
		clients = append(clients, c)
	}
	for n := range 300 {
		f.store("s", "a", []string{shown, hidden}[n%2])
	}
	f.mark(event.End, "a")
	for n, c := range clients {
		want := map[string]int{"": 300, "?method=shown": 150, "?method=hidden": 150, "?level=error": 300, "?method=none": 0}[queries[n%len(queries)]]
		c.Messages(want)
		c.Next("close")
	}
}

// told returns the events of a stream, except its cursors.
func told(t *rapid.T, c *client) (all []string) {
	for {
		e, err := c.Decoder.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		must.NoError(t, err)
		if e.Type != "cursor" {
			all = append(all, e.Type+" "+e.ID+" "+string(e.Data))
		}
	}
}

// wanted is a second implementation of the filter.
func wanted(message []byte, methods []string, level string) bool {
	var m struct {
		Method *string
		Params struct{ Level string }
	}
	_ = json.Unmarshal(message, &m) // missing fields stay empty
	if len(methods) > 0 && (m.Method == nil || !slices.ContainsFunc(methods, func(p string) bool {
		return p == *m.Method || strings.HasSuffix(p, "*") && strings.HasPrefix(*m.Method, strings.TrimSuffix(p, "*"))
	})) {
		return false
	}
	at := slices.Index(event.Levels, m.Params.Level)
	return level == "" || m.Method == nil || *m.Method != event.MethodLog || at < 0 || at >= slices.Index(event.Levels, level)
}

// With a filter, a client receives the same events as without, except the hidden ones:
// with the same IDs, gaps and end, as a stream and in pages, from the window and the log.
func TestFilter_SubsetOfAll(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	edges := []string{f.edge(nil), f.edge(func(c *Config) { c.WindowBytes = 2 << 10 })}
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		name := "p" + strconv.Itoa(run)
		must.Value(f.Backend.Sessions.Create(waittest.Context(t), session.New(name, "", nil, time.Now())))(rt)
		var sequences []uint64
		count := rapid.IntRange(0, 60).Draw(rt, "events")
		cleared := rapid.IntRange(-1, 2*count).Draw(rt, "cleared")
		for n := range count {
			method := rapid.SampledFrom([]string{"a", "ab", "b", event.MethodLog, event.MethodLog, ""}).Draw(rt, "method")
			message := fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{"level":%q,"n":%d}}`, method, rapid.SampledFrom(append(event.Levels, "odd")).Draw(rt, "level"), n)
			if method == "" {
				message = fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"method":"a"}}`, n)
			}
			sequences = append(sequences, f.store(name, rapid.SampledFrom([]string{"x", "x", "y"}).Draw(rt, "stream"), message))
			if n == cleared {
				must.NoError(rt, f.Backend.Log.ClearStream(waittest.Context(t), name, f.Life(name), "x"))
			}
		}
		must.NoError(rt, f.Backend.Sessions.End(waittest.Context(t), name, "", false))
		edge := rapid.SampledFrom(edges).Draw(rt, "edge")
		path := edge + rapid.SampledFrom([]string{"/v1/sessions/" + name + "/events", "/v1/sessions/" + name + "/streams/x/events"}).Draw(rt, "path")
		pagesOf(rt, t, edge+"/v1/sessions/"+name+"/events?wait=1", 1000) // until the edge has heard of the end, which comes last

		query := url.Values{}
		switch rapid.SampledFrom([]string{"start", "cursor", "unknown"}).Draw(rt, "from") {
		case "cursor":
			if count > 0 {
				id := must.Value(event.ParseID(poll(t, path+"?limit=1").Cursor))(rt)
				id.Sequence = rapid.SampledFrom(sequences).Draw(rt, "after")
				query.Set("after", id.String())
			}
		case "unknown":
			query.Set("after", "nonsense")
		}
		plain := path + "?" + query.Encode()
		methods := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "a*", "b", "notifications/*", event.MethodLog, "*", "none"}), 0, 3, rapid.ID[string]).Draw(rt, "methods")
		level := rapid.SampledFrom(append(event.Levels, "")).Draw(rt, "least")
		if len(methods) > 0 {
			query.Set("method", strings.Join(methods, ","))
		}
		if level != "" {
			query.Set("level", level)
		}

		whole := subscribe(t, plain)
		filtered := subscribe(t, path+"?"+query.Encode())
		if whole.Response.StatusCode != filtered.Response.StatusCode {
			rt.Fatalf("%d and %d", whole.Response.StatusCode, filtered.Response.StatusCode)
		}
		var want []string
		for _, line := range told(rt, whole) {
			data := line[strings.IndexByte(line, '{'):]
			var object struct{ Message json.RawMessage }
			must.NoError(rt, json.Unmarshal([]byte(data), &object))
			if object.Message == nil {
				object.Message = []byte(data)
			}
			if !strings.HasPrefix(line, "message ") || wanted(object.Message, methods, level) {
				want = append(want, line)
			}
		}
		if got := told(rt, filtered); !slices.Equal(got, want) {
			rt.Fatalf("%v as a stream:\n%s\nwant\n%s", query, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}

		all := pagesOf(rt, t, plain, 1000)
		all.Events = slices.DeleteFunc(all.Events, func(o object) bool { return !wanted(o.Message, methods, level) })
		got := pagesOf(rt, t, path+"?"+query.Encode(), rapid.IntRange(1, 9).Draw(rt, "limit"))
		if got.String() != all.String() {
			rt.Fatalf("%v in pages: %s\nwant %s", query, got, all)
		}
	})
}

// pagesOf polls until the end, and returns all pages as one, with the first one's gap. A
// flow receives the gap of cleared events again, when a page ends before it.
func pagesOf(rt *rapid.T, t *testing.T, path string, limit int) (all page) {
	path += "&limit=" + strconv.Itoa(limit)
	all = poll(t, path)
	before, _, _ := strings.Cut(path, "?")
	for p := all; !p.Closed; {
		u := must.Value(url.Parse(path))(rt)
		query := u.Query()
		query.Set("after", p.Cursor)
		p = poll(t, before+"?"+query.Encode())
		if slices.ContainsFunc(p.Gaps, func(g delivery.GapData) bool { return g.Reason != cursor.ReasonCleared }) || len(p.Events) > limit {
			rt.Fatalf("after the first page there is %s", p)
		}
		all.Events, all.Cursor, all.Closed = append(all.Events, p.Events...), p.Cursor, p.Closed
	}
	return all
}

// String returns the content of a page, except its cursor.
func (p page) String() string {
	gaps, _ := json.Marshal(p.Gaps)
	var b strings.Builder
	fmt.Fprintf(&b, "gaps %s, closed %v", gaps, p.Closed)
	for _, e := range p.Events {
		fmt.Fprintf(&b, "\n%s %s %s %s %s", e.ID, e.Stream, e.Type, e.Time, e.Message)
	}
	return b.String()
}
