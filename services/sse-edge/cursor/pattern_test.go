package cursor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// most has a group take so many members.
func most(n int) func(*GroupConfig) {
	return func(c *GroupConfig) { c.MaxMembers = n }
}

// membersOf are the sessions that a group follows, with their states.
func membersOf(g *Group) string {
	var all []string
	for _, m := range g.Members() {
		all = append(all, fmt.Sprintf("%s:%s", m.Place.Session, m.State))
	}
	return strings.Join(all, " ")
}

// A session that begins later is followed from its opening on, and a client that is cut after any event
// continues after it, at an edge that has all events in its window or has to read the log.
func TestPattern_SessionsBeginAndEnd(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("o.1", "")
	f.PublishTo("o.1", "a", 1)
	f.Create("other", "")
	ps := followLog(t, f, 0)
	knows(t, ps, "other")
	var ids []string
	g := openAfter(t, f, ps, "", &ids, "o.*")
	if got := membersOf(g); got != "o.1:open" {
		t.Errorf("the members are %s", got)
	}
	readAll(t, g)
	f.PublishTo("other", "a", 1)
	f.Create("o.2", "")
	two := comesTo(t, ps, "s", f.PublishTo("o.2", "a", 1))
	readsAll(t, g, fmt.Sprint("o.2:open o.2:", two))
	last := f.PublishTo("o.1", "a", 1)
	f.End("o.1")
	f.Create("o.3", "") // which begins and ends
	three := f.PublishTo("o.3", "a", 1)
	f.End("o.3")
	four := comesTo(t, ps, "s", f.PublishTo("o.2", "a", 1))
	got, want := readAll(t, g), fmt.Sprintf("o.3:open o.1:%d o.3:%d o.2:%d o.1:closed o.3:closed", last, three, four)
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := membersOf(g); got != "o.2:open" {
		t.Errorf("the members are %s", got)
	}
	all := []uint64{two, last, three, four}
	for name, ps := range map[string]*Partitions{"window": ps, "log": followLog(t, f, -1)} {
		for i, id := range ids {
			var want []string
			for _, sequence := range all[i:] {
				want = append(want, fmt.Sprint(":", sequence))
			}
			got := events(readAll(t, openAfter(t, f, ps, id, nil, "o.*")))
			if !slices.EqualFunc(got, want, strings.HasSuffix) {
				t.Errorf("%s: after event %d: got %s, want %s", name, i, got, want)
			}
		}
	}
}

// events returns the events and gaps of a read, without the changes of open and closed sessions.
func events(got string) []string {
	return slices.DeleteFunc(strings.Fields(got), func(s string) bool {
		return strings.HasSuffix(s, ":open") || strings.HasSuffix(s, ":closed")
	})
}

func isEnded(ps *Partitions, name string) bool {
	changed, _, _ := ps.Of(name).window.ChangedSince(0, func(session string) bool { return session == name })
	return len(changed) == 1 && changed[0].End > 0
}

// A session whose end lies after the position is part of it, also when the client knows the end.
func TestPattern_EndsBehindThePosition(t *testing.T) {
	f, ps := withSessions(t, "o.1", "o.2")
	var ids []string
	g := openGroup(t, f, ps, Start{}, &ids, func(c *GroupConfig) { c.Limit.Events = 1 }, "o.*")
	f.PublishTo("o.2", "a", 2)
	f.End("o.1")
	comesTo(t, ps, "s", f.PublishTo("o.2", "a", 2))
	readAll(t, g)
	if len(ids) != 4 {
		t.Fatalf("there are %d events", len(ids))
	}
	for i, id := range ids {
		if got := events(readAll(t, openAfter(t, f, ps, id, nil, "o.*"))); len(got) != 3-i || slices.Contains(got, "gap:o.*:unknown") {
			t.Errorf("after event %d: %v", i, got)
		}
	}
}

