package janitor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"rejoin/shared/eventlog"
)

// partition keeps the ledger of one partition up to date.
//
//	tail     calls start, handle and through, in this order of events
//	follow   tells the ledger the first retained sequence, and looks at the server
//	         when something was missed
//
// mu guards the ledger. It is never held across I/O.
type partition struct {
	number  int
	log     *eventlog.Log
	trims   *trims
	logger  *slog.Logger
	cleared func() // called for every =clear marker of a complete ledger
	alarmed func() // called while a session of a complete ledger is to be trimmed soon
	now     func() time.Time
	// inCharge returns the term in which this janitor acts, and has taken over what its
	// predecessor left; nil otherwise.
	inCharge func() *term

	mu      sync.Mutex
	ledger  *ledger
	ready   bool           // the ledger was complete once
	waiting int            // how many wait for moved
	sure    bool           // nobody has deleted anything that the ledger does not know of
	dropped time.Time      // when the ledger was dropped
	heard   news           // the newest news of another janitor, without what it says
	pending []Removal      // what another janitor has deleted that the ledger has yet to get to
	told    uint64         // how many news this janitor has told in the term
	toldIn  string         // the term
	barrier *barrier       // where the tail has to wait
	fed     bool           // the tail that runs has begun the ledger, or goes on with it
	tailed  eventlog.State // when it did
	held    bool           // no ledger may begin
	// deleting says that the sweeper deletes what was doomed. A ledger that began
	// meanwhile would hold some of it for retained.
	deleting bool
	endTail  context.CancelFunc
	moved    chan struct{} // closed and replaced when the ledger moves, if somebody waits
	wake     chan struct{} // tells follow that a look is wanted
}

func newPartition(p int, log *eventlog.Log, trims *trims, logger *slog.Logger, cleared, alarmed func()) *partition {
	return &partition{
		number: p, log: log, trims: trims, logger: logger, cleared: cleared, alarmed: alarmed, now: time.Now, inCharge: func() *term { return nil },
		ledger: newLedger(), moved: make(chan struct{}), wake: make(chan struct{}, 1),
	}
}

// tail follows the log until ctx ends, with one tail after the other.
func (p *partition) tail(ctx context.Context) {
	for ctx.Err() == nil {
		life, end := context.WithCancel(ctx)
		p.mu.Lock()
		p.endTail = end
		p.mu.Unlock()
		_ = p.log.Tail(life, p.number, eventlog.TailConfig{ // it ends with its context
			HeadersOnly: true, Start: p.start, Handle: p.handle, Through: p.through,
		})
		end()
	}
}

// errNotNow is returned to a tail that has to wait until its ledger may begin.
var errNotNow = errors.New("the ledger may not begin now")

// drop drops the ledger; the next tail begins it anew. The caller holds mu.
func (p *partition) drop() {
	p.ledger.drop()
	p.fed = false // what the tail still handles is of no ledger
	p.sure, p.dropped, p.heard, p.pending = false, time.Now(), news{}, nil
	if p.endTail != nil {
		p.endTail()
	}
}

// without calls change while there is no ledger of the partition. What the ledger
// answered before was right about everything that was read before, and it answers
// again when it has read what the change has left.
func (p *partition) without(change func() error) error {
	p.mu.Lock()
	p.held = true
	birth := p.ledger.birth
	p.notice()
	p.drop()
	p.mu.Unlock()
	defer p.with(func(*ledger) { p.held = false })
	defer p.tell(news{Birth: birth, Limits: true})
	return change()
}

func (p *partition) start(ctx context.Context, s eventlog.State) (uint64, error) {
	acting := p.inCharge() != nil
	if !acting {
		p.mu.Lock()
		since := p.dropped
		if p.ledger.birth != "" && !p.ledger.follows(s) {
			since = time.Now()
		}
		p.mu.Unlock()
		if err := p.trims.load(ctx, since); err != nil {
			return 0, err
		}
	}
	if err := p.compare(ctx, s); err != nil {
		return 0, err
	}
	past := p.trims.of(p.number, s.Birth)
	p.mu.Lock()
	defer p.mu.Unlock()
	if acting != (p.inCharge() != nil) {
		return 0, errNotNow
	}
	if p.held || p.deleting && !p.ledger.follows(s) {
		return 0, errNotNow
	}
	if now, _ := p.log.State(p.number); now.Limits != s.Limits {
		return 0, errNotNow // s was asked for before a change, and has been on its way since
	}
	p.fed, p.tailed = true, s
	epoch, through := p.ledger.epoch, p.ledger.through
	after := p.ledger.begin(s, past)
	if p.ledger.epoch != epoch {
		p.sure, p.ledger.doubts.standby = acting, !acting
	}
	if p.ledger.epoch != epoch && through > 0 {
		p.logger.Warn("the partition is not what it was; its ledger begins anew", "partition", p.number, "through", through, "last", s.Last)
	}
	return after, nil
}

