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
func (s *Series) PublishAsync(ctx context.Context, e Event) (w *Publishing, err error) {
	l, p := s.log, s.log.Partition(e.Session)
	err = l.prepareAndSend(ctx, p, &e, func(on uint64) (err error) {
		if l.Clustered() {
			w, err = s.queue(ctx, p, e)
		} else {
			w, err = s.begin(ctx, on, p, e)
		}
		return err
	})
	if err != nil {
		w, err = l.storedOr(ctx, p, e, err)
		s.end(err)
	}
	return w, err
}

// queue has an event stored together with those that wait.
func (s *Series) queue(ctx context.Context, p int, e Event) (*Publishing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return nil, s.failed
	}
	w := &Publishing{log: s.log, p: p, span: s.log.trace(ctx, &e, p)}
	w.queued = &queued{giveUp: s.giveUp, ctx: ctx, event: e, done: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	if !s.sending {
		s.sending = true
		s.log.watched.Go(s.send)
	}
	return w, nil
}

// begin begins an event on a connection, if it would overtake nothing. Otherwise it waits, and returns [errAgain].
func (s *Series) begin(ctx context.Context, on uint64, p int, e Event) (*Publishing, error) {
	quiet, err := s.enter(on, p, size(e.Data))
	if err != nil {
		return nil, err
	}
	if quiet != nil {
		select {
		case <-quiet:
			return nil, errAgain
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		}
	}
	w, err := s.log.begin(ctx, on, p, e)
	if err != nil {
		s.answered(err)
		return nil, err
	}
	w.answered = s.answered
	return w, nil
}

// enter counts one more event as under way, or returns what has to be waited for before it overtakes nothing.
func (s *Series) enter(on uint64, p int, size int64) (quiet <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		return nil, s.failed
	case s.unanswered > 0 && (s.on != on || s.log.parts[p].mayBeFull(size)):
		if s.quiet == nil {
			s.quiet = make(chan struct{})
		}
		return s.quiet, nil
	}
	s.on = on
	s.unanswered++
	return nil, nil
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
		s.store(all)
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

// store stores events of one partition in their order, and sets what became of each: together, or, if JetStream
// refuses that, one after the other, and no publisher waits for those after its own. It continues after those alone that
// are too large.
func (s *Series) store(all []*Publishing) {
	decided := len(all) > 1 && s.log.storeTogether(all[0].queued.ctx, all)
	var failed error
	for _, w := range all {
		q := w.queued
		if !decided {
			if q.err = failed; failed == nil {
				q.ack, q.err = s.log.publish(q.ctx, w.p, q.event.message(w.p))
			}
		}
		if failed == nil && ends(q.err) {
			s.fail(q.err)
			failed = notSent(q.err)
		}
		close(q.done)
	}
}

// ends reports whether what comes after an event with this error is not sent.
func ends(err error) bool {
	return err != nil && !errors.Is(err, ErrTooLarge) && !errors.Is(err, errAgain)
}

// notSent is what becomes of an event after one that failed. It is known not to be
// stored, whatever is known of the other.
func notSent(err error) error {
	return fmt.Errorf("%w: %w: %s", ErrUnavailable, ErrSeriesFailed, err.Error())
}
