package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/marks"
)

// doubt is when a gap may be uncertain. Nobody can say what was removed while the
// janitor is away, or NATS, or the janitor is catching up after either; and once it
// has caught up, nobody can say it of what was stored until then, because its
// ledger was begun anew, or has missed something. Of what came later it must be
// certain, unless its tail missed sequences all the same, which it counts, or it lost the
// lease and begins again, or does not answer the test either.
//
// The world's lock guards it.
type doubt struct {
	absences int                 // that go on
	upTo     []uint64            // by partition: the last sequence when an absence or a miss was over
	envs     map[int]*daemon.Env // of the janitors' present lives
	acted    *daemon.Env         // of the one that was last seen to act
	missed   map[string]float64  // by life, as last read
	turns    int                 // how often who acts had changed then
	changes  int                 // what countMissed has found
	attended int                 // up to which of them a janitor has answered since
	heard    time.Time           // when it last answered for all that was stored
	seen     time.Time           // when watch last saw the log
	slow     time.Time           // when it last saw it again after too long a time
}

// slowAfter is how long a look at the log, or a question to the janitor, may take: what
// takes longer on a machine that has too much to do is like an absence, and the former
// puts off what is waited for.
const slowAfter = 400 * time.Millisecond

// absent notes that the janitor is away from now until back is closed and its
// ledgers answer again for all that is stored. A nil back means that it did not go.
func (w *world) absent(leave func() (back <-chan struct{})) {
	w.mu.Lock()
	w.doubt.absences++
	w.mu.Unlock()
	back := leave()
	w.tasks.Go(func() {
		var ends []uint64
		if back != nil {
			<-back
			ends = w.answered()
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.doubt.absences--
		w.doubt.reach(ends)
	})
}

func (d *doubt) reach(ends []uint64) {
	for p, end := range ends {
		d.upTo[p] = max(d.upTo[p], end)
	}
}

// answered waits until the janitor answers for everything that is stored, and
// returns the last sequences then.
func (w *world) answered() []uint64 {
	ctx, cancel := w.bounded()
	defer cancel()
	for {
		ends, err := w.ask(ctx)
		if err == nil {
			return ends
		}
		select {
		case <-ctx.Done():
			if w.ctx.Err() == nil {
				w.violate("the janitor does not answer: %v", err)
			}
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// ask asks the janitor about every partition, as an edge would but without telling it
// anything, and returns the last sequences when it has answered. A request that was lost with a connection is
// not waited for long.
func (w *world) ask(ctx context.Context) ([]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*marks.AskTimeout)
	defer cancel()
	for p := range w.sc.settings.Partitions {
		state, err := w.own.Log.Look(ctx, p)
		if err != nil {
			return nil, err
		}
		if _, err = marks.Ask(ctx, w.own.Conn, marks.Request{Partition: p, Birth: state.Birth, Through: state.Last}); err != nil {
			return nil, err
		}
	}
	return w.lasts(ctx)
}

func (w *world) lasts(ctx context.Context) ([]uint64, error) {
	var ends []uint64
	for p := range w.sc.settings.Partitions {
		state, err := w.own.Log.Look(ctx, p)
		if err != nil {
			return nil, err
		}
		ends = append(ends, state.Last)
	}
	return ends, nil
}

// acting returns the environment of the janitor that acts; nil while none does.
func (w *world) acting() *daemon.Env {
	w.mu.Lock()
	envs := slices.Collect(maps.Values(w.doubt.envs))
	w.mu.Unlock()
	for _, env := range envs {
		if held, ok := w.janitorMetric(env, "lease_held"); ok && held == 1 {
			return env
		}
	}
	return nil
}

// countMissed looks at how many sequences the tails of the acting janitor have missed.
// If there are more than before, or another one acts, or the same one anew, all is in
// doubt that is stored until the janitor has answered.
func (w *world) countMissed(ctx context.Context) {
	env := w.acting()
	turns := w.trace.turned() // behind it: who has lost the lease and acts again has said so
	life, missed := fmt.Sprintf("%p", env), 0.0
	if env != nil {
		var ok bool
		if missed, ok = w.janitorMetric(env, "tail_missed_total"); !ok {
			return
		}
	}
	w.mu.Lock()
	nothing := missed == w.doubt.missed[life] && env != nil && env == w.doubt.acted && turns == w.doubt.turns
	if !nothing {
		w.doubt.changes++
	}
	w.mu.Unlock()
	if nothing {
		return
	}
	once, cancel := context.WithTimeout(ctx, 2*marks.AskTimeout)
	ends, err := w.lasts(once)
	cancel()
	if err != nil {
		return // the next time finds it
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.doubt.reach(ends); env != w.doubt.acted || turns != w.doubt.turns {
		w.tally["another janitor acts, or none"]++
	} else {
		w.tally["janitor missed something"]++
	}
	w.doubt.missed[life], w.doubt.acted, w.doubt.turns = missed, env, turns
}

// janitorMetric returns a counter, or the number of observations of a histogram.
func (w *world) janitorMetric(env *daemon.Env, name string) (value float64, ok bool) {
	families, err := env.Gatherer.Gather()
	if err != nil {
		w.violate("the janitor's metrics: %v", err)
		return 0, false
	}
	for _, f := range families {
		if f.GetName() == "rejoin_janitor_"+name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount()), true
		}
	}
	w.violate("the janitor has no metric %s", name)
	return 0, false
}

// patience waits for what the janitor has said that it will do.
type patience struct {
	w      *world
	since  time.Time
	least  time.Duration
	env    *daemon.Env // the life of the janitor whose sweeps are counted
	sweeps float64
}

// over reports whether it should be done by now: some time has passed, on a machine
// that was not slow, and whole sweeps.
func (p *patience) over() bool {
	env := p.w.acting()
	p.w.mu.Lock()
	slow := p.w.doubt.slow
	fast := time.Since(p.w.doubt.seen) < slowAfter
	p.w.mu.Unlock()
	if time.Since(p.since) > p.least+15*time.Second {
		return true
	}
	if env == nil {
		return false
	}
	sweeps, ok := p.w.janitorMetric(env, "sweep_duration_seconds")
	if env != p.env {
		p.env, p.sweeps = env, sweeps
	}
	swept := !p.w.sweepsRemove() || sweeps >= p.sweeps+3
	return ok && fast && swept && time.Since(p.since) > p.least && time.Since(slow) > p.least
}

// watchMissed looks at the log and at what the janitor missed all the time, so that
// what is in doubt is known closely.
func (w *world) watchMissed() {
	for w.ctx.Err() == nil {
		once, cancel := context.WithTimeout(w.ctx, 2*marks.AskTimeout)
		ends, err := w.lasts(once)
		cancel()
		if now := time.Now(); err == nil {
			w.mu.Lock()
			if now.Sub(w.doubt.seen) > slowAfter {
				w.doubt.slow = now
				w.doubt.reach(ends)
				w.tally["the log was out of sight"]++
			}
			w.doubt.seen = now
			w.mu.Unlock()
		}
		w.countMissed(w.ctx)
		select {
		case <-w.ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// watchAnswers asks the janitor all the time, as an edge would: what keeps it from
// answering is as good a reason for an edge as that it is away.
func (w *world) watchAnswers() {
	for w.ctx.Err() == nil {
		w.mu.Lock()
		changes := w.doubt.changes
		w.mu.Unlock()
		ends, err := w.ask(w.ctx)
		if now := time.Now(); err == nil {
			w.mu.Lock()
			late := now.Sub(w.doubt.heard) > slowAfter
			if late {
				w.tally["the janitor was out of hearing"]++
			}
			if late || w.doubt.attended != changes {
				w.doubt.reach(ends)
			}
			w.doubt.heard, w.doubt.attended = now, changes
			w.mu.Unlock()
		}
		select {
		case <-w.ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// doubtful says why a gap behind a sequence may be uncertain at this moment, or
// returns "" when it may not, as far as is known.
func (w *world) doubtful(p int, requested uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.doubt.absences > 0:
		return "the janitor is away"
	case time.Since(w.doubt.seen) > slowAfter:
		return "the machine is slow"
	case w.doubt.attended != w.doubt.changes:
		return "a janitor begins"
	case time.Since(w.doubt.heard) > slowAfter:
		return "the janitor is late"
	case requested <= w.doubt.upTo[p]:
		return "from before"
	default:
		return ""
	}
}

// checkDoubt makes sure that a gap is not uncertain without a reason; why is what
// doubtful said when it was told.
func (w *world) checkDoubt(ctx context.Context, s *subscriber, g *toldGap, why string) {
	p := w.truth.partition(s.plan.session)
	if why == "" {
		// The janitor may have missed something since it was last asked.
		w.countMissed(ctx)
		if why = w.doubtful(p, g.requested); why != "" {
			why = "just missed"
		}
	}
	if why == "" && w.truth.late(s.plan.session, s.plan.stream) {
		// Once the marker is gone, the ledger counts what comes behind it, and cannot say
		// what was removed before it.
		why = "somebody published behind the end"
	}
	if why == "" {
		w.violate("%s: %s: it is not certain, and the janitor was there and saw everything", s, g)
		why = "wrongly"
	}
	w.count("uncertain gap: " + why)
}

// disowned reports whether an ID is of a generation that the log does not know any more.
// An update of a janitor that died may take one away that the next janitor has begun
// meanwhile, and nothing else does (docs/adr/0003).
func (w *world) disowned(at place, text string) bool {
	id, err := event.ParseID(text)
	if err != nil || !w.sc.has(opRestartNATS) {
		return false
	}
	ctx, cancel := context.WithTimeout(w.ctx, 2*marks.AskTimeout)
	defer cancel()
	state, err := w.own.Log.Look(ctx, w.truth.partition(at.session))
	if err != nil {
		return false
	}
	rec, _ := w.own.Sessions.Session(at.session)
	return !slices.ContainsFunc(state.Generations, func(g event.Generation) bool {
		return slices.ContainsFunc([]string{rec.Incarnation, ""}, func(incarnation string) bool {
			return event.Place{Birth: state.Birth, Generation: g.ID, Session: at.session, Incarnation: incarnation, Stream: at.stream}.Tag() == id.Tag
		})
	})
}

// unattended reports whether somebody has gone on since no janitor came for long after a
// start of the server. When one comes, it may disown what was given out since, of which
// nothing is lost (docs/adr/0003).
func (w *world) unattended() bool {
	return strings.Contains(w.trace.String(), "no janitor has looked at a partition since its server started")
}
