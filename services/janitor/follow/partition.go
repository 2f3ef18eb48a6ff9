// Package follow keeps the ledger of each partition up to date: by a tail of the partition's
// headers, and by looks at its leader. It also notices which servers hold a partition, begins a
// generation after one has started, and compares the entries of a new leader.
package follow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"rejoin/services/janitor/ledger"

	"rejoin/shared/eventlog"
)

// Partition keeps the ledger of one partition up to date.
//
//	tail     calls start, handle and caughtUp, in this order
//	Watch    enters the first retained sequence in the ledger, and looks at the server
//	         when an entry was missed
//
// mu guards the ledger. It is never held across I/O.
type Partition struct {
	Number    int
	MaxAbsent uint64 // how many sequences a leader is asked to list at most
	Log       *eventlog.Log
	logger    *slog.Logger
	Cleared   func() // called for every =clear marker of a complete ledger
	Alarmed   func() // called while a session of a complete ledger, or the partition, holds too much
	Spare     func() // called when memory is spare: the ledger has become complete, or is kept no more
	Now       func() time.Time
	slots     eventlog.BackfillSlots // to read the log; of all partitions

	mu       sync.Mutex
	ledger   *ledger.Ledger
	waiting  int            // callers that wait for advanced
	tailed   eventlog.State // when the tail that runs began
	advanced chan struct{}  // closed and replaced when the ledger moves, if a caller waits
	wake     chan struct{}  // wakes Watch for a look
	again    chan struct{}  // has the tail begin again
	lacking  string         // the leader that was found to lack entries, for its line in the log
	misses   bool           // the server has fewer entries than it should
}

// New returns a partition with an empty ledger. It shares slots with others that read the log.
func New(p int, log *eventlog.Log, slots eventlog.BackfillSlots, logger *slog.Logger) *Partition {
	return &Partition{
		Number: p, MaxAbsent: maxAbsent, Log: log, slots: slots, logger: logger, Cleared: func() {}, Alarmed: func() {}, Spare: func() {}, Now: time.Now,
		ledger: ledger.New(), advanced: make(chan struct{}), wake: make(chan struct{}, 1), again: make(chan struct{}, 1),
	}
}

// Keep keeps the ledger until ctx ends, and forgets it then.
func (p *Partition) Keep(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { p.Tail(ctx) })
	wg.Go(func() { p.Watch(ctx) })
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ledger.Drop()
	p.tailed, p.lacking, p.misses = eventlog.State{}, "", false
	p.progress()
	p.Spare()
}

// Tail follows the log until ctx ends.
func (p *Partition) Tail(ctx context.Context) {
	_ = p.Log.Tail(ctx, p.Number, eventlog.TailConfig{ // it ends with its context
		HeadersOnly: true, Slots: p.slots, Again: p.again, Start: p.start, Handle: p.handle, CaughtUp: p.caughtUp,
	})
}

func (p *Partition) start(ctx context.Context, s eventlog.State) (uint64, error) {
	same, err := p.same(ctx, s)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	restarts, through := p.ledger.Restarts, p.ledger.Through
	if !same || p.mustReadAgain(s) {
		p.ledger.Drop()
		p.misses = false
	}
	after := p.ledger.Begin(s)
	p.ledger.Stretches.Step = ledger.StepOf(p.Log.Settings())
	if p.ledger.Restarts != restarts && through > 0 {
		p.logger.Warn("the partition was replaced or rolled back; its ledger starts again", "partition", p.Number, "through", through, "last", s.Last)
	}
	p.tailed = s
	return after, nil
}

// same reports whether the log has the ledger's entries, when the ledger is to continue with
// another server than before: a restarted one may have lost some of them. It may have
// given the sequence of the newest entry to another one before there was a generation that
// shows it, and a damaged block leaves a hole inside. In a cluster the servers of the partition may
// have been restarted though the connection, which is to another one, has stayed.
func (p *Partition) same(ctx context.Context, s eventlog.State) (bool, error) {
	p.mu.Lock()
	newest, follows, otherServer := p.ledger.Newest, p.ledger.Matches(s), !s.SameServer(p.tailed)
	whole := !follows || !otherServer || p.ledger.Intact(s)
	p.mu.Unlock()
	if !follows || !whole || !otherServer && !p.Log.Clustered() {
		return whole, nil
	}
	if newest.Sequence < s.First { // the log has none of the ledger's entries any more
		return true, nil
	}
	return p.has(ctx, newest.Sequence, newest.At)
}

// compared reports whether the ledger is of the log as the server of a state has it. The
// caller holds mu.
func (p *Partition) compared(s eventlog.State) bool { return s.SameServer(p.tailed) }

func (p *Partition) handle(e eventlog.Entry, _ uint64) {
	p.mu.Lock()
	cleared := p.ledger.Apply(e, p.Now()) && p.ledger.Complete
	alarmed := p.ledger.Alarmed()
	p.progress()
	p.mu.Unlock()
	if cleared {
		p.Cleared()
	}
	if alarmed {
		p.Alarmed()
	}
}

func (p *Partition) caughtUp(sequence, _ uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.ledger.Complete
	if p.ledger.Reach(sequence, p.Now()); !before {
		p.logger.Debug("the ledger is complete", "partition", p.Number)
		p.Spare()
	}
	p.progress()
}

// progress wakes the callers that wait for the ledger to move. The caller holds mu.
func (p *Partition) progress() {
	if p.waiting > 0 {
		close(p.advanced)
		p.advanced = make(chan struct{})
	}
	for _, d := range p.ledger.TakeDamage() {
		p.logger.Warn("entries are missing that nothing explains; every stream may have lost events up to the last of them",
			"partition", p.Number, "from", d.From, "to", d.To, "entries", d.N)
	}
	if p.ledger.WantsLook() {
		Ring(p.wake)
	}
}

