package e2e_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestSimulation_Groups runs schedules of the simulation with subscribers that follow several sessions, by
// name and by pattern, change these, and reconnect with any ID that they ever received. In half of the
// schedules sessions are closed, and their names used again.
//
// A schedule takes four times as long as one of [TestSimulation], so there are a quarter as many. Without -seed
// they are the same in each run: among some hundred seeds a model of so much may still be wrong about one, which
// is for make sim to find.
func TestSimulation_Groups(t *testing.T) {
	runSimulation(t, max(*seed, 1), max(*seeds/4, 1), simulationSeeds/4, simulateGroups)
}

func simulateGroups(t *testing.T, seed uint64) map[string]int {
	t.Helper()
	sc := draw(seed)
	sc.drawFaults()
	sc.drawMembers()
	sc.drawGroups()
	w := newWorld(t, sc)
	defer func() {
		w.stop()
		w.nats.Stop()
	}()
	pictures := newPictures(w)
	var all []*follower
	for n := range 6 {
		f := newFollower(w, pictures, n)
		all = append(all, f)
		w.tasks.Go(f.run)
	}
	w.run()
	w.heal()
	w.finishGroups(all, pictures)
	return w.end()
}

// drawGroups changes a schedule to one of followers.
func (sc *schedule) drawGroups() {
	rng := rand.New(rand.NewPCG(sc.seed, 0x5e55109))
	sc.simulated, sc.groups, sc.subs = true, true, nil
	partitions := 1 + rng.IntN(4)
	if sc.settings.MaxBytes > 0 {
		sc.settings.MaxBytes = sc.settings.MaxBytes / int64(sc.settings.Partitions) * int64(partitions)
	}
	sc.settings.Partitions = partitions
	// The model of followers does not know the losses by a torn block or a lost registry, and the sessions
	// forgotten by a wrong clock. TestSimulation has these.
	sc.skewed = false
	sc.steps = slices.DeleteFunc(sc.steps, func(s step) bool {
		return slices.Contains([]op{opTear, opLoseIndex, opJoin, opCut, opCutAfter, opResume}, s.op)
	})
	if sc.reuses = rng.IntN(2) == 0; sc.reuses {
		sc.grace = time.Duration(rng.IntN(200)) * time.Millisecond
		sc.tombstone = sc.grace + time.Duration(50+rng.IntN(600))*time.Millisecond
		for i := len(sc.steps); i > 0; i-- {
			if rng.IntN(100) < 4 {
				sc.steps = slices.Insert(sc.steps, i, step{op: opClose, which: 3 * rng.IntN(3), flag: rng.IntN(2) == 0})
			}
		}
	}
	for i := range sc.steps {
		if rng.IntN(100) < 3 {
			sc.steps[i].pause += time.Duration(rng.IntN(400)) * time.Millisecond // longer than names are kept
		}
	}
	if rng.IntN(100) < 40 { // events that are large beside a window, and a step of a group
		for i, s := range sc.steps {
			if (s.op == opPublish || s.op == opPublishAndWait) && rng.IntN(100) < 10 {
				sc.steps[i].wait = time.Duration(2000 + rng.IntN(60000))
			}
		}
	}
}

// finishGroups starts everything again, waits until the followers have caught up, and checks.
func (w *world) finishGroups(all []*follower, pictures *pictures) {
	w.settle()
	w.complete()
	deadline := time.Now().Add(checkTime)
	for _, f := range all {
		f.change(func() { f.final = true })
	}
	for _, f := range all {
		if !w.wait(deadline, f.hasCaughtUp) {
			f.change(func() { w.violate("%s has not caught up: %s, follows %v", f, f.newest.id, f.newest.asks) })
		}
	}
	for _, f := range all {
		f.change(func() { f.ended = true })
	}
	w.endSubscribers()
	w.complete()
	last := pictures.next() + 1
	pictures.want()
	if !w.wait(time.Now().Add(checkTime), func() bool { return pictures.reached(last) }) {
		w.violate("the partitions cannot be looked at")
		return
	}
	for p := range w.sc.settings.Partitions {
		if w.truth.lostIn(p, 0, math.MaxUint64) {
			w.count("a partition with an entry that was removed unseen")
		}
	}
	for _, f := range all {
		f.check()
	}
}

// ask is a part of a follower's request: the name of a session, or a pattern.
type ask struct {
	name  string
	added bool // it is new to the client
}

// askable are the names that followers ask for. Of "nobody" there is no session.
var askable = append(slices.Clone(sessionNames), "s*", "s.*", "nobody", "*")

func (a ask) isPattern() bool { return strings.HasSuffix(a.name, "*") }