// Without a cursor, sessions that have ended are left out.
func TestPattern_Fresh(t *testing.T) {
	f := edgetest.NewLog(t)
	for _, name := range []string{"o.1", "o.2"} {
		f.Create(name, "")
		f.PublishTo(name, "a", 1)
	}
	f.End("o.1")
	for name, backfill := range map[string]int{"window": 0, "log": -1} {
		ps := followLog(t, f, backfill)
		g := openAfter(t, f, ps, "", nil, "o.*", "x")
		if got := membersOf(g); got != "x:unknown o.2:open" {
			t.Errorf("%s: the members are %s", name, got)
		}
		if got := readAll(t, g); strings.Count(got, ":") != 1 || !strings.HasPrefix(got, "o.2:") {
			t.Errorf("%s: got %s", name, got)
		}
		now := openGroup(t, f, ps, Start{Now: true}, nil, nil, "*")
		if got := readAll(t, now); got != "" || membersOf(now) != "o.2:open" {
			t.Errorf("%s: from now: %s, %s", name, got, membersOf(now))
		}
	}
}

// A name that is used again, or no longer used, while the client is disconnected is a gap of the pattern.
func TestPattern_OtherLives(t *testing.T) {
	f, ps := withSessions(t, "o.1", "o.2")
	var ids []string
	comesTo(t, ps, "s", f.PublishTo("o.1", "a", 1))
	readAll(t, openAfter(t, f, ps, "", &ids, "o.*"))
	readsAll(t, openAfter(t, f, ps, ids[0], nil, "o.*"), "")
	f.Reuse("o.2", "")
	last := comesTo(t, ps, "s", f.PublishTo("o.2", "a", 1))
	readsAll(t, openAfter(t, f, ps, ids[0], nil, "o.*"), fmt.Sprint("gap:o.*:unknown o.2:", last))
	var again []string
	readAll(t, openAfter(t, f, ps, "", &again, "o.*"))
	readsAll(t, openAfter(t, f, ps, again[len(again)-1], nil, "o.*"), "")
}

// The next life of a name is followed, if the client may read it.
func TestPattern_NameUsedAgain(t *testing.T) {
	f, ps := withSessions(t, "o.1")
	refused := ""
	g := openGroup(t, f, ps, Start{}, nil, func(c *GroupConfig) {
		c.Authorize = func(_ context.Context, name, life string) (string, bool, error) {
			if life == "" {
				life, _ = ps.Of(name).Life(name)
			}
			return life, name != refused, nil
		}
	}, "o.*")
	readAll(t, g)
	f.Reuse("o.1", "")
	last := comesTo(t, ps, "s", f.PublishTo("o.1", "a", 1))
	readsAll(t, g, fmt.Sprint("o.1:closed o.1:open o.1:", last))
	refused = "o.1"
	f.Reuse("o.1", "")
	comesTo(t, ps, "s", f.PublishTo("o.1", "a", 1))
	if got := readAll(t, g); got != "o.1:closed" || membersOf(g) != "" {
		t.Errorf("another's life: %s, %s", got, membersOf(g))
	}
	refused = ""
	f.Reuse("o.1", "")
	last = comesTo(t, ps, "s", f.PublishTo("o.1", "a", 1))
	readsAll(t, g, fmt.Sprint("o.1:open o.1:", last))
}

// withEndedSession returns a group that has reached the end of session o.1, and follows o.2.
func withEndedSession(t *testing.T) (f *edgetest.Log, ps *Partitions, g *Group) {
	t.Helper()
	f, ps = withSessions(t, "o.1", "o.2")
	g = openAfter(t, f, ps, "", nil, "o.*")
	f.End("o.1")
	comesTo(t, ps, "s", f.PublishTo("o.2", "a", 1))
	if readAll(t, g); membersOf(g) != "o.2:open" {
		t.Fatalf("the members are %s", membersOf(g))
	}
	return f, ps, g
}

// A name that is used twice before the group finds it again has a gap for the life in between.
func TestPattern_LifeInBetween(t *testing.T) {
	f, ps, g := withEndedSession(t)
	again := func() uint64 {
		f.Reuse("o.1", "")
		return f.PublishTo("o.1", "a", 1)
	}
	again()
	f.End("o.1")
	last := again()
	f.Create("o.3", "")
	three := comesTo(t, ps, "s", f.PublishTo("o.3", "a", 1))
	readsEvents(t, g, "gap:o.1:unknown", fmt.Sprint("o.1:", last), fmt.Sprint("o.3:", three))
	f.End("o.1")
	comesTo(t, ps, "s", f.PublishTo("o.2", "a", 1))
	readAll(t, g)
	last = again()
	comesTo(t, ps, "s", last)
	readsEvents(t, g, fmt.Sprint("o.1:", last))
}

