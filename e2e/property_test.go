package e2e_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/shared/racetest"
)

var (
	schedules = flag.Int("schedules", scheduleCount(), "random schedules of the property test; default: REJOIN_SCHEDULES, or 8, a quarter of it with the race detector")
	seed      = flag.Uint64("seed", 1, "seed of the first schedule, the next one's is one more; 0: from the clock")
	lanes     = flag.Int("lanes", 8/min(racetest.Slowdown, 2), "schedules of the property test that run at a time")
	keep      = flag.String("keep", "", "folder for what the services of failed schedules logged")
)

func scheduleCount() int {
	if n, err := strconv.Atoi(os.Getenv("REJOIN_SCHEDULES")); err == nil {
		return n
	}
	return 8 / min(racetest.Slowdown, 4)
}

// TestProperty_EverySubscriberGetsEverythingOnceOrAGap runs random schedules over the real
// services: publishers, subscribers that connect and disconnect, restarts of all programs
// and of NATS, evictions by every limit, clears and closes. Whatever happens, every
// subscriber gets every event of its stream exactly once and in order, or receives a gap
// that really was one.
func TestProperty_EverySubscriberGetsEverythingOnceOrAGap(t *testing.T) {
	runMany(t, *schedules, func(t *testing.T, seed uint64) map[string]int {
		sc := draw(seed)
		sc.drawMembers()
		return newWorld(t, sc).play()
	})
}

// firstSeed returns the seed of the first schedule.
func firstSeed() uint64 {
	if *seed == 0 {
		return uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	}
	return *seed
}

// runMany runs n schedules, a few at a time, and logs the counts of all of them.
func runMany(t *testing.T, n int, run func(t *testing.T, seed uint64) map[string]int) {
	t.Helper()
	first := firstSeed()
	t.Logf("%d schedules from seed %d", n, first)
	next := make(chan uint64)
	var workers sync.WaitGroup
	var mu sync.Mutex
	total := map[string]int{}
	for range *lanes {
		workers.Go(func() {
			for s := range next {
				t.Run(strconv.FormatUint(s, 10), func(t *testing.T) {
					tally := run(t, s)
					mu.Lock()
					defer mu.Unlock()
					for k, v := range tally {
						total[k] += v
					}
				})
			}
		})
	}
	for i := range n {
		next <- first + uint64(i) //nolint:gosec // not negative
	}
	close(next)
	workers.Wait()
	t.Logf("what happened:\n%s", tallyText(total))
}

