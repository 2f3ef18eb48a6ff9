package e2e_test

import (
	"cmp"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/valyala/fasthttp"

	"rejoin/shared/must"
	"rejoin/shared/natsconn"
	"rejoin/shared/racetest"
	"rejoin/shared/simnet"
)

var seeds = flag.Int("seeds", 60/racetest.Slowdown, "schedules of the simulation")

// TestSimulation runs random schedules in virtual time: the real services, the real NATS server
// and its clients, over a network in memory, in a bubble of testing/synctest. Nothing waits for
// a clock or a slow machine there, so a schedule takes some tenths of a second, and every
// failure is a defect. A seed repeats the plan of faults; the printed history has the events.
//
// It runs in processes of its own, [simulationSeeds] in each: pools of nats.go keep timers, and
// one that another test has left there would not follow virtual time. All seeds of a process
// share a bubble, since the objects in a pool belong to it, and it gets slower with the objects
// that pile up there.
//
//	make sim SEEDS=1000 SEED=1
func TestSimulation(t *testing.T) {
	runSimulation(t, firstSeed(), *seeds, simulationSeeds, simulate)
}

// runSimulation runs the schedules of n seeds, a few in each process.
func runSimulation(t *testing.T, first uint64, n, few int, run func(*testing.T, uint64) map[string]int) {
	t.Helper()
	if os.Getenv(simulationVariable) != "" {
		runInBubble(t, *seeds, first, run)
		return
	}
	t.Logf("%d schedules from seed %d", n, first)
	parts := make(chan [2]int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for part := range parts {
				simulateInProcess(t, first+uint64(part[0]), part[1]) //nolint:gosec // not negative
			}
		})
	}
	for from := 0; from < n; from += few {
		parts <- [2]int{from, min(few, n-from)}
	}
	close(parts)
	workers.Wait()
}