// compare looks, when a ledger is to go on with another server than before, whether the
// log has the ledger's newest entry. A server that was started anew may have lost it, and
// have given its sequence to another one before there was a generation that says so.
func (p *partition) compare(ctx context.Context, s eventlog.State) error {
	p.mu.Lock()
	newest, goesOn := p.ledger.newest, p.ledger.follows(s) && !s.SameServer(p.tailed)
	p.mu.Unlock()
	if !goesOn || newest.sequence < s.First { // nothing that is in the ledger is there any more
		return nil
	}
	there, err := p.log.At(ctx, p.number, newest.sequence)
	switch {
	case errors.Is(err, eventlog.ErrNotFound):
		// It was removed, or has never been in this log.
	case err != nil:
		return err
	case there.Time.Equal(newest.at):
		return nil
	}
	p.logger.Warn("the log may have been rolled back; the ledger begins anew", "partition", p.number, "newest", newest.sequence)
	p.with(func(*ledger) { p.drop() })
	return errNotNow
}

// compared reports whether the ledger is of the log as the server of a state has it. The
// caller holds mu.
func (p *partition) compared(s eventlog.State) bool { return p.fed && s.SameServer(p.tailed) }

func (p *partition) handle(e eventlog.Entry, _ uint64) {
	p.mu.Lock()
	p.halt(e.Sequence)
	cleared := p.fed && p.ledger.apply(e, p.now()) && p.ledger.complete
	p.enter()
	alarmed := p.ledger.alarmed()
	p.progress()
	p.mu.Unlock()
	if cleared {
		p.cleared()
	}
	if alarmed {
		p.alarmed()
	}
}

func (p *partition) through(sequence, _ uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.fed {
		return
	}
	p.ledger.reach(sequence, p.now())
	p.enter()
	p.ready = true
	p.progress()
}

// progress wakes those who wait for the ledger to move. The caller holds mu.
func (p *partition) progress() {
	if p.waiting > 0 {
		close(p.moved)
		p.moved = make(chan struct{})
	}
	if p.ledger.wantsLook() {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// lookEvery is how often follow looks at the server by itself at most.
const lookEvery = 100 * time.Millisecond

// stuckAfter is how long the ledger may stand before the first retained sequence
// until it takes what lies between for missing: the tail would have brought it.
const stuckAfter = 3 * time.Second

// follow runs until ctx ends.
func (p *partition) follow(ctx context.Context) {
	var still eventlog.Standing
	var looked time.Time
	for {
		state, changed := p.log.State(p.number)
		now := p.now()
		p.mu.Lock()
		if p.notice() {
			p.logger.Warn("somebody has changed a limit of the partition; its ledger begins anew", "partition", p.number)
			p.drop()
		}
		if p.ledger.isOf(state) {
			p.ledger.maxAge = state.Limits.MaxAge
			p.ledger.advance(state.First)
			p.ledger.prune(now)
			if state.SameServer(p.tailed) && !p.ledger.heardOf(state.Generation().ID) {
				p.ledger.generations = state.Generations // begun late: the life is the same
				p.progress()
			}
			if before := max(state.First, 1) - 1; still.Since(p.ledger.through, before, now) > stuckAfter {
				p.ledger.skip(before, now)
				p.progress()
			}
		}
		wanted := p.ledger.wantsLook()
		p.mu.Unlock()

		var due <-chan time.Time
		if wanted {
			if wait := lookEvery - time.Since(looked); wait > 0 {
				due = time.After(wait)
			} else {
				looked = time.Now()
				if err := p.look(ctx); err == nil {
					continue
				}
				due = time.After(lookEvery)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-p.wake:
		case <-due:
		}
	}
}

// notice reports whether the ledger is under another limit than the partition:
// somebody has changed that without [partition.without]. It asks for the state
// itself, which must not be older than the one that the ledger began with. The
// caller holds mu.
func (p *partition) notice() bool {
	s, _ := p.log.State(p.number)
	return p.fed && p.ledger.notice(s)
}

// look looks at the server and tells the ledger.
func (p *partition) look(ctx context.Context) error {
	p.mu.Lock()
	asOf, epoch := p.ledger.through, p.ledger.epoch
	p.mu.Unlock()
	state, err := p.log.Look(ctx, p.number)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ledger.epoch == epoch {
		p.ledger.looked(asOf, state, p.now())
		p.progress()
	}
	return nil
}

// with calls f with the ledger, under its lock.
func (p *partition) with(f func(*ledger)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.ledger)
}

// await waits until ok says yes to the ledger, or ctx ends. ok is called under the lock.
func (p *partition) await(ctx context.Context, ok func(*ledger) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting++
	defer func() { p.waiting-- }()
	for !ok(p.ledger) {
		moved := p.moved
		p.mu.Unlock()
		select {
		case <-moved:
			p.mu.Lock()
		case <-ctx.Done():
			p.mu.Lock()
			return ok(p.ledger)
		}
	}
	return true
}

// complete reports whether the ledger was complete once.
func (p *partition) complete() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}
