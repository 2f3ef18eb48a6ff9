package eventlog_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestServers_AllAnswer(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	l := clustered(t, c, 1)
	look := func(known cluster.Servers, all int) cluster.Servers {
		t.Helper()
		return waittest.Value(t, fmt.Sprintf("%d servers answer", all), func() cluster.Servers { // a late answer is left out
			s, err := l.Servers(waittest.Context(t), known)
			if err != nil && !errors.Is(err, eventlog.ErrUnavailable) {
				t.Fatal(err)
			}
			return s
		}, func(s cluster.Servers) bool { return len(s) >= all })
	}
	before := look(nil, 3)
	if again := look(before, 3); len(before) != 3 || !maps.Equal(again, before) {
		t.Fatalf("%v, and then %v", before, again)
	}
	away := "natstest-0" // one without a connection
	if l.Conn().ConnectedServerName() == away {
		away = "natstest-1"
	}
	c.Named(away).Stop()
	two := maps.Clone(before)
	delete(two, away)
	if got := look(before, 2); !maps.Equal(got, two) {
		t.Errorf("without %s: %v, before %v", away, got, before)
	}
	c.Named(away).Start()
	c.WaitCurrent()
	after := look(before, 3)
	if len(after) != 3 || after[away] == before[away] {
		t.Errorf("with %s again: %v, before %v", away, after, before)
	}
	delete(after, away)
	if !maps.Equal(after, two) {
		t.Errorf("the others are %v, before %v", after, two)
	}
}

func TestServers_WithoutPermission(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "nats.conf")
	must.NoError(t, os.WriteFile(conf, []byte(`jetstream {}, authorization { users: [ { user: u, password: p, permissions: { publish: { deny: "$SYS.>" } } } ] }`), 0o600))
	nc := natstest.StartConfig(t, conf).Connect(nats.UserInfo("u", "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	l := must.Value(eventlog.Create(waittest.Context(t), nc, one(), quiet(t)))(t)
	t.Cleanup(l.Close)
	if s, err := l.Servers(waittest.Context(t), nil); !errors.Is(err, eventlog.ErrUnavailable) || !errors.Is(nc.LastError(), nats.ErrPermissionViolation) {
		t.Errorf("%v, %v (%v)", s, err, nc.LastError())
	}
	nc.Close()
	if s, err := l.Servers(waittest.Context(t), nil); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("without a connection: %v, %v", s, err)
	}
}

