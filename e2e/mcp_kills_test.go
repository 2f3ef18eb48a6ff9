package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	mcprev "rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// The size of TestMCP_Kills. make mcpkills runs 500 calls of 50 steps and 20 s.
var (
	killsCalls     = flag.Int("mcp-calls", 60, "how many calls TestMCP_Kills makes")
	killsSteps     = flag.Int("mcp-steps", 20, "how many steps each of its calls reports")
	killsPause     = flag.Duration("mcp-pause", 0, "how long each step takes")
	killsOfCluster = flag.Bool("mcp-cluster", false, "NATS is a cluster of three servers, of which one at a time is killed")
	killsYoung     = flag.Bool("mcp-young", false, "do half of the kills while calls begin, which may then end in an error: once, too")
)

// killsOf is how often each program is killed.
const killsOf = 2

// Two edges, two bridges and NATS are killed twice each, one or two at a time, at random places in
// calls of clients of both eras, a third of them with tasks. Before a server that gives event IDs each
// call has each of its steps and its result once. Before one that gives none, or a process, the calls
// of a killed bridge end in an error, once, and all others as before. No call reaches the tool twice.
func TestMCP_Kills(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (s *mcpServer, resumes bool, args func(bridge string) []string){
		"event IDs": func(t *testing.T) (*mcpServer, bool, func(string) []string) {
			t.Helper()
			store := mcp.NewMemoryEventStore(nil)
			store.SetMaxBytes(1 << 30)
			s := newMCPServer(t, store)
			return s, true, s.asUpstream
		},
		"no event IDs": func(t *testing.T) (*mcpServer, bool, func(string) []string) {
			t.Helper()
			s := newMCPServer(t, nil)
			return s, false, s.asUpstream
		},
		"stdio": func(t *testing.T) (*mcpServer, bool, func(string) []string) {
			t.Helper()
			s := newMCPServer(t, nil)
			gate := s.gate(t)
			program := built(t, "rejoin/e2e/testdata/stdiocount")
			return s, false, func(bridge string) []string {
				return []string{"--upstream-command=" + strings.Join([]string{program, gate, bridge}, " "), "--max-processes=10000"}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, resumes, args := start(t)
			newKilling(t, server, resumes, args).run()
		})
	}
}

// asUpstream returns the flags of a bridge before the server.
func (m *mcpServer) asUpstream(bridge string) []string {
	return []string{"--upstream=" + m.url, "--upstream-header=" + headerBridge + ":" + bridge}
}

// gate serves the requests of the processes of testdata/stdiocount, and returns its URL.
func (m *mcpServer) gate(t testing.TB) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		call := r.FormValue("call")
		switch r.URL.Path {
		case "/begin":
			m.begin(call, r.FormValue("bridge"))
		case "/wait":
			step, err := strconv.Atoi(r.FormValue("step"))
			if err == nil {
				err = m.wait(r.Context(), r.FormValue("gate"), step)
			}
			if err != nil {
				w.WriteHeader(http.StatusGone)
			}
		case "/step":
			m.step(call)
		}
	}).URL
}

// killing is one run: the programs, and the calls through them.
type killing struct {
	t       *testing.T
	server  *mcpServer
	resumes bool // the server lets the next bridge continue a call
	args    func(bridge string) []string
	rnd     *rand.Rand
	nats    killedNATS
	edges   []*program
	bridges map[string]*program
	http    *http.Client
	url     string // of the edges together
	calls   []*killedCall
	batches []int // steps that the calls of each may take
	running sync.WaitGroup
}

// killedNATS is a NATS server, or a cluster, that is killed and started again.
type killedNATS interface {
	flag() string
	urls() string
	kill()
	start()
}

// killedCluster is a cluster of which one server at a time is killed.
type killedCluster struct {
	*natsCluster
	rnd    *rand.Rand
	away   *natsProc
	before []string // the janitor's notes at the last kill
}

func (c *killedCluster) kill() {
	if c.before == nil {
		c.waitKnown()
	}
	c.waitNoted(c.before) // else two are down, or seem to have been
	c.before = c.lives()
	c.away = c.servers[c.rnd.IntN(len(c.servers))]
	c.away.kill()
}

