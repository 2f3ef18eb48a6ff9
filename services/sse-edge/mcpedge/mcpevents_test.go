package mcpedge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// eventsUser follows stream a of session s.
type eventsUser struct{ *mcpUser }

func withMCPEvents(c *config) { c.MCP.Events = true }

func eventsAt(t *testing.T, url string, headers ...string) eventsUser {
	t.Helper()
	return eventsUser{&mcpUser{t: t, url: url, version: mcp.Stateless, headers: headers}}
}

// subscription is the parameters for stream a of session s; more are further ones.
func subscription(more string) string {
	return `"name":"rejoin.stream","arguments":{"session":"s","stream":"a"}` + more + `,`
}

func after(cursor string) string { return `,"cursor":` + string(event.MustJSON(cursor)) }

func (u eventsUser) ask(method, params string, headers ...string) reply {
	u.t.Helper()
	return u.post(statelessBody("7", method, params), append([]string{"Mcp-Method", method}, headers...)...)
}

// occurrence is an event as the sketch has it.
type occurrence struct {
	EventID   string          `json:"eventId"`
	Name      string          `json:"name"`
	Timestamp time.Time       `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
	Cursor    *string         `json:"cursor"`
}

// polled is the result of events/poll.
type polled struct {
	Type       string        `json:"resultType"`
	Events     *[]occurrence `json:"events"`
	Cursor     string        `json:"cursor"`
	Truncated  *bool         `json:"truncated"`
	HasMore    *bool         `json:"hasMore"`
	NextPollMS int           `json:"nextPollMs"`
}

// poll polls, and returns the result and the sequences of its events.
func (u eventsUser) poll(more string) (p polled, sequences []uint64) {
	u.t.Helper()
	a := u.read(u.ask("events/poll", subscription(more)))
	var m struct {
		ID     int    `json:"id"`
		Result polled `json:"result"`
	}
	err := rpc.Unmarshal([]byte(a.Text), &m)
	if p = m.Result; err != nil || a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != "application/json" || m.ID != 7 || p.Type != "complete" ||
		p.Events == nil || p.Cursor == "" || p.Truncated == nil || p.HasMore == nil || p.NextPollMS < 1000 {
		u.t.Fatalf("events/poll is answered %d %s", a.StatusCode, a.Text)
	}
	for _, e := range *p.Events {
		if e.Name != "rejoin.stream" || e.Timestamp.IsZero() || string(e.Data) != `{"jsonrpc":"2.0","method":"m"}` || e.Cursor != nil {
			u.t.Errorf("the event is %+v with the data %s", e, e.Data)
		}
		sequences = append(sequences, edgetest.SequenceOf(u.t, e.EventID))
	}
	return p, sequences
}

// cursorAt returns the ID of a position in a stream of session s.
func (u eventsUser) cursorAt(stream string, sequence uint64) string {
	u.t.Helper()
	a := u.read(u.ask("events/poll", fmt.Sprintf(`"name":"rejoin.stream","arguments":{"session":"s","stream":%q},`, stream)))
	var m struct {
		Result polled `json:"result"`
	}
	must.NoError(u.t, rpc.Unmarshal([]byte(a.Text), &m))
	id := must.Value(event.ParseID(m.Result.Cursor))(u.t)
	id.Sequence = sequence
	return id.String()
}

func (u eventsUser) stream(more string) *client {
	u.t.Helper()
	return u.follow(u.ask("events/stream", subscription(more)))
}

// notified is the parameters of a notification.
type notified struct {
	occurrence
	Truncated bool `json:"truncated"`
	Error     struct {
		Code int `json:"code"`
	} `json:"error"`
	Meta struct {
		ID json.RawMessage `json:"io.modelcontextprotocol/subscriptionId"`
	} `json:"_meta"`
}

// notified reads a notification about the subscription of request 7, past heartbeats unless these
// are wanted.
func (c *client) notified(kind string) notified {
	c.T.Helper()
	return c.notifiedOf(kind, "7")
}

func (c *client) notifiedOf(kind, id string) notified {
	c.T.Helper()
	for {
		e := c.Next("message")
		var m struct {
			Version string   `json:"jsonrpc"`
			Method  string   `json:"method"`
			Params  notified `json:"params"`
		}
		if err := rpc.Unmarshal(e.Data, &m); err != nil || e.ID != "" || m.Version != "2.0" || !sameID(m.Params.Meta.ID, id) {
			c.T.Fatalf("got %s with id %q, %v", e.Data, e.ID, err)
		}
		if m.Method == "notifications/events/heartbeat" && kind != "heartbeat" {
			continue
		}
		if m.Method != "notifications/events/"+kind || kind != "terminated" && m.Params.Cursor == nil {
			c.T.Fatalf("got %s, want %s", e.Data, kind)
		}
		return m.Params
	}
}

// sameID reports whether two JSON values are the same string or number.
func sameID(got json.RawMessage, want string) bool {
	var a, b any
	return json.Unmarshal(got, &a) == nil && json.Unmarshal([]byte(want), &b) == nil && a == b
}

// occurs reads the events of some sequences, and returns the last cursor.
func (c *client) occurs(sequences ...uint64) (last string) {
	c.T.Helper()
	for _, want := range sequences {
		n := c.notified("event")
		if at := edgetest.SequenceOf(c.T, n.EventID); at != want || *n.Cursor != n.EventID || n.Name != "rejoin.stream" || n.Timestamp.IsZero() || string(n.Data) != `{"jsonrpc":"2.0","method":"m"}` {
			c.T.Fatalf("the event is %+v with the cursor %s, want sequence %d", n, *n.Cursor, want)
		}
		last = *n.Cursor
	}
	return last
}

// responds reads the response, which is empty, and the end.
func (c *client) responds() {
	c.T.Helper()
	c.ends(`{"id":7,"jsonrpc":"2.0","result":{"resultType":"complete","_meta":{}}}`)
}

func TestEvents_List(t *testing.T) {
	f := newFixture(t)
	u := eventsAt(t, f.mcpEdge(withMCPEvents))
	a := u.read(u.ask("events/list", ""))
	var m struct {
		ID     int
		Result struct {
			Type   string `json:"resultType"`
			Events []struct {
				Name, Description          string
				Delivery                   []string
				InputSchema, PayloadSchema map[string]any
			}
		}
	}
	if err := json.Unmarshal([]byte(a.Text), &m); err != nil || a.StatusCode != http.StatusOK || m.ID != 7 || m.Result.Type != "complete" || len(m.Result.Events) != 1 {
		t.Fatalf("%d %s", a.StatusCode, a.Text)
	}
	e := m.Result.Events[0]
	if e.Name != "rejoin.stream" || e.Description == "" || !slices.Equal(e.Delivery, []string{"push", "poll"}) || fmt.Sprint(e.InputSchema["required"]) != "[session stream]" || e.PayloadSchema["type"] != nil {
		t.Errorf("%+v", e)
	}
}

func TestEvents_Poll(t *testing.T) {
	f := newFixture(t)
	s, _ := f.mcpService(withMCPEvents)
	u := eventsAt(t, s.url())
	s.has(t, f.Publish("a", 2))
	p, got := u.poll(`,"cursor":null`)
	if len(got) != 0 || *p.Truncated || *p.HasMore {
		t.Errorf("from now on there is %+v", p)
	}
	s.has(t, f.Publish("a", 3))
	first, got := u.poll(after(p.Cursor) + `,"maxEvents":2`)
	if !slices.Equal(got, edgetest.Sequences(3, 4)) || *first.Truncated || !*first.HasMore {
		t.Errorf("the first page has %v, and is %+v", got, first)
	}
	second, got := u.poll(after(first.Cursor) + `,"maxEvents":2,"maxAgeMs":3600000`)
	if !slices.Equal(got, edgetest.Sequences(5, 5)) || *second.Truncated || *second.HasMore {
		t.Errorf("the second page has %v, and is %+v", got, second)
	}
	if p, got := u.poll(after(second.Cursor)); len(got) != 0 || *p.Truncated || *p.HasMore {
		t.Errorf("the last page has %v, and is %+v", got, p)
	}
}

// hasMore is never false in error, and a client that polls until it is false receives each event
// once.
func TestEvents_PollBelowWindow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.mcpService(func(c *config) { c.MCP.Events, c.WindowBytes = true, 4<<10 })
	u := eventsAt(t, s.url())
	p, _ := u.poll("")
	last := f.Publish("a", 300)
	s.has(t, last)
	for _, more := range []string{`,"maxEvents":100`, `,"maxEvents":299`, `,"maxEvents":2000`, `,"maxEvents":100,"maxAgeMs":3600000`, ``} {
		var all []uint64
		for next := p; ; {
			var got []uint64
			next, got = u.poll(after(next.Cursor) + more)
			if all = append(all, got...); *next.Truncated {
				t.Fatalf("%s: truncated", more)
			}
			if !*next.HasMore {
				break
			}
		}
		if !slices.Equal(all, edgetest.Sequences(1, last)) {
			t.Errorf("%s: got %v", more, all)
		}
	}
}

// trimmedStream has 5 events in stream a, removes the first 3, and starts an edge. It returns cursors
// before them and among them.
func (f *fixture) trimmedStream() (u eventsUser, begin, trimmed string) {
	f.t.Helper()
	s, stop := f.mcpService(withMCPEvents)
	u = eventsAt(f.t, s.url())
	p, _ := u.poll("")
	s.has(f.t, f.Publish("a", 5))
	trimmed = u.cursorAt("a", 1)
	stop() // its window still has them
	f.Trim("a", eventlog.Trimmed, edgetest.Sequences(1, 3)...)
	f.Publish("b", 1)
	return eventsAt(f.t, f.mcpEdge(withMCPEvents)), p.Cursor, trimmed
}

func TestEvents_PollTruncated(t *testing.T) {
	f := newFixture(t)
	u, begin, trimmed := f.trimmedStream()
	foreign := u.cursorAt("b", 1)
	for _, c := range []string{"rubbish", " ", foreign, "a_0000000_1", trimmed, begin} {
		p, got := u.poll(after(c))
		if !slices.Equal(got, edgetest.Sequences(4, 5)) || !*p.Truncated {
			t.Errorf("%s: %v, and it is %+v", c, got, p)
		}
		if p, got := u.poll(after(p.Cursor)); len(got) != 0 || *p.Truncated {
			t.Errorf("%s: then %v, and it is %+v", c, got, p)
		}
	}
}

// Events older than maxAgeMs are left out, and the client receives a note of that.
func TestEvents_MaxAge(t *testing.T) {
	f := newFixture(t)
	s, _ := f.mcpService(withMCPEvents)
	u := eventsAt(t, s.url())
	begin, _ := u.poll("")
	s.has(t, f.Publish("a", 3))
	waittest.Until(t, "the events are old", func() bool {
		p, got := u.poll(after(begin.Cursor) + `,"maxAgeMs":0`)
		return len(got) == 0 && *p.Truncated && !*p.HasMore && edgetest.SequenceOf(t, p.Cursor) == 3
	})
	c := u.stream(after(begin.Cursor) + `,"maxAgeMs":0`)
	if n := c.notified("active"); !n.Truncated {
		t.Errorf("active is %+v", n)
	}
	f.Publish("a", 2)
	c.occurs(4, 5)
	// Without a cursor there is no old event.
	if p, got := u.poll(`,"maxAgeMs":0`); len(got) != 0 || *p.Truncated {
		t.Errorf("from now on there is %v, and it is %+v", got, p)
	}
}

func TestEventsPage_HidesTheOld(t *testing.T) {
	var p struct {
		Result polled `json:"result"`
	}
	w := window.New(1<<10, func(string) {})
	w.Begin(eventlog.State{Origin: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: 1}, 0, 1)
	r := cursor.InMemory(w, placeOf("s", "a"), 0)
	for name, tt := range map[string]struct {
		truncated, more, ended bool
		got                    []uint64
	}{
		"some":      {true, false, false, edgetest.Sequences(2, 3)},
		"all":       {true, false, false, nil},
		"none":      {false, false, false, edgetest.Sequences(1, 3)},
		"and full":  {true, true, false, edgetest.Sequences(2, 2)},
		"and ended": {true, false, true, nil},
	} {
		step := cursor.Step{First: 1, More: tt.more, Ended: tt.ended}
		for _, n := range tt.got {
			step.Items = append(step.Items, window.Item{Stream: "a", Sequence: n, Frame: window.AppendFrame(nil, []byte("a_0000000_"), n, event.DefaultType, []byte("{}"))})
		}
		b, err := eventsPage(json.RawMessage("7"))(nil, r, step)
		if err == nil {
			err = rpc.Unmarshal(b, &p)
		}
		must.NoError(t, err)
		var got []uint64
		for _, e := range *p.Result.Events {
			got = append(got, edgetest.SequenceOf(t, e.EventID))
		}
		if !slices.Equal(got, tt.got) || *p.Result.Truncated != tt.truncated || *p.Result.HasMore != tt.more {
			t.Errorf("%s: %s", name, b)
		}
	}
}

func TestEventsParams_MaxAge(t *testing.T) {
	now := time.Unix(100, 0)
	name, id := eventsName, "x"
	for ms, since := range map[int64]int64{0: 100e9, 1000: 99e9, 1 << 62: 0} {
		p := eventsParams{Name: &name, Cursor: &id, MaxAgeMS: &ms}
		p.Arguments.Session, p.Arguments.Stream = "s", "a"
		req, err := p.request(now)
		switch {
		case err != nil:
			t.Error(err)
		case since == 0 && req.Filter != nil, since != 0 && (req.Filter == nil || req.Filter.Since != since):
			t.Errorf("%d: the filter is %+v", ms, req.Filter)
		}
	}
}

// A client whose connection breaks, or whose edge stops, resumes after its cursor, and receives
// each event once.
func TestEvents_StreamResumes(t *testing.T) {
	f := newFixture(t)
	one, stop := f.mcpService(func(c *config) { c.MCP.Events, c.Drain = true, 50*time.Millisecond })
	two, _ := f.mcpService(withMCPEvents)
	f.Create("s", "")
	first := f.Publish("a", 2)
	one.has(t, first)
	u := eventsAt(t, one.url())
	c := u.stream("")
	if n := c.notified("active"); n.Truncated || edgetest.SequenceOf(t, *n.Cursor) < first {
		t.Errorf("active is %+v", n)
	}
	var all []uint64
	publish := func(n int) {
		for range n {
			all = append(all, f.Publish("a", 1))
		}
	}
	publish(3)
	last := c.occurs(all[:2]...)
	c.Close()
	f.Publish("b", 1)
	publish(1)

	c = u.stream(after(last))
	if n := c.notified("active"); n.Truncated || *n.Cursor != last {
		t.Errorf("active is %+v", n)
	}
	last = c.occurs(all[2:]...)
	waittest.Until(t, "one is open", func() bool { return testutil.ToFloat64(one.metrics.connections) == 1 })
	stop()
	c.responds() // it is not terminated
	if c.Decoder.Retry() == 0 {
		t.Error("there is no time to come back")
	}
	if n := testutil.ToFloat64(one.metrics.connections); n != 0 {
		t.Errorf("%v are open", n)
	}

	publish(1)
	u = eventsAt(t, two.url())
	c = u.stream(after(last))
	c.notified("active")
	last = c.occurs(all[4:]...)
	start := u.cursorAt("a", first)
	must.NoError(t, f.Backend.Sessions.End(waittest.Context(t), "s", "a", false))
	for range 2 {
		if n := c.notified("terminated"); n.Error.Code != -32011 {
			t.Errorf("terminated is %+v", n)
		}
		c.responds()
		c = u.stream(after(last))
		c.notified("active")
	}
	// A poll has the remaining events, and the next one the error.
	p, got := u.poll(after(start))
	if !slices.Equal(got, all) || *p.Truncated {
		t.Errorf("a poll has %v, and is %+v", got, p)
	}
	for _, more := range []string{after(p.Cursor), ""} {
		if a := u.read(u.ask("events/poll", subscription(more))); a.StatusCode != http.StatusOK || a.Text != `{"jsonrpc":"2.0","id":7,"error":{"code":-32011,"message":"NotFound: The stream is closed."}}` {
			t.Errorf("a poll at the end is answered %d %s", a.StatusCode, a.Text)
		}
	}
}

// A gap is a second confirmation, with the cursor after which the stream continues.
func TestEvents_StreamTruncated(t *testing.T) {
	f := newFixture(t)
	u, begin, trimmed := f.trimmedStream()
	var c *client
	for _, at := range []string{"rubbish", "a_0000000_1", begin, trimmed} {
		c = u.stream(after(at))
		if n := c.notified("active"); !n.Truncated || edgetest.SequenceOf(t, *n.Cursor) != 3 {
			t.Errorf("%s: active is %+v", at, n)
		}
		c.occurs(4, 5)
	}
	c.occurs(f.Publish("a", 1)) // and no second gap
}

func TestEvents_HeartbeatMovesCursor(t *testing.T) {
	f := newFixture(t)
	u := eventsAt(t, f.mcpEdge(func(c *config) { c.MCP.Events, c.Heartbeat = true, 20*time.Millisecond }))
	c := u.stream("")
	c.notified("active")
	last := f.Publish("b", 3)
	waittest.Until(t, "the cursor moves", func() bool { return edgetest.SequenceOf(t, *c.notified("heartbeat").Cursor) == last })
}

// Subscriptions to one stream receive the same events, each under the ID of its own request.
func TestEvents_ManySubscriptions(t *testing.T) {
	f := newFixture(t)
	u := eventsAt(t, f.mcpEdge(withMCPEvents))
	clients := map[string]*client{}
	for _, id := range []string{"1", `"a"`, `"\"<"`} {
		clients[id] = u.follow(u.post(statelessBody(id, "events/stream", subscription("")), "Mcp-Method", "events/stream"))
		clients[id].notifiedOf("active", id)
	}
	f.Publish("a", 20)
	for id, c := range clients {
		for range 20 {
			c.notifiedOf("event", id)
		}
	}
}

func TestEvents_Refused(t *testing.T) {
	f := newFixture(t)
	f.bridge()
	u := eventsAt(t, f.mcpEdge(withMCPEvents))
	with := func(name, arguments, more string) string {
		return fmt.Sprintf(`"name":%s,"arguments":%s%s,`, name, arguments, more)
	}
	const place = `{"session":"s","stream":"a"}`
	for _, method := range []string{"events/poll", "events/stream"} {
		for params, code := range map[string]int{
			"":                                  rpc.CodeInvalidParams,
			with("7", place, ""):                rpc.CodeInvalidParams,
			with(`"x"`, place, ""):              -32011,
			`"name":"rejoin.stream",`:           rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, `"s"`, ""):  rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, "null", ""): rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, `{"session":"s"}`, ""):                 rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, `{"stream":"a"}`, ""):                  rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, `{"Session":"s","stream":"a"}`, ""):    rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, `{"session":"s","stream":"a\n"}`, ""):  rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, `{"session":"\n","stream":"a"}`, ""):   rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, place, `,"cursor":7`):                  rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, place, `,"cursor":""`):                 rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, place, `,"maxAgeMs":-1`):               rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, place, `,"maxAgeMs":"1"`):              rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, place, `,"maxAgeMs":99999999999999e9`): rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, place, `,"maxEvents":0`):               rpc.CodeInvalidParams,
			with(`"rejoin.stream"`, place, `,"maxEvents":1.5`):             rpc.CodeInvalidParams,
		} {
			status := http.StatusBadRequest
			if code == -32011 {
				status = http.StatusOK
			}
			if a := u.read(u.ask(method, params)); a.StatusCode != status || !strings.Contains(a.Text, fmt.Sprintf(`"id":7,"error":{"code":%d,`, code)) {
				t.Errorf("%s of %s is answered %d %s", method, params, a.StatusCode, a.Text)
			}
		}
	}
	for _, method := range []string{"events/subscribe", "events/unsubscribe", "events/x"} {
		if a := u.read(u.ask(method, subscription(""))); a.StatusCode != http.StatusNotFound || !strings.Contains(a.Text, `"id":7,"error":{"code":-32601,`) {
			t.Errorf("%s is answered %d %s", method, a.StatusCode, a.Text)
		}
	}
	long := u.read(u.post(statelessBody(`"`+strings.Repeat("x", 1000)+`"`, "events/stream", subscription("")), "Mcp-Method", "events/stream"))
	if long.StatusCode != http.StatusBadRequest || !strings.Contains(long.Text, "at most 100 characters") {
		t.Errorf("a long ID is answered %d %s", long.StatusCode, long.Text)
	}
	if a := u.read(u.ask("events/poll", subscription(""), "Mcp-Method", "events/list")); a.StatusCode != http.StatusBadRequest || !strings.Contains(a.Text, `"code":-32020`) {
		t.Errorf("another header is answered %d %s", a.StatusCode, a.Text)
	}
}

// A client that may not read a stream at /v1 receives nothing of it here, and another's session is
// like one that does not exist.
func TestEvents_Access(t *testing.T) {
	f := newFixture(t)
	guard := guarded(t)
	s, _ := f.mcpService(func(c *config) {
		guard(c)
		c.MCP.Events, c.Heartbeat = true, 20*time.Millisecond
	})
	f.Create("s", "alice")
	last := f.Publish("a", 2)
	s.has(t, last)
	narrow := authtest.Token(t, "alice", func(token *auth.Token) {
		token.Subscribe, token.Publish, token.Admin = []auth.Pattern{"t", "s-*"}, []auth.Pattern{auth.All}, true
	})
	reader := authtest.Token(t, "alice", func(token *auth.Token) { token.Subscribe = []auth.Pattern{auth.All} })
	u, bob := eventsAt(t, s.url()), edgetest.Bearer(authtest.Of(t, "bob", "*"))
	elsewhere := strings.Replace(subscription(""), `"session":"s"`, `"session":"nothing"`, 1)
	absent := ""
	for _, method := range []string{"events/poll", "events/stream"} {
		for _, tt := range []struct {
			headers      []string
			params       string
			status, code int
		}{
			{nil, subscription(""), http.StatusUnauthorized, rpc.CodeInvalid},
			{bob, elsewhere, http.StatusOK, -32011},
			{bob, subscription(""), http.StatusOK, -32011},
			{bob, subscription(after("a_0000000_1")), http.StatusOK, -32011},
			{edgetest.Bearer(narrow), subscription(""), http.StatusForbidden, -32012},
			{edgetest.Bearer(narrow), elsewhere, http.StatusForbidden, -32012},
		} {
			a := u.read(u.ask(method, tt.params, tt.headers...))
			if a.StatusCode != tt.status || !strings.Contains(a.Text, fmt.Sprintf(`"error":{"code":%d,`, tt.code)) {
				t.Errorf("%s of %s is answered %d %s", method, tt.params, a.StatusCode, a.Text)
			}
			if tt.code == -32011 {
				a.Header.Del("Date")
				got := a.Text + string(event.MustJSON(a.Header))
				if absent == "" {
					absent = got
				}
				if got != absent || !strings.Contains(got, `"id":7`) {
					t.Errorf("%s is answered %s, not %s", method, got, absent)
				}
			}
		}
	}
	// A client that may only read does, and a member until it is removed.
	if _, got := eventsAt(t, u.url, edgetest.Bearer(reader)...).poll(after("x")); !slices.Equal(got, edgetest.Sequences(last-1, last)) {
		t.Errorf("its owner gets %v", got)
	}
	f.SetMembers("s", "bob")
	member := eventsAt(t, u.url, bob...)
	c := member.stream(after("x"))
	c.notified("active")
	c.occurs(last-1, last)
	f.SetMembers("s")
	if n := c.notified("terminated"); n.Error.Code != -32012 {
		t.Errorf("terminated is %+v", n)
	}
	c.responds()
	if a := member.read(member.ask("events/poll", subscription(""))); !strings.Contains(a.Text, `"code":-32011`) {
		t.Errorf("then it is answered %s", a.Text)
	}
}

func TestEvents_EdgeIsFull(t *testing.T) {
	f := newFixture(t)
	u := eventsAt(t, f.mcpEdge(func(c *config) { c.MCP.Events, c.MaxConnections = true, 1 }))
	u.stream("").notified("active")
	for _, method := range []string{"events/poll", "events/stream"} {
		a := u.read(u.ask(method, subscription("")))
		if a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || !strings.Contains(a.Text, `"id":7,"error":{"code":-32013,"message":"ResourceExhausted","data":{"limit":"connections"}}`) {
			t.Errorf("%s is answered %d %s", method, a.StatusCode, a.Text)
		}
	}
}

// Without the flag the methods reach the MCP server, which does not have them.
func TestEvents_Off(t *testing.T) {
	b, u := newStateless(t, nil)
	b.request = func(c rpc.Ask) rpc.Answer {
		return rpc.Answer{Status: http.StatusNotFound, Data: rpc.ErrorMessage(json.RawMessage("7"), rpc.CodeMethodNotFound, "Method not found", nil)}
	}
	methods := []string{"events/list", "events/poll", "events/stream", "events/subscribe", "events/unsubscribe"}
	for _, method := range methods {
		a := u.read(u.post(statelessBody("7", method, subscription("")), "Mcp-Method", method))
		if a.StatusCode != http.StatusNotFound || !strings.Contains(a.Text, `"id":7,"error":{"code":-32601,`) {
			t.Errorf("%s is answered %d %s", method, a.StatusCode, a.Text)
		}
	}
	if n := len(b.sent(rpc.Request)); n != len(methods) {
		t.Errorf("the server was asked %d times", n)
	}
}

func TestEvents_Discover(t *testing.T) {
	const server = `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"ttlMs":0}}`
	for _, on := range []bool{false, true} {
		b, u := newStateless(t, func(c *config) { c.MCP.Events = on })
		ask := func() (edgetest.Answered, map[string]any) {
			a := u.read(u.post(statelessBody("7", mcp.MethodDiscover, ""), "Mcp-Method", mcp.MethodDiscover))
			var m struct {
				ID     int
				Result struct {
					SupportedVersions []string
					Capabilities      map[string]any
				}
			}
			if err := json.Unmarshal([]byte(a.Text), &m); err != nil || a.StatusCode != http.StatusOK || m.ID != 7 || m.Result.SupportedVersions[0] != mcp.Stateless || m.Result.Capabilities["tools"] == nil {
				t.Fatalf("%d %s", a.StatusCode, a.Text)
			}
			return a, m.Result.Capabilities
		}
		answers := map[string]func(rpc.Ask) rpc.Answer{
			"at once": func(rpc.Ask) rpc.Answer { return rpc.Answer{Status: http.StatusOK, Data: []byte(server)} },
		}
		calls := b.accepts()
		later := b.request
		answers["later"] = func(c rpc.Ask) rpc.Answer {
			a := later(c)
			<-calls
			b.say(c.Session, c.Stream, true, server)
			return a
		}
		for name, answer := range answers {
			b.request = answer
			a, capabilities := ask()
			if (capabilities["events"] != nil) != on || !on && a.Text != server {
				t.Errorf("with the flag %t, %s: %s", on, name, a.Text)
			}
		}
	}
	for _, data := range []string{`{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"no"}}`, `{"jsonrpc":"2.0","id":7,"result":{}}`, `{"result":{"capabilities":null}}`, `[`} {
		if got := withEvents([]byte(data)); string(got) != data {
			t.Errorf("%s becomes %s", data, got)
		}
	}
}

// Clients reconnect when heartbeats are rarer than the sketch allows.
func TestConfig_EventsNeedHeartbeats(t *testing.T) {
	for _, tt := range []struct {
		on        bool
		heartbeat time.Duration
		valid     bool
	}{{false, time.Minute, true}, {true, 30 * time.Second, true}, {true, 31 * time.Second, false}} {
		if err := (Config{Events: tt.on}).Validate(tt.heartbeat); (err == nil) != tt.valid {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