// A backup of a log from a server that was alone, where a generation began without a janitor, is restored
// into a cluster.
func TestCluster_KeepsGenerationsOfAServerThatWasAlone(t *testing.T) {
	t.Parallel()
	for name, servers := range map[string]string{"made there": "", "from another cluster": `{"other":"ID"}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := clustered(t, natstest.StartCluster(t), 1)
			publish(t, l, "s", "t", 1)
			publish(t, l, "s", "t", 2)
			js := newJetStream(t, l)
			cfg := streamOf(t, l, "MCP_0").CachedInfo().Config
			if delete(cfg.Metadata, "rejoin.servers"); servers != "" {
				cfg.Metadata["rejoin.servers"] = servers
			}
			update(t, l, cfg)
			ack := must.Value(js.Publish(waittest.Context(t), event.GenerationSubject(0, "alone"), nil))(t)
			want := slices.Concat(look(t, l).Generations[:1], []event.Generation{{ID: "alone", Start: ack.Sequence}})
			if got := look(t, l).Generations; !slices.Equal(got, want) {
				t.Fatalf("before a janitor has come, the generations are %v, not %v", got, want)
			}
			there := allServers(t, l)
			begin(t, l, there)
			written := listed(t, l)
			if entry := fmt.Sprintf(",alone:%d,", ack.Sequence); !strings.Contains(written, entry) {
				t.Errorf("the generations are %s, without %s", written, entry)
			}
			begin(t, l, there)
			if again := listed(t, l); again != written {
				t.Errorf("one began again: %s, before %s", again, written)
			}
		})
	}
}

// JetStream stores a configuration without a comparison. Two janitors may act for a moment, as when the servers that
// held their lease in memory were restarted: one of them then writes the configuration that it had read before the
// other one began a generation.
func TestCluster_GenerationThatIsWrittenOver(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	l, reader := clustered(t, c, 1), clustered(t, c, 1)
	there := allServers(t, l)
	begin(t, l, there)
	lost := publish(t, l, "s", "t", 1) + 1 // was stored and given an ID, and is lost
	before := look(t, l)
	read := streamOf(t, l, "MCP_0").CachedInfo()
	restarted := maps.Clone(there)
	restarted[read.Cluster.Leader] = "its next start"
	begin(t, l, there, restarted)
	begun := look(t, l).Generation()
	if begun.Start != lost || look(t, reader).Generation() != begun {
		t.Fatalf("the generation is %+v, and %+v for another program; it was to begin at %d", begun, look(t, reader).Generation(), lost)
	}
	publishAll(t, l, "t", 0, 3)
	update(t, l, read.Config)
	publish(t, l, "s", "t", 4)
	place := event.TagParts{Origin: before.Origin, Generation: before.Generation().ID, Session: "s", Life: "i", Stream: "t"}
	resolves := func(who string, l *eventlog.Log) {
		t.Helper()
		gens := look(t, l).Generations
		if got, common := event.Resolve(event.ID{Stream: "t", Tag: place.Tag(), Sequence: lost}, place, gens); got != event.RolledBack || common != lost-1 {
			t.Errorf("%s: the ID of the lost event has verdict %d, in common up to %d; generations %+v", who, got, common, gens)
		}
		if !slices.Contains(gens, begun) {
			t.Errorf("%s: the generations are %+v, without %+v", who, gens, begun)
		}
	}
	resolves("who has seen the generation", reader)
	look(t, l)
	begin(t, l, there, restarted)
	resolves("the janitor that began it", l)
	resolves("who comes later", clustered(t, c, 1))
}

// allServers returns the servers of a cluster of three.
func allServers(t *testing.T, l *eventlog.Log) cluster.Servers {
	t.Helper()
	return waittest.Value(t, "all servers answer", func() cluster.Servers { // a late answer is left out
		s, _ := l.Servers(waittest.Context(t), nil)
		return s
	}, func(s cluster.Servers) bool { return len(s) == 3 })
}

// A client that is connected to the server that was not restarted does not wait. Events that it stores before the
// janitor looks may have the sequences of lost ones, whichever server stored them and leads by then.
func TestCluster_EventsStoredBeforeTheirGeneration(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		replicas int
		leaders  []int // when the events are stored, and when the janitor looks; server 0 is not restarted
	}{
		"a restarted server leads":              {3, []int{1, 1}},
		"another restarted server leads by now": {3, []int{1, 2}},
		"the server that stays leads":           {3, []int{0, 0}},
		"only a restarted server has them":      {1, []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := natstest.StartCluster(t)
			holder, _, _ := strings.Cut(look(t, clustered(t, c, test.replicas)).Leader, "@")
			servers := slices.Clone(c.Servers)
			slices.SortStableFunc(servers, func(a, b *natstest.Server) int {
				return cmp.Compare(strings.Count(a.Name(), holder), strings.Count(b.Name(), holder))
			})
			slices.Reverse(servers[1:])
			l := open(t, servers[0])
			l.BeginWithin(waittest.Timeout) // else a search that takes long ends at the end of the log
			before := allServers(t, l)
			begin(t, l, before)
			publishAll(t, l, "t", 0, 3)
			for _, srv := range servers[1:] {
				srv.Stop()
			}
			waittest.Until(t, "one server is left", func() bool { there, _ := l.Servers(waittest.Context(t), nil); return len(there) == 1 })
			for _, srv := range servers[1:] {
				srv.Start()
			}
			c.WaitCurrent()
			lead := func(srv *natstest.Server) {
				t.Helper()
				waittest.NoError(t, func() error {
					state, err := l.Look(waittest.Context(t), 0)
					if leader, _, _ := strings.Cut(state.Leader, "@"); err == nil && leader != srv.Name() {
						_, err = l.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN.MCP_0", fmt.Appendf(nil, `{"placement":{"preferred":%q}}`, srv.Name()), time.Second)
						err = cmp.Or(err, errors.New(state.Leader+" leads"))
					}
					return err
				})
			}
			lead(servers[test.leaders[0]])
			first := publish(t, l, "s", "t", 3)
			publish(t, l, "s", "t", 4)
			lead(servers[test.leaders[1]])
			begin(t, l, before, allServers(t, l))
			// On a slow machine it may begin earlier: the leader's time is taken for that of the answer.
			if begun := look(t, l).Generations; len(begun) != 2 || begun[1].Start > first {
				t.Errorf("the generations are %v, and the first event after the restart is %d", begun, first)
			}
		})
	}
}

// compares compares the servers of a cluster, as an acting janitor does, until the test ends.
func compares(t *testing.T, l *eventlog.Log) {
	t.Helper()
	l.AwaitJanitor(waittest.Timeout)
	ctx, stop := context.WithCancel(context.Background())
	var comparing sync.WaitGroup
	t.Cleanup(func() { stop(); comparing.Wait() })
	comparing.Go(func() {
		var looks []cluster.Servers
		for ctx.Err() == nil {
			there, err := l.Servers(ctx, nil)
			if err != nil {
				continue
			}
			looks = append(looks, there)
			for p := range l.Settings().Partitions {
				_, _ = l.BeginGeneration(ctx, p, looks...) // again in a moment
			}
		}
	})
}

// stopAll stops all servers of a cluster.
func stopAll(c *natstest.Cluster) {
	for _, srv := range c.Servers {
		srv.Stop()
	}
}

func startAll(c *natstest.Cluster) {
	for _, srv := range c.Servers {
		srv.Start()
	}
}

// Events stored after a copy of all servers' files are lost with it, and their IDs name
// no other event.
func TestClusterRestore_IDsAreNotReused(t *testing.T) {
	c, l := inCluster(t)
	compares(t, l)
	for n := range 10 {
		publishOnce(t, l, n)
	}
	older := t.TempDir()
	stopAll(c)
	for _, srv := range c.Servers {
		copyTree(t, srv.Dir(), filepath.Join(older, srv.Name()))
	}
	startAll(c)
	for n := range 5 {
		publishOnce(t, l, 10+n)
	}
	lost := look(t, l)
	stopAll(c)
	for _, srv := range c.Servers {
		copyTree(t, filepath.Join(older, srv.Name()), srv.Dir())
	}
	startAll(c)
	if got := publishOnce(t, l, 99); lost.Last != 15 || got != 11 {
		t.Fatalf("the next sequence is %d, and %d are lost", got, lost.Last)
	}
	now := look(t, l)
	place := event.TagParts{Origin: lost.Origin, Generation: lost.Generation().ID, Session: "s", Life: "i", Stream: "t"}
	for sequence, want := range map[uint64]event.Verdict{10: event.MaybeRolledBack, 11: event.RolledBack, 15: event.RolledBack} {
		if got, _ := event.Resolve(event.ID{Stream: "t", Tag: place.Tag(), Sequence: sequence}, place, now.Generations); got != want {
			t.Errorf("sequence %d: verdict %d; generations %v, before %v", sequence, got, now.Generations, lost.Generations)
		}
	}
}

// A publish straight to JetStream shows that the log takes events.
func TestClusterRestart_NothingStoredBeforeItsGeneration(t *testing.T) {
	c, l := inCluster(t)
	l.AwaitJanitor(waittest.Timeout) // which comes once the log takes events
	before := publish(t, l, "s", "t", 1)
	stopAll(c)
	waittest.Until(t, "the connection is lost", func() bool { return !l.Conn().IsConnected() })
	startAll(c)
	stored := make(chan uint64, 1)
	var publishing sync.WaitGroup
	publishing.Go(func() { stored <- publishOnce(t, l, 2) })
	defer publishing.Wait()
	js := newJetStream(t, l)
	var last uint64
	for last == 0 {
		ctx, cancel := context.WithTimeout(waittest.Context(t), time.Second)
		ack, err := js.Publish(ctx, "mcp.0.s.=.t", numbered(3))
		cancel()
		if err == nil {
			last = ack.Sequence
		}
	}
	compares(t, l)
	// It begins with the events published straight to JetStream, some of which may have had no answer in time.
	if got, begun := <-stored, look(t, l).Generation().Start; got <= last || begun <= before || got < begun {
		t.Errorf("an event is stored at %d, after %d, and the generation begins at %d, after %d", got, last, begun, before)
	}
}
