package edge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/valyala/fasthttp"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/eventlog"
	"rejoin/shared/inspect"
	"rejoin/shared/must"
	"rejoin/shared/presence"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
)

// groupEvent is an event of a connection that follows several sessions.
type groupEvent struct {
	at      string // the ID of the connection after it
	Session string
	ID      string
	Stream  string
	Message json.RawMessage
}

func (c *client) groupEvents(n int) (all []groupEvent) {
	c.T.Helper()
	for range n {
		e := c.Next("message")
		got := groupEvent{at: e.ID}
		if err := json.Unmarshal(e.Data, &got); err != nil {
			c.T.Fatal(err)
		}
		all = append(all, got)
	}
	return all
}

// places returns the received events, by session, stream and sequence.
func places(t *testing.T, events []groupEvent) string {
	t.Helper()
	var all []string
	for _, e := range events {
		all = append(all, fmt.Sprintf("%s/%s:%d", e.Session, e.Stream, edgetest.SequenceOf(t, e.ID)))
	}
	return strings.Join(all, " ")
}

// connects reads the connect event, and returns the states of the sessions.
func (c *client) connects() (states string, resumed bool, id string) {
	c.T.Helper()
	e := c.Next("connect")
	var data struct {
		Sessions []struct {
			Session string
			State   cursor.MemberState
		}
		Resumed bool
	}
	if err := json.Unmarshal(e.Data, &data); err != nil {
		c.T.Fatal(err)
	}
	var all []string
	for _, s := range data.Sessions {
		all = append(all, s.Session+" "+string(s.State))
	}
	return strings.Join(all, ", "), data.Resumed, e.ID
}

// receives fails unless the next events are those of some places.
func (c *client) receives(want string) {
	c.T.Helper()
	if got := places(c.T, c.groupEvents(len(strings.Fields(want)))); got != want {
		c.T.Errorf("got %s, want %s", got, want)
	}
}

// changes reads the state event of a session.
func (c *client) changes(session string, state cursor.MemberState) {
	c.T.Helper()
	want := fmt.Sprintf(`{"session":%q,"stream":null,"state":%q}`, session, state)
	if e := c.Next("state"); string(e.Data) != want {
		c.T.Fatalf("got %s, want %s", e.Data, want)
	}
}

// knows waits until the windows of an edge, and its copy of the registry, have some sessions.
func (s *Service) knows(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		waittest.Until(t, "the edge knows "+name, func() bool {
			_, seen := s.subs.Parts.Of(name).Life(name)
			_, heard := s.sessions.Session(name)
			return seen && heard
		})
	}
}

func TestGroup_ContinuesBehindEachEvent(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	url := s.url()
	f.PublishTo("x", "a", 2)
	f.PublishTo("y", "a", 1)
	f.PublishTo("x", "b", 1)
	f.PublishTo("other", "a", 1)
	s.has(t, f.PublishTo("y", "a", 2))
	c := subscribe(t, url+"/v1/events?session=x&session=y")
	if states, resumed, _ := c.connects(); states != "x open, y open" || resumed {
		t.Errorf("connect: %s, resumed %t", states, resumed)
	}
	all := c.groupEvents(6)
	if got := places(t, all); got != "x/a:1 x/a:2 y/a:3 x/b:4 y/a:6 y/a:7" {
		t.Errorf("got %s", got)
	}
	for i, e := range all {
		c := subscribe(t, url+"/v1/events?session=y&session=x", "Last-Event-ID", e.at)
		states, resumed, id := c.connects()
		if states != "y open, x open" || !resumed {
			t.Errorf("after %d: connect: %s, resumed %t", i, states, resumed)
		}
		at, err := cursor.ParseGroupID(id) // after events of other sessions, too
		if own := edgetest.SequenceOf(t, e.ID); err != nil || at.At[0].Sequence < own || i+1 < len(all) && at.At[0].Sequence >= edgetest.SequenceOf(t, all[i+1].ID) {
			t.Errorf("after %d: connect with %s, %v", i, id, err)
		}
		if got, want := places(t, c.groupEvents(len(all)-i-1)), places(t, all[i+1:]); got != want {
			t.Errorf("after %d: got %s, want %s", i, got, want)
		}
		if i == 0 {
			f.PublishTo("y", "c", 1)
			one := c.groupEvents(1)
			if got := places(t, one); got != "y/c:8" {
				t.Errorf("got %s", got)
			}
			all = append(all, one...)
		}
	}
}

