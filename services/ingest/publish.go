package ingest

import (
	"context"
	"fmt"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
)

// message is one event on its way into the log, whatever brought it here.
type message struct {
	session, stream string
	eventType       string // the SSE event type, or empty
	key             string // the idempotency key, or empty
	keyIndex        uint64 // of the message among those with the key
	trace           tracing.Context
	publisher       string           // whom its rate is counted for
	owner           string           // who publishes it over HTTP; empty without access control
	expires         time.Time        // when its token does; zero without one
	trusted         bool             // it came on NATS, whose access control is its own
	series          *eventlog.Series // that it is one of, or nil
	data            []byte
}

// stored is what a publisher is told of an event in the log.
type stored struct {
	ID        string `json:"id"`
	Duplicate bool   `json:"duplicate"`
}

// publish checks a message, registers its session on first use and stores the
// event. It returns after JetStream's acknowledgement and never tries twice: a
// second try could overtake the event behind it. Errors are those that [problem]
// knows; only [eventlog.ErrUnknown] leaves open whether the event was stored.
func (s *Service) publish(ctx context.Context, m message) (stored, error) {
	if err := s.turn(m); err != nil {
		s.refused(ctx, m, err)
		return stored{}, err
	}
	under, err := s.begin(ctx, m)
	if err != nil {
		return stored{}, err
	}
	return under.wait()
}

// underWay is a message that was handed to the log. wait must be called.
type underWay struct {
	service    *Service
	session    session.Record
	message    message
	ctx        context.Context //nolint:containedctx // bounds the acknowledgement
	cancel     context.CancelFunc
	begun      time.Time
	publishing *eventlog.Publishing
}

// begin is the first half of publish, without the wait for the acknowledgement.
func (s *Service) begin(ctx context.Context, m message) (*underWay, error) {
	u, err := s.attempt(ctx, m, 0)
	if err != nil {
		s.refused(ctx, m, err)
	}
	return u, err
}

// attempt is begin, which its caller counts. patience is how long it waits while too much
// is under way.
func (s *Service) attempt(ctx context.Context, m message, patience time.Duration) (_ *underWay, err error) {
	if err := m.check(s.backend.Log.Settings().MaxMessageBytes); err != nil {
		return nil, err
	}
	if err := s.enter(ctx, patience); err != nil {
		return nil, err
	}
	u := &underWay{service: s, message: m}
	u.ctx, u.cancel = context.WithTimeout(ctx, s.cfg.AckTimeout)
	defer func() {
		if err != nil {
			u.leave()
		}
	}()
	if u.session, err = s.open(u.ctx, m); err != nil {
		return nil, err
	}
	// Only now: who may not publish to a session must not use up its rate.
	if wait := s.perSession.Take(m.session); wait > 0 {
		return nil, &rateError{"session", wait}
	}
	u.begun = time.Now()
	u.publishing, err = s.hand(u.ctx, m.series, eventlog.Event{
		Session: m.session, Stream: m.stream, Type: m.eventType, Data: m.data, Key: m.key, KeyIndex: m.keyIndex, Trace: m.trace,
	})
	if err != nil {
		s.metrics.seconds.Observe(time.Since(u.begun).Seconds())
		return nil, err
	}
	return u, nil
}

// hand gives the log an event, in its series if it is of one.
func (s *Service) hand(ctx context.Context, series *eventlog.Series, e eventlog.Event) (*eventlog.Publishing, error) {
	if series == nil {
		return s.backend.Log.Begin(ctx, e)
	}
	return series.Begin(ctx, e)
}

// wait is the second half of publish.
func (u *underWay) wait() (ack stored, err error) {
	defer u.leave()
	s := u.service
	at, err := u.publishing.Wait(u.ctx)
	s.metrics.seconds.Observe(time.Since(u.begun).Seconds())
	if err == nil {
		ack = stored{ID: s.eventID(u.session, u.message.stream, at), Duplicate: at.Duplicate}
		if !at.Duplicate {
			s.metrics.bytes.Add(float64(len(u.message.data)))
		}
	}
	s.metrics.publishedAs(ack, err)
	s.log.published(u.ctx, u.message, ack, err)
	return ack, err
}

// enter takes a place among the publishes under way. The error is errBusy.
func (s *Service) enter(ctx context.Context, patience time.Duration) error {
	select {
	case s.inflight <- struct{}{}:
	default:
		if !s.queue(ctx, patience) {
			return errBusy
		}
	}
	s.metrics.inflight.Inc()
	return nil
}

// queue waits for a place, and reports whether it got one.
func (s *Service) queue(ctx context.Context, patience time.Duration) bool {
	if patience == 0 {
		return false
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case s.inflight <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// leave ends what begin began.
func (u *underWay) leave() {
	u.cancel()
	u.service.metrics.inflight.Dec()
	<-u.service.inflight
}

// checkNames checks session and stream.
func (m message) checkNames() error {
	if err := event.CheckSession(m.session); err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if err := event.CheckStream(m.stream); err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	return nil
}

func (m message) check(maxBytes int) error {
	if err := m.checkNames(); err != nil {
		return err
	}
	if m.eventType != "" {
		if err := event.CheckType(m.eventType); err != nil {
			return err
		}
	}
	if len(m.data) > maxBytes {
		return eventlog.ErrTooLarge
	}
	return event.CheckMessage(m.data)
}

// open returns the record of a message's session when session and stream take messages.
//
// What it says is true at some moment after the call, and the publish that
// follows ends within AckTimeout of the call: so a close that was not seen here
// writes its marker after that publish. A copy of the registry that is not
// current would break this, since whatever happened while the connection was
// away is missing from it.
func (s *Service) open(ctx context.Context, m message) (session.Record, error) {
	sessions := s.backend.Sessions
	if err := sessions.Current(ctx); err != nil {
		return session.Record{}, err
	}
	rec, err := s.admit(ctx, m)
	if err != nil {
		return session.Record{}, err
	}
	if closed, ok := sessions.Stream(m.session, m.stream); ok && closed.State != session.Open {
		return session.Record{}, fmt.Errorf("%w: %w: stream %s", errStreamClosed, session.ErrClosed, m.stream)
	}
	return rec, s.streams.enter(rec, m.stream, time.Now())
}

// eventID names a stored event. A duplicate gets the ID that the first one got,
// though the partition may have begun another generation since.
func (s *Service) eventID(rec session.Record, stream string, at eventlog.Ack) string {
	state, _ := s.backend.Log.State(at.Partition)
	place := event.Place{
		Birth: state.Birth, Generation: generationOf(at.Sequence, state.Generations),
		Session: rec.Session, Incarnation: rec.Incarnation, Stream: stream,
	}
	return s.ids.of(place, at.Sequence)
}

// generationOf returns the ID of the newest generation that had begun when a
// sequence was given.
func generationOf(sequence uint64, generations []event.Generation) string {
	for i := len(generations) - 1; i > 0; i-- {
		if generations[i].Start <= sequence {
			return generations[i].ID
		}
	}
	return generations[0].ID
}