// The same while the client is disconnected, also at an edge that has only the events of the life in between, and of a
// session that is named, or followed alone from a time at which there was none.
func TestPattern_LifeInBetweenWhileAway(t *testing.T) {
	f, ps, g := withEndedSession(t)
	named := openAfter(t, f, ps, "", nil, "o.1", "o.3")
	readAll(t, named)
	ids := map[string]string{"o.*": g.ID(), "o.1,o.3": named.ID()}
	alone := opens(t, ps, "o.3", Start{})
	must.Value(alone.Next(waittest.Context(t)))(t)
	id := alone.ID(alone.Cursor)
	alone.Close()
	last := map[string]uint64{}
	for name, begin := range map[string]func(){"o.1": func() { f.Reuse("o.1", "") }, "o.3": func() { f.Create("o.3", "") }} {
		begin()
		f.PublishTo(name, "a", 1)
		f.End(name)
		f.Reuse(name, "") // the opening of the life in between is removed
		last[name] = f.PublishTo(name, "a", 1)
	}
	want := []string{"gap:o.1:unknown", "gap:o.3:unknown", fmt.Sprint("o.1:", last["o.1"]), fmt.Sprint("o.3:", last["o.3"])}
	for name, edge := range map[string]*Partitions{"it saw the opening": ps, "it did not": followLog(t, f, 0)} {
		comesTo(t, edge, "s", max(last["o.1"], last["o.3"]))
		for names, id := range ids {
			got := events(readAll(t, openAfter(t, f, edge, id, nil, strings.Split(names, ",")...)))
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", name, got, want)
			}
		}
		r := opens(t, edge, "o.3", Start{After: id})
		if s, err := r.Next(waittest.Context(t)); err != nil || len(s.Gaps) != 1 || s.Gaps[0].Certain || len(s.Items) != 1 || s.First != last["o.3"] {
			t.Errorf("%s, alone: %+v, %v", name, s, err)
		}
		r.Close()
	}
}

// A session that begins in an empty partition while a client connects is followed from its first event on.
func TestPattern_BeginsDuringConnect(t *testing.T) {
	for name, from := range map[string]Start{"start": {}, "now": {Now: true}} {
		f := edgetest.NewLogOf(t, 2)
		ps := followLog(t, f, 0)
		other, session := inTwoPartitions(f)
		var last uint64
		publish := sync.OnceFunc(func() {
			f.Create(session, "")
			last = comesTo(t, ps, session, f.PublishTo(session, "a", 2))
		})
		places := []string{session + "*"}
		for i := 0; len(places) <= maxInParallel; i++ { // their readers are opened before that of the pattern
			if name := fmt.Sprint("n", i); ps.Of(name) == ps.Of(other) {
				places = append(places, name)
			}
		}
		g := openGroup(t, f, ps, from, nil, func(c *GroupConfig) {
			c.Authorize = func(context.Context, string, string) (string, bool, error) {
				publish()
				return "", true, nil
			}
		}, places...)
		if got, want := events(readAll(t, g)), []string{fmt.Sprint(session, ":", last-1), fmt.Sprint(session, ":", last)}; !slices.Equal(got, want) {
			t.Errorf("from=%s: got %v, want %v", name, got, want)
		}
	}
}

// A session that begins while a read is under way is not passed over.
func TestPattern_BeginsDuringRead(t *testing.T) {
	f, ps := withSessions(t, "o.1")
	var second, third uint64
	g := openGroup(t, f, ps, Start{}, nil, func(c *GroupConfig) {
		c.Authorize = func(_ context.Context, name, _ string) (string, bool, error) {
			if name == "o.2" { // the sessions that begin are known by now
				f.Create("o.3", "")
				second = f.PublishTo("o.3", "a", 1)
				third = comesTo(t, ps, "s", f.PublishTo("o.1", "a", 1))
			}
			life, _ := ps.Of(name).Life(name)
			return life, true, nil
		}
	}, "o.*")
	readAll(t, g)
	f.Create("o.2", "")
	first := comesTo(t, ps, "s", f.PublishTo("o.2", "a", 1))
	if got, want := readAll(t, g), fmt.Sprintf("o.2:open o.2:%d o.3:open o.3:%d o.1:%d", first, second, third); got != want { // the sequences are known then
		t.Errorf("got %s, want %s", got, want)
	}
}

