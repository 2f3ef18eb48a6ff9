package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Series is events of one session that are stored in the order in which they are begun, as
// far as they are stored.
//
// What is on its way when the connection to NATS is lost may be lost too, and what is sent
// on the next one would overtake it: so nothing is begun there before all is answered that
// was begun on another. In a cluster the same holds for the leader of a partition, of
// whose changes are heard too late. Nothing is sent there before all that was sent
// earlier is acknowledged, and what waits meanwhile follows together, in an atomic batch
// (nats-server's ADR-50), of which all is stored or nothing.
//
// A server that refuses an event for want of room still stores smaller ones that follow it. So
// while the partition may have no room for the next event ([partition.mayBeFull]), that one is
// begun only after all before it are answered.
//
// After an event that is not stored, or of which it is not known, what waits after it is
// not stored and fails with [ErrSeriesFailed]; so does what is begun later. It continues
// after those alone that are too large.
//
// A Series belongs to one goroutine, which publishes its events. Another one calls Wait for
// each, in any order: PublishAsync may wait for that.
type Series struct {
	log *Log

	of routed // what to is for; both belong to who begins events
	to route

	mu     sync.Mutex
	failed error // what ended the series

	// Of what is sent at once:
	on         uint64        // the connection that events are begun on
	unanswered int           // of them
	quiet      chan struct{} // closed when unanswered is 0 again; nil unless PublishAsync waits for that

	// Of what is sent together:
	waiting []*Publishing
	sending bool
}

// Series begins a series.
func (l *Log) Series() *Series { return &Series{log: l} }

// PublishAsync sends the next event, as [Log.PublishAsync] does, whose errors it has. ctx bounds
// the acknowledgement, and must not end before Wait is called.
func (s *Series) PublishAsync(ctx context.Context, e Event) (*Publishing, error) {
	l := s.log
	p, stored, err := l.prepare(ctx, e)
	if err != nil || stored != nil {
		s.end(err)
		return stored, err
	}
	if !l.Clustered() {
		return s.beginSingly(ctx, p, e)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return nil, s.failed
	}
	w := &Publishing{log: l, p: p, span: l.trace(ctx, &e, p)}
	w.queued = &queued{giveUp: s.giveUp, ctx: ctx, event: e, done: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	if !s.sending {
		s.sending = true
		go s.send()
	}
	return w, nil
}

// beginSingly begins an event as soon as it would overtake nothing.
func (s *Series) beginSingly(ctx context.Context, p int, e Event) (*Publishing, error) {
	release, err := s.enter(ctx, p, e.size())
	if err != nil {
		s.end(err)
		return nil, err
	}
	defer release()
	w, err := s.log.send(ctx, p, e, s.route(p, e))
	if err != nil {
		s.answered(err)
		return nil, err
	}
	w.answered = s.answered
	return w, nil
}

// route is [Event.route], which is the same for most events of a series.
func (s *Series) route(p int, e Event) route {
	if of := (routed{e.Session, e.Life, e.Stream, e.Sole}); s.to.subject == "" || of != s.of {
		s.of, s.to = of, e.route(p)
	}
	return s.to
}

// routed is what a route depends on.
type routed struct {
	session, life, stream string
	sole                  bool
}

// enter counts one more event as under way, once it would overtake nothing, and keeps the
// connection from being made again until release is called.
func (s *Series) enter(ctx context.Context, p int, size int64) (release func(), err error) {
	for {
		release, quiet, err := s.tryEnter(p, size)
		if release != nil || err != nil {
			return release, err
		}
		select {
		case <-quiet:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		}
		if err := s.log.writable(ctx, p); err != nil {
			return nil, err
		}
	}
}

// ready is closed.
var ready = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// tryEnter is enter, or returns what has to be waited for.
func (s *Series) tryEnter(p int, size int64) (release func(), quiet <-chan struct{}, err error) {
	now, release := s.log.hold()
	if release == nil {
		return nil, ready, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		release()
		return nil, nil, s.failed
	case s.unanswered > 0 && (s.on != now || s.log.parts[p].mayBeFull(size)):
		release()
		if s.quiet == nil {
			s.quiet = make(chan struct{})
		}
		return nil, s.quiet, nil
	}
	s.on = now
	s.unanswered++
	return release, nil, nil
}

// answered notes what became of an event that was sent at once.
func (s *Series) answered(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unanswered--
	s.endLocked(err)
	if s.unanswered == 0 && s.quiet != nil {
		close(s.quiet)
		s.quiet = nil
	}
}

// send ends when nothing waits.
func (s *Series) send() {
	for all := s.next(); all != nil; all = s.next() {
		s.log.store(all)
		for _, w := range all {
			if err := w.queued.err; ends(err) {
				s.fail(err)
			}
			close(w.queued.done)
		}
	}
}

// next returns what is to be sent together, or nil when nothing waits any more.
func (s *Series) next() []*Publishing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.sending, s.waiting = false, nil
		return nil
	}
	var all []*Publishing
	all, s.waiting = together(s.waiting)
	return all
}

// end ends the series after what was begun, if an error does.
func (s *Series) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(err)
}

func (s *Series) endLocked(err error) {
	if ends(err) && s.failed == nil {
		s.failed = notSent(err)
	}
}

// giveUp has an event not sent any more, if it waits yet, and ends the series then. What is on its
// way may be stored, and ends the series if it is not.
func (s *Series) giveUp(q *queued, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.waiting, func(w *Publishing) bool { return w.queued == q }) {
		s.failLocked(err)
	}
}

// fail ends the series: what waits is not stored either.
func (s *Series) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(err)
}

func (s *Series) failLocked(err error) {
	s.endLocked(err)
	for _, w := range s.waiting {
		w.queued.err = s.failed
		close(w.queued.done)
	}
	s.waiting = nil
}

// store stores events of one partition in their order, and sets what became of each. It
// continues after those alone that are too large.
func (l *Log) store(all []*Publishing) {
	together := len(all) > 1
	for tries := 0; len(all) > 0; tries++ {
		if together && tries < maxTries {
			decided, repeated := l.storeTogether(all[0].queued.ctx, all)
			if decided {
				return
			}
			// A repeated request repeats first what was stored of it.
			together = repeated
		}
		all = l.storeSingly(all, together && tries < maxTries)
	}
}

// storeSingly stores events one after the other, while they are duplicates or to the end.
// It returns what is left.
func (l *Log) storeSingly(all []*Publishing, duplicates bool) []*Publishing {
	for i, w := range all {
		w.queued.ack, w.queued.err = l.publish(w.queued.ctx, w.p, w.queued.event.message(w.p))
		if err := w.queued.err; ends(err) {
			for _, later := range all[i+1:] {
				later.queued.err = notSent(err)
			}
			return nil
		}
		if duplicates && !w.queued.ack.Duplicate {
			return all[i+1:]
		}
	}
	return nil
}

// ends reports whether what comes after an event with this error is not sent.
func ends(err error) bool { return err != nil && !errors.Is(err, ErrTooLarge) }

// notSent is what becomes of an event after one that failed. It is known not to be
// stored, whatever is known of the other.
func notSent(err error) error {
	return fmt.Errorf("%w: %w: %s", ErrUnavailable, ErrSeriesFailed, err.Error())
}
