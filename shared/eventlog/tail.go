package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/eventlog/metadata"
	"rejoin/shared/natsconn"
)

// TailConfig configures a tail. All functions are called one after the other,
// never concurrently.
type TailConfig struct {
	// HeadersOnly leaves the messages out.
	HeadersOnly bool
	// Slots are shared with other tails: each waits for one, and holds it until it has caught up
	// for the first time. Nil: it does not wait.
	Slots BackfillSlots
	// Again makes the tail begin again with each value that is sent to it. Nil: never.
	Again <-chan struct{}
	// Start is called whenever the tail begins, and begins again after an
	// interruption, with the state that the partition's leader reports at that time.
	// It returns the sequence to continue after. This is the place to compare the
	// entries tailed before with that state. Its error ends the attempt; the next
	// one follows in a moment.
	Start func(ctx context.Context, state State) (after uint64, err error)
	// Handle is called for every entry, in order of sequence. missed is how many
	// sequences lie between the entry and the one before it (or the start): they
	// were removed before they could be sent.
	Handle func(e Entry, missed uint64)
	// CaughtUp is called when the partition holds no more entries up to a sequence
	// that was its last one when the tail began: the tail has caught up. missed is
	// as in Handle.
	CaughtUp func(sequence, missed uint64)
}

// tailRetry is how long a tail waits after a failed attempt.
const tailRetry = 100 * time.Millisecond

// Tail follows partition p with one ordered consumer until ctx ends, which is
// also its error. It continues after every interruption, and begins again, with a
// call of Start, when the connection was lost, when the partition was re-created
// or rolled back, and when the consumer stalls.
func (l *Log) Tail(ctx context.Context, p int, cfg TailConfig) error {
	slot, caughtUp := &backfillSlot{of: cfg.Slots}, cfg.CaughtUp
	cfg.CaughtUp = func(sequence, missed uint64) {
		slot.end()
		slot.of = nil
		caughtUp(sequence, missed)
	}
	for {
		err := l.tailOnce(ctx, p, cfg, slot)
		slot.end()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.log.Debug("a tail was interrupted", "partition", p, "reason", err)
		if !natsconn.Pause(ctx, tailRetry) {
			return ctx.Err()
		}
	}
}

// BackfillSlots bound how many tails begin at a time. A server that has to read all partitions at once needs more
// memory, and a quarter more time; and the data that readers build of one partition lies together in
// memory, so that all of it can be given back.
type BackfillSlots chan struct{}

// NewBackfillSlots returns slots for so many tails at a time.
func NewBackfillSlots(n int) BackfillSlots { return make(BackfillSlots, n) }

// slotPatience bounds how long a tail waits for a slot, in case another one cannot catch up.
const slotPatience = 30 * time.Second

// backfillSlot is the slot of one tail.
type backfillSlot struct {
	of   BackfillSlots // nil: it needs none
	held bool
}

func (s *backfillSlot) take(ctx context.Context) error {
	if s.of == nil {
		return nil
	}
	select {
	case s.of <- struct{}{}:
		s.held = true
	case <-time.After(slotPatience):
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (s *backfillSlot) end() {
	if s.held {
		s.held = false
		<-s.of
	}
}

func (l *Log) tailOnce(ctx context.Context, p int, cfg TailConfig, slot *backfillSlot) error {
	server, err := l.awaitReady(ctx, p)
	if err != nil {
		return err
	}
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	if l.nc.ConnectedServerId() != server {
		return errLost
	}
	if err := slot.take(ctx); err != nil {
		return err
	}
	state, err := l.Look(ctx, p)
	if err != nil {
		return err
	}
	after, err := cfg.Start(ctx, state)
	if err != nil {
		return err
	}
	reader, err := natsconn.NewReader(ctx, l.js, streamName(p), natsconn.ReaderConfig{After: after, HeadersOnly: cfg.HeadersOnly, Ahead: tailPull})
	if err != nil {
		return apiError(err)
	}
	stop := sync.OnceFunc(func() { l.stopReader(p, reader) })
	defer stop()
	a := &attempt{log: l, p: p, cfg: cfg, server: server, state: state, last: after, broken: make(chan error, 1), drained: make(chan struct{}, 1), inbox: newInbox()}
	if reader.Pending == 0 {
		a.drain()
	}
	if err := reader.Start(a.handle); err != nil {
		return apiError(err)
	}
	l.feed.offer(a)
	defer l.feed.withdraw(a)
	defer a.end()
	err = a.wait(ctx, reader.Broken())
	if errors.Is(err, errRides) {
		stop()
		err = a.wait(ctx, nil)
	}
	return err
}

// attempt is one run of a tail: one ordered consumer on one server, or a place on
// another tail's. Its lock orders the handler, which nats.go calls, and the tail that
// ends it.
type attempt struct {
	log    *Log
	p      int
	cfg    TailConfig
	server string
	state  State // when the attempt began
	inbox  inbox // while it rides on another

	mu       sync.Mutex
	ended    bool
	last     uint64 // the newest sequence handled
	caughtUp bool   // CaughtUp was called
	broken   chan error
	drained  chan struct{} // the consumer has no pending messages, but the leader may have more entries
	riders   []*attempt
}

var errLost = errors.New("the connection was lost")

// end makes the handler a no-op and waits for one that runs.
func (a *attempt) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.leaveRiders()
}

// wait returns when the attempt has to end: ctx is done, another server is connected,
// or the partition is another one, was rolled back, or has entries that the consumer
// does not deliver. The error is errRides when it continues, on another tail.
func (a *attempt) wait(ctx context.Context, broken <-chan error) error {
	var still Standing
	for {
		_, changed := a.log.State(a.p)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-broken:
			return err
		case err := <-a.broken:
			return err
		case <-a.cfg.Again:
			return errors.New("it has to begin again")
		case <-a.drained:
			_ = a.ask(ctx, false) // it has not stalled
			continue
		case <-a.inbox.filled:
			if err := a.takeIn(); err != nil {
				return err
			}
			continue
		case <-changed:
		}
		state, _ := a.log.State(a.p)
		last := a.position()
		stalled := still.Since(last, state.Last, time.Now()) > stallAfter
		switch {
		case state.seenOn != a.server:
			return errors.New("the connection went to another server")
		case !state.Created.Equal(a.state.Created):
			return errors.New("the partition was created again")
		case state.Last < last:
			// The look may be older than the newest entries received: look again.
			if now, err := a.log.Look(ctx, a.p); err == nil && now.Last < last {
				return fmt.Errorf("the partition was rolled back from %d to %d", last, now.Last)
			}
		case stalled:
			if err := a.ask(ctx, true); err != nil {
				return err
			}
		case broken != nil && a.log.feed.join(a):
			return errRides
		}
	}
}

