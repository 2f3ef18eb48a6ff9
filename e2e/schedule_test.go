package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"rejoin/shared/eventlog"
)

// A schedule is drawn from one seed: the limits of the log, the settings of the services,
// the subscribers, and a list of steps. Running it is as concurrent as the product is, so
// a seed does not repeat a run exactly; it repeats everything that the test decides.
type schedule struct {
	seed      uint64
	settings  eventlog.Settings
	edges     []edgePlan
	sweep     time.Duration // between two sweeps of the janitor
	sync      time.Duration // of NATS, as the janitor knows it
	patience  time.Duration // the edges' for a missing janitor
	clears    bool
	two       bool          // janitors share the partitions
	crashes   bool          // janitors end without giving anything back
	simulated bool          // in virtual time, over a network in memory
	skewed    bool          // each process has a clock of its own
	copies    bool          // of the log's files are made and put back; then nothing else is lost
	groups    bool          // the subscribers are followers
	reuses    bool          // names of sessions are used again
	grace     time.Duration // how long a closed session is kept; its name, for tombstone
	tombstone time.Duration
	subs      []subPlan
	steps     []step
}

type edgePlan struct {
	window, backfill, reads int
	heartbeat               time.Duration
	linger                  time.Duration // of partitions without readers; -1: all are followed
}

// drawLingers draws them from numbers of their own, so that the rest of a seed's schedule stays.
func (sc *schedule) drawLingers() {
	rng := rand.New(rand.NewPCG(sc.seed, 0x5e55106))
	for i := range sc.edges {
		sc.edges[i].linger = []time.Duration{0, 0, 50 * time.Millisecond, -1}[rng.IntN(4)]
	}
}

// subPlan is one subscriber: of a stream, or of a session's flow when stream is empty.
type subPlan struct {
	session, stream string
	poll            bool   // pages instead of an event stream
	from            string // "start", "now" or "unknown": with an ID of nowhere
	limit           int    // of a page
	strict          bool   // asks for an error instead of a gap
}

// step is one action. Its meaning depends on op; see world.do.
type step struct {
	op    op
	which int           // a stream, subscriber, edge or session
	n     int           // how many, or of what size
	edge  int           // that a subscriber connects to
	wait  time.Duration // how long a program or a link is down
	flag  bool
	pause time.Duration // after the step
}

type op uint8

const (
	opPublish op = iota
	opPublishAndWait
	opPublishDirectly
	opJoin
	opCut
	opCutAfter
	opResume
	opRestartEdge
	opRestartJanitor
	opRestartNATS
	opClear
	opClose
	opIdle
	opRestartIngest
	opCopy
	opRollBack
	opStall
	opCutLink
	opLoseIndex
	opTear
	opMembers
)

func (o op) String() string {
	return [...]string{
		"publish", "publish+wait", "publish-directly", "join", "cut", "cut-after", "resume",
		"restart-edge", "restart-janitor", "restart-nats", "clear", "close", "idle",
		"restart-ingest", "copy", "roll-back", "stall", "cut-link", "lose-index", "tear", "members",
	}[o]
}

// sessions and streams of every schedule: names that need escaping among them.
var (
	sessionNames = []string{"s1", "s.2", "s=3"}
	streamNames  = []string{"a", "b_b", "*"}
)

// streamAt returns stream number i of all sessions.
func streamAt(i int) (session, stream string) {
	n := len(streamNames)
	return sessionNames[i/n%len(sessionNames)], streamNames[i%n]
}