// Ring leaves a token in a channel that has room for one, unless it holds it.
func Ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// lookEvery is how often Watch looks at the server by itself at most.
const lookEvery = 100 * time.Millisecond

// Watch runs until ctx ends.
func (p *Partition) Watch(ctx context.Context) {
	var looked time.Time
	for {
		state, changed := p.Log.State(p.Number)
		p.mu.Lock()
		if p.ledger.IsOf(state) {
			p.note(state, p.Now())
		}
		wanted := p.ledger.WantsLook()
		p.mu.Unlock()
		failed := p.doubt(ctx, state)

		var due <-chan time.Time
		if wanted {
			if wait := lookEvery - time.Since(looked); wait > 0 {
				due = time.After(wait)
			} else {
				looked = time.Now()
				if err := p.Look(ctx); err == nil {
					continue
				}
				due = time.After(lookEvery)
			}
		}
		if failed != nil && due == nil {
			due = time.After(lookEvery)
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

// note enters a state of the partition in the ledger. The caller holds mu.
func (p *Partition) note(state eventlog.State, now time.Time) {
	l := p.ledger
	l.Stretches.Step = ledger.StepOf(p.Log.Settings())
	l.Advance(state.First, state.Last)
	l.Hear(state, now)
	l.Prune(now)
	if (ledger.Rules{MaxBytes: state.MaxBytes(p.Log.Settings())}).Used(state.Bytes) > ledger.FullShare {
		p.Alarmed()
	}
	if p.compared(state) && !l.HeardOf(state.Generation().ID) && l.Matches(state) {
		p.take(state)
	}
}

// take has the ledger continue in a generation that has begun since. The caller holds mu.
func (p *Partition) take(state eventlog.State) {
	p.ledger.Generations = state.Generations
	p.progress()
}

// doubt handles a generation that begins before the end of the ledger: the ledger learned of it late, or the
// partition was rolled back while the tail continued, which in a cluster may be on another server than
// the partition. After a roll-back the tail begins again.
func (p *Partition) doubt(ctx context.Context, state eventlog.State) error {
	p.mu.Lock()
	newest := p.ledger.Newest
	doubtful := p.ledger.IsOf(state) && p.compared(state) && !p.ledger.HeardOf(state.Generation().ID) && !p.ledger.Matches(state)
	p.mu.Unlock()
	if !doubtful {
		return nil
	}
	var has bool
	var err error
	if newest.Sequence >= max(state.First, 1) { // else the log has none of the ledger's entries any more
		has, err = p.has(ctx, newest.Sequence, newest.At)
	}
	switch {
	case err != nil:
		return err
	case has:
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ledger.IsOf(state) && p.compared(state) {
			p.take(state)
		}
		return nil
	}
	Ring(p.again)
	return nil
}

// has reports whether the log has an entry that was stored at a time.
func (p *Partition) has(ctx context.Context, sequence uint64, at time.Time) (bool, error) {
	there, err := p.Log.At(ctx, p.Number, sequence)
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return false, err
	}
	return err == nil && there.Time.Equal(at), nil
}

// Look looks at the server, and enters the look in the ledger.
func (p *Partition) Look(ctx context.Context) error {
	return p.lookThen(ctx, func(s eventlog.State, asOf uint64, same bool) error {
		if same {
			p.ledger.Looked(asOf, s)
			p.progress()
		}
		return nil
	})
}

// lookThen looks at the server, and calls f under the lock: with the ledger's sequence when the
// look began, and whether the ledger was not started again meanwhile.
func (p *Partition) lookThen(ctx context.Context, f func(s eventlog.State, asOf uint64, same bool) error) error {
	p.mu.Lock()
	asOf, restarts := p.ledger.Through, p.ledger.Restarts
	p.mu.Unlock()
	state, err := p.Log.Look(ctx, p.Number)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return f(state, asOf, p.ledger.Restarts == restarts)
}

// ErrChanged is returned when the partition is not the one that the ledger follows.
var ErrChanged = errors.New("the partition has changed")

// Check looks at the server, and calls f with the state and the ledger if the ledger is of the
// partition and complete. Each change of the log begins with it.
func (p *Partition) Check(ctx context.Context, f func(eventlog.State, *ledger.Ledger)) error {
	var before ledger.Tally
	p.With(func(l *ledger.Ledger) { before = l.Tally() })
	return p.lookThen(ctx, func(s eventlog.State, asOf uint64, same bool) error {
		l := p.ledger
		if !same || !l.Complete || !l.MatchesAt(s, asOf) || !p.compared(s) {
			return ErrChanged
		}
		l.Looked(asOf, s)
		p.misses = p.misses || l.Misses(s, before)
		p.progress()
		f(s, l)
		return nil
	})
}

// With calls f with the ledger, under its lock.
func (p *Partition) With(f func(*ledger.Ledger)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.ledger)
}

// Await waits until ok returns true for the ledger, or ctx ends. ok is called under the lock.
func (p *Partition) Await(ctx context.Context, ok func(*ledger.Ledger) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting++
	defer func() { p.waiting-- }()
	for !ok(p.ledger) {
		advanced := p.advanced
		p.mu.Unlock()
		select {
		case <-advanced:
			p.mu.Lock()
		case <-ctx.Done():
			p.mu.Lock()
			return ok(p.ledger)
		}
	}
	return true
}

// tailPatience is how long AwaitRequired waits for the tail to bring the stored entries.
const tailPatience = 5 * time.Second

// AwaitRequired waits until the ledger has the entries that this janitor has stored.
func (p *Partition) AwaitRequired(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tailPatience)
	defer cancel()
	p.Await(ctx, func(l *ledger.Ledger) bool { return l.Through >= l.Required })
}