func tallyText(total map[string]int) string {
	var lines []string
	for k, v := range total {
		lines = append(lines, fmt.Sprintf("%s: %d", k, v))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// play runs a schedule to its end, and returns its counts.
func (w *world) play() map[string]int {
	if w.sc.copies {
		w.publishEverywhere() // every session is registered before the first copy
		w.run()
		w.finishLives()
	} else {
		w.run()
		w.heal()
		w.finish()
	}
	return w.end()
}

// run does the schedule's steps.
func (w *world) run() {
	for i, s := range w.sc.steps {
		w.say("step %d: %s %+v", i, s.op, s)
		w.do(s)
		w.count("step " + s.op.String())
		if s.pause > 0 {
			time.Sleep(s.pause) // the schedule's pace, not a wait for anything
		}
	}
}

// end fails the test if anything was violated, and returns the counts.
func (w *world) end() map[string]int {
	w.mu.Lock()
	violations := slices.Clone(w.violations)
	w.mu.Unlock()
	if len(violations) > 0 {
		w.report(violations)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.subscribers {
		w.tally["received"] += len(s.delivered)
		w.tally["connections"] += s.conns
	}
	return maps.Clone(w.tally) // the world continues until the test ends
}

// do does one step.
func (w *world) do(st step) {
	session, stream := streamAt(st.which)
	at := place{session, stream}
	switch st.op {
	case opPublish:
		w.publishers[st.which].put(st.n, int(st.wait))
	case opPublishAndWait:
		select {
		case <-w.publishers[st.which].put(st.n, int(st.wait)).done:
		case <-time.After(500 * time.Millisecond):
		}
	case opPublishDirectly:
		w.publishDirectly(at, st.n)
	case opJoin, opResume:
		s := w.subscribers[st.which]
		s.tell(func() {
			s.joined, s.away, s.edge, s.query = s.joined || st.op == opJoin, false, st.edge, st.flag
		})
	case opCut:
		s := w.subscribers[st.which]
		s.tell(func() { s.away, s.edge = st.flag, st.edge; s.cut() })
	case opCutAfter:
		s := w.subscribers[st.which]
		s.tell(func() { s.cutAfter, s.awayAfter, s.edge, s.query = st.n, st.flag, st.edge, !s.query })
	case opRestartEdge:
		w.edges[st.which].restart(st.wait)
	case opRestartIngest:
		w.ingest.restart(st.wait)
	case opRestartJanitor:
		w.janitors[st.which%len(w.janitors)].restart(st.wait)
	case opRestartNATS:
		w.whileStopped(st.wait, func(string) {})
	case opClear:
		if st.n == 0 {
			at.stream = ""
		}
		w.clear(at)
	case opClose:
		if st.n == 0 && st.which == 0 || w.sc.reuses {
			at.stream = ""
		}
		w.close(at, st.flag)
	case opIdle:
	case opCopy:
		w.copyFiles(st.wait)
	case opRollBack:
		w.rollBack(st.wait)
	case opStall:
		w.stall(st)
	case opCutLink:
		w.linkOf(st.which).Cut()
	case opLoseIndex:
		w.loseIndex(st)
	case opTear:
		w.tear(st)
	case opMembers:
		w.changeMembers(session, st.n)
	}
}

// finish starts everything again, waits until every subscriber has caught up, and checks.
func (w *world) finish() {
	w.settle()
	w.checkMembers()
	ends := w.complete()
	deadline := time.Now().Add(checkTime)
	for i, s := range w.subscribers {
		s.tell(func() {
			s.joined, s.away, s.cutAfter = true, false, 0
			s.plan.limit = 1000
			if i%2 == 0 {
				s.edge = i % len(w.edges)
			}
		})
	}
	for _, s := range w.subscribers {
		ok := w.wait(deadline, func() bool {
			last, closed := w.goal(s)
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.begun && (s.finished && closed || (!closed || w.forgotten(s.plan.session)) && s.position >= last)
		})
		if !ok {
			s.mu.Lock()
			position, finished := s.position, s.finished
			s.mu.Unlock()
			last, closed := w.goal(s)
			w.violate("%s has not caught up: at %d of %d, closed %t, finished %t", s, position, last, closed, finished)
		}
	}
	w.endSubscribers()
	w.complete()
	w.checkEverything(ends)
}

// settle ends the writers, and starts everything again.
func (w *world) settle() {
	w.say("the end")
	for _, p := range w.publishers {
		p.end()
	}
	// Nothing is written from now on: the pending publishes of an ingest, for a publisher
	// that has given up, end with it.
	w.writing.Wait()
	if again := w.ingest.restart(0); again != nil {
		<-again
	}
	if !w.wait(time.Now().Add(checkTime), w.settled) {
		w.violate("the services did not come back, or a close did not end")
	}
	w.allRead()
}

// complete waits until the truth has all stored entries, and returns the partitions' last sequences.
func (w *world) complete() []uint64 {
	ctx, cancel := w.bounded()
	defer cancel()
	ends, err := w.truth.complete(ctx)
	if err != nil {
		w.violate("the log cannot be read: %v", err)
	}
	return ends
}

// forgotten reports whether a closed session is as one that never existed: a client that connects
// to it waits for the next one of the name. It takes a clock that is wrong by as long as names are
// kept.
func (w *world) forgotten(session string) bool {
	if !w.sc.skewed {
		return false
	}
	_, there := w.own.Sessions.Session(session)
	return !there
}

// endSubscribers ends them, and waits for all tasks.
func (w *world) endSubscribers() {
	for _, s := range w.subscribers {
		s.end()
	}
	done := make(chan struct{})
	go func() { w.tasks.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(checkTime):
		w.violate("the tasks did not end")
	}
}

// settled reports whether all services are up and all closes done.
func (w *world) settled() bool {
	for _, h := range w.edges {
		if addr, _ := h.at(); addr == "" || h.busy.Load() {
			return false
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.closes {
		if c.ended.IsZero() {
			return false
		}
	}
	return !slices.ContainsFunc(w.janitors, func(j *host) bool { return j.busy.Load() }) && !w.ingest.busy.Load()
}

// wait waits for a condition.
func (w *world) wait(deadline time.Time, ok func() bool) bool {
	for !ok() {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true
}

// report fails the schedule with all that is known.
func (w *world) report(violations []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "replay: go test ./e2e -run %s -seed %d\n", w.replay(), w.sc.seed)
	for _, v := range violations {
		fmt.Fprintf(&b, "VIOLATION %s\n", v)
	}
	b.WriteString(w.sc.String())
	for _, s := range w.subscribers {
		mentioned := slices.ContainsFunc(violations, func(v string) bool { return strings.Contains(v, s.String()+" ") || strings.Contains(v, s.String()+":") })
		if !mentioned {
			continue
		}
		fmt.Fprintf(&b, "%s: began %d, cursor %s, finished %t\n", s, s.begin, s.cursor, s.finished)
		for _, r := range s.log {
			fmt.Fprintf(&b, "    %s\n", r)
		}
	}
	if *keep != "" {
		name := filepath.Join(*keep, fmt.Sprintf("%d.log", w.sc.seed))
		if err := os.WriteFile(name, []byte(b.String()+w.historyText()+w.trace.String()), 0o600); err != nil {
			w.t.Error(err)
		}
		fmt.Fprintf(&b, "more in %s\n", name)
	}
	w.t.Error(b.String())
}

func (w *world) replay() string {
	if w.sc.groups {
		return "Simulation_Groups -seeds 1"
	}
	if w.sc.simulated {
		return "Simulation$ -seeds 1"
	}
	if w.sc.copies {
		return "Property_Rollback -rollbacks 1"
	}
	return "Property_EverySubscriber -schedules 1"
}

// historyText lists the stored entries.
func (w *world) historyText() string {
	var b strings.Builder
	for _, session := range sessionNames {
		fmt.Fprintf(&b, "session %s in partition %d\n", session, w.truth.partition(session))
		for _, e := range w.truth.all(session) {
			fmt.Fprintf(&b, "    %d %s %s\n", e.sequence, e.subject.Stream, e.kind)
		}
	}
	return b.String()
}