func (c *killedCluster) start() { c.away.start() }

func newKilling(t *testing.T, server *mcpServer, resumes bool, args func(string) []string) *killing {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	k := &killing{t: t, server: server, resumes: resumes, args: args, rnd: rand.New(rand.NewPCG(seed, 0)), bridges: map[string]*program{}}
	var janitor []string
	if *killsOfCluster {
		k.nats = &killedCluster{natsCluster: newNATSCluster(t), rnd: k.rnd}
		janitor = []string{"--replicas=3"}
	} else {
		alone := newNATS(t, "")
		alone.start()
		k.nats = alone
	}
	startService(t, "janitor", append(janitor, k.nats.flag())...)
	for _, name := range []string{"a", "b"} {
		k.startBridge(name)
	}
	k.edges = []*program{k.startEdge(anyPort), k.startEdge(anyPort)}
	k.url = newBalancer(t, k.edges[0].host(), k.edges[1].host()).mcp()
	k.http = ownClient(t)
	return k
}

func (k *killing) startBridge(name string) {
	k.t.Helper()
	k.bridges[name] = startService(k.t, "bridge", append(k.args(name), k.nats.flag(), "--bridge-name="+name, "--task-after=300ms", "--log-level=debug")...)
}

func (k *killing) startEdge(addr string) *program {
	k.t.Helper()
	return startService(k.t, "sse-edge", "--edge-addr="+addr, "--retry=50ms", k.nats.flag())
}

// run makes some more calls before each kill.
func (k *killing) run() {
	t := k.t
	ctx, cancel := context.WithTimeout(t.Context(), 5*waittest.Timeout+time.Duration(10**killsSteps)**killsPause)
	defer func() {
		cancel()
		k.running.Wait()
	}()
	victims := make([]string, 0, 5*killsOf)
	for range killsOf {
		victims = append(victims, "edge 0", "edge 1", "bridge a", "bridge b", "NATS")
	}
	for twice := true; twice; twice = len(slices.Compact(slices.Clone(victims))) < len(victims) { // each is killed once at a time
		k.rnd.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	}
	each := max(1, (*killsSteps-1)/len(victims)) // steps for each kill
	for i := 0; i < len(victims); {
		now := victims[i:min(i+1+k.rnd.IntN(2), len(victims))] // one, or two at once
		batch := k.begin(ctx, *killsCalls*(i+len(now))/len(victims)-*killsCalls*i/len(victims))
		i += len(now)
		if *killsYoung && k.rnd.IntN(2) == 0 {
			some := k.rnd.IntN(len(batch))
			waittest.Until(t, fmt.Sprintf("%d of the newest calls have reached the tool", some), func() bool {
				return k.sum(batch, k.server.runs) >= some
			})
			k.kill(now...)
			t.Logf("%s: killed when %d of %d calls had reached the tool", now, some, len(batch))
			k.wait(ctx, batch)
			continue
		}
		k.wait(ctx, batch)
		for b := range k.batches {
			k.allow(b, min(k.batches[b]+each*len(now), *killsSteps))
		}
		some := len(batch) + k.rnd.IntN(len(batch)*each)
		waittest.Until(t, fmt.Sprintf("the newest calls have sent %d steps", some), func() bool {
			return k.sum(batch, k.server.steps) >= some
		})
		k.kill(now...)
		t.Logf("%s: killed after %d steps of %d calls", now, some, len(batch))
	}
	for b := range k.batches {
		k.allow(b, *killsSteps+1)
	}
	k.running.Wait()
	k.check(ctx)
}

// sum adds up the server's counts of calls.
func (k *killing) sum(calls []*killedCall, of func(call string) int) (n int) {
	for _, c := range calls {
		n += of(c.name)
	}
	return n
}

func (k *killing) allow(batch, steps int) {
	k.batches[batch] = steps
	k.server.allow(fmt.Sprint(batch), steps)
}