func (a ask) matches(session string) bool {
	return a.name == session || a.isPattern() && strings.HasPrefix(session, strings.TrimSuffix(a.name, "*"))
}

// follows returns the ask that follows a session: its name, else the first pattern in a request,
// where those that were added come last.
func follows(asks []ask, session string) (ask, bool) {
	for _, of := range []ask{{session, false}, {session, true}} {
		if slices.Contains(asks, of) {
			return of, true
		}
	}
	for _, added := range []bool{false, true} {
		for _, a := range asks {
			if a.added == added && a.matches(session) {
				return a, true
			}
		}
	}
	return ask{}, false
}

// sameNames reports whether two lists ask for the same.
func sameNames(a, b []ask) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x ask) bool {
		return !slices.ContainsFunc(b, func(y ask) bool { return x.name == y.name })
	})
}

func newFollower(w *world, pictures *pictures, n int) *follower {
	rng := rand.New(rand.NewPCG(w.sc.seed, uint64(1000+n)))
	f := &follower{w: w, pictures: pictures, n: n, rng: rng}
	if f.chance(30) {
		f.method = "m" + strconv.Itoa(rng.IntN(3))
	}
	for f.chance(40) && len(f.streams) < 2 {
		if stream := streamNames[rng.IntN(len(streamNames))]; !slices.Contains(f.streams, stream) {
			f.streams = append(f.streams, stream)
		}
	}
	if f.fromNow = f.chance(15); f.chance(10) {
		f.crowd = 36 // more than a group opens at a time
	}
	f.newest = &receipt{asks: f.drawAsks(nil)}
	return f
}

func (f *follower) chance(percent int) bool { return f.rng.IntN(100) < percent }

// drawAsks draws the asks after earlier ones; nil for none.
func (f *follower) drawAsks(before []ask) (asks []ask) {
	for len(asks) == 0 {
		for _, name := range askable {
			had := slices.ContainsFunc(before, func(a ask) bool { return a.name == name })
			chance := 40
			switch {
			case had:
				chance = 75
			case strings.HasSuffix(name, "*"):
				chance = 15
			}
			if f.chance(chance) {
				asks = append(asks, ask{name, before != nil && !had})
			}
		}
	}
	return asks
}

// run connects again and again.
func (f *follower) run() {
	for {
		f.mu.Lock()
		if f.ended {
			f.mu.Unlock()
			return
		}
		from, asks := f.newest, f.newest.asks
		if !f.final {
			if len(f.usable) > 0 && f.chance(15) {
				from = f.usable[f.rng.IntN(len(f.usable))]
				asks = from.asks
			}
			if from.id != "" && f.chance(12) {
				asks = f.drawAsks(asks)
				if sameNames(asks, from.asks) {
					asks = from.asks
				}
			} else if from.id != "" && f.chance(8) { // added sessions are not new any more
				asks = slices.Clone(asks)
				for i := range asks {
					asks[i].added = false
				}
			}
		}
		edge, most := f.rng.IntN(len(f.w.edges)), 1+f.rng.IntN(60)
		within, away := time.Duration(1+f.rng.IntN(150))*time.Millisecond, time.Duration(f.rng.IntN(80))*time.Millisecond
		if f.chance(10) {
			away *= 10
		}
		if f.final {
			most, within, away = 1<<30, time.Hour, 10*time.Millisecond
		}
		ctx, cancel := context.WithTimeout(f.w.ctx, within)
		f.cancel = cancel
		f.mu.Unlock()
		f.connect(ctx, edge, from, asks, most)
		cancel()
		time.Sleep(away)
	}
}

// change changes the follower's state, and ends its connection.
func (f *follower) change(how func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
	if f.cancel != nil {
		f.cancel()
	}
}

// request returns the request of a connection.
func (f *follower) request(ctx context.Context, addr string, from *receipt, asks []ask) *http.Request {
	q := url.Values{}
	for _, a := range asks {
		param := "session"
		if a.added {
			param = "added"
		}
		q.Add(param, a.name)
	}
	q["stream"] = f.streams
	for i := range f.crowd {
		q.Add("session", fmt.Sprint("nobody", i))
	}
	if f.fromNow {
		q.Set("from", "now")
	}
	if f.method != "" {
		q.Set("method", f.method)
	}
	byHeader := f.chance(50)
	if from.id != "" && !byHeader {
		q.Set("after", from.id)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/v1/events?"+q.Encode(), nil)
	if err != nil {
		panic(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if from.id != "" && byHeader {
		req.Header.Set("Last-Event-ID", from.id)
	}
	return req
}