// stallAfter is how long a tail may receive nothing while the partition has newer entries.
const stallAfter = 2 * watchEvery

func (a *attempt) position() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// ask asks the leader for the entry after the newest one. If there is none that it had when the attempt began, the
// tail reports that it has caught up, unless it has done so. For a stalled tail an error means that it has to begin
// again: the consumer does not deliver the entries, or entries were stored and removed since.
func (a *attempt) ask(ctx context.Context, stalled bool) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	last := a.position()
	next, err := a.log.get(ctx, a.p, last+1, jetstream.WithGetMsgSubject(streamSubject(a.p)))
	switch {
	case err == nil && stalled && a.position() == last:
		return fmt.Errorf("the consumer stalls at %d before %d", last, next.Sequence)
	case err == nil && next.Sequence > a.state.Last, errors.Is(err, ErrNotFound):
		a.reportCaughtUpAt(last)
	default:
		return nil // the entry will come, or the leader did not answer: the next look asks again
	}
	if stalled && a.position() == last {
		return fmt.Errorf("everything after %d was removed before it came", last)
	}
	return nil
}

func (a *attempt) handle(msg *nats.Msg, meta *nats.MsgMetadata) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	// A message from another server, or of another start of it, may not belong after the entries
	// handled so far: the tail has to begin again, with a look at both.
	if a.log.nc.ConnectedServerId() != a.server {
		a.fail(errLost)
		return
	}
	e := entryFrom(msg, meta, a.p, len(a.log.parts), a.cfg.HeadersOnly)
	if e.Begins != "" && e.Begins != metadata.RunGenerationID(a.server, a.state.Created) {
		e.Begins = "" // of an earlier run, whose generations the state has
	}
	switch {
	case a.inbox.riding && e.Sequence <= a.last:
		return // the inbox has delivered it
	case e.Sequence <= a.last:
		a.fail(fmt.Errorf("sequence %d came after %d", e.Sequence, a.last))
		return
	}
	a.pass(e)
	for _, r := range a.riders {
		r.inbox.put(e)
	}
	if !a.caughtUp && (e.Pending == 0 || a.last >= a.state.Last) {
		a.drain()
	}
}

// drain is called when the consumer has no pending messages, though it may lack entries that
// the leader had when the attempt began: they were removed, or have yet to reach the consumer's
// server. The caller holds the lock, or is the only one that knows the attempt.
func (a *attempt) drain() {
	if a.last >= a.state.Last {
		a.reportCaughtUp()
		return
	}
	ring(a.drained)
}

// reportCaughtUpAt reports that the tail has caught up, unless it has moved on or has reported it.
func (a *attempt) reportCaughtUpAt(last uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == last && !a.caughtUp && !a.ended {
		a.reportCaughtUp()
	}
}

// pass passes the next entry to the tail's owner. The caller holds the lock.
func (a *attempt) pass(e Entry) {
	missed := e.Sequence - a.last - 1
	a.last = e.Sequence
	a.cfg.Handle(e, missed)
}

// reportCaughtUp reports to the tail's owner that it has caught up. The caller holds the lock,
// or is the only one that knows the attempt.
func (a *attempt) reportCaughtUp() {
	a.caughtUp = true
	missed := uint64(0)
	if a.state.Last > a.last {
		missed = a.state.Last - a.last
		a.last = a.state.Last
	}
	a.cfg.CaughtUp(a.last, missed)
}

// fail asks for the attempt's end. The caller holds the lock.
func (a *attempt) fail(err error) {
	a.ended = true
	select {
	case a.broken <- err:
	default:
	}
}

// takeIn handles the entries from the tail that a rides on. Those not after a's newest entry
// came from its own consumer before. The error is errLeft.
func (a *attempt) takeIn() error {
	entries, closed := a.inbox.take()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range entries {
		if !a.ended && e.Sequence > a.last {
			a.pass(e)
		}
	}
	if closed {
		return errLeft
	}
	return nil
}