// begin makes calls.
func (k *killing) begin(ctx context.Context, n int) (calls []*killedCall) {
	k.t.Helper()
	batch := len(k.batches)
	k.batches = append(k.batches, 1)
	k.allow(batch, 1)
	session := ""
	for i := range n {
		c := &killedCall{k: k, name: fmt.Sprintf("call %d", len(k.calls)), gate: fmt.Sprint(batch), begun: make(chan struct{})}
		// Half of the calls is stateless, and two thirds of those have tasks.
		if at := len(k.calls) % 6; at%2 == 1 {
			c.stateless, c.tasks = true, at != 5
		} else if session == "" || i%4 == 0 {
			session = k.open()
		}
		if !c.stateless {
			c.session = session
		}
		k.calls, calls = append(k.calls, c), append(calls, c)
		k.running.Go(func() { c.run(ctx) })
	}
	return calls
}

// wait waits until each call has sent its first step, its client can resume it, and the next bridge
// could continue it.
func (k *killing) wait(ctx context.Context, calls []*killedCall) {
	k.t.Helper()
	for _, c := range calls {
		c.old = true
		waittest.Receive(k.t, c.name+" has an event ID or a task", c.begun)
		waittest.Until(k.t, c.name+" has sent a step", func() bool { return c.young || k.server.steps(c.name) >= 1 })
	}
	if k.resumes {
		waittest.Value(k.t, "all calls are written down", func() (missing []string) {
			written := k.written(ctx)
			for _, c := range k.calls {
				if !c.young && !written[c.name] {
					missing = append(missing, c.name)
				}
			}
			return missing
		}, func(missing []string) bool { return len(missing) == 0 })
	}
}

// open opens a session.
func (k *killing) open() (session string) {
	k.t.Helper()
	session = initialize(k.t, strings.TrimSuffix(k.url, "/mcp"))
	a, _ := inTime(k.t, "the session has begun", func() answer {
		return do(k.t, http.MethodPost, k.url, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Content-Type", jsonType, "Accept", jsonType+", text/event-stream",
			mcprev.HeaderVersion, revisionSessions, "Mcp-Session-Id", session)
	})
	a.got(k.t, http.StatusAccepted)
	return session
}

// written returns the calls that are written down with an event ID of the server.
func (k *killing) written(ctx context.Context) map[string]bool {
	k.t.Helper()
	nc := must.Value(nats.Connect(k.nats.urls()))(k.t)
	defer nc.Close()
	kv, err := natstest.JetStream(k.t, nc).KeyValue(ctx, rpc.CallsBucket)
	if err != nil {
		return nil // there is none yet
	}
	all, err := kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil
	}
	defer func() { _ = all.Stop() }()
	written := map[string]bool{}
	for e := range all.Updates() {
		if e == nil {
			break
		}
		_, token, _ := strings.Cut(e.Key(), ".")
		stream, err := event.StreamName(token)
		if ids, _ := rpc.RequestIDs(stream); err == nil && len(ids) == 1 && bytes.Contains(e.Value(), []byte(`"id"`)) {
			var name string
			_ = json.Unmarshal(ids[0], &name) // then the record is not of these calls
			written[name] = true
		}
	}
	return written
}

// kill kills programs, and then starts them again.
func (k *killing) kill(victims ...string) {
	k.t.Helper()
	for _, c := range k.calls {
		c.young = c.young || !c.old
	}
	// The others need NATS, and edges end the calls of a bridge that is down for long.
	var nats, bridges, edges []func()
	for _, victim := range victims {
		kind, name, _ := strings.Cut(victim, " ")
		switch kind {
		case "edge":
			i, _ := strconv.Atoi(name)
			k.edges[i].kill()
			edges = append(edges, func() { k.edges[i] = k.startEdge(k.edges[i].host()) })
		case "bridge":
			k.lose(name)
			k.bridges[name].kill()
			bridges = append(bridges, func() { k.startBridge(name) })
		case "NATS":
			k.nats.kill()
			nats = append(nats, k.nats.start)
		}
	}
	for _, again := range slices.Concat(nats, bridges, edges) {
		again()
	}
}

