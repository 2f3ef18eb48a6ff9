// Package cursor reads streams of the log for clients. [Partitions.Open] turns an event ID into the
// cursor of a [Reader], whose Quick and Next return the events after it in steps: from the window, or
// from the log where the cursor lies below the window. Each step is complete, or reports missing events
// with a [Gap]. A [Partition] follows its part of the log and fills the window.
package cursor

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/quota"
)

// Partitions are the log's partitions that have readers, or had some lately, each with its window. It is
// safe for concurrent use.
//
//	acquire ─▶ followed, with n readers ◀─▶ followed, without ── Linger ──▶ not followed
//
// A partition that is followed again begins empty: earlier knowledge of it may not hold any more.
type Partitions struct {
	cfg           Config
	log           *eventlog.Log
	metrics       *metrics
	backfill      int                    // bytes of a partition
	reads         chan struct{}          // a token for each read below the windows, of all partitions
	wholeEvents   *quota.Pool            // a slot for each request that is answered with a whole event, by client
	compares      *quota.Pool            // likewise, for a request of a tail, which does not wait for clients
	scans         *quota.Pool            // a slot for each read of a session's trims, of openings and ends, or of newest events, by client
	backfillSlots eventlog.BackfillSlots // for a backfill each
	ctx           context.Context        //nolint:containedctx // of the tails
	end           context.CancelFunc

	mu       sync.Mutex
	followed []*Partition // by number; nil for one that is not followed
	ended    bool
	tails    sync.WaitGroup
}

// wholeAtOnce is how many such requests are made at a time: an answer may have 11 MiB, and a server ends a
// connection for which 64 MiB wait.
const wholeAtOnce = 4

// Newest is [eventlog.Log.Newest], which is answered with a whole event.
func (ps *Partitions) Newest(ctx context.Context, s event.Subject) (eventlog.Entry, error) {
	give, err := takeOne(ctx, ps.wholeEvents)
	if err != nil {
		return eventlog.Entry{}, err
	}
	defer give()
	return ps.log.Newest(ctx, s)
}

// New returns the partitions of a log, to be followed until the end of Run.
func New(cfg Config) *Partitions {
	n := cfg.Log.Settings().Partitions
	ps := &Partitions{
		cfg: cfg, log: cfg.Log, followed: make([]*Partition, n), backfill: cfg.WindowBytes / n * 8 / 10,
		reads: make(chan struct{}, cfg.LogReads), wholeEvents: quota.NewPool(wholeAtOnce), compares: quota.NewPool(1), scans: quota.NewPool(int64(cfg.LogReads)),
		backfillSlots: eventlog.NewBackfillSlots(max(2, runtime.GOMAXPROCS(0))),
	}
	switch {
	case cfg.Backfill > 0:
		ps.backfill = min(ps.backfill, cfg.Backfill/n)
	case cfg.Backfill < 0:
		ps.backfill = 0
	}
	ps.ctx, ps.end = context.WithCancel(cfg.Base)
	ps.metrics = newMetrics(cfg.Metrics, ps.each)
	return ps
}

// acquire returns a partition, followed until the caller releases it.
func (ps *Partitions) acquire(number int) *Partition {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.followed[number]
	if p == nil {
		p = ps.newPartition(number)
		ps.followed[number] = p
		if !ps.ended {
			ps.tails.Go(p.follow)
		}
	}
	p.readers++
	if p.linger != nil {
		p.linger.Stop()
	}
	return p
}

func (ps *Partitions) newPartition(number int) *Partition {
	cfg := ps.cfg
	w := window.New(max(cfg.WindowBytes/len(ps.followed), 1), func(reason string) { ps.metrics.skipped.WithLabelValues(reason).Inc() })
	ctx, end := context.WithCancel(ps.ctx)
	return &Partition{
		of: ps, ctx: ctx, end: end,
		number: number, log: cfg.Log, metrics: ps.metrics, window: w,
		looks:    looks{base: ctx, look: func(ctx context.Context) (eventlog.State, error) { return cfg.Log.LookAfterRead(ctx, number) }, window: w},
		patience: patience{limit: cfg.Patience},
		backlog: backlog{
			base: ctx, log: cfg.Log, number: number, slots: ps.reads, metrics: ps.metrics,
			budget: max(cfg.WindowBytes/64, minScanBudget),
		},
		again: make(chan struct{}, 1),
	}
}

