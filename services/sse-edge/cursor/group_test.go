package cursor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// tryGroup opens places; an asterisk ends a pattern, a plus marks an added place, and a slash is before a
// stream. The blocks of events are their sessions and sequences, and ids takes the ID after each.
func tryGroup(t *testing.T, f *edgetest.Log, ps *Partitions, from Start, ids *[]string, change func(*GroupConfig), names ...string) (*Group, error) {
	t.Helper()
	cfg := GroupConfig{
		Limit: window.Limits{Events: 100, Bytes: 1 << 20}, MaxMembers: 100, StillAuthorized: func(string, string) bool { return true },
		Frame: func(id string, of *Member, it *window.Item) []byte {
			if ids != nil {
				*ids = append(*ids, id)
			}
			return fmt.Appendf(nil, "%s:%d ", of.Place.Session, it.Sequence)
		},
		Open: func(match func(string) bool) (all []string, _ error) {
			records, err := f.Backend.Sessions.Matching(math.MaxInt, func(rec session.Record) bool { return rec.State == session.Open && match(rec.Session) })
			for _, rec := range records {
				all = append(all, rec.Session)
			}
			slices.Sort(all)
			return all, err
		},
	}
	if change != nil {
		change(&cfg)
	}
	var places []Follow
	for _, name := range names {
		name, added := strings.CutPrefix(name, "+")
		name, stream, _ := strings.Cut(name, "/")
		places = append(places, Follow{Session: name, Stream: stream, Added: added, Pattern: strings.HasSuffix(name, "*")})
	}
	g, err := ps.OpenGroup(waittest.Context(t), places, from, cfg)
	if err == nil {
		t.Cleanup(g.Close)
	}
	return g, err
}

func openGroup(t *testing.T, f *edgetest.Log, ps *Partitions, from Start, ids *[]string, change func(*GroupConfig), names ...string) *Group {
	t.Helper()
	return must.Value(tryGroup(t, f, ps, from, ids, change, names...))(t)
}

func openAfter(t *testing.T, f *edgetest.Log, ps *Partitions, after string, ids *[]string, names ...string) *Group {
	t.Helper()
	return openGroup(t, f, ps, Start{After: after}, ids, nil, names...)
}

func next(t *testing.T, g *Group) Step {
	t.Helper()
	return must.Value(g.Next(waittest.Context(t)))(t)
}

// eachStep reads until there are no more events.
func eachStep(t *testing.T, g *Group, do func(Step)) {
	t.Helper()
	for more := true; more; {
		s := next(t, g)
		do(s)
		more = s.More || !s.Empty()
	}
}

// readAll reads all steps, and returns the events, the changes and the gaps in their order.
func readAll(t *testing.T, g *Group) string {
	t.Helper()
	var b strings.Builder
	eachStep(t, g, func(s Step) {
		for _, gap := range s.Gaps {
			fmt.Fprintf(&b, "gap:%s:%s ", gap.Session, gap.Reason)
		}
		for _, m := range s.Changes {
			fmt.Fprintf(&b, "%s:%s ", m.Place.Session, m.State)
		}
		for _, it := range s.Items {
			b.Write(it.Frame)
		}
	})
	return strings.TrimSpace(b.String())
}

