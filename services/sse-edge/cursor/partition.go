package cursor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/tracing"
)

// errNotReady is returned when a partition's window did not catch up with the log in time.
var errNotReady = errors.New("the partition is not ready")

// Partition is one partition that the edge follows: its window, and the tail that fills it.
type Partition struct {
	of       *Partitions
	ctx      context.Context //nolint:containedctx // while it is followed
	end      context.CancelFunc
	begun    atomic.Pointer[time.Time] // when the window began, or began again after a roll-back; nil before it has
	readers  int                       // guarded by the lock of the field of, as is linger
	linger   *time.Timer               // ends that it is followed; nil before it was without readers
	number   int
	log      *eventlog.Log
	window   *window.Window
	looks    looks
	backlog  backlog
	patience patience
	unsure   atomic.Bool                    // the tail has found that the log may not end where its leader says
	tailed   atomic.Pointer[eventlog.State] // the state when the tail last began; nil before the first time
	metrics  *metrics
	// again has the tail begin again.
	again    chan struct{}
	jumpLook atomic.Pointer[jumpLook] // the newest look after a jump
	looking  atomic.Bool              // see lookAfterJump
}

// untilReady waits until the window has caught up, unless NATS cannot be reached. The error is errNotReady.
func (p *Partition) untilReady(ctx context.Context) error {
	if p.hasCaughtUp() {
		return nil
	}
	if !p.log.Conn().IsConnected() {
		return errNotReady
	}
	select {
	case <-p.window.CaughtUp():
		return nil
	case <-ctx.Done():
	case <-p.ctx.Done():
	}
	return errNotReady
}

// readyAgain is untilReady for a window that may have been rolled back: it waits no longer than readers do for
// a window of another generation, since the same client may read other partitions.
func (p *Partition) readyAgain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, generationWithin)
	defer cancel()
	return p.untilReady(ctx)
}

// hasCaughtUp reports whether the partition is followed and the window has caught up.
func (p *Partition) hasCaughtUp() bool { return p != nil && p.window.Extent().CaughtUp }

// watch lets frames carry a generation that was begun while the tail runs, or has the tail begin
// again if the partition was rolled back: in a cluster its server is not always the one that the edge
// is connected to.
func (p *Partition) watch() {
	for {
		state, changed := p.log.State(p.number)
		p.extend(state)
		select {
		case <-p.ctx.Done():
			return
		case <-changed:
		}
	}
}

func (p *Partition) extend(state eventlog.State) {
	if p.unsure.Load() {
		return // the tail compares the log with the window, which it may have to empty
	}
	if !p.window.Extend(state) {
		select {
		case p.again <- struct{}{}:
		default:
		}
	}
}

// lag returns by how many sequences the window is behind the log, as last seen.
func (p *Partition) lag() float64 {
	state, _ := p.log.State(p.number)
	end := p.window.Extent().End
	return float64(max(state.Last, end) - end)
}

func (p *Partition) handle(e eventlog.Entry, missed uint64) {
	p.metrics.received.Inc()
	if !e.Valid {
		_, begins := event.ParseGenerationSubject(p.number, e.RawSubject) // in whichever run of the server
		if !begins && e.RawSubject != event.FloorSubject(p.number) {
			p.metrics.skipped.WithLabelValues("subject").Inc()
		}
	} else if e.Subject.Kind == event.Message && !validMessage(e.Data) {
		p.metrics.skipped.WithLabelValues("json").Inc()
		e.Valid = false
	}
	if !p.of.cfg.Traced {
		e.Trace = tracing.Context{}
	}
	p.window.Append(e, missed)
	if missed > 0 {
		p.metrics.missed.Add(float64(missed))
		p.lookAfterJump()
	}
}

// Stats returns the size and the extent of the window.
func (p *Partition) Stats() window.Stats { return p.window.Stats() }

// Life returns the newest life of a session that the window knows of.
func (p *Partition) Life(session string) (life string, ok bool) {
	life, ok, _ = p.window.LifeOf(session)
	return life, ok
}

// life is the newest life of a session's name, and how that is known.
type life struct {
	token string
	found bool   // the log has named it
	began uint64 // the sequence of its first opening, or, if that is unknown, of a later one; 0: of none
}

