package lease

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/natsconn"
)

var (
	errStopped = errors.New("the janitor stops")
	errShared  = errors.New("another janitor has a smaller share")
)

// Leases competes for the leases of all partitions on behalf of one janitor.
//
//	Run ──▶ compete, one for each partition and connection ──▶ act, one for each term
//	   ├──▶ follow, one for each connection: learns the holders of the partitions
//	   ├──▶ keepPresence, one for each connection: announces this janitor, shares
//	   └──▶ a subscription that answers while this janitor is connected
//
// mu guards the state of all, and is never held across I/O.
type Leases struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	kv       jetstream.KeyValue // of the present connection
	replicas int
	id       string
	now      func() Instant
	logger   *slog.Logger
	all      []*Lease // by partition
	// Elsewhere is called when another janitor holds a partition, or will. It must neither wait nor
	// call a method of Leases. Set before Run.
	Elsewhere func(partition int)

	mu         sync.Mutex
	sharing    sharing
	logged     string // the partitions in the last line of logPartitions
	complained bool   // since the connection was made
	answered   bool   // the bucket has answered the last request of announcePresence, since the connection was made
}

// Lease is this janitor's side of one partition's lease.
type Lease struct {
	of        *Leases
	partition int
	key       string
	wake      chan struct{} // something has changed; a candidate tries at once

	// of.mu guards these.
	state  candidacy
	term   *Term // nil while another one acts
	yields bool  // the term is to end in favour of another janitor
}

// Term returns the term in which this janitor acts for a partition, or nil.
func (s *Leases) Term(p int) *Term {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[p].term
}

// Acts reports whether this janitor acts for a partition now.
func (s *Leases) Acts(p int) bool {
	t := s.Term(p)
	return t != nil && t.Ctx.Err() == nil
}

// mine returns the leases that this janitor acts by. The caller holds mu.
func (s *Leases) mine() (held []*Lease) {
	for _, l := range s.all {
		if l.term != nil {
			held = append(held, l)
		}
	}
	return held
}

// ringAll has all candidates look whether they want their partition.
func (s *Leases) ringAll() {
	for _, l := range s.all {
		l.ring()
	}
}

// connection returns the number of the present connection.
func (s *Leases) connection() uint64 { return s.nc.Stats().Reconnects }

func (l *Lease) ring() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// acting returns the term, or nil, and whether it is to end.
func (l *Lease) acting() (t *Term, yields bool) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	return l.term, l.yields
}

// wanted reports whether this janitor should try to get the lease.
func (l *Lease) wanted() bool {
	s := l.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.answered {
		return false
	}
	return s.sharing.wants(l.partition, len(s.mine()), s.now())
}

// compete is run for each connection, with which ctx ends. program ends with the program
// alone.
func (l *Lease) compete(ctx, program context.Context, act func(context.Context) error) error {
	for ctx.Err() == nil {
		t, yields := l.acting()
		wait := l.of.pause()
		switch {
		case t != nil && yields:
			if err := l.giveBack(ctx, t, errShared); err != nil {
				return err
			}
			t = nil
		case t != nil || l.wanted():
			var acting bool
			acting, wait = l.attempt(ctx)
			switch {
			case acting && t == nil:
				t = l.begin(ctx, act)
			case !acting && t != nil:
				if err := l.finish(t, ErrNotActing); err != nil {
					return err
				}
				t = nil
			}
		}
		var ended <-chan struct{}
		if t != nil {
			ended = t.ended
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		case <-l.wake:
		case <-ended:
			if err := l.finish(t, ErrNotActing); err != nil {
				return err
			}
		}
	}
	return l.leave(program)
}

// attempt does the next write, and returns whether this janitor acts then, and when the next one is
// due. A term that is over is not renewed.
func (l *Lease) attempt(ctx context.Context) (acting bool, wait time.Duration) {
	s := l.of
	s.mu.Lock()
	w := l.state.next(s.now(), s.connection())
	over := l.term != nil && !l.state.acting
	s.mu.Unlock()
	if over {
		return false, 0
	}
	o := l.try(ctx, w)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	l.state.learn(w, o, now, s.connection())
	if l.state.acting && l.term != nil {
		l.term.timer.Reset(l.state.left(now))
	}
	if o.result == taken && o.holder != "" && o.holder != s.id && !o.gone {
		s.sharing.held(l.partition, o.holder, now)
		s.Elsewhere(l.partition)
	}
	return l.state.acting, l.state.due(now)
}