// readsAll fails unless a group reads the wanted events, changes and gaps.
func readsAll(t *testing.T, g *Group, want string) {
	t.Helper()
	if got := readAll(t, g); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// readsEvents fails unless a group reads these events; it ignores sessions that open and close.
func readsEvents(t *testing.T, g *Group, want ...string) {
	t.Helper()
	if got := events(readAll(t, g)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// resumesAfterEach fails unless a client with any of the IDs receives the events after it, and no gap.
func resumesAfterEach(t *testing.T, f *edgetest.Log, ps *Partitions, ids []string, names ...string) {
	t.Helper()
	for i, id := range ids {
		got := readAll(t, openAfter(t, f, ps, id, nil, names...))
		if strings.Contains(got, "gap") || strings.Count(got, ":") != len(ids)-1-i {
			t.Errorf("after event %d: %s", i, got)
		}
	}
}

// knows waits until the windows have some sessions.
func knows(t *testing.T, ps *Partitions, names ...string) {
	t.Helper()
	for _, name := range names {
		waittest.Until(t, "the window knows "+name, func() bool { _, ok := ps.Of(name).Life(name); return ok })
	}
}

// withSessions returns a log with sessions, and its partitions, whose windows have these.
func withSessions(t *testing.T, names ...string) (*edgetest.Log, *Partitions) {
	t.Helper()
	f := edgetest.NewLog(t)
	for _, name := range names {
		f.Create(name, "")
	}
	ps := followLog(t, f, 0)
	knows(t, ps, names...)
	return f, ps
}

// comesTo waits until the window of a session has an entry, and returns its sequence.
func comesTo(t *testing.T, ps *Partitions, session string, last uint64) uint64 {
	t.Helper()
	waittest.Until(t, "the window has it", func() bool { return ps.Of(session).Stats().End >= last })
	return last
}

// evict publishes so much that the window evicts all earlier events.
func evict(t *testing.T, f *edgetest.Log) {
	t.Helper()
	for range 3 {
		publishLarge(t, f, "big", 600<<10)
	}
}

// Events of two lives in one read of the window are sent in their order, and no event of another
// session overtakes them.
func TestGroup_TwoLivesInOneRead(t *testing.T) {
	f, ps := withSessions(t, "s", "x")
	g := openGroup(t, f, ps, Start{}, nil, nil, "s", "x")
	one := f.Publish("a", 1)
	two := f.PublishTo("x", "a", 1)
	f.Reuse("s", "")
	three := f.Publish("a", 1)
	four := f.PublishTo("x", "a", 1)
	last := comesTo(t, ps, "s", f.Publish("b", 1))
	readsAll(t, g, fmt.Sprintf("s:%d s:closed s:open x:%d s:%d x:%d s:%d", one, two, three, four, last))
	at, err := ParseGroupID(g.ID())
	if err != nil || at.At[0].Sequence != last {
		t.Errorf("the position is %s, %v", g.ID(), err)
	}
}

// A name that is used twice before the group reads again has a gap for the life in between.
func TestGroup_LifeInBetween(t *testing.T) {
	for _, names := range [][]string{{"s", "x"}, {"*"}} {
		for _, evicted := range []bool{false, true} {
			t.Run(fmt.Sprint(names, evicted), func(t *testing.T) {
				f, ps := withSessions(t, "s", "x")
				g := openAfter(t, f, ps, "", nil, names...)
				readAll(t, g)
				again := func() {
					f.End("s")
					must.Value(eventlogtest.Announce(waittest.Context(t), f.Backend.Log, eventlog.Trim{Session: "s", Life: f.Life("s"), Reason: eventlog.Expired, Forgotten: true}))(t)
					f.Reuse("s", "")
				}
				one := f.Publish("a", 1)
				again()
				two := f.Publish("a", 2)
				if evicted {
					evict(t, f)
				}
				again()
				three := f.Publish("a", 1)
				last := comesTo(t, ps, "s", f.PublishTo("x", "a", 1))
				first, err := g.Next(waittest.Context(t))
				if err != nil || len(first.Items) != 1 || len(first.Gaps) > 0 || g.lanes[0].position >= two-1 {
					t.Fatalf("the first step is %+v, %v, and the position is %d", first, err, g.lanes[0].position)
				}
				got := append(strings.Fields(string(first.Items[0].Frame)), events(readAll(t, g))...)
				if want := []string{fmt.Sprint("s:", one), "gap:s:unknown", fmt.Sprint("s:", three), fmt.Sprint("x:", last)}; !slices.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
				again()
				four := comesTo(t, ps, "s", f.Publish("a", 1))
				readsEvents(t, g, fmt.Sprint("s:", four))
			})
		}
	}
}

// A life that the client may read is read although the registry has a later one already, and one that
// only other clients may read is no gap.
func TestGroup_LivesOfOthers(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "alice")
	f.Create("x", "alice")
	f.Create("y", "bob")
	ps := followLog(t, f, 0)
	knows(t, ps, "s", "x", "y")
	g := openGroup(t, f, ps, Start{}, nil, func(c *GroupConfig) {
		c.Uses = func(owner string, _ []string) bool { return owner == "alice" }
		c.Authorize = func(_ context.Context, name, life string) (string, bool, error) {
			if name == "s" && life != "" {
				return life, false, nil // as of a later life
			}
			life, _ = ps.Of(name).Life(name)
			return life, name != "y", nil
		}
	}, "s", "x", "y")
	readAll(t, g)
	renew := func(name, owner string) uint64 {
		f.Free(name)
		f.Create(name, owner)
		return f.PublishTo(name, "a", 1)
	}
	two := renew("s", "alice")
	comesTo(t, ps, "s", two)
	readsEvents(t, g, fmt.Sprint("s:", two))
	renew("y", "bob")
	renew("y", "bob")
	last := comesTo(t, ps, "s", f.PublishTo("x", "a", 1))
	readsAll(t, g, fmt.Sprint("x:", last))
}

// A client that is cut off after any event gets no gap because other sessions began since.
func TestGroup_SessionsBeginInOneRead(t *testing.T) {
	f, ps := withSessions(t, "s")
	var ids []string
	g := openGroup(t, f, ps, Start{}, &ids, nil, "s", "y", "z")
	f.Publish("a", 1)
	f.Create("y", "")
	f.Publish("a", 1)
	f.Create("z", "")
	f.PublishTo("y", "a", 1)
	comesTo(t, ps, "s", f.PublishTo("z", "a", 1))
	if got := readAll(t, g); len(ids) != 4 || !strings.Contains(got, "y:open") || !strings.Contains(got, "z:open") {
		t.Fatalf("there are %d events: %s", len(ids), got)
	}
	resumesAfterEach(t, f, ps, ids, "s", "y", "z")
}

// While it is unknown whether the client may read a new life, no event after its opening is sent.
func TestGroup_AdmissionFails(t *testing.T) {
	f, ps := withSessions(t, "s", "x")
	outage := errors.New("an outage")
	var failing error
	g := openGroup(t, f, ps, Start{}, nil, func(c *GroupConfig) {
		c.Authorize = func(_ context.Context, name, life string) (string, bool, error) {
			if life == "" {
				life, _ = ps.Of(name).Life(name)
			}
			return life, true, failing
		}
	}, "s", "x")
	readAll(t, g)
	f.Reuse("s", "")
	first := f.Publish("a", 1)
	last := f.PublishTo("x", "a", 1)
	failing = outage
	comesTo(t, ps, "s", last)
	for range 3 {
		if s, err := g.Next(waittest.Context(t)); len(s.Items) > 0 || !errors.Is(err, outage) && !s.More {
			t.Fatalf("%d events, %v", len(s.Items), err)
		}
	}
	failing = nil
	readsAll(t, g, fmt.Sprintf("s:open s:%d x:%d", first, last))
}

// A session that the client was allowed to read while it was disconnected has a gap, and no other session has one.
func TestGroup_AdmittedWhileAway(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	f.Create("x", "")
	f.Create("y", "")
	f.Publish("a", 2)
	f.PublishTo("x", "a", 1)
	ps := followLog(t, f, 0)
	open := func(from Start, sessions []string, refused ...string) *Group {
		return openGroup(t, f, ps, from, nil, func(c *GroupConfig) {
			c.Authorize = func(_ context.Context, name, life string) (string, bool, error) {
				if slices.Contains(refused, name) {
					return life, false, nil
				}
				if life == "" {
					life, _ = ps.Of(name).Life(name)
				}
				return life, true, nil
			}
		}, sessions...)
	}
	for _, tt := range []struct {
		sessions, refused []string
		want              string
	}{
		{[]string{"s", "x", "nothing"}, []string{"s"}, "gap:s:unknown"},
		{[]string{"s", "x", "y"}, []string{"s", "y"}, "gap:s:unknown gap:x:unknown gap:y:unknown"},
		{[]string{"s", "x", "y", "nothing"}, nil, ""},
	} {
		g := open(Start{}, tt.sessions, tt.refused...)
		readAll(t, g)
		if got := readAll(t, open(Start{After: g.ID()}, tt.sessions)); got != tt.want {
			t.Errorf("%v, refused %v: got %q, want %q", tt.sessions, tt.refused, got, tt.want)
		}
		if got := readAll(t, open(Start{After: g.ID()}, tt.sessions, tt.refused...)); got != "" {
			t.Errorf("%v, refused %v still: got %q", tt.sessions, tt.refused, got)
		}
	}
}

// A client that becomes a member of a session follows it from then on, also while the registry is
// behind the log.
func TestGroup_BecomesMember(t *testing.T) {
	for _, stream := range []string{"", "/a"} {
		t.Run("of the sessions"+stream, func(t *testing.T) {
			f := edgetest.NewLog(t)
			f.Create("x", "alice")
			f.Create("s", "bob")
			f.Publish("a", 1)
			ps := followLog(t, f, 0)
			behind := true
			open := func(from Start) *Group {
				return openGroup(t, f, ps, from, nil, func(c *GroupConfig) {
					c.Uses = func(owner string, members []string) bool {
						return owner == "alice" || slices.Contains(members, "alice")
					}
					c.Authorize = func(_ context.Context, name, life string) (string, bool, error) {
						if name == "s" && behind {
							return life, false, nil
						}
						life, _ = ps.Of(name).Life(name)
						return life, true, nil
					}
				}, "s"+stream, "x"+stream)
			}
			g := open(Start{})
			if got := membersOf(g) + readAll(t, g); got != "s:unknown x:open" {
				t.Errorf("got %s", got)
			}
			wakes := func(want string) {
				t.Helper()
				waittest.Until(t, "the group is woken", func() bool { _, _, idle := g.Quick(nil); return !idle })
				readsAll(t, g, want)
			}
			f.SetMembers("s", "alice")
			wakes("s:open")
			wakes(fmt.Sprint("s:", f.Publish("a", 1)))
			behind = false
			readsAll(t, open(Start{After: g.ID()}), "")
			f.SetMembers("s")
			wakes("s:unknown")
			f.SetMembers("s", "alice", "carol")
			wakes("s:open")
		})
	}
}

// A gap of a session outlasts the begin of its next life.
func TestGroup_NextLifeKeepsGap(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	f.Publish("a", 1)
	ps := followLog(t, f, 0)
	admitted := true
	open := func(from Start) *Group {
		return openGroup(t, f, ps, from, nil, func(c *GroupConfig) {
			c.Authorize = func(_ context.Context, name, life string) (string, bool, error) {
				if life == "" && admitted {
					life, _ = ps.Of(name).Life(name)
				}
				return life, admitted, nil
			}
		}, "s")
	}
	g := open(Start{})
	readAll(t, g)
	admitted = false
	again := open(Start{After: g.ID()})
	admitted = true
	f.Reuse("s", "")
	last := comesTo(t, ps, "s", f.Publish("a", 1))
	readsAll(t, again, fmt.Sprintf("gap:s:unknown s:open s:%d", last))
}

// The position of a lost generation is a gap of each session, that of another log too.
func TestGroup_LostGeneration(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	f.Create("x", "")
	last := f.PublishTo("x", "a", 1)
	ps := followLog(t, f, 0)
	g := openGroup(t, f, ps, Start{}, nil, nil, "s", "x")
	readAll(t, g)
	id := must.Value(ParseGroupID(g.ID()))(t)
	origin, gens := ps.Of("s").window.Generations()
	with := func(origin, generation string) string {
		b := appendGroupSums(nil, id.Names, id.Lives)
		return string(appendGroupPosition(b, 0, GroupPosition{Tag: partitionTag(origin, generation), Sequence: last, Added: last}))
	}
	if with(origin, gens[0].ID) != g.ID() {
		t.Errorf("the ID is %s, not %s", g.ID(), with(origin, gens[0].ID))
	}
	for name, tt := range map[string]struct{ id, want string }{
		"lost":        {with(origin, "lost"), fmt.Sprint("gap:s:rolled_back gap:x:rolled_back x:", last)},
		"another log": {with("another", gens[0].ID), fmt.Sprint("gap:s:unknown gap:x:unknown x:", last)},
		"known":       {g.ID(), ""},
	} {
		if got := readAll(t, openGroup(t, f, ps, Start{After: tt.id}, nil, nil, "s", "x")); got != tt.want {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

// A partition that is rolled back under a group takes its position back.
func TestGroup_RolledBackWhileItReads(t *testing.T) {
	f := edgetest.NewLog(t)
	ps := followLog(t, f, 0)
	comesTo(t, ps, "x", f.PublishTo("x", "a", 4))
	g := openGroup(t, f, ps, Start{}, nil, nil, "s", "x")
	readAll(t, g)
	rollBack(ps, "x", 2, "x")
	s := next(t, g)
	if len(s.Gaps) == 0 || s.Gaps[0].Reason != ReasonRolledBack || len(s.Items) != 1 || string(s.Items[0].Frame) != "x:3 " {
		t.Errorf("got the gaps %+v and the events %+v", s.Gaps, s.Items)
	}
	if id, err := ParseGroupID(g.ID()); err != nil || id.At[0].Sequence != 3 {
		t.Errorf("the position is %s, %v", g.ID(), err)
	}
}

// Events that the members have read ahead of the position were not sent: there is no gap if they are lost.
func TestGroup_RolledBackBeforeItIsSent(t *testing.T) {
	f := edgetest.NewLog(t)
	f.PublishTo("x", "a", 4)
	ps := followLog(t, f, 0)
	g := openGroup(t, f, ps, Start{}, nil, nil, "s", "x")
	readAll(t, g)
	g.cfg.Limit.Events = 1
	f.PublishTo("x", "a", 1)
	f.PublishTo("y", "a", 1)
	comesTo(t, ps, "x", f.PublishTo("x", "a", 1))
	if s, err := g.Next(waittest.Context(t)); err != nil || len(s.Items) != 1 || g.At("x") != 5 {
		t.Fatalf("%d events, and the position is %d; %v", len(s.Items), g.At("x"), err)
	}
	rollBack(ps, "x", 5, "x")
	s, err := g.Next(waittest.Context(t))
	if err != nil || len(s.Gaps) > 0 || len(s.Items) != 1 || s.Items[0].Sequence != 6 {
		t.Errorf("gaps %+v, %d events, %v", s.Gaps, len(s.Items), err)
	}
}

// A session whose end the log still has after a roll-back stays closed.
func TestGroup_ClosedBeforeARollback(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	f.Publish("a", 1)
	f.End("s")
	last := f.PublishTo("x", "a", 2)
	ps := followLog(t, f, 0)
	g := openGroup(t, f, ps, Start{}, nil, nil, "s", "x")
	readAll(t, g)
	state := func() MemberState { return g.Members()[0].State }
	if state() != MemberClosed {
		t.Fatalf("it is %s", state())
	}
	rollBack(ps, "x", last-1, "x")
	readAll(t, g)
	if state() != MemberClosed {
		t.Errorf("after the roll-back it is %s", state())
	}
}

// rollBack has the window of a session begin again in a new generation, after the sequence that it has
// in common with the previous one. sessions have an event each there.
func rollBack(ps *Partitions, session string, common uint64, sessions ...string) {
	p := ps.Of(session)
	state, _ := ps.log.State(p.number)
	state.Generations = append(state.Generations[:len(state.Generations):len(state.Generations)], event.Generation{ID: "new", Start: common + 1})
	p.window.Rollback(state, common, 1, common)
	for i, name := range sessions {
		p.window.Append(eventlog.Entry{Sequence: common + 1 + uint64(i), Time: time.Now(), Valid: true, Data: []byte(`{}`), Subject: event.Subject{Session: name, Stream: "a", Kind: event.Message}}, 0)
	}
	p.window.Reach(common+uint64(len(sessions)), 0)
}

// allowed may read all sessions of a log.
func allowed(f *edgetest.Log) func(*GroupConfig) {
	return func(c *GroupConfig) {
		c.Authorize = func(_ context.Context, session, life string) (string, bool, error) {
			now := f.Life(session)
			return now, now != "" && (life == "" || life == now), nil
		}
		c.Uses = func(string, []string) bool { return true }
	}
}

// A client has the ID of an edge that is ahead. Sessions that began after its position, or whose name was used again
// before it, are no gaps. The log is asked for the newest opening and the end of each, or for its newest entry.
func TestGroup_EdgeIsBehind(t *testing.T) {
	for _, access := range []bool{false, true} {
		f := edgetest.NewLog(t)
		asked := must.Value(f.Backend.Conn.SubscribeSync("$JS.API.STREAM.MSG.GET.MCP_0"))(t)
		f.Create("s", "")
		f.Create("x", "")
		end := f.PublishTo("x", "a", 1)
		behind, p := withoutTails(t, f, end)
		ps := followLog(t, f, 0)
		f.End("s")
		f.Reuse("s", "")
		comesTo(t, ps, "s", f.Publish("a", 1))
		var change func(*GroupConfig)
		if access {
			change = allowed(f)
		}
		g := openGroup(t, f, ps, Start{}, nil, change, "s", "x", "y", "z")
		readAll(t, g)
		id := g.ID()
		f.Create("y", "")
		last := f.PublishTo("y", "a", 1)
		before, _, _ := asked.Pending()
		looks := must.Value(f.Backend.Conn.SubscribeSync("$JS.API.STREAM.INFO.MCP_0"))(t)
		g = openGroup(t, f, behind, Start{After: id}, nil, change, "s", "x", "y", "z")
		if after, _, err := asked.Pending(); err != nil || after-before > 2*4 {
			t.Errorf("access control: %t: the log was asked %d times, %v", access, after-before, err)
		}
		if n, _, err := looks.Pending(); err != nil || n != 1 {
			t.Errorf("access control: %t: the leader was looked at %d times, %v", access, n, err)
		}
		if got := readAll(t, g); got != "" || g.ID() != id {
			t.Errorf("access control: %t: got %s, and the ID is %s, not %s", access, got, g.ID(), id)
		}
		advance(t, p, last)
		if got, want := readAll(t, g), fmt.Sprint("y:", last); got != want {
			t.Errorf("access control: %t: got %s, want %s", access, got, want)
		}
	}
}

// A client has the ID of an edge that is ahead, and knows an end that the window has yet to reach.
func TestGroup_EndAheadOfTheWindow(t *testing.T) {
	for _, stream := range []string{"", "/a"} {
		f := edgetest.NewLog(t)
		f.Create("s", "")
		f.Create("x", "")
		_, p := withoutTails(t, f, f.Publish("a", 1))
		ps := followLog(t, f, 0)
		f.End("s")
		comesTo(t, ps, "s", f.PublishTo("x", "a", 1))
		g := openGroup(t, f, ps, Start{}, nil, allowed(f), "s"+stream, "x")
		readAll(t, g)
		id := g.ID()
		g = openGroup(t, f, p.of, Start{After: id}, nil, allowed(f), "s"+stream, "x")
		if got := readAll(t, g); got != "" || g.ID() != id || g.Members()[0].State != MemberClosed {
			t.Errorf("%q: got %s, the session is %s, and the ID is %s, not %s", stream, got, g.Members()[0].State, g.ID(), id)
		}
	}
}

// A session whose opening and events a roll-back removed is followed in the life of a connected reader:
// its publisher continues there.
func TestGroup_RollBackTakesTheOpening(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	last := f.Publish("a", 2)
	ps := followLog(t, f, 0)
	r := opens(t, ps, "s", Start{})
	defer r.Close()
	f.Remove(edgetest.Sequences(1, last)...)
	state, _ := f.Backend.Log.State(0)
	ps.Of("s").window.Rollback(state, last, last+1, last)
	ps.Of("s").window.Reach(last, 0)
	g := openGroup(t, f, ps, Start{Now: true}, nil, nil, "s")
	readAll(t, g)
	next := comesTo(t, ps, "s", f.Publish("a", 1))
	readsAll(t, g, fmt.Sprint("s:", next))
}

// A generation that begins while sessions catch up moves the others' position back no further than the
// roll-back.
func TestGroup_GenerationWhileSessionsCatchUp(t *testing.T) {
	f := edgetest.NewLog(t)
	f.PublishTo("new", "a", 2)
	f.PublishTo("x", "a", 2)
	last := f.PublishTo("new", "a", 2)
	ps := followLog(t, f, 0)
	w := ps.Of("x").window
	comesTo(t, ps, "x", last)
	g := openGroup(t, f, ps, Start{}, nil, nil, "x")
	readAll(t, g)
	var ids []string
	g = openAfter(t, f, ps, g.ID(), &ids, "x", "+new")
	g.cfg.Limit.Events = 1
	next(t, g)
	state, _ := ps.log.State(0)
	state.Generations = append(state.Generations[:len(state.Generations):len(state.Generations)], event.Generation{ID: "new", Start: last + 1})
	w.GoOn(state)
	readAll(t, g)
	for i, want := range []GroupPosition{{Sequence: 6, Added: 1}, {Sequence: 6, Added: 2}, {Sequence: 6, Added: 5}, {Sequence: 6, Added: 6}} {
		id, err := ParseGroupID(ids[i])
		if want.Tag = id.At[0].Tag; err != nil || id.At[0] != want {
			t.Errorf("after event %d: %+v, %v", i, id.At[0], err)
		}
	}
}

// inPartitions returns a name in each partition of a log.
func inPartitions(f *edgetest.Log) []string {
	names := make([]string, f.Backend.Log.Settings().Partitions)
	for i := 0; slices.Contains(names, ""); i++ {
		name := fmt.Sprint("s", i)
		names[f.Backend.Log.Partition(name)] = name
	}
	return names
}

// inTwoPartitions returns a name in each of two partitions.
func inTwoPartitions(f *edgetest.Log) (first, second string) {
	names := inPartitions(f)
	return names[0], names[1]
}

// Events that were removed before a client came are no gap when it resumes, with any ID that it received.
func TestGroup_RemovedBeforeTheClientCame(t *testing.T) {
	for name, backfill := range map[string]int{"window": 0, "log": -1} {
		t.Run(name, func(t *testing.T) {
			f := edgetest.NewLogOf(t, 2)
			first, second := inTwoPartitions(f)
			f.PublishTo(first, "a", 2)
			f.PublishTo(second, "a", 4)
			f.AnnounceOf(second, "a", eventlog.Trimmed, 1, 2)
			for _, sequence := range []uint64{1, 2} {
				must.NoError(t, f.Backend.Log.Delete(waittest.Context(t), 1, sequence))
			}
			ps := followLog(t, f, backfill)
			var ids []string
			g := openAfter(t, f, ps, "", &ids, first, second)
			if id := g.CursorID(); id != "" {
				t.Errorf("before the first read, the heartbeat has the ID %s", id)
			}
			if got, want := readAll(t, g), fmt.Sprintf("%s:1 %s:2 %s:3 %s:4", first, first, second, second); got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
			resumesAfterEach(t, f, ps, append([]string{g.Began()}, ids...), first, second)
			g = openAfter(t, f, ps, ids[1], &ids, first, "+"+second)
			readAll(t, g)
			if got := readAll(t, openAfter(t, f, ps, g.Began(), nil, first, "+"+second)); strings.Contains(got, "gap") {
				t.Errorf("after a session was added: %s", got)
			}
		})
	}
}

// When one of two partitions is rolled back, events of the other have the position of the roll-back.
func TestGroup_RolledBackBehindAnotherPartition(t *testing.T) {
	f := edgetest.NewLogOf(t, 2)
	ps := followLog(t, f, 0)
	first, second := inTwoPartitions(f)
	one, two := f.PublishTo(first, "a", 1), f.PublishTo(second, "a", 4)
	waittest.Until(t, "the windows have it", func() bool { return ps.Of(first).Stats().End >= one && ps.Of(second).Stats().End >= two })
	var ids []string
	g := openAfter(t, f, ps, "", &ids, first, second)
	readAll(t, g)
	one = comesTo(t, ps, first, f.PublishTo(first, "a", 1))
	ids = nil
	rollBack(ps, second, two-2, second)
	readAll(t, g)
	if len(ids) != 2 {
		t.Fatalf("there are %d events", len(ids))
	}
	if id, err := ParseGroupID(ids[0]); err != nil || id.At[1].Sequence != two-2 {
		t.Errorf("after the first partition's event: %+v, %v", id.At, err)
	}
}

// No event of another partition has a position after a gap that is not reported yet.
func TestGroup_GapWaitsForTheLog(t *testing.T) {
	f := edgetest.NewLogOf(t, 2)
	ps := followLog(t, f, 0)
	first, second := inTwoPartitions(f)
	f.Create(first, "")
	f.Create(second, "")
	knows(t, ps, first)
	two := comesTo(t, ps, second, f.PublishTo(second, "a", 4))
	g := openGroup(t, f, ps, Start{}, nil, nil, first, second)
	readAll(t, g)
	one := comesTo(t, ps, first, f.PublishTo(first, "a", 1))
	p := ps.Of(second)
	state, _ := ps.log.State(p.number)
	p.window.Rollback(state, two, two+1, two-2) // the events in between are read from the log
	p.window.Reach(two, 0)
	ctx, cancel := context.WithCancel(waittest.Context(t))
	cancel()
	if s, err := g.Next(ctx); len(s.Items) > 0 || err == nil {
		t.Errorf("%d events before the gap, %v", len(s.Items), err)
	}
	// Nor has one a position of a partition that was not read yet for a client without an ID: events that were
	// removed before the client came would be a gap.
	fresh := openAfter(t, f, ps, "", nil, first, second)
	if s, err := fresh.Next(ctx); len(s.Items) > 0 || err == nil {
		t.Errorf("%d events before the first read of the other partition, %v", len(s.Items), err)
	}
	if id := g.CursorID(); id != "" {
		t.Errorf("the heartbeat before the gap has the ID %s", id)
	}
	want := fmt.Sprintf("gap:%s:rolled_back %s:%d %s:%d %s:%d", second, first, one, second, two-1, second, two)
	readsAll(t, g, want)
}

// A heartbeat moves no position over sequences that the tail has missed, unless they were proved to be empty.
func TestGroup_HeartbeatBelowAJump(t *testing.T) {
	f := edgetest.NewLog(t)
	last := f.PublishTo("x", "a", 1)
	ps := followLog(t, f, 0)
	g := openGroup(t, f, ps, Start{}, nil, nil, "s", "x")
	readAll(t, g)
	ps.Of("x").window.Reach(last+2, 0)
	if id, err := ParseGroupID(g.CursorID()); err != nil || id.At[0].Sequence != last+2 {
		t.Errorf("the position is %+v, %v", id, err)
	}
	ps.Of("x").window.Reach(last+5, 3)
	if id, err := ParseGroupID(g.CursorID()); err != nil || id.At[0].Sequence != last+2 {
		t.Errorf("the position is %+v, %v", id, err)
	}
}

// A session that is added while another one catches up takes no events from that one.
func TestGroup_AddedWhileAnotherCatchesUp(t *testing.T) {
	f := edgetest.NewLog(t)
	f.PublishTo("new", "a", 4)
	f.PublishTo("x", "a", 2)
	ps := followLog(t, f, 0)
	g := openGroup(t, f, ps, Start{}, nil, nil, "x")
	readAll(t, g)
	var ids []string
	readAll(t, openAfter(t, f, ps, g.ID(), &ids, "x", "+new"))
	if len(ids) != 4 {
		t.Fatalf("there are %d events", len(ids))
	}
	if got := readAll(t, openAfter(t, f, ps, ids[1], nil, "x", "new", "+late")); !strings.HasPrefix(got, "new:3 new:4") {
		t.Errorf("got %q", got)
	}
}

// Sessions that catch up get no gap because one of them began after the position of another one's
// event.
func TestGroup_AddedSessionsBegin(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("one", "")
	f.PublishTo("one", "a", 2)
	f.Create("two", "")
	f.PublishTo("two", "a", 2)
	f.PublishTo("x", "a", 2)
	ps := followLog(t, f, 0)
	g := openGroup(t, f, ps, Start{}, nil, nil, "x")
	readAll(t, g)
	var ids []string
	readAll(t, openAfter(t, f, ps, g.ID(), &ids, "x", "+one", "+two"))
	if len(ids) != 4 {
		t.Fatalf("there are %d events", len(ids))
	}
	resumesAfterEach(t, f, ps, ids, "x", "+one", "+two")
}

// Sessions that began below the window get no gap at a position before they did.
func TestGroup_SessionsBeginBelowTheWindow(t *testing.T) {
	f := edgetest.NewLog(t)
	f.PublishTo("x", "a", 1)
	f.Create("s", "")
	f.Publish("a", 1)
	f.Create("y", "")
	ps := followLog(t, f, -1)
	f.PublishTo("y", "a", 1)
	last := f.Publish("a", 1)
	waittest.Until(t, "the window is at the end", func() bool { return ps.Of("s").Stats().End >= last })
	var ids []string
	names := []string{"x", "s", "y"}
	readAll(t, openAfter(t, f, ps, "", &ids, names...))
	if len(ids) != 4 {
		t.Fatalf("there are %d events", len(ids))
	}
	resumesAfterEach(t, f, ps, ids, names...)
}

// A session that catches up to a position of an edge that is ahead has its next life from there too.
func TestGroup_NextLifeWhileCatchingUp(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	f.Publish("a", 2)
	f.PublishTo("x", "a", 1)
	ps := followLog(t, f, 0)
	g := openGroup(t, f, ps, Start{}, nil, nil, "x")
	readAll(t, g)
	var ids []string
	g = openAfter(t, f, ps, g.ID(), &ids, "x", "+s")
	g.lanes[0].position += 3
	f.Reuse("s", "")
	next := f.Publish("a", 1)
	comesTo(t, ps, "s", f.PublishTo("x", "a", 3))
	if got, want := readAll(t, g), fmt.Sprintf("s:%d", next); !strings.Contains(got, want) {
		t.Errorf("got %s without %s", got, want)
	}
}

// An opening that was written again while a client was disconnected begins no session.
func TestGroup_OpeningWrittenAgain(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	f.Create("x", "")
	f.Publish("a", 1)
	ps := followLog(t, f, 0)
	later := followLog(t, f, -1) // whose window has the opening's copy alone
	knows(t, ps, "s", "x")
	var ids []string
	readAll(t, openAfter(t, f, ps, "", &ids, "s", "x"))
	f.RewriteOpening("s")
	last := f.PublishTo("x", "a", 1)
	for _, ps := range []*Partitions{ps, later} {
		comesTo(t, ps, "x", last)
		readsAll(t, openAfter(t, f, ps, ids[0], nil, "s", "x"), fmt.Sprint("x:", last))
	}
}

// A cursor below the window gets a gap of a session whose opening was written again only if its life began
// after the cursor.
func TestGroup_OpeningWrittenAgainBelowTheWindow(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Create("s", "")
	f.Create("x", "")
	f.Create("used", "")
	f.Publish("a", 1)
	ps := followLog(t, f, 0)
	knows(t, ps, "s", "x", "used")
	names := []string{"s", "x", "y", "used"}
	g := openGroup(t, f, ps, Start{}, nil, nil, names...)
	readAll(t, g)
	before := g.ID()
	f.Create("y", "")
	one := f.PublishTo("y", "a", 1)
	f.RewriteOpening("s")
	f.RewriteOpening("s")
	f.RewriteOpening("y")
	f.SetMembers("x", "bob")
	comesTo(t, ps, "y", one)
	readAll(t, g)
	between := g.ID()
	two := f.PublishTo("x", "a", 1)
	for _, tt := range []struct{ name, after, want string }{
		{"before a session began", before, fmt.Sprintf("y:%d x:%d", one, two)},
		{"after its opening", between, fmt.Sprint("x:", two)},
	} {
		if got := readAll(t, openGroup(t, f, followLog(t, f, -1), Start{After: tt.after}, nil, nil, names...)); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
	f.Reuse("used", "")
	three := f.PublishTo("used", "a", 1)
	f.RewriteOpening("used")
	want := fmt.Sprintf("gap:used:unknown x:%d used:%d", two, three)
	readsAll(t, openGroup(t, f, followLog(t, f, -1), Start{After: between}, nil, nil, names...), want)
}

// publishLarge publishes an event of so many bytes.
func publishLarge(t *testing.T, f *edgetest.Log, session string, size int) uint64 {
	t.Helper()
	data := fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", size))
	ack := must.Value(f.Backend.Log.Publish(t.Context(), eventlog.Event{Session: session, Life: f.Life(session), Stream: "a", Data: data}))(t)
	return ack.Sequence
}

// The next life of a name is followed from its beginning, also when the window has evicted that by the time
// that the life before is read, and has the copy of its opening. Entries of that life that the log has forgotten
// by then are not known.
func TestGroup_NextLifeBelowTheWindow(t *testing.T) {
	for name, again := range map[string]bool{"once": false, "again": true} {
		t.Run(name, func(t *testing.T) {
			f, ps := withSessions(t, "s")
			g := openGroup(t, f, ps, Start{}, nil, nil, "s")
			one := f.Publish("a", 1)
			f.Reuse("s", "")
			two := f.Publish("a", 1)
			var last uint64
			for range 5 {
				last = publishLarge(t, f, "x", 300<<10)
			}
			if again {
				f.RewriteOpening("s")
			}
			three := comesTo(t, ps, "s", f.Publish("a", 1))
			if start := ps.Of("s").Stats().Start; start <= two || start > last {
				t.Fatalf("the window begins at %d", start)
			}
			readsAll(t, g, fmt.Sprintf("gap:s:unknown s:%d s:closed s:open s:%d s:%d", one, two, three))
		})
	}
}

// A group of many sessions with large events holds few of them, and sends all in their order.
func TestGroup_HoldsFewLargeEvents(t *testing.T) {
	const sessions, rounds, size, limit = 20, 3, 64 << 10, 128 << 10
	f := edgetest.NewLog(t)
	var names []string
	var want strings.Builder
	var last uint64
	for i := range sessions {
		names = append(names, fmt.Sprint("s", i))
	}
	for i := range sessions * rounds {
		name := names[i*7%sessions]
		last = publishLarge(t, f, name, size)
		fmt.Fprintf(&want, "%s:%d ", name, last)
	}
	for name, backfill := range map[string]int{"log": -1, "window": 0} {
		t.Run(name, func(t *testing.T) {
			ps := followLog(t, f, backfill)
			g := openGroup(t, f, ps, Start{}, nil, func(c *GroupConfig) { c.Limit.Bytes = limit }, names...)
			var got strings.Builder
			eachStep(t, g, func(s Step) {
				if held := ahead(g); held > limit+2*size {
					t.Errorf("%d bytes are held", held)
				}
				for _, it := range s.Items {
					got.Write(it.Frame)
				}
			})
			if got.String() != want.String() {
				t.Errorf("got %s, want %s", got.String(), want.String())
			}
		})
	}
}

// ahead is the size of the events that a group's members have read and no step has taken.
func ahead(g *Group) (bytes int) {
	for _, m := range g.members {
		bytes += m.bytes()
	}
	return bytes
}

// Events read ahead from the log count, and are read again if there is no memory for them. Events read ahead from
// the window are not kept for a client that reads slowly.
func TestGroup_ReadAhead(t *testing.T) {
	const partitions, rounds, size = 4, 3, 40 << 10
	f := edgetest.NewLogOf(t, partitions)
	names := inPartitions(f)
	want := map[string]string{}
	last := map[string]uint64{}
	for range rounds {
		for _, name := range names {
			last[name] = publishLarge(t, f, name, size)
			want[name] += fmt.Sprintf("%s:%d ", name, last[name])
		}
	}
	for name, tt := range map[string]struct{ backfill, memory, limit int }{"log": {-1, 1 << 30, size}, "log, without memory": {-1, 0, size + 1<<10}, "window": {0, 0, size}} {
		t.Run(name, func(t *testing.T) {
			ps := followLog(t, f, tt.backfill)
			for _, name := range names {
				comesTo(t, ps, name, last[name])
			}
			counted, most := 0, 0
			g := openGroup(t, f, ps, Start{}, nil, func(c *GroupConfig) {
				c.Limit.Bytes = tt.limit
				c.Hold = func(bytes int) bool {
					if bytes > tt.memory {
						return false
					}
					counted = bytes
					return true
				}
			}, names...)
			got := map[string]string{}
			eachStep(t, g, func(s Step) {
				for _, it := range s.Items {
					name, _, _ := strings.Cut(string(it.Frame), ":")
					got[name] += string(it.Frame)
				}
				g.GoBack(s, len(s.Items))
				for _, m := range g.members {
					if len(m.reader.items) > 0 {
						t.Errorf("a reader keeps %d events", len(m.reader.items))
					}
				}
				if n := ahead(g); n != counted && (tt.memory > 0 || n > 2*tt.limit) {
					t.Errorf("%d bytes are held, and %d count", n, counted)
				}
				most = max(most, counted)
			})
			if !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if tt.memory > 0 && most < (partitions-1)*size {
				t.Errorf("no more than %d bytes were held", most)
			}
		})
	}
}

// Pages of the log that members read at the same time count before they are kept. Pages without memory are read
// again once the events before them were sent.
func TestGroup_PagesCountWhileTheyAreRead(t *testing.T) {
	const sessions, size, limit = 20, 64 << 10, 128 << 10
	const room = 6 * size // for three pages, as read and as frames
	f := edgetest.NewLog(t)
	var names []string
	var want strings.Builder
	var last uint64
	for i := range sessions {
		names = append(names, fmt.Sprint("s", i))
		last = publishLarge(t, f, names[i], size-100)
		fmt.Fprintf(&want, "%s:%d ", names[i], last)
	}
	ps := followLog(t, f, -1)
	counted, refused := 0, 0
	g := openGroup(t, f, ps, Start{}, nil, func(c *GroupConfig) {
		c.Limit.Bytes = limit
		c.Hold = func(bytes int) bool {
			if bytes > room {
				refused++
				return false
			}
			counted = bytes
			return true
		}
	}, names...)
	if got := strings.Join(events(readAll(t, g)), " ") + " "; got != want.String() {
		t.Errorf("got %s, want %s", got, want.String())
	}
	if refused == 0 || counted != 0 {
		t.Errorf("%d pages were refused, and %d bytes count in the end", refused, counted)
	}
}

// An event that is larger than a step waits until there is memory for it, and the group holds no other meanwhile.
func TestGroup_LargeEventWithoutMemory(t *testing.T) {
	const size = 40 << 10
	for name, backfill := range map[string]int{"window": 0, "log": -1} {
		t.Run(name, func(t *testing.T) {
			f := edgetest.NewLogOf(t, 2)
			names := []string{"s", "x"}
			want := map[string]string{}
			last := map[string]uint64{}
			for range 3 {
				for _, name := range names {
					last[name] = publishLarge(t, f, name, size)
					want[name] += fmt.Sprintf("%s:%d ", name, last[name])
				}
			}
			ps := followLog(t, f, backfill)
			for _, name := range names {
				comesTo(t, ps, name, last[name])
			}
			room, counted, blocks, waits := 0, 0, 0, 0
			var g *Group
			free := func(bytes int) {
				if waits++; g.Kept() != 0 || backfill < 0 && ahead(g) != 0 {
					t.Errorf("it waits with %d and %d bytes", g.Kept(), ahead(g))
				}
				room = bytes
			}
			g = openGroup(t, f, ps, Start{}, nil, func(c *GroupConfig) {
				c.Limit.Bytes = size / 2
				c.Hold = func(bytes int) bool {
					if blocks+bytes > room {
						return false
					}
					counted = bytes
					return true
				}
				c.Await = func(_ context.Context, bytes int) error {
					free(bytes)
					counted = bytes
					return nil
				}
			}, names...)
			g.Hold = func(bytes int) bool {
				if blocks = 0; counted+bytes > room {
					return false
				}
				blocks = bytes
				return true
			}
			g.Await = func(_ context.Context, bytes int) error {
				free(bytes)
				blocks = bytes
				return nil
			}
			got := map[string]string{}
			eachStep(t, g, func(s Step) {
				for _, it := range s.Items {
					name, _, _ := strings.Cut(string(it.Frame), ":")
					got[name] += string(it.Frame)
				}
				room, blocks = 0, 0 // others take the memory once the step was written
			})
			if !maps.Equal(got, want) || waits < 6 {
				t.Errorf("got %v, want %v; it waited %d times", got, want, waits)
			}
		})
	}
}

func FuzzParseGroupID(f *testing.F) {
	f.Add("group_0000001000000z_0.abcdefg.10_f.abcdefg.zz-3")
	f.Add("group_0000001000000z_0.abcdefg.10.77")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseGroupID(text)
		if err != nil {
			return
		}
		b := appendGroupSums(nil, id.Names, id.Lives)
		for partition, at := range id.At {
			b = appendGroupPosition(b, partition, at)
		}
		again, err := ParseGroupID(string(b))
		if err != nil || again.Names != id.Names || again.Lives != id.Lives || len(again.At) != len(id.At) {
			t.Fatalf("%q became %q: %v", text, b, err)
		}
		for partition, at := range id.At {
			if again.At[partition] != at {
				t.Errorf("%q: partition %d is at %+v", text, partition, again.At[partition])
			}
		}
	})
}
