package eventlog

import (
	"context"
	"fmt"
	"slices"
)

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
	w.queued = &queued{series: s, ctx: ctx, event: e, done: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	if !s.sending {
		s.sending = true
		go s.send()
	}
	return w, nil
}

// beginSingly begins an event as soon as it would overtake nothing.
func (s *Series) beginSingly(ctx context.Context, p int, e Event) (*Publishing, error) {
	release, err := s.enter(ctx, p)
	if err != nil {
		s.end(err)
		return nil, err
	}
	defer release()
	w, err := s.log.send(ctx, p, e, s.route(p, e))
	if err != nil {
		s.settled(err)
		return nil, err
	}
	w.series = s
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

// enter counts one more event as under way, once nothing is on another connection, and keeps
// the connection from being made again until release is called.
func (s *Series) enter(ctx context.Context, p int) (release func(), err error) {
	for {
		release, quiet, err := s.tryEnter()
		if release != nil || err != nil {
			return release, err
		}
		select {
		case <-quiet:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		}
		if _, err := s.log.settle(ctx, p); err != nil {
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
func (s *Series) tryEnter() (release func(), quiet <-chan struct{}, err error) {
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
	case s.on != now && s.unsettled > 0:
		release()
		if s.quiet == nil {
			s.quiet = make(chan struct{})
		}
		return nil, s.quiet, nil
	}
	s.on = now
	s.unsettled++
	return release, nil, nil
}

// settled notes what became of an event that was sent at once.
func (s *Series) settled(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsettled--
	s.endLocked(err)
	if s.unsettled == 0 && s.quiet != nil {
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
	n := together(s.waiting)
	all := s.waiting[:n:n]
	s.waiting = s.waiting[n:]
	return all
}

// end ends the series behind what was begun, if an error does.
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