// lifeAt returns the life of a session that has a token, or the newest one if token is empty; a session of which the log
// holds nothing has none. The log is asked when the window is behind a position; when token is empty and the window does
// not know whether there is a life; or when it knows another life than the token's: that would count as the later one.
// Errors are those of the log.
func (p *Partition) lifeAt(ctx context.Context, session, token string, position uint64) (*life, error) {
	behind := p.isBehind(position) // asked first: an entry in between may be the opening of a later life
	known, ok, whole := p.window.LifeOf(session)
	if sure := token == "" && (ok || whole) || token != "" && (!ok || known == token); sure && !behind {
		return &life{token: cmp.Or(token, known)}, nil
	}
	of, err := p.fetchLife(ctx, session)
	if token != "" && of.token != token {
		of = life{token: token}
	}
	return &of, err
}

// fetchLife asks the log for the newest life of a name.
func (p *Partition) fetchLife(ctx context.Context, name string) (life, error) {
	o, err := p.log.Opening(ctx, name)
	if err == nil {
		return life{o.Life, true, cmp.Or(o.Began, o.Sequence)}, nil
	}
	if !errors.Is(err, eventlog.ErrNotFound) {
		return life{}, err
	}
	give, err := takeOne(ctx, p.of.wholeEvents) // its newest entry may be an event
	if err != nil {
		return life{}, err
	}
	defer give()
	of, _, err := p.log.LifeOf(ctx, name)
	if errors.Is(err, eventlog.ErrNotFound) {
		return life{}, nil
	}
	return life{token: of, found: err == nil}, err
}

// lookAfterJump starts a look at the partition if the window has holes: the earlier the look, the fewer of the window's
// events have been removed since the jump. The tail calls it after a jump, and when it has caught up. One look is under
// way at a time; a jump meanwhile causes another one.
func (p *Partition) lookAfterJump() {
	x := p.window.Extent()
	if !x.CaughtUp || x.JumpEnd <= 1 || p.jumpLook.Load().follows(x) || p.looking.Swap(true) {
		return
	}
	p.looks.work.Go(func() {
		_, err := p.afterJump(p.ctx, x)
		if err != nil && p.ctx.Err() == nil {
			p.of.cfg.Logger.Debug("a partition cannot be looked at after a jump", "partition", p.number, "error", err)
		}
		p.looking.Store(false)
		if now := p.window.Extent(); now.JumpEnd != x.JumpEnd || now.Forks != x.Forks {
			p.lookAfterJump()
		}
	})
}

// start returns the sequence after which the tail begins: with a backfill the first time,
// and later on after the window's end, if the log still matches the window.
func (p *Partition) start(ctx context.Context, state eventlog.State) (uint64, error) {
	after, start := p.backfillFrom(state)
	before := p.tailed.Load()
	if before == nil {
		p.noteBegin()
		p.window.Begin(state, after, start)
		p.tailed.Store(&state)
		return after, nil
	}
	end := p.window.Extent().End
	if _, gens := p.window.Generations(); event.Fork(gens, state.Generations) >= end {
		var err error
		if state, err = lookUntil(ctx, state, end, p.askLeader); err != nil {
			return 0, err
		}
	}
	common, same, err := p.compare(ctx, *before, state, end)
	if errors.Is(err, errNoQuorum) && !p.unsure.Swap(true) {
		p.of.cfg.Logger.Warn("the leader of a partition has not heard from most of its servers; its window is served as it is", "partition", p.number, "end", end, "last", state.Last)
	}
	if err != nil {
		return 0, err
	}
	if same {
		p.window.GoOn(state)
		after = end
	} else {
		p.of.cfg.Logger.Warn("the partition was rolled back; the window starts again", "partition", p.number, "from", end, "to", state.Last, "common", common)
		p.metrics.rollbacks.Inc()
		p.noteBegin()
		p.window.Rollback(state, after, start, common)
	}
	p.tailed.Store(&state)
	p.unsure.Store(false)
	return after, nil
}

func (p *Partition) askLeader(ctx context.Context) (eventlog.State, error) {
	return p.log.Look(ctx, p.number)
}

// noteBegin notes when the window begins.
func (p *Partition) noteBegin() {
	now := time.Now()
	p.begun.Store(&now)
}

// compare reports whether the log, which the window has seen in an earlier state,
// continues after the window. If it does not, common is the newest sequence that both
// have in common, as far as that is known.
func (p *Partition) compare(ctx context.Context, before, state eventlog.State, end uint64) (common uint64, same bool, err error) {
	if state.Origin != before.Origin {
		return 0, false, nil
	}
	_, gens := p.window.Generations() // some may have begun since before
	fork := event.Fork(gens, state.Generations)
	common = min(end, state.Last, fork)
	if state.Last < end {
		if fork >= end && !state.Quorum {
			return 0, false, errNoQuorum
		}
		return common, false, nil
	}
	// The edge may learn late of a generation that begins before the end: then the log has the window's entries after it.
	for _, en := range slices.Backward(p.window.Newest()) {
		if en.Sequence <= fork && fork < end {
			break
		}
		e, err := p.at(ctx, en.Sequence)
		if errors.Is(err, eventlog.ErrNotFound) {
			continue // removed meanwhile; an older one may still be there
		}
		if err != nil {
			return 0, false, err
		}
		if e.Time.UnixNano() == en.Time {
			return end, true, nil
		}
		if fork < end {
			break
		}
		return 0, false, nil // replaced, and no generation shows when
	}
	return common, fork >= end, nil
}