func TestGroup_StreamsMethodsAndCursor(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
	group := s.url() + "/v1/events?session=x&session=y"
	for _, stream := range []string{"a", "b", "c"} {
		f.PublishTo("x", stream, 1)
		s.has(t, f.PublishTo("y", stream, 1))
	}
	c := connect(t, group+"&stream=a&stream=c")
	c.receives("x/a:1 y/a:2 x/c:5 y/c:6")
	f.store("x", "a", `{"method":"one"}`)
	f.store("x", "a", `{"method":"two"}`)
	s.has(t, f.store("y", "a", `{"method":"one"}`))
	c = connect(t, group+"&method=one")
	c.receives("x/a:7 y/a:9")
	last := f.PublishTo("other", "a", 5)
	waittest.Until(t, "the cursor is at the end", func() bool {
		id, err := cursor.ParseGroupID(c.Next("cursor").ID)
		return err == nil && id.At[0].Sequence == last
	})
}

func TestGroup_NameUsedAgain(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	url := s.url()
	f.Create("s", "")
	f.Create("x", "")
	s.has(t, f.Publish("a", 1))
	path := url + "/v1/events?session=s&session=x"
	c := connect(t, path)
	before := c.groupEvents(1)[0].at
	f.Reuse("s", "")
	c.changes("s", cursor.MemberClosed)
	f.Publish("a", 1)
	c.changes("s", cursor.MemberOpen)
	behind := c.groupEvents(1)[0].at

	c = connect(t, path, "Last-Event-ID", before)
	if g := c.gap(); g.Session != "s" || g.Reason != cursor.ReasonUnknown || g.Certain {
		t.Errorf("the gap is %+v", g)
	}
	c.groupEvents(1)
	c = subscribe(t, path, "Last-Event-ID", behind)
	if _, resumed, _ := c.connects(); !resumed {
		t.Error("it does not continue")
	}
	f.PublishTo("x", "a", 1)
	c.groupEvents(1)
}

func TestGroup_Trim(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	url := s.url()
	f.PublishTo("x", "a", 1)
	s.has(t, f.Publish("a", 5))
	c := connect(t, url+"/v1/events?session=x&session=s")
	at := c.groupEvents(2)[1].at
	c.Close()
	f.Trim("a", eventlog.Trimmed, edgetest.Sequences(2, 4)...)
	c = subscribe(t, f.edge(func(c *Config) { c.WindowBackfill = -1 })+"/v1/events?session=x&session=s&after="+at)
	if _, resumed, id := c.connects(); resumed || id != "" {
		t.Errorf("connect with %q, resumed %t", id, resumed)
	}
	if g := c.gap(); g.Session != "s" || g.Reason != cursor.ReasonTrimmed || edgetest.SequenceOf(t, g.ResumesAt) != 4 || edgetest.SequenceOf(t, g.Requested) != 2 {
		t.Errorf("the gap is %+v", g)
	}
	c.receives("s/a:5 s/a:6")
}

// A session that is added begins at its start, and a cut on the way loses and repeats nothing.
func TestGroup_Added(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	url := s.url()
	f.PublishTo("new", "a", 2)
	f.PublishTo("x", "a", 2)
	f.PublishTo("new", "a", 1)
	s.has(t, f.PublishTo("x", "a", 1))
	c := connect(t, url+"/v1/events?session=x")
	at := c.groupEvents(2)[1].at // after x/a:4
	path := url + "/v1/events?session=x&added=new"
	c = subscribe(t, path, "Last-Event-ID", at)
	if _, resumed, _ := c.connects(); !resumed {
		t.Error("it does not continue")
	}
	all := c.groupEvents(4)
	if got := places(t, all); got != "new/a:1 new/a:2 new/a:5 x/a:6" {
		t.Errorf("got %s", got)
	}
	for i, e := range all {
		c = connect(t, path, "Last-Event-ID", e.at)
		if got, want := places(t, c.groupEvents(3-i)), places(t, all[i+1:]); got != want {
			t.Errorf("after %d: got %s, want %s", i, got, want)
		}
	}
	c = connect(t, path+"&from=now", "Last-Event-ID", at)
	c.receives("x/a:6")
	c = subscribe(t, url+"/v1/events?session=new", "Last-Event-ID", all[3].at) // and x is no longer named
	if _, resumed, _ := c.connects(); !resumed {
		t.Error("it does not continue without the other")
	}
	f.PublishTo("new", "a", 1)
	c.receives("new/a:7")
}