// lose notes which calls end with a bridge.
func (k *killing) lose(bridge string) {
	for _, c := range k.calls {
		if by := k.server.bridgeOf(c.name); by == bridge || by == "" {
			c.kills = append(c.kills, time.Now())
			c.lost = c.lost || !k.resumes && !c.young
		}
	}
}

// bridgeOf returns the bridge through which a call came.
func (m *mcpServer) bridgeOf(call string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bridges[call]
}

// check compares the messages of the clients with the expected ones. The sums come first: they show whether the later
// output was cut off.
func (k *killing) check(ctx context.Context) {
	t := k.t
	var young, lost, twice, again, failed, silent, tasks int
	var wrong []string
	var torn []*killedCall // that have other steps
	var slowest time.Duration
	var late sync.WaitGroup
	for _, c := range k.calls { // a client that resumes after the end receives nothing again
		late.Go(func() { c.comeBack(ctx) })
	}
	late.Wait()
	for _, c := range k.calls {
		if c.task != "" {
			tasks++
		}
		ran, want := k.server.runs(c.name), fmt.Sprintf("%s has counted to %d", c.name, *killsSteps)
		if ran > 1 {
			again++
		}
		ends := len(c.results) + len(c.errors)
		if ends > 1 {
			twice++
		}
		if ends == 0 {
			silent++
		}
		if len(c.errors) > 0 {
			failed++
			for _, at := range slices.Backward(c.kills) {
				if took := c.ended.Sub(at); took > 0 {
					slowest = max(slowest, took)
					break
				}
			}
		}
		ok := len(c.results) == 1 && len(c.errors) == 0 && c.results[0] == want
		if c.young {
			young++
			ok = ends == 1 && ran <= 1
		} else if c.lost {
			lost++
			ok = len(c.results) == 0 && len(c.errors) == 1
		}
		if !ok || ran != 1 && !c.young {
			wrong = append(wrong, fmt.Sprintf("%s (%s) ran %d times, was lost: %t, has the results %q and the errors %q", c.name, c.kind(), ran, c.lost, c.results, c.errors))
		}
		whole := c.task != "" || len(c.errors) > 0 || len(c.progress) == *killsSteps
		for i, p := range c.progress {
			whole = whole && p == float64(i+1)
		}
		if !whole {
			torn = append(torn, c)
		}
	}
	t.Logf("%d calls, %d of them tasks, %d had just begun at a kill, %d lost their bridge for good; %d ended in an error (the slowest %s after the kill), %d in silence, %d twice; %d ran twice; %d have other steps",
		len(k.calls), tasks, young, lost, failed, slowest.Round(time.Millisecond), silent, twice, again, len(torn))
	for _, text := range wrong {
		t.Error(text)
	}
	if len(torn) == 0 {
		return
	}
	logged := k.logged(ctx)
	for _, c := range torn {
		t.Errorf("%s (%s), was lost: %t, has the steps %v, and the log %v; it was resumed after %q", c.name, c.kind(), c.lost, c.progress, logged[c.name], c.resumed)
	}
}

// logged returns the steps that the log has of each call, with their sequences.
func (k *killing) logged(ctx context.Context) map[string][]string {
	nc := must.Value(nats.Connect(k.nats.urls()))(k.t)
	defer nc.Close()
	l := must.Value(eventlog.Open(ctx, nc, slog.New(slog.DiscardHandler)))(k.t)
	defer l.Close()
	logged := map[string][]string{}
	for p := range l.Settings().Partitions {
		state, err := l.Look(ctx, p)
		if err == nil {
			_, err = l.Scan(ctx, p, 0, state.Last, func(e eventlog.Entry) bool {
				var call string
				if m, err := rpc.ParseMessage(e.Data); err == nil && m.Is("notifications/progress") && json.Unmarshal(m.Param("progressToken"), &call) == nil {
					logged[call] = append(logged[call], fmt.Sprintf("%s at %d", m.Param("progress"), e.Sequence))
				}
				return true
			})
		}
		if err != nil {
			k.t.Errorf("partition %d cannot be read: %v", p, err)
		}
	}
	return logged
}