// at returns an entry of the log, which may be a whole event. Errors are those of the log.
func (p *Partition) at(ctx context.Context, sequence uint64) (eventlog.Entry, error) {
	if err := p.of.compares.Wait(ctx, "", 1); err != nil {
		return eventlog.Entry{}, err
	}
	defer p.of.compares.Give("", 1)
	return p.log.At(ctx, p.number, sequence)
}

// backfillFrom returns the sequence to begin after so that the later entries fit into
// the window, and the start of the window.
func (p *Partition) backfillFrom(state eventlog.State) (after, start uint64) {
	if state.Entries == 0 {
		return state.Last, 1
	}
	if state.Bytes <= uint64(p.of.backfill) { //nolint:gosec // a positive number of bytes
		return state.First - 1, 1
	}
	// Sequences are spread evenly enough for a start; the excess is evicted.
	span := state.Last - state.First + 1
	after = state.Last - uint64(float64(span)*float64(p.of.backfill)/float64(state.Bytes))
	return max(after, state.First-1), max(after, state.First-1) + 1
}

// validMessage reports whether a direct publisher's bytes can be framed and put
// into JSON answers, which are in UTF-8 (RFC 8259, section 8.1). Ingest checks more, and
// before it stores.
func validMessage(data []byte) bool { return utf8.Valid(data) && event.ValidJSON(data) }

// jumpLook is a look at the partition's leader that followed a jump of the tail.
type jumpLook struct {
	jumpEnd uint64
	forks   int
	state   eventlog.State
}

// follows reports whether there is a look, and it followed the last jump.
func (b *jumpLook) follows(x window.Extent) bool {
	return b != nil && b.jumpEnd == x.JumpEnd && b.forks == x.Forks
}

// afterJump returns a look at the partition's leader that followed the newest jump that x
// shows. The removals that the tail missed there were announced before it, so a view of the
// window that has reached the look's end has all announcements. Errors are those of [looks.after].
func (p *Partition) afterJump(ctx context.Context, x window.Extent) (eventlog.State, error) {
	if b := p.jumpLook.Load(); b.follows(x) {
		return b.state, nil
	}
	state, err := p.looks.after(ctx, x)
	if err != nil {
		return eventlog.State{}, err
	}
	p.jumpLook.Store(&jumpLook{x.JumpEnd, x.Forks, state})
	return state, nil
}

// patience is how long readers wait for a janitor to read a partition after a start of its
// server, or to compare it with a new leader: a janitor that restarts makes no gap uncertain, one
// that is down delays no reader.
type patience struct {
	limit time.Duration

	mu         sync.Mutex
	generation string    // that is not checked; empty when it is
	leader     string    // likewise
	since      time.Time // when the check was missed first
}

// observe takes a state of the partition, and reports whether the wait is over: the partition was checked, or has been
// unchecked for too long.
func (p *patience) observe(state eventlog.State) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if state.Checked() {
		p.generation = ""
		return true
	}
	if id := state.Generation().ID; p.generation != id || p.leader != state.Leader {
		p.generation, p.leader, p.since = id, state.Leader, time.Now()
	}
	return time.Since(p.since) > p.limit
}

// isBehind reports whether the window has yet to reach a sequence.
func (p *Partition) isBehind(sequence uint64) bool { return sequence > p.window.Extent().End }

// openedAt returns the sequence at which the newest life of a session began, which should be the one given: 0, or one
// up to position, when that certainly lies there. Where that is unknown, it is that of a later opening. The log is
// asked where the window is behind the position, or knows another life.
func (p *Partition) openedAt(ctx context.Context, session, life string, position uint64) (uint64, error) {
	behind := p.isBehind(position) // asked first, as in lifeAt
	newest, _ := p.window.Session(session)
	if !behind && (newest.Life == life || newest.Life == "") && (newest.Began > 0 || position+1 >= p.window.Extent().Start) {
		return newest.Began, nil
	}
	of, err := p.fetchLife(ctx, session)
	return of.began, err
}
