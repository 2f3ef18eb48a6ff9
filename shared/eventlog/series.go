package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Series stores events of one session in the order in which they are begun, as far as they
// are stored.
//
// Events in flight when the connection to NATS is lost may be lost too, and events on the
// next connection would overtake them: so no event is begun there before all events of
// another connection are answered. In a cluster the same holds for the leader of a partition,
// but the client learns of a new leader too late. So no event is sent there before all earlier
// ones are acknowledged, and the events that wait meanwhile follow together, in an atomic batch
// (nats-server's ADR-50), of which all are stored or none.
//
// A server that refuses an event for want of room still stores smaller ones that follow it. So
// while the partition may have no room for the next event ([partition.mayBeFull]), that one is
// begun only after all before it are answered.
//
// Once an event is not stored, or its outcome is unknown, all events that wait after it or
// are begun later are not stored and fail with [ErrSeriesFailed]. Only [ErrTooLarge] does
// not end a series.
//
// A Series belongs to one goroutine, which publishes its events. Another one calls Wait for
// each, in any order: PublishAsync may wait for that.
type Series struct {
	log *Log

	mu     sync.Mutex
	failed error // of all later events, once the series has ended

	// Events that are sent at once:
	on         uint64        // the connection that they are begun on
	unanswered int           // how many have no answer yet
	quiet      chan struct{} // closed when unanswered is 0 again; nil unless PublishAsync waits for that

	// Events that are sent together:
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
		if l.Clustered() { // one server takes them in their order; see [Log.batches] for those that are stored together
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

// queue adds an event to the waiting ones, which are stored together.
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

// begin begins an event on a connection, if it would overtake no other. Otherwise it waits, and returns [errAgain].
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

// enter counts one more event in flight, or returns the channel to wait for if it would overtake another.
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

// answered notes the outcome of an event that was sent at once.
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

// send stores the waiting events until none is left.
func (s *Series) send() {
	for all := s.next(); all != nil; all = s.next() {
		s.store(all)
	}
}

// next returns the events to send together, or nil when none waits any more.
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

// end ends the series after the events that were begun, if err is an error that ends it.
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

// giveUp ends the series if the event still waits, which is then not sent. An event in flight
// may be stored, and ends the series if it is not.
func (s *Series) giveUp(q *queued, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.waiting, func(w *Publishing) bool { return w.queued == q }) {
		s.failLocked(err)
	}
}

// fail ends the series: waiting events are not stored either.
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

// store stores events of one partition in their order, and sets the outcome of each: together, or, if JetStream
// refuses that, one after the other, where no publisher waits for the events after its own. Only events that are too
// large do not end the series.
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

// ends reports whether an event with this error ends its series.
func ends(err error) bool {
	return err != nil && !errors.Is(err, ErrTooLarge) && !errors.Is(err, errAgain)
}

// notSent returns the error of an event after one that failed with err. It is surely not
// stored, also when the outcome of the other is unknown.
func notSent(err error) error {
	return fmt.Errorf("%w: %w: %s", ErrUnavailable, ErrSeriesFailed, err.Error())
}