// A session that is added while all others are removed from the request begins at its start.
func TestGroup_AddedAlone(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	f.PublishTo("new", "a", 1)
	s.has(t, f.PublishTo("x", "a", 1))
	c := connect(t, s.url()+"/v1/events?session=x")
	path := s.url() + "/v1/events?added=new"
	c = connect(t, path, "Last-Event-ID", c.groupEvents(1)[0].at)
	first := c.groupEvents(1)
	if id, err := cursor.ParseGroupID(first[0].at); places(t, first) != "new/a:1" || err != nil || id.At[0].Sequence != 1 {
		t.Errorf("got %s, after it %s", places(t, first), first[0].at)
	}
	last := f.PublishTo("new", "a", 1)
	c = connect(t, path, "Last-Event-ID", first[0].at)
	if got := c.groupEvents(1)[0]; edgetest.SequenceOf(t, got.ID) != last {
		t.Errorf("got %s", got.ID)
	}
}

func TestGroup_Access(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(guarded(t))
	url := s.url()
	f.Create("mine", "alice")
	f.Create("shared", "bob")
	f.SetMembers("shared", "alice")
	f.Create("s", "bob")
	f.Publish("a", 1)
	s.has(t, f.PublishTo("shared", "a", 1))
	alice := edgetest.Bearer(authtest.Of(t, "alice", "*"))
	path := url + "/v1/events?session=mine&session=shared&session=s&session=nothing"
	c := subscribe(t, path, alice...)
	if states, _, _ := c.connects(); states != "mine open, shared open, s unknown, nothing unknown" {
		t.Errorf("connect: %s", states)
	}
	c.groupEvents(1)
	f.Publish("a", 1)
	f.Create("nothing", "bob")
	f.PublishTo("nothing", "a", 1)
	f.PublishTo("mine", "a", 1)
	if got := c.groupEvents(1)[0]; got.Session != "mine" {
		t.Errorf("got an event of %s", got.Session)
	}
	f.SetMembers("shared")
	waittest.Until(t, "the edge knows", func() bool { rec, _ := s.sessions.Session("shared"); return len(rec.Members) == 0 })
	f.PublishTo("shared", "a", 1)
	f.Reuse("s", "alice")
	f.Publish("a", 1)
	seen := map[string]bool{}
	for !seen["s"] {
		e := must.Value(c.Decoder.Next())(t)
		if seen[e.Type] = true; e.Type == "message" {
			var got groupEvent
			must.NoError(t, json.Unmarshal(e.Data, &got))
			seen[got.Session] = true
		}
	}
	if seen["shared"] {
		t.Error("one who was taken out of a session receives its events")
	}
	narrow := edgetest.Bearer(authtest.Of(t, "alice", "mine"))
	edgetest.Ask(t, http.MethodGet, url+"/v1/events?session=mine&session=other", append(narrow, "Accept", "text/event-stream")...).Got(t, http.StatusForbidden)
}