// leave ends the term at the end of a connection, and gives the lease back at the end of the
// program.
func (l *Lease) leave(program context.Context) error {
	t, _ := l.acting()
	switch {
	case t == nil:
		return nil
	case program.Err() != nil:
		return l.giveBack(program, t, errStopped)
	}
	return l.finish(t, natsconn.ErrChanged)
}

// giveBack ends a term, and then the lease, so that another janitor need not wait until it expires.
func (l *Lease) giveBack(ctx context.Context, t *Term, why error) error {
	l.of.mu.Lock()
	revision := l.state.revision
	l.of.mu.Unlock()
	err := l.finish(t, why)
	l.release(ctx, revision)
	if errors.Is(why, errShared) {
		l.of.Elsewhere(l.partition)
	}
	return err
}

// begin begins a term.
func (l *Lease) begin(ctx context.Context, act func(context.Context) error) *Term {
	s := l.of
	t := &Term{lease: l, ended: make(chan struct{})}
	ctx, t.end = context.WithCancelCause(ctx)
	t.Ctx = context.WithValue(ctx, termKey{}, t)
	t.timer = time.AfterFunc(time.Hour, t.check)
	s.mu.Lock()
	l.term, l.yields = t, false
	t.timer.Reset(l.state.left(s.now()))
	s.mu.Unlock()
	s.logger.Debug("a term begins", "partition", l.partition)
	go func() { // finish waits for it
		defer close(t.ended)
		if err := act(t.Ctx); err != nil && t.Ctx.Err() == nil {
			t.err = err
		}
	}()
	return t
}

// finish ends a term, and returns act's error when it has ended.
func (l *Lease) finish(t *Term, why error) error {
	t.end(why)
	t.timer.Stop()
	<-t.ended
	s := l.of
	s.mu.Lock() // after each Do that has seen that Ctx had not ended
	l.yields = false
	s.mu.Unlock()
	t.uses.Wait()
	s.mu.Lock()
	l.term = nil
	l.state.stepDown()
	s.mu.Unlock()
	switch cause := context.Cause(t.Ctx); {
	case errors.Is(why, errStopped), errors.Is(why, errShared), errors.Is(cause, natsconn.ErrChanged):
		// The end of a connection has a line of its own, and ends the terms of all partitions.
		s.logger.Debug("a term ends", "partition", l.partition, "reason", cause)
	default:
		s.logger.Warn("this janitor has stepped down", "partition", l.partition, "reason", cause)
	}
	return t.err
}

// try does a write.
func (l *Lease) try(ctx context.Context, w write) outcome {
	s := l.of
	ctx, cancel := context.WithTimeout(ctx, s.pause())
	defer cancel()
	var revision uint64
	var err error
	if w.revision == 0 {
		revision, err = s.kv.Create(ctx, l.key, s.value())
	} else {
		revision, err = s.kv.Update(ctx, l.key, s.value(), w.revision)
	}
	if err == nil {
		return outcome{result: written, revision: revision}
	}
	if !bucket.Conflict(err) {
		s.complain(ctx, "cannot write a lease", err)
		return outcome{result: unknown}
	}
	return l.read(ctx)
}

// read returns the holder of the lease.
func (l *Lease) read(ctx context.Context) outcome {
	entry, err := l.of.kv.Get(ctx, l.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return outcome{result: taken}
	}
	if err != nil {
		return outcome{result: unknown}
	}
	var h holder
	if err := json.Unmarshal(entry.Value(), &h); err != nil || h.ID == "" {
		return outcome{result: taken, revision: entry.Revision(), holder: unknownHolder}
	}
	o := outcome{result: taken, revision: entry.Revision(), holder: h.ID}
	if h.ID != l.of.id {
		o.gone = l.of.gone(ctx, h.ID)
	}
	return o
}

// release gives the lease back, so that another janitor need not wait until it expires.
func (l *Lease) release(ctx context.Context, revision uint64) {
	ctx, done := l.of.lastly(ctx)
	defer done()
	if err := l.of.kv.Delete(ctx, l.key, jetstream.LastRevision(revision)); err != nil {
		l.of.logger.Info("a lease was not released, and will run out", "partition", l.partition, "error", err)
	}
}