// follow tails the partition into the window until ctx ends, and all reads have.
func (p *Partition) follow() {
	var work sync.WaitGroup
	work.Go(p.watch)
	_ = p.log.Tail(p.ctx, p.number, eventlog.TailConfig{ // its only error is the context's
		Slots:  p.of.backfillSlots,
		Again:  p.again,
		Start:  p.start,
		Handle: p.handle,
		CaughtUp: func(sequence, missed uint64) {
			p.window.Reach(sequence, missed)
			p.lookAfterJump()
		},
	})
	work.Wait()
	p.backlog.work.Wait()
	p.looks.work.Wait()
}

// release gives up one use of the partition that [Partitions.acquire] returned.
func (p *Partition) release() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.readers--; p.readers == 0 {
		p.linger = time.AfterFunc(p.of.cfg.Linger, func() { p.of.unfollow(p) })
	}
}

// unfollow ends following a partition that has no reader.
func (ps *Partitions) unfollow(p *Partition) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p.readers == 0 && ps.followed[p.number] == p {
		ps.followed[p.number] = nil
		p.end()
	}
}

// each returns the partitions that are followed.
func (ps *Partitions) each() []*Partition {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(ps.followed), func(p *Partition) bool { return p == nil })
}

// Life returns the newest life of a session, if the window knows it. Like Open, it waits until the
// window has caught up with the log. The error is errNotReady.
func (ps *Partitions) Life(ctx context.Context, session string) (life string, ok bool, err error) {
	p := ps.acquire(ps.log.Partition(session))
	defer p.release()
	if err := p.untilReady(ctx); err != nil {
		return "", false, err
	}
	life, ok = p.Life(session)
	return life, ok, nil
}

// CatchUp waits until the window of a session has reached the present end of the log. Errors are those of
// [Partitions.Life] and of the log.
func (ps *Partitions) CatchUp(ctx context.Context, session string) error {
	p := ps.acquire(ps.log.Partition(session))
	defer p.release()
	err := p.untilReady(ctx)
	if err == nil {
		err = p.tryCatchUp(ctx)
	}
	return err
}

// Of returns the partition of a session; nil while it is not followed.
func (ps *Partitions) Of(session string) *Partition {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.followed[ps.log.Partition(session)]
}

// fewPartitions is among how many partitions [Partitions.Near] chooses at least, so that not all new
// sessions are stored in one.
const fewPartitions = 4

// Near returns a name of a new session, made by a function, if possible in a partition that the edge
// follows already, and whose window has caught up: reading it costs NATS nothing more.
func (ps *Partitions) Near(newName func() string) string {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	followed := 0
	for _, p := range ps.followed {
		if p.hasCaughtUp() {
			followed++
		}
	}
	name := newName()
	if followed < min(fewPartitions, len(ps.followed)) {
		return name
	}
	for range 16 * len(ps.followed) / followed { // e^-16 do not find one
		if ps.followed[ps.log.Partition(name)].hasCaughtUp() {
			break
		}
		name = newName()
	}
	return name
}

// readyWithin is how long the window of a partition may take to catch up with the log.
const readyWithin = 10 * time.Second

// Ready returns an error while the backfill of a partition takes too long. A partition that cannot be
// read at all counts only with Linger -1, when all partitions have to catch up: other edges cannot
// read it either, and from this one clients have all others.
func (ps *Partitions) Ready() error {
	all := ps.each()
	if ps.cfg.Linger < 0 && len(all) < len(ps.followed) {
		return errNotReady
	}
	for _, p := range all {
		begun := p.begun.Load()
		if !p.hasCaughtUp() && (ps.cfg.Linger < 0 || begun != nil && time.Since(*begun) > readyWithin) {
			return fmt.Errorf("partition %d has not caught up", p.number)
		}
	}
	return nil
}

// Run follows the log until the context is done.
func (ps *Partitions) Run(ctx context.Context) {
	if ps.cfg.Linger < 0 {
		for number := range ps.followed {
			ps.acquire(number)
		}
	}
	<-ctx.Done()
	ps.mu.Lock()
	ps.ended = true
	ps.mu.Unlock()
	ps.end()
	ps.tails.Wait()
}