// A caller that names a session of another neither takes a connection of it nor keeps it from being idle, before it
// may read the session.
func TestGroup_NamesOfOthersAreNotCounted(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(func(c *Config) {
		guarded(t)(c)
		c.MaxSessionConnections, c.Heartbeat = 1, 10*time.Millisecond
	})
	f.Create("mine", "alice")
	f.Create("s", "bob")
	s.knows(t, "mine", "s")
	for _, query := range []string{"?session=mine&session=s", "?session=s", "?session=nothing"} {
		connect(t, s.url()+"/v1/events"+query, edgetest.Bearer(authtest.Of(t, "alice", "*"))...)
	}
	a := s.subs.Admission.Answerer()(presence.Question{Sessions: []presence.Session{{Name: "mine", Within: 60}, {Name: "s", Within: 60}}})
	if len(a.Present) != 1 || a.Present[0].Session != 0 {
		t.Errorf("present are %+v", a.Present)
	}
	for _, path := range []string{"/v1/events?session=s", "/v1/events?session=nothing&session=s"} {
		c := connect(t, s.url()+path, edgetest.Bearer(authtest.Of(t, "bob", "*"))...)
		c.Close()
		waittest.Until(t, "the connection has ended", func() bool {
			_, of := s.subs.Admission.Clients(inspect.Question{Sessions: []string{"s"}})
			return of[0] == 0
		})
	}
	counted := func(when string, want ...int) {
		waittest.Until(t, when, func() bool {
			_, of := s.subs.Admission.Clients(inspect.Question{Sessions: []string{"nothing", "s"}})
			return slices.Equal(of, want)
		})
	}
	f.Create("nothing", "alice")
	counted("a session begins", 1, 0)
	f.SetMembers("s", "alice")
	counted("a caller is let in", 1, 2)
	f.SetMembers("s")
	counted("and is out again", 1, 0)
}

func TestGroup_InvalidRequest(t *testing.T) {
	f := newFixture(t)
	url := f.edge(func(c *Config) { c.MaxConnectionSessions = 2 })
	for query, status := range map[string]int{
		"": 400, "?session=": 400, "?session=a&stream=": 400, "?session=a&session=b&session=c": 400, "?session=a&stream=x&stream=y&stream=z": 400,
		"?session=a&session=a&session=a&from=now": 200, "?session=a&from=x": 400, "?session=a&on_gap=error": 400, "?session=a&limit=3": 400, "?session=a&last=3": 400,
	} {
		c := subscribe(t, url+"/v1/events"+query)
		if c.Response.StatusCode != status {
			t.Errorf("%s: %d", query, c.Response.StatusCode)
		}
	}
	edgetest.Ask(t, http.MethodGet, url+"/v1/events?session=a", "Accept", "application/json").Got(t, http.StatusNotAcceptable)
	c := connect(t, url+"/v1/events?session=a&session=b&after=main_abcdefg_5")
	for _, session := range []string{"a", "b"} {
		if g := c.gap(); g.Session != session || g.Reason != cursor.ReasonUnknown || !g.Certain {
			t.Errorf("the gap is %+v", g)
		}
	}
}

// Each pair of a session and a stream of a request is a place. As many of both as a request line holds would be
// 160,000.
func TestAttackSessionsTimesStreams(t *testing.T) {
	var query strings.Builder
	for i := range 400 {
		fmt.Fprintf(&query, "&session=%d&stream=%d", i+100, i+100)
	}
	app := fiber.New()
	var request fasthttp.RequestCtx
	request.Request.SetRequestURI("/v1/events?" + query.String())
	c := app.AcquireCtx(&request)
	defer app.ReleaseCtx(c)
	s := &Service{}
	s.cfg.MaxConnectionSessions = 500
	var err error
	n := testing.AllocsPerRun(1, func() { _, err = s.parseGroup(c) })
	if web.AsProblem(err).Code != web.CodeInvalidParameter {
		t.Errorf("it is answered %v", err)
	}
	if n > 5_000 {
		t.Errorf("%g allocations", n)
	}
}

// A request that is accepted is accepted again with the ID of its connection.
func TestGroup_RequestWithoutRoomForTheID(t *testing.T) {
	f := &fixture{Log: edgetest.NewLogOf(t, 16), t: t}
	url := f.edge(func(c *Config) { c.MaxConnectionSessions = 500 })
	statuses := map[int]bool{}
	for n := 150; n < 180; n += 4 { // with more, the server refuses the headers while they are written
		var query strings.Builder
		for i := range n {
			fmt.Fprintf(&query, "&session=%036d", i)
		}
		c := subscribe(t, url+"/v1/events?"+query.String())
		statuses[c.Response.StatusCode] = true
		if c.Response.StatusCode != http.StatusOK {
			continue
		}
		_, _, id := c.connects()
		c.Close()
		// Sequences grow, and each partition may have two.
		id = regexp.MustCompile(`[.]0(_|$)`).ReplaceAllString(id, ".zzzzzz-yyyyyy$1")
		if again := subscribe(t, url+"/v1/events?"+query.String(), "Last-Event-ID", id); again.Response.StatusCode != http.StatusOK {
			t.Errorf("%d sessions: %d with an ID of %d bytes", n, again.Response.StatusCode, len(id))
		}
	}
	if !statuses[http.StatusOK] || !statuses[http.StatusBadRequest] {
		t.Errorf("the statuses are %v", statuses)
	}
}

