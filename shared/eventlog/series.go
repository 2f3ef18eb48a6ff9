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
// Nothing is sent before all that was sent earlier is answered: what is on its way when the connection to NATS, or in a
// cluster the leader of the partition, is lost may be lost too, and what is sent on the next one would overtake it. What
// waits meanwhile follows together: to a server that is alone on one connection, in a cluster in an atomic batch
// (nats-server's ADR-50), of which all is stored or nothing.
//
// A server that refuses an event for want of room still stores smaller ones that follow it. So
// while the partition may have no room for what waits ([partition.mayBeFull]), each of it is
// sent only after the one before it is answered.
//
// After an event that is not stored, or of which it is not known, what waits after it is
// not stored and fails with [ErrSeriesFailed]; so does what is begun later. It continues
// after those alone that are too large.
//
// A Series belongs to one goroutine, which publishes its events. Another one calls Wait for
// each, in any order.
type Series struct {
	log *Log

	mu      sync.Mutex
	failed  error // what ended the series
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
	if !l.Clustered() {
		l.storeOnOne(all)
		return
	}
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

// storeOnOne sends events on one connection, one right after the other.
func (l *Log) storeOnOne(all []*Publishing) {
	p, size := all[0].p, int64(0)
	for _, w := range all {
		size += w.queued.event.size()
	}
	full := l.parts[p].mayBeFull(size)
	if l.parts[p].sent.Add(size); full && len(all) > 1 {
		l.storeSingly(all, false)
		return
	}
	release, failed := l.hold(all[0].queued.ctx, p)
	all[0].queued.err = failed
	for i, w := range all {
		if failed == nil {
			if w.future, w.queued.err = l.begin(p, w.queued.event); ends(w.queued.err) {
				failed = w.queued.err
			}
		} else if i > 0 {
			w.queued.err = notSent(failed)
		}
	}
	release()
	for _, w := range all {
		if w.future != nil {
			w.queued.ack, w.queued.err = l.await(w.queued.ctx, p, w.future)
		}
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