// A session that ends while a client connects is followed, although the registry has the end before the
// window does.
func TestPattern_EndsDuringConnect(t *testing.T) {
	f, ps := withSessions(t, "o.1", "o.2")
	g := openAfter(t, f, ps, "", nil, "o.*")
	readAll(t, g)
	var first uint64
	again := openGroup(t, f, ps, Start{After: g.ID()}, nil, func(c *GroupConfig) {
		open := c.Open
		c.Open = func(match func(string) bool) ([]string, error) {
			first = f.PublishTo("o.1", "a", 1)
			f.PublishTo("o.2", "a", 500) // else the window has the end soon enough
			f.End("o.1")
			return open(match)
		}
	}, "o.*")
	comesTo(t, ps, "s", f.PublishTo("o.2", "a", 1))
	if got := events(readAll(t, again)); len(got) != 502 || got[0] != fmt.Sprint("o.1:", first) {
		t.Errorf("got %d events, the first one is %s", len(got), got[0])
	}
}

// A session that the registry does not know yet is followed, also from a position between its opening and
// its first event.
func TestPattern_RegistryIsBehind(t *testing.T) {
	f, ps := withSessions(t, "o.1")
	g := openAfter(t, f, ps, "", nil, "o.*")
	readAll(t, g)
	f.Create("o.2", "")
	knows(t, ps, "o.2")
	readAll(t, g)
	at := g.ID()
	last := comesTo(t, ps, "s", f.PublishTo("o.2", "a", 1))
	for name, ps := range map[string]*Partitions{"window": ps, "log": followLog(t, f, -1)} {
		again := openGroup(t, f, ps, Start{After: at}, nil, func(c *GroupConfig) {
			c.Open = func(func(string) bool) ([]string, error) { return []string{"o.1"}, nil }
		}, "o.*")
		if got, want := readAll(t, again), fmt.Sprint("o.2:", last); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	_, err := tryGroup(t, f, ps, Start{}, nil, func(c *GroupConfig) {
		c.Open = func(func(string) bool) ([]string, error) { return nil, session.ErrUnavailable }
	}, "o.*")
	if !Transient(err) {
		t.Errorf("while the registry does not say which sessions are open: %v", err)
	}
}

// More open sessions than a connection may follow are refused, at once or when they begin; no later event
// is sent.
func TestPattern_TooMany(t *testing.T) {
	f, ps := withSessions(t, "o.1", "o.2")
	if _, err := tryGroup(t, f, ps, Start{}, nil, most(1), "o.*"); !errors.Is(err, ErrTooManySessions) {
		t.Errorf("two of one: %v", err)
	}
	g := openGroup(t, f, ps, Start{}, nil, most(2), "o.*")
	readAll(t, g)
	first := f.PublishTo("o.1", "a", 1)
	f.Create("o.3", "")
	last := comesTo(t, ps, "s", f.PublishTo("o.1", "a", 1))
	var got []string
	for ended := false; !ended; {
		s := next(t, g)
		for _, it := range s.Items {
			got = append(got, string(it.Frame))
		}
		for _, change := range s.Changes {
			got = append(got, change.Place.Session+" "+string(change.State))
		}
		ended = s.Ended
	}
	// The event before the opening is sent, or is not: it lies in the same read.
	if want := []string{fmt.Sprintf("o.1:%d ", first), "o.* full"}; !slices.Equal(got, want) && !slices.Equal(got, want[1:]) {
		t.Errorf("got %v", got)
	}
	f.End("o.2")
	comesTo(t, ps, "s", last+1)
	waittest.Until(t, "it has ended", func() bool { return ps.Of("o.2").Stats().End > last && isEnded(ps, "o.2") })
	again := openGroup(t, f, ps, Start{After: g.ID()}, nil, most(2), "o.*")
	rest := events(readAll(t, again))
	if len(rest) != 3-len(got) || rest[len(rest)-1] != fmt.Sprint("o.1:", last) {
		t.Errorf("after %v comes %v", got, rest)
	}
}

// Refusing a pattern takes memory for as many members as a connection may follow, however many sessions match.
func TestPattern_TooManyAllocations(t *testing.T) {
	const limit = 500
	f := edgetest.NewLog(t)
	ps := followLog(t, f, 0)
	allocations := func(sessions int) float64 {
		var names []string
		for i := range sessions {
			names = append(names, fmt.Sprint("o.", i))
		}
		return testing.AllocsPerRun(3, func() {
			_, err := tryGroup(t, f, ps, Start{}, nil, func(c *GroupConfig) {
				c.MaxMembers = limit
				c.Open = func(func(string) bool) ([]string, error) { return names, nil }
			}, "o.*")
			if !errors.Is(err, ErrTooManySessions) {
				t.Errorf("%d sessions: %v", sessions, err)
			}
		})
	}
	if few, many := allocations(2*limit), allocations(60*limit); many > 2*few {
		t.Errorf("%v allocations for %d sessions, %v for %d", many, 60*limit, few, 2*limit)
	}
}

// The openings and ends below the window are read with a slot of the client's share, when a client resumes and
// when the window has passed a connected one.
func TestPattern_ReadsBelowTheWindowAreSharedOut(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("o.1", "")
	f.PublishTo("o.1", "a", 1)
	filters := event.LivesFilters(0)
	ps, check := scansOfMallory(t, f, filters[:]...)
	ctx := WithClient(waittest.Context(t), "mallory")
	g, err := ps.OpenGroup(ctx, []Follow{{Session: "o.*", Pattern: true}}, Start{After: "group_00000000000000_0.aaaaaaa.1"}, GroupConfig{
		Limit: ten, MaxMembers: 10, Frame: func(string, *Member, *window.Item) []byte { return nil },
	})
	must.NoError(t, err)
	t.Cleanup(g.Close)
	check("resumed")
	f.Create("o.2", "")
	evict(t, f)
	comesTo(t, ps, "s", f.PublishTo("o.1", "a", 1))
	must.Value(g.Next(ctx))(t)
	check("connected")
	if got := membersOf(g); got != "o.1:open o.2:open" {
		t.Errorf("the members are %s", got)
	}
}

// Sessions that began and ended while the client was disconnected, and for which there is no room, are a
// gap of the pattern.
func TestPattern_LeftOut(t *testing.T) {
	f, ps := withSessions(t, "o.0")
	g := openAfter(t, f, ps, "", nil, "o.*")
	readAll(t, g)
	var last uint64
	for i := range 4 {
		name := fmt.Sprint("o.", i+1)
		f.Create(name, "")
		f.PublishTo(name, "a", 1)
		f.End(name)
		last = f.PublishTo("o.0", "a", 1)
	}
	comesTo(t, ps, "s", last)
	at := g.ID()
	for name, again := range map[string]func() *Group{
		"resumed": func() *Group {
			return openGroup(t, f, ps, Start{After: at}, nil, most(3), "o.*")
		},
		"while it reads": func() *Group { g.cfg.MaxMembers = 3; return g },
	} {
		got := events(readAll(t, again()))
		gaps := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != "gap:o.*:unknown" })
		if len(gaps) != 1 || len(got)-len(gaps) != 4+3 {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// Of the sessions that began and ended while the client was disconnected, as many are opened as there is room
// for, and one gap stands for the others, wherever the openings and ends lie. An open session, and one that
// ended in the window, are not left out because their openings lie below it.
func TestPattern_ManyWhileAway(t *testing.T) {
	const room, sessions = 3, 20
	for name, tt := range map[string]struct {
		backfill int
		uses     bool
	}{"window": {0, false}, "log": {-1, false}, "window, of several owners": {0, true}, "log, of several owners": {-1, true}} {
		t.Run(name, func(t *testing.T) {
			f := edgetest.NewLogOf(t, 4)
			f.Create("x", "alice")
			ps := followLog(t, f, 0)
			knows(t, ps, "x")
			change := func(c *GroupConfig) {
				c.MaxMembers = room
				c.Open = func(func(string) bool) ([]string, error) { return nil, nil }
				if !tt.uses {
					return
				}
				c.Uses = func(owner string, _ []string) bool { return owner == "alice" }
				c.Authorize = func(_ context.Context, name, _ string) (string, bool, error) {
					rec, _ := f.Backend.Sessions.Session(name)
					return rec.Life, rec.Owner == "alice", nil
				}
			}
			open := func(ps *Partitions, after string) *Group {
				return openGroup(t, f, ps, Start{After: after}, nil, change, "o.*")
			}
			g := open(ps, "")
			readAll(t, g)
			id := g.ID()
			use := func(name, owner string) {
				f.Create(name, owner)
				f.PublishTo(name, "a", 1)
			}
			if tt.uses {
				for i := range sessions {
					use(fmt.Sprint("o.b", i), "bob")
					f.End(fmt.Sprint("o.b", i))
				}
			}
			for i := range sessions {
				use(fmt.Sprint("o.", i), "alice")
				f.End(fmt.Sprint("o.", i))
			}
			use("o.open", "alice")
			later := followLog(t, f, tt.backfill)
			g = open(later, id)
			if n := len(g.Members()); n != room+1 {
				t.Errorf("%d members for a room of %d: %s", n, room, membersOf(g))
			}
			got := events(readAll(t, g))
			slices.Sort(got)
			if len(got) != 1+room+1 || got[0] != "gap:o.*:unknown" || !strings.HasPrefix(got[room+1], "o.open:") {
				t.Errorf("got %v", got)
			}
		})
	}
}

// For a client that makes up a position, the group looks at others' sessions below the window, and makes none of
// them a member. Sessions that the registry knows to be others' are not even kept. Too many of its own are refused.
func TestPattern_OthersBelowTheWindow(t *testing.T) {
	const sessions, from = 50, "group_00000000000000_0.aaaaaaa.1"
	f := edgetest.NewLog(t)
	f.Create("x", "alice")
	for i := range sessions {
		f.Create(fmt.Sprint("o.", i), "bob")
	}
	ps := followLog(t, f, -1)
	as := func(who string) func(*GroupConfig) {
		return func(c *GroupConfig) {
			uses := func(name string) (session.Record, bool) {
				rec, _ := f.Backend.Sessions.Session(name)
				return rec, rec.Owner == who
			}
			c.MaxMembers = 10
			c.Open = func(func(string) bool) ([]string, error) { return nil, nil }
			c.Uses = func(owner string, _ []string) bool { return owner == who }
			c.Others = func(name string) bool { _, ok := uses(name); return !ok }
			c.Authorize = func(_ context.Context, name, _ string) (string, bool, error) {
				rec, ok := uses(name)
				return rec.Life, ok, nil
			}
		}
	}
	g := openGroup(t, f, ps, Start{After: from}, nil, as("alice"), "x", "o.*")
	if n := cap(g.members); n >= sessions {
		t.Errorf("there was room for %d members, with %d sessions of others", n, sessions)
	}
	if got := membersOf(g); got != "x:open" {
		t.Errorf("the members are %s", got)
	}
	for before, want := range map[time.Time]int{{}: sessions, time.Now().Add(time.Hour): 0} {
		all, err := g.lanes[0].changedBelow(waittest.Context(t), 0, ps.Of("x").Stats().End, before, nil)
		if err != nil || len(all) != want {
			t.Errorf("%d sessions are kept, want %d, %v", len(all), want, err)
		}
	}
	if _, err := tryGroup(t, f, ps, Start{After: from}, nil, as("bob"), "o.*"); !errors.Is(err, ErrTooManySessions) {
		t.Errorf("too many of its own: %v", err)
	}
}

// A session whose opening lies below the window and whose end in it has ended.
func TestPattern_EndsAboveTheWindowsStart(t *testing.T) {
	f, ps := withSessions(t, "x")
	g := openAfter(t, f, ps, "", nil, "o.*")
	readAll(t, g)
	id := g.ID()
	for i := range 3 {
		f.Create(fmt.Sprint("o.", i), "")
	}
	later := followLog(t, f, -1)
	for i := range 3 {
		f.End(fmt.Sprint("o.", i))
	}
	comesTo(t, later, "x", f.PublishTo("x", "a", 1))
	again := openGroup(t, f, later, Start{After: id}, nil, most(2), "o.*")
	if len(again.Members()) != 2 {
		t.Fatalf("the members are %s", membersOf(again))
	}
	if got := readAll(t, again); strings.Count(got, "gap:o.*:unknown") != 1 {
		t.Errorf("got %s", got)
	}
}

// A session that was open at the position, ended in the window, and whose opening lies below it, is followed to its
// end, unless it is another owner's.
func TestPattern_EndsLongAfterItBegan(t *testing.T) {
	f, ps := withSessions(t, "x", "o.1")
	g := openAfter(t, f, ps, "", nil, "o.*")
	readAll(t, g)
	id := g.ID()
	missed := f.PublishTo("o.1", "a", 1)
	evict(t, f)
	f.End("o.1")
	later, p := withoutTails(t, f, f.PublishTo("x", "a", 1))
	look := p.looks.look
	p.looks.look = func(ctx context.Context) (eventlog.State, error) {
		state, err := look(ctx)
		state.Time = state.Time.Add(2 * registryWithin) // so openings count as old
		return state, err
	}
	reads := func(others bool, want string) {
		t.Helper()
		change := func(c *GroupConfig) { c.Others = func(string) bool { return others } }
		readsAll(t, openGroup(t, f, later, Start{After: id}, nil, change, "o.*"), want)
	}
	reads(true, "gap:o.*:unknown")
	reads(false, fmt.Sprintf("o.1:%d o.1:closed", missed)) // from now on the window knows the life
}

// An end that is written again is no change: the session had ended at the client's position.
func TestPattern_EndsWrittenAgain(t *testing.T) {
	f := edgetest.NewLog(t)
	for i := range 4 {
		f.Create(fmt.Sprint("o.", i), "")
	}
	for i := range 3 {
		f.End(fmt.Sprint("o.", i))
	}
	ps := followLog(t, f, 0)
	g := openAfter(t, f, ps, "", nil, "o.*")
	comesTo(t, ps, "s", f.PublishTo("o.3", "a", 1))
	readAll(t, g)
	id := g.ID()
	for range 2 {
		for i := range 3 {
			f.RewriteEnd(fmt.Sprint("o.", i))
		}
	}
	last := f.PublishTo("o.3", "a", 1)
	for name, edge := range map[string]*Partitions{"window": ps, "whole window": followLog(t, f, 0), "log": followLog(t, f, -1)} {
		comesTo(t, edge, "s", last)
		again := openGroup(t, f, edge, Start{After: id}, nil, most(2), "o.*")
		if got, want := readAll(t, again), fmt.Sprint("o.3:", last); got != want || membersOf(again) != "o.3:open" {
			t.Errorf("%s: got %s, want %s; the members are %s", name, got, want, membersOf(again))
		}
	}
	g.cfg.MaxMembers = 2
	readsAll(t, g, fmt.Sprint("o.3:", last))
}

// A pattern that is added begins at the start, and a cut on the way loses and repeats no event.
func TestPattern_Added(t *testing.T) {
	f := edgetest.NewLog(t)
	for _, name := range []string{"o.1", "x", "o.2"} {
		f.Create(name, "")
		f.PublishTo(name, "a", 2)
	}
	ps := followLog(t, f, 0)
	knows(t, ps, "o.2")
	comesTo(t, ps, "s", f.PublishTo("x", "a", 1))
	g := openAfter(t, f, ps, "", nil, "x")
	readAll(t, g)
	var ids []string
	f.Create("o.3", "")
	comesTo(t, ps, "s", f.PublishTo("o.3", "a", 1))
	all := events(readAll(t, openAfter(t, f, ps, g.ID(), &ids, "x", "+o.*")))
	if len(all) != 5 || len(ids) != 5 {
		t.Fatalf("got %v", all)
	}
	for i, id := range ids {
		if got := events(readAll(t, openAfter(t, f, ps, id, nil, "x", "+o.*"))); !slices.Equal(got, all[i+1:]) {
			t.Errorf("after event %d: got %v, want %v", i, got, all[i+1:])
		}
	}
}

// An edge that is behind the client's position follows sessions that began before it, when it reaches them.
func TestPattern_EdgeIsBehind(t *testing.T) {
	f, ps := withSessions(t, "o.1")
	g := openAfter(t, f, ps, "", nil, "o.*")
	readAll(t, g)
	ahead := g.lanes[0].position + 5 // a birth, an event, an opening, a birth, an event
	g.lanes[0].position = ahead
	g.lanes[0].Wake()
	if got := readAll(t, g); got != "" || g.lanes[0].position != ahead {
		t.Errorf("got %s, and the position is %d, not %d", got, g.lanes[0].position, ahead)
	}
	f.PublishTo("o.1", "a", 1)
	f.Create("o.2", "")
	f.PublishTo("o.2", "a", 1)
	last := comesTo(t, ps, "s", f.PublishTo("o.2", "a", 1))
	if got := readAll(t, g); !strings.Contains(got, fmt.Sprint("o.2:", last)) {
		t.Errorf("got %s", got)
	}
	if at := g.lanes[0].position; at != last {
		t.Errorf("the position is %d", at)
	}
}

// In a cluster the leader may store an entry a moment later than an edge, and so its client, receives it.
func TestPattern_LeaderIsBehind(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("o.1", "")
	first := f.PublishTo("o.1", "a", 1)
	behind, p := withoutTails(t, f, first)
	ps := followLog(t, f, 0)
	f.Create("o.2", "")
	last := f.PublishTo("o.2", "a", 1)
	comesTo(t, ps, "o.2", last)
	g := openAfter(t, f, ps, "", nil, "o.*")
	readAll(t, g)
	state := must.Value(p.askLeader(waittest.Context(t)))(t)
	state.Leader, state.Quorum, state.Last = "nats-0", true, first
	p.looks.look = func(context.Context) (eventlog.State, error) {
		now := state
		state.Last = last
		advance(t, p, now.Last)
		return now, nil
	}
	g = openGroup(t, f, behind, Start{After: g.ID()}, nil, func(c *GroupConfig) {
		c.Open = func(func(string) bool) ([]string, error) { return []string{"o.1"}, nil } // the registry is behind, too
	}, "o.*")
	readsAll(t, g, "")
}

// The heartbeat's position does not pass a session that began.
func TestPattern_Heartbeat(t *testing.T) {
	f := edgetest.NewLogOf(t, 4)
	f.Create("other", "")
	ps := followLog(t, f, 0)
	knows(t, ps, "other")
	g := openAfter(t, f, ps, "", nil, "o.*")
	readAll(t, g)
	p := ps.Of("other").number
	last := comesTo(t, ps, "other", f.PublishTo("other", "a", 3))
	id, err := ParseGroupID(g.CursorID())
	if err != nil || id.At[p].Sequence != last || len(id.At) != 4 {
		t.Errorf("the position is %+v, %v", id, err)
	}
	f.Create("o.1", "")
	knows(t, ps, "o.1")
	at := ps.Of("o.1").number
	if id, err = ParseGroupID(g.CursorID()); err != nil || id.At[at].Sequence >= ps.Of("o.1").Stats().End {
		t.Errorf("the position is %+v, %v", id, err)
	}
	if got := readAll(t, g); got != "o.1:open" {
		t.Errorf("got %s", got)
	}
}

// A partition that was rolled back, and one whose floor has passed the position, are gaps of the pattern.
func TestPattern_PartitionsGaps(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("x", "")
	f.PublishTo("x", "a", 2)
	ps := followLog(t, f, -1)
	g := openAfter(t, f, ps, "", nil, "o.*")
	readAll(t, g)
	id := must.Value(ParseGroupID(g.ID()))(t)
	origin, gens := ps.Of("s").window.Generations()
	at := func(origin, generation string, sequence uint64) string {
		b := appendGroupSums(nil, id.Names, id.Lives)
		return string(appendGroupPosition(b, 0, GroupPosition{Tag: partitionTag(origin, generation), Sequence: sequence, Added: sequence}))
	}
	f.Purge(3)
	for name, tt := range map[string]struct{ id, want string }{
		"lost":        {at(origin, "lost", 1), "gap:o.*:rolled_back"},
		"another log": {at("another", gens[0].ID, 1), "gap:o.*:unknown"},
		"expired":     {at(origin, gens[0].ID, 1), "gap:o.*:expired"},
		"known":       {g.ID(), ""},
		"no ID":       {"x", "gap:o.*:unknown"},
	} {
		if got := readAll(t, openAfter(t, f, ps, tt.id, nil, "o.*")); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