func draw(seed uint64) schedule {
	rng := rand.New(rand.NewPCG(seed, 0x5e55104))
	chance := func(percent int) bool { return rng.IntN(100) < percent }
	between := func(lo, hi int) int { return lo + rng.IntN(hi-lo+1) }
	sc := schedule{seed: seed, grace: time.Hour, tombstone: time.Hour}
	sc.settings = eventlog.Settings{
		Partitions: between(1, 2), MaxAge: -1, MaxEventsPerStream: -1, MaxBytes: -1,
		MaxEventsPerSession: -1, MaxBytesPerSession: -1, Compression: chance(30),
	}
	if evicts := chance(75); evicts {
		if chance(40) {
			sc.settings.MaxAge = time.Duration(between(150, 1500)) * time.Millisecond
		}
		if chance(40) {
			sc.settings.MaxEventsPerStream = int64(between(3, 30))
		}
		if chance(35) {
			sc.settings.MaxBytes = int64(sc.settings.Partitions * between(6<<10, 40<<10))
		}
		if chance(35) {
			sc.settings.MaxEventsPerSession = int64(between(10, 60))
		}
		if chance(25) {
			sc.settings.MaxBytesPerSession = int64(between(3<<10, 16<<10))
		}
	}
	sc.sweep = time.Duration(between(10, 150)) * time.Millisecond
	sc.patience = []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second}[rng.IntN(3)]
	for range between(2, 3) {
		sc.edges = append(sc.edges, edgePlan{
			window:    []int{1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 1 << 20}[rng.IntN(6)],
			backfill:  []int{0, 0, -1, 2 << 10}[rng.IntN(4)],
			reads:     between(1, 4),
			heartbeat: time.Duration(between(10, 80)) * time.Millisecond,
		})
	}
	sc.drawLingers()
	for range between(8, 14) {
		p := subPlan{from: "start", limit: []int{1, 3, 10, 100, 1000}[rng.IntN(5)], poll: chance(25)}
		p.session, p.stream = streamAt(rng.IntN(9))
		if chance(35) {
			p.stream = ""
		}
		if chance(20) {
			p.from = "now"
		} else if chance(8) {
			p.from = "unknown"
		}
		sc.subs = append(sc.subs, p)
	}
	sc.drawSteps(rng, chance, between)
	sc.drawMore()
	return sc
}

// drawMore adds later parts to a schedule. It draws from numbers of its own, so that the
// rest of the schedule of a seed stays as it was.
func (sc *schedule) drawMore() {
	rng := rand.New(rand.NewPCG(sc.seed, 0x5e55105))
	if rng.IntN(100) < 40 {
		for range 1 + rng.IntN(5) {
			st := step{op: opRestartIngest, wait: time.Duration(rng.IntN(150)) * time.Millisecond}
			sc.steps = slices.Insert(sc.steps, rng.IntN(len(sc.steps)+1), st)
		}
	}
	for i := range sc.subs {
		sc.subs[i].strict = rng.IntN(100) < 30
	}
	sc.sync = time.Duration(5+rng.IntN(200)) * time.Millisecond
	sc.two, sc.crashes = rng.IntN(100) < 50, rng.IntN(100) < 50
}

// drawMembers adds changes of members, from numbers of its own. It comes last.
func (sc *schedule) drawMembers() {
	rng := rand.New(rand.NewPCG(sc.seed, 0x5e55108))
	if rng.IntN(100) >= 50 {
		return
	}
	for range 1 + rng.IntN(12) {
		st := step{op: opMembers, which: rng.IntN(9), n: rng.IntN(4)}
		sc.steps = slices.Insert(sc.steps, rng.IntN(len(sc.steps)+1), st)
	}
}

