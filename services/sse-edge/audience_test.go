package edge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/eventlog"
	"rejoin/shared/inspect"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// audience asks the edges until ok accepts an answer, and returns it.
func (f *fixture) audience(q inspect.Question, what string, ok func(inspect.Answer) bool) (got inspect.Answer) {
	f.t.Helper()
	waittest.Until(f.t, what, func() bool {
		answers, err := inspect.Ask(f.t.Context(), f.Backend.Conn, q, 1, time.Second)
		if err != nil || len(answers) != 1 {
			return false
		}
		got = answers[0]
		return ok(got)
	})
	return got
}

func always(inspect.Answer) bool { return true }

func TestConnections_Sent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Publish("a", 5)
	f.Publish("b", 1)
	f.Trim("a", eventlog.Trimmed, 1, 2)
	url := f.edge(nil)

	one := connect(t, url+streamPath)
	id := one.Messages(3)
	connections := inspect.Question{About: inspect.Connections, Session: "s"}
	a := f.audience(connections, "a connection has got 3 events", func(a inspect.Answer) bool {
		return a.Total == 1 && a.Connections[0].Events == 3 && a.Connections[0].State == inspect.Live
	})
	c := a.Connections[0]
	if a.Clients != 1 || a.Edge == "" || c.Stream != "a" || c.Protocol != inspect.SSE || c.Came != inspect.FromStart || c.Cursor < 5 || c.Address != "127.0.0.1" || c.Since.IsZero() || c.Sent.Before(c.Since.Add(-time.Second)) {
		t.Errorf("%+v", a)
	}
	one.Close()
	f.audience(connections, "it has gone", func(a inspect.Answer) bool { return a.Total == 0 && a.Clients == 0 })

	two := connect(t, url+streamPath, "Last-Event-ID", id)
	connect(t, url+flowPath+"?from=now")
	trimmed := strings.TrimSuffix(id, "5") + "1"
	back := subscribe(t, url+streamPath, "Last-Event-ID", trimmed)
	back.trimmed(t)
	back.Messages(3)
	f.Publish("a", 1)
	two.Messages(1)
	a = f.audience(connections, "all three have got the last event", func(a inspect.Answer) bool {
		return a.Total == 3 && !slices.ContainsFunc(a.Connections, func(c inspect.Connection) bool { return c.Cursor < 8 })
	})
	var got []string
	for _, c := range a.Connections {
		got = append(got, fmt.Sprint(cmp.Or(c.Stream, "*"), " ", c.Came, " ", c.Events))
	}
	if text := strings.Join(got, ", "); text != "a window 4, * now 1, a window 1" {
		t.Errorf("the connections are %s", text)
	}
	if a := f.audience(inspect.Question{About: inspect.Connections, Session: "s", Limit: 1}, "there is one", always); a.Total != 3 || len(a.Connections) != 1 || a.Connections[0].Events != 4 {
		t.Errorf("of one connection: %+v", a)
	}
	two.Close()
	want := `connect a start from 2
end a gone at 7, sent 3
resume a window from 5
connect * now from 7
resume a window from 1
gap a trimmed true, asked for ` + trimmed + `, on from 2
end a gone at 8, sent 1`
	happenings := inspect.Question{About: inspect.Happenings, Session: "s"}
	a = f.audience(happenings, "the end is noted", func(a inspect.Answer) bool { return a.Total == 7 })
	if got := edgetest.Happenings(a.Happenings); got != want {
		t.Errorf("it happened\n%s\nwant\n%s", got, want)
	}
	if a.Since.IsZero() || a.Happenings[0].Session != "" || a.Happenings[0].Connection == 0 {
		t.Errorf("%+v", a)
	}
	happenings.Limit = 2
	if a := f.audience(happenings, "there are two", always); a.Total != 7 || edgetest.Happenings(a.Happenings) != strings.Join(strings.Split(want, "\n")[5:], "\n") {
		t.Errorf("the last two are\n%s", edgetest.Happenings(a.Happenings))
	}

	poll(t, url+streamPath+"?after=nonsense")
	a = f.audience(inspect.Question{About: inspect.Gaps}, "there are gaps", func(a inspect.Answer) bool { return a.Total == 2 })
	if got := edgetest.Happenings(a.Happenings); a.Reasons["trimmed"] != 1 || a.Reasons["unknown"] != 1 || got != "gap a trimmed true, asked for "+trimmed+", on from 2\ngap a unknown true, asked for nonsense, on from 2" || a.Happenings[0].Session != "s" || a.Happenings[0].Connection != 0 {
		t.Errorf("the gaps are %v\n%s", a.Reasons, got)
	}
	a = f.audience(inspect.Question{About: inspect.Clients, Sessions: []string{"s", "unused"}}, "they are counted", func(a inspect.Answer) bool { return a.Clients == 2 })
	if !slices.Equal(a.Of, []int{2, 0}) {
		t.Errorf("the sessions have %v clients", a.Of)
	}
	if a := f.audience(inspect.Question{About: inspect.Connections, Session: "other"}, "no client is there", always); a.Total != 0 || a.Clients != 0 {
		t.Errorf("of another session: %+v", a)
	}
}

// trimmed reads the connect and the gap of a stream.
func (c *client) trimmed(t *testing.T) {
	t.Helper()
	c.Next("connect")
	if g := c.gap(); g.Reason != cursor.ReasonTrimmed {
		t.Fatalf("%+v", g)
	}
}

func TestConnections_SlowClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url := f.edge(func(c *Config) { c.WindowBytes = 64 << 20 })
	c := must.Value(attend(t.Context(), url, streamPath+"?from=now", "", true))(t)
	defer func() { _ = c.conn.Close() }()
	q := inspect.Question{About: inspect.Connections, Session: "s"}
	f.audience(q, "it is there", func(a inspect.Answer) bool { return a.Total == 1 })
	f.publishPadded("a", 100, 200<<10)
	a := f.audience(q, "it is slow", func(a inspect.Answer) bool { return a.Total == 1 && a.Connections[0].State == inspect.Slow })
	if got := a.Connections[0]; got.Events >= 100 || got.Came != inspect.FromNow {
		t.Errorf("%+v", got)
	}
}