// simulateInProcess runs the schedules of n seeds of a test in a process of its own.
func simulateInProcess(t *testing.T, first uint64, n int) {
	t.Helper()
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v", "-seeds", strconv.Itoa(n), "-seed", strconv.FormatUint(first, 10), "-keep", *keep}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...) //nolint:gosec // this program
	cmd.Env = append(os.Environ(), simulationVariable+"=1", "GOGC=800", "GOMAXPROCS=1")
	if memory := "/dev/shm"; roomy(memory) {
		cmd.Env = append(cmd.Env, "TMPDIR="+memory) // a fifth faster
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
}

// roomy reports whether a file system has room for the logs of all processes of the simulation.
func roomy(folder string) bool {
	var s syscall.Statfs_t
	return syscall.Statfs(folder, &s) == nil && int64(s.Bavail)*s.Bsize > 2<<30 //nolint:gosec // as many blocks there are not
}

// simulationSeeds is how many schedules a process of the simulation runs.
const simulationSeeds = 20

// simulationVariable makes a test program a process of the simulation.
const simulationVariable = "REJOIN_SIMULATION"

func runInBubble(t *testing.T, n int, first uint64, run func(*testing.T, uint64) map[string]int) {
	t.Helper()
	beforeBubble()
	total := map[string]int{}
	// One bubble for all: the objects in a pool belong to the bubble.
	synctest.Test(t, func(t *testing.T) {
		for i := range n {
			for k, v := range run(t, first+uint64(i)) { //nolint:gosec // not negative
				total[k] += v
			}
		}
		time.Sleep(time.Minute) // pools of goroutines end by their clocks
	})
	t.Logf("what happened:\n%s", tallyText(total))
}

// simulate runs the schedule of one seed: every fourth is one of roll-backs.
func simulate(t *testing.T, seed uint64) map[string]int {
	t.Helper()
	sc := draw(seed)
	if seed%4 == 0 {
		sc = drawRollBacks(seed)
	}
	sc.simulated = true
	if !sc.copies {
		sc.drawFaults()
		sc.drawMembers()
	}
	w := newWorld(t, sc)
	defer func() {
		w.stop()
		w.nats.Stop()
	}()
	return w.play()
}

// drawFaults makes a schedule shorter, and adds faults that only a network in memory, and a
// server in this process, can suffer.
func (sc *schedule) drawFaults() {
	rng := rand.New(rand.NewPCG(sc.seed, 0x5e55107))
	sc.steps = sc.steps[:len(sc.steps)/2]
	add := func(percent, most int, drawn func() step) {
		if rng.IntN(100) >= percent {
			return
		}
		for range 1 + rng.IntN(most) {
			sc.steps = slices.Insert(sc.steps, rng.IntN(len(sc.steps)+1), drawn())
		}
	}
	millis := func(most int) time.Duration { return time.Duration(rng.IntN(most)) * time.Millisecond }
	add(60, 4, func() step {
		return step{op: opStall, which: rng.IntN(1 << 16), n: 1 + rng.IntN(3), wait: millis(6000)}
	})
	add(30, 3, func() step { return step{op: opCutLink, which: rng.IntN(1 << 16)} })
	add(15, 2, func() step { return step{op: opLoseIndex, n: rng.IntN(2), wait: millis(150)} })
	// Of a compressed block that is torn the server gives up the whole partition.
	add(15, 1, func() step {
		sc.settings.Compression = false
		return step{op: opTear, which: rng.IntN(1 << 16), n: rng.IntN(100), wait: millis(150)}
	})
	sc.skewed = rng.IntN(100) < 30
}

// skew returns how far the clock of a process is ahead of NATS's, up to two hours either way, which
// is longer than anything is kept.
func (sc *schedule) skew(process string) time.Duration {
	if !sc.skewed {
		return 0
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, process) // it never fails
	return time.Duration(rand.New(rand.NewPCG(sc.seed, h.Sum64())).Int64N(int64(4*time.Hour))) - 2*time.Hour
}

// stall has a process' link to NATS stand still for a while, in one direction or, as NATS sees
// a process that is paused, in both.
func (w *world) stall(st step) {
	link := w.linkOf(st.which)
	time.Sleep(time.Microsecond) // no connection is about to begin then
	for d, bit := range map[simnet.Direction]int{simnet.Out: 1, simnet.In: 2} {
		if st.n&bit != 0 {
			link.Stall(d, true)
		}
	}
	w.tasks.Go(func() {
		natsconn.Pause(w.ctx, st.wait)
		link.Stall(simnet.Out, false)
		link.Stall(simnet.In, false)
	})
}

// linkOf returns the link of a service, by any number.
func (w *world) linkOf(which int) *simnet.Link {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for name := range w.links {
		if name != "test" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return w.links[names[which%len(names)]]
}

// heal lets all links continue.
func (w *world) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, link := range w.links {
		link.Stall(simnet.Out, false)
		link.Stall(simnet.In, false)
	}
}

// whileStopped does something to the store while the server is stopped.
func (w *world) whileStopped(away time.Duration, change func(store string)) {
	w.nats.Stop()
	change(w.nats.Dir())
	time.Sleep(away) // how long it is down
	w.nats.Start()
}

// loseIndex removes the registry's bucket, or puts an older copy of it back.
func (w *world) loseIndex(st step) {
	const index = "KV_MCP_SESSIONS"
	if _, err := os.Stat(folderOf(w.nats.Dir(), index)); err != nil {
		return // there is none yet
	}
	older := filepath.Join(w.t.TempDir(), index)
	if st.n == 0 {
		w.whileStopped(0, func(store string) { must.NoError(w.t, os.CopyFS(older, os.DirFS(folderOf(store, index)))) })
		time.Sleep(st.wait * 2) // the index continues
	}
	w.whileStopped(st.wait, func(store string) {
		must.NoError(w.t, os.RemoveAll(folderOf(store, index)))
		if st.n == 0 {
			must.NoError(w.t, os.CopyFS(folderOf(store, index), os.DirFS(older)))
		}
	})
}

// folderOf returns the folder of a JetStream stream in a store.
func folderOf(store, stream string) string {
	return filepath.Join(store, "jetstream", "$G", "streams", stream)
}

// tear damages a block of a partition that is not the newest, and notes which fences are lost
// with it: JetStream cannot refuse messages after such an end any more.
func (w *world) tear(st step) {
	p := st.which % w.sc.settings.Partitions
	before := w.truth.fences(w.ctx, p)
	defer func() {
		after := w.truth.fences(w.ctx, p)
		for at := range before {
			if !after[at] {
				w.torn[at] = true
				w.count("an end is torn away")
			}
		}
	}()
	w.whileStopped(st.wait, func(store string) {
		messages := filepath.Join(folderOf(store, partitionName(p)), "msgs")
		blocks, err := filepath.Glob(filepath.Join(messages, "*.blk"))
		must.NoError(w.t, err)
		if len(blocks) < 2 {
			return
		}
		slices.SortFunc(blocks, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		block := blocks[st.which%(len(blocks)-1)]
		info, err := os.Stat(block)
		must.NoError(w.t, err)
		must.NoError(w.t, os.Truncate(block, info.Size()*int64(st.n)/100))
		must.NoError(w.t, os.Remove(filepath.Join(messages, "index.db"))) // as a power cut leaves it: the server reads the blocks
		w.count("a block is torn")
	})
}

// beforeBubble begins the goroutines that last as long as the process: one that a bubble began
// would have to end in it.
func beforeBubble() {
	ats.Register()
	here, there := net.Pipe()
	go func() { _ = (&fasthttp.Server{Handler: func(*fasthttp.RequestCtx) {}}).ServeConn(there) }()
	_, _ = fmt.Fprint(here, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	_, _ = io.ReadAll(here)
}