func (sc *schedule) drawSteps(rng *rand.Rand, chance func(int) bool, between func(lo, hi int) int) {
	weights := map[op]int{
		opPublish: 100, opPublishAndWait: 30, opJoin: 12, opCut: 25, opCutAfter: 25, opResume: 45, opIdle: 3,
	}
	if chance(30) {
		weights[opPublishDirectly] = 10
	}
	if chance(60) {
		weights[opRestartEdge] = 4
	}
	if chance(45) {
		weights[opRestartJanitor] = 3
	}
	if chance(40) {
		weights[opRestartNATS] = 1
	}
	if chance(40) {
		weights[opClear], sc.clears = 4, true
	}
	if chance(40) {
		weights[opClose] = 2
	}
	busy := rng.IntN(9) // one stream gets more than its share
	size := between(10, 400)
	slow := between(1, 6)
	for range between(150, 400) {
		s := step{which: rng.IntN(1 << 16), edge: rng.IntN(len(sc.edges)), flag: chance(50)}
		if chance(60) {
			s.pause = time.Duration(rng.IntN(slow*2000)) * time.Microsecond
		}
		s.op = drawOp(rng, weights)
		switch s.op {
		case opPublish, opPublishAndWait:
			s.n = between(1, 6)
			if chance(5) {
				s.n = between(20, 50)
			}
			if s.which %= 9; chance(40) {
				s.which = busy
			}
			s.wait = time.Duration(size)
		case opPublishDirectly:
			s.which %= 9
			s.n = rng.IntN(4)
		case opJoin, opCut, opResume:
			s.which %= len(sc.subs)
		case opCutAfter:
			s.which %= len(sc.subs)
			s.n = between(1, 12)
		case opRestartEdge:
			s.which %= len(sc.edges)
			s.wait = time.Duration(rng.IntN(150)) * time.Millisecond
		case opRestartJanitor:
			s.wait = time.Duration(rng.IntN(300)) * time.Millisecond
		case opRestartNATS:
			s.wait = time.Duration(rng.IntN(150)) * time.Millisecond
		case opClear, opClose:
			s.which %= 9
			s.n = rng.IntN(3) // 0: the whole session
		case opRestartIngest, opCopy, opRollBack, opStall, opCutLink, opLoseIndex, opTear, opMembers: // drawn apart, so that earlier seeds stay as they were
		case opIdle:
			s.pause = time.Duration(between(20, 120)) * time.Millisecond
		}
		sc.steps = append(sc.steps, s)
	}
}

// drawOp draws an op by its weight.
func drawOp(rng *rand.Rand, weights map[op]int) (o op) {
	total := 0
	for _, n := range weights {
		total += n
	}
	at := rng.IntN(total)
	for ; at >= weights[o]; o++ {
		at -= weights[o]
	}
	return o
}

// evicts reports whether the log loses events other than by clears.
func (sc *schedule) evicts() bool {
	s := sc.settings
	return s.MaxAge > 0 || s.MaxEventsPerStream > 0 || s.MaxBytes > 0 || sc.sessionLimits()
}

func (sc *schedule) sessionLimits() bool {
	return sc.settings.MaxEventsPerSession > 0 || sc.settings.MaxBytesPerSession > 0
}

func (sc *schedule) loses() bool { return sc.evicts() || sc.clears || sc.has(opClose) }

func (sc *schedule) has(o op) bool {
	return slices.ContainsFunc(sc.steps, func(s step) bool { return s.op == o })
}

func (sc *schedule) String() string {
	var b strings.Builder
	s := sc.settings
	fmt.Fprintf(&b, "seed %d: partitions %d, age %s, stream %d, bytes %d, session %d/%d B, sweep %s, patience %s\n",
		sc.seed, s.Partitions, s.MaxAge, s.MaxEventsPerStream, s.MaxBytes, s.MaxEventsPerSession, s.MaxBytesPerSession, sc.sweep, sc.patience)
	for i, e := range sc.edges {
		fmt.Fprintf(&b, "edge %d: window %d, backfill %d, linger %s, reads %d, heartbeat %s\n", i, e.window, e.backfill, e.linger, e.reads, e.heartbeat)
	}
	for i, p := range sc.subs {
		fmt.Fprintf(&b, "subscriber %d: %s/%s poll=%t from %s limit %d strict=%t\n", i, p.session, p.stream, p.poll, p.from, p.limit, p.strict)
	}
	for i, st := range sc.steps {
		fmt.Fprintf(&b, "%d:%s", i, st.op)
		switch st.op {
		case opPublish, opPublishAndWait:
			fmt.Fprintf(&b, "(%d x%d)", st.which, st.n)
		case opPublishDirectly, opClear, opClose, opMembers:
			fmt.Fprintf(&b, "(%d n=%d %t)", st.which, st.n, st.flag)
		case opJoin, opCut, opResume, opCutAfter:
			fmt.Fprintf(&b, "(%d @%d n=%d %t)", st.which, st.edge, st.n, st.flag)
		case opRestartEdge, opRestartJanitor, opRestartNATS, opRestartIngest, opCopy, opRollBack, opStall, opCutLink, opLoseIndex, opTear:
			fmt.Fprintf(&b, "(%d %s)", st.which, st.wait)
		case opIdle:
		}
		b.WriteByte(' ')
		if i%12 == 11 {
			b.WriteByte('\n')
		}
	}
	b.WriteByte('\n')
	return b.String()
}