// A client that reads slowly receives everything once.
func TestGroup_SlowClient(t *testing.T) {
	f := &fixture{Log: edgetest.NewLogOf(t, 4), t: t}
	s, _ := f.startService(func(c *Config) { c.WindowBytes = 64 << 20 })
	for _, name := range []string{"x", "y", "z"} {
		f.Create(name, "")
	}
	s.knows(t, "x", "y", "z")
	c := connect(t, s.url()+"/v1/events?session=x&session=y&session=z")
	const events = 600
	text := strings.Repeat("x", 20<<10)
	want := map[string]int{}
	for i := range events {
		name := string("xyz"[i%3])
		f.store(name, "a", fmt.Sprintf(`{"n":%d,"text":%q}`, want[name], text))
		want[name]++
	}
	waittest.Until(t, "the client is blocked", func() bool { return testutil.ToFloat64(s.subs.Connections.Metrics.Blocked) == 1 })
	got := map[string]int{}
	for range events {
		e := c.groupEvents(1)[0]
		var m struct{ N int }
		if err := json.Unmarshal(e.Message, &m); err != nil || m.N != got[e.Session] {
			t.Fatalf("message %d of %s came as number %d", m.N, e.Session, got[e.Session])
		}
		got[e.Session]++
	}
}

// A client whose connection ends after the connect event receives no gap of events that were removed before it
// connected.
func TestGroup_RemovedBeforeTheConnectEvent(t *testing.T) {
	f := newFixture(t)
	f.Publish("a", 4)
	f.Trim("a", eventlog.Trimmed, 1, 2)
	s, _ := f.startService(nil)
	s.has(t, f.PublishTo("x", "a", 2))
	url := s.url() + "/v1/events?session=s&session=x"
	c := subscribe(t, url)
	_, _, id := c.connects()
	c.Close()
	if id == "" {
		t.Fatal("the connect event has no ID")
	}
	c = subscribe(t, url, "Last-Event-ID", id)
	if _, resumed, _ := c.connects(); !resumed {
		t.Error("the client does not resume")
	}
	c.receives("s/a:3 s/a:4 x/a:6 x/a:7")
}

// The janitor's questions find the connection at each of its sessions.
func TestGroup_Inspected(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	f.Create("x", "")
	f.Create("y", "")
	s.has(t, f.PublishTo("y", "a", 1))
	c := connect(t, s.url()+"/v1/events?session=x&session=y&from=now")
	last := f.PublishTo("y", "a", 1)
	c.groupEvents(1)
	for _, name := range []string{"x", "y"} {
		a := f.audience(inspect.Question{About: inspect.Connections, Session: name}, "the connection is there", func(a inspect.Answer) bool {
			return len(a.Connections) == 1 && a.Connections[0].Cursor == last
		})
		if got := a.Connections[0]; a.Clients != 1 || got.Came != inspect.FromNow || got.Events != 1 {
			t.Errorf("%s: %d clients, %+v", name, a.Clients, got)
		}
	}
}

// The events read ahead for a client that does not read count, until the client disconnects.
func TestGroup_ReadAheadCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	data := fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", 100<<10))
	for i := range 200 {
		f.store([]string{"s", "x"}[i%2], "a", data)
	}
	f.tune = func(s *Service) { s.memory = quota.NewPool(64 << 20) }
	s, _ := f.startService(nil)
	c := subscribe(t, s.url()+"/v1/events?session=s&session=x")
	c.connects()
	waittest.Until(t, "what was read ahead counts", func() bool { return s.memory.Used() >= subscriber.StepBytes+2*memberBytes+100<<10 })
	c.Close()
	waittest.Until(t, "nothing counts", func() bool { return s.memory.Used() == 0 })
}
