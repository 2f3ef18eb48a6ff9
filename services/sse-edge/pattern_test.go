package edge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/inspect"
	"rejoin/shared/presence"
)

// Sessions that match are followed from their openings on, in any partition, and a client that reconnects
// continues.
func TestPattern_FollowsWhatBegins(t *testing.T) {
	f := &fixture{Log: edgetest.NewLogOf(t, 4), t: t}
	f.Create("orders.1", "")
	f.Create("other", "")
	s, _ := f.startService(nil)
	s.knows(t, "orders.1", "other")
	path := s.url() + "/v1/events?session=orders.*"
	c := subscribe(t, path)
	if states, resumed, id := c.connects(); states != "orders.1 open" || resumed || id == "" {
		t.Errorf("connect with %q: %s, resumed %t", id, states, resumed)
	}
	f.PublishTo("other", "a", 1)
	f.PublishTo("orders.1", "a", 1)
	at := c.groupEvents(1)[0].at
	for i := range 4 {
		name := fmt.Sprint("orders.", i+2)
		f.Create(name, "")
		f.PublishTo(name, "a", 1)
		c.changes(name, cursor.MemberOpen)
		if got := c.groupEvents(1)[0]; got.Session != name {
			t.Errorf("got an event of %s", got.Session)
		}
	}
	c = subscribe(t, path, "Last-Event-ID", at)
	if _, resumed, _ := c.connects(); !resumed {
		t.Error("it does not continue")
	}
	got := map[string]bool{}
	for _, e := range c.groupEvents(4) {
		got[e.Session] = true
	}
	if len(got) != 4 || got["orders.1"] {
		t.Errorf("got events of %v", got)
	}
	c = connect(t, s.url()+"/v1/events?session=orders.*&stream=b&from=now")
	f.PublishTo("orders.1", "a", 1)
	f.PublishTo("orders.1", "b", 1)
	if got := c.groupEvents(1)[0]; got.Stream != "b" {
		t.Errorf("got an event of %s", got.Stream)
	}
}

// Without a match, the list of sessions is empty and not null: by it clients distinguish several sessions from one.
func TestPattern_NoMatch(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	data := string(subscribe(t, s.url()+"/v1/events?session=orders.*").Next("connect").Data)
	if want := `{"sessions":[],"resumed":false,"retainedFor":3600}`; data != want {
		t.Errorf("connect: %s, want %s", data, want)
	}
}

// A pattern stands for the sessions that the client may read at the moment.
func TestPattern_Access(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(guarded(t))
	f.Create("o.mine", "alice")
	f.Create("o.shared", "bob")
	f.Create("o.later", "bob")
	f.Create("o.closed", "bob")
	f.SetMembers("o.shared", "alice")
	f.PublishTo("o.later", "a", 1)
	s.has(t, f.PublishTo("o.closed", "a", 1))
	alice := edgetest.Bearer(authtest.Of(t, "alice", "*"))
	c := subscribe(t, s.url()+"/v1/events?session=o.*", alice...)
	if states, _, _ := c.connects(); states != "o.mine open, o.shared open" && states != "o.shared open, o.mine open" {
		t.Errorf("connect: %s", states)
	}
	f.Create("o.theirs", "bob") // which is never reported
	f.PublishTo("o.theirs", "a", 1)
	f.Create("o.new", "alice")
	c.changes("o.new", cursor.MemberOpen)
	f.SetMembers("o.later", "alice")
	c.changes("o.later", cursor.MemberOpen)
	last := f.PublishTo("o.later", "a", 1)
	if got := c.groupEvents(1)[0]; edgetest.SequenceOf(t, got.ID) != last {
		t.Errorf("got %s of %s, not what follows the access", got.ID, got.Session)
	}
	f.SetMembers("o.shared")
	f.PublishTo("o.shared", "a", 1)
	c.changes("o.shared", cursor.MemberUnknown)
	f.SetMembers("o.shared", "alice")
	c.changes("o.shared", cursor.MemberOpen)

	for pattern, status := range map[string]int{"o.*": 200, "o.m*": 200, "o*": 403, "*": 403, "p.*": 403} {
		narrow := edgetest.Bearer(authtest.Of(t, "alice", "o.*"))
		if c := subscribe(t, s.url()+"/v1/events?session="+pattern, narrow...); c.Response.StatusCode != status {
			t.Errorf("%s: %d, want %d", pattern, c.Response.StatusCode, status)
		}
	}
}

// A connection by pattern neither keeps a session from being idle nor takes a connection of it.
func TestPattern_IsNoVisit(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(func(c *Config) { c.MaxSessionConnections = 1 })
	f.Create("s", "")
	f.Create("x", "")
	s.knows(t, "s", "x")
	c := subscribe(t, s.url()+"/v1/events?session=*&session=x")
	if states, _, _ := c.connects(); states != "x open, s open" {
		t.Errorf("connect: %s", states)
	}
	a := s.subs.Admission.Answerer()(presence.Question{Sessions: []presence.Session{{Name: "s", Within: 60}, {Name: "x", Within: 60}}})
	if len(a.Present) != 1 || a.Present[0].Session != 1 {
		t.Errorf("present are %+v", a.Present)
	}
	connect(t, s.url()+"/v1/events?session=s")
	f.audience(inspect.Question{About: inspect.Connections, Session: "s"}, "both connections are there", func(a inspect.Answer) bool { return len(a.Connections) == 2 })
}

// More open sessions than a connection may follow are refused. When one session too many begins, the
// connection ends, and the next one is refused.
func TestPattern_TooManySessions(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(func(c *Config) { c.MaxConnectionSessions = 2; c.Retry = time.Second })
	f.Create("o.1", "")
	f.Create("x", "")
	s.knows(t, "o.1", "x")
	path := s.url() + "/v1/events?session=x&session=o.*"
	c := subscribe(t, path)
	_, _, id := c.connects()
	f.Create("o.2", "")
	f.PublishTo("o.2", "a", 1)
	c.changes("o.*", cursor.MemberFull)
	if e, err := c.Decoder.Next(); err == nil {
		t.Errorf("an event %s follows", e.Type)
	}
	for _, header := range [][]string{nil, {"Last-Event-ID", id}} {
		a := edgetest.Ask(t, http.MethodGet, path, append(header, "Accept", "text/event-stream")...)
		var problem struct{ Code, Detail string }
		if err := json.Unmarshal([]byte(a.Text), &problem); err != nil || a.StatusCode != http.StatusBadRequest || problem.Code != "invalid_parameter" {
			t.Errorf("%d %s", a.StatusCode, a.Text)
		}
	}
}

func TestPattern_InvalidRequest(t *testing.T) {
	f := newFixture(t)
	url := f.edge(func(c *Config) { c.MaxConnectionSessions = 20 })
	for query, status := range map[string]int{
		"?session=*": 200, "?session=a*&session=b*": 200, "?session=a*b": 200, "?session=a**": 200, "?session=%20*": 400, "?added=a*": 200,
		"?session=a*&stream=1&stream=2&stream=3&stream=4&stream=5&stream=6&stream=7&stream=8&stream=9": 400,
	} {
		if c := subscribe(t, url+"/v1/events"+query); c.Response.StatusCode != status {
			t.Errorf("%s: %d", query, c.Response.StatusCode)
		}
	}
	url = f.edge(func(c *Config) { c.MaxConnectionSessions = 0 })
	if c := subscribe(t, url+"/v1/events?session=*"); c.Response.StatusCode != http.StatusBadRequest {
		t.Errorf("none are allowed: %d", c.Response.StatusCode)
	}
}
