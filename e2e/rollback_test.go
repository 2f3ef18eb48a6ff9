package e2e_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/racetest"
)

var rollBacks = flag.Int("rollbacks", 4/min(racetest.Slowdown, 4), "random schedules with roll-backs of the log's files")

// TestProperty_RollbackIsAGap runs random schedules in which the
// server is stopped, an older copy of its files put back, and the log written on, so that
// sequences are assigned again. Nothing else is ever lost. A client that has seen more
// than the copy receives rolled_back, and everything of the new life once and in order; a
// client that has not continues without a gap.
func TestProperty_RollbackIsAGap(t *testing.T) {
	runMany(t, *rollBacks, func(t *testing.T, seed uint64) map[string]int { return newWorld(t, drawRollBacks(seed)).play() })
}

func drawRollBacks(seed uint64) schedule {
	rng := rand.New(rand.NewPCG(seed, 0x5e55106))
	chance := func(percent int) bool { return rng.IntN(100) < percent }
	between := func(lo, hi int) int { return lo + rng.IntN(hi-lo+1) }
	sc := schedule{seed: seed, copies: true, sweep: 50 * time.Millisecond, sync: 50 * time.Millisecond, patience: 3 * time.Second}
	sc.settings = eventlog.Settings{
		Partitions: between(1, 2), MaxAge: -1, MaxEventsPerStream: -1, MaxBytes: -1,
		MaxEventsPerSession: -1, MaxBytesPerSession: -1,
	}
	for range 2 {
		sc.edges = append(sc.edges, edgePlan{
			window:    []int{1 << 10, 4 << 10, 16 << 10, 1 << 20}[rng.IntN(4)],
			backfill:  []int{0, -1, 2 << 10}[rng.IntN(3)],
			reads:     between(1, 4),
			heartbeat: time.Duration(between(10, 80)) * time.Millisecond,
		})
	}
	sc.drawLingers()
	for i := range between(7, 10) {
		p := subPlan{from: "start", limit: []int{1, 10, 1000}[rng.IntN(3)], poll: i%3 == 2, strict: chance(20)}
		if p.session, p.stream = streamAt(rng.IntN(9)); i%3 == 1 || chance(20) {
			p.stream = ""
		}
		if chance(20) {
			p.from = "now"
		}
		sc.subs = append(sc.subs, p)
	}
	weights := map[op]int{
		opPublish: 60, opPublishAndWait: 20, opJoin: 15, opCut: 15, opCutAfter: 15, opResume: 40, opIdle: 4,
		opRestartEdge: 4, opRestartJanitor: 2, opRestartNATS: 1, opRestartIngest: 1,
	}
	all := between(80, 200)
	for range all {
		sc.steps = append(sc.steps, sc.drawRollBackStep(rng, weights))
	}
	// A copy, a roll-back after it, and perhaps both once more, each among restarts.
	at := between(all/10, all/3)
	for _, o := range [][]op{{opCopy, opRollBack}, {opCopy, opRollBack, opRollBack}, {opCopy, opRollBack, opCopy, opRollBack}, {opCopy, opCopy, opRollBack, opRollBack}}[rng.IntN(4)] {
		steps := []step{{op: o, wait: time.Duration(rng.IntN(150_000)) * time.Microsecond}}
		for range rng.IntN(3) {
			st := step{op: []op{opRestartEdge, opRestartJanitor}[rng.IntN(2)], which: rng.IntN(2), wait: time.Duration(rng.IntN(300)) * time.Millisecond}
			steps = slices.Insert(steps, rng.IntN(len(steps)+1), st)
		}
		sc.steps = slices.Insert(sc.steps, at, steps...)
		at = min(at+len(steps)+between(all/20, all/3), len(sc.steps))
	}
	return sc
}

func (sc *schedule) drawRollBackStep(rng *rand.Rand, weights map[op]int) step {
	s := step{edge: rng.IntN(len(sc.edges)), flag: rng.IntN(2) == 0}
	s.op = drawOp(rng, weights)
	if rng.IntN(100) < 60 {
		s.pause = time.Duration(rng.IntN(8000)) * time.Microsecond
	}
	switch s.op {
	case opPublish, opPublishAndWait:
		s.which, s.n, s.wait = rng.IntN(9), 1+rng.IntN(6), time.Duration(10+rng.IntN(200))
	case opJoin, opCut, opResume, opCutAfter:
		s.which, s.n = rng.IntN(len(sc.subs)), 1+rng.IntN(12)
	case opRestartEdge:
		s.which = rng.IntN(len(sc.edges))
		s.wait = time.Duration(rng.IntN(150)) * time.Millisecond
	case opIdle:
		s.pause = time.Duration(20+rng.IntN(100)) * time.Millisecond
	default:
		s.wait = time.Duration(rng.IntN(150)) * time.Millisecond
	}
	return s
}

// publishEverywhere publishes to every stream until it is stored, and returns the
// messages. The publishers must be at rest.
func (w *world) publishEverywhere() map[place][]byte {
	stored := map[place][]byte{}
	deadline := time.Now().Add(checkTime)
	for _, p := range w.publishers {
		if !w.wait(deadline, func() bool { return p.publish(20) }) {
			w.violate("nothing can be published to %s", p.at)
			continue
		}
		w.mu.Lock()
		all := w.attempts[p.at]
		stored[p.at] = all[len(all)-1].data
		w.mu.Unlock()
	}
	return stored
}

// finishLives starts everything again, publishes to every stream once more, waits until
// every subscriber has received that, and checks.
func (w *world) finishLives() {
	w.say("the end")
	for _, p := range w.publishers {
		p.end()
	}
	if !w.wait(time.Now().Add(checkTime), w.settled) {
		w.violate("the services did not come back")
	}
	deadline := time.Now().Add(checkTime)
	for _, s := range w.subscribers {
		s.tell(func() { s.joined, s.away, s.cutAfter, s.plan.limit = true, false, 0, 1000 })
	}
	for _, s := range w.subscribers {
		if !w.wait(deadline, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.begun }) {
			w.violate("%s never began", s)
		}
	}
	last := w.publishEverywhere()
	deadline = time.Now().Add(checkTime)
	for _, s := range w.subscribers {
		if !w.wait(deadline, func() bool { return s.hasAll(last) }) {
			w.violate("%s has not caught up", s)
		}
	}
	w.endSubscribers()
	w.checkLives()
}

// hasAll reports whether a subscriber has got its streams' messages among some.
func (s *subscriber) hasAll(messages map[place][]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, data := range messages {
		if at.session != s.plan.session || s.plan.stream != "" && at.stream != s.plan.stream {
			continue
		}
		if !slices.ContainsFunc(s.log, func(r received) bool { return r.what == "message" && r.stream == at.stream && s.same(r, data) }) {
			return false
		}
	}
	return true
}

// same reports whether a subscriber received a message.
func (s *subscriber) same(r received, data []byte) bool {
	switch {
	case s.plan.poll:
		return sameJSON(r.data, data)
	case s.plan.stream != "":
		return bytes.Equal(r.data, data)
	default:
		var o pageEvent
		return json.Unmarshal(r.data, &o) == nil && sameJSON(o.Message, data)
	}
}
