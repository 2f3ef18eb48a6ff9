package ingest

import (
	"context"
	"fmt"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// message is one event on its way into the log, whatever brought it here.
type message struct {
	session, stream string
	eventType       string // the SSE event type, or empty
	key             string // the idempotency key, or empty
	trace           string // a well-formed traceparent, or empty
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
func (s *Service) publish(ctx context.Context, m message) (ack stored, err error) {
	defer func() { s.metrics.publishedAs(ack, err) }()
	if err := m.check(s.backend.Log.Settings().MaxMessageBytes); err != nil {
		return stored{}, err
	}
	select {
	case s.inflight <- struct{}{}:
		s.metrics.inflight.Inc()
	default:
		return stored{}, errBusy
	}
	defer func() {
		s.metrics.inflight.Dec()
		<-s.inflight
	}()

	ctx, cancel := context.WithTimeout(ctx, s.cfg.AckTimeout)
	defer cancel()
	rec, err := s.open(ctx, m.session, m.stream)
	if err != nil {
		return stored{}, err
	}
	start := time.Now()
	at, err := s.backend.Log.Publish(ctx, eventlog.Event{
		Session: m.session, Stream: m.stream, Type: m.eventType, Data: m.data, Key: m.key, Trace: m.trace,
	})
	s.metrics.seconds.Observe(time.Since(start).Seconds())
	if err != nil {
		return stored{}, err
	}
	return stored{ID: s.eventID(rec, m.stream, at), Duplicate: at.Duplicate}, nil
}

func (m message) check(maxBytes int) error {
	if err := event.CheckSession(m.session); err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if err := event.CheckStream(m.stream); err != nil {
		return fmt.Errorf("stream: %w", err)
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

// open returns the session's record when session and stream take messages.
//
// What it says is true at some moment after the call, and the publish that
// follows ends within AckTimeout of the call: so a close that was not seen here
// writes its marker after that publish. A copy of the registry that is not
// current would break this, since whatever happened while the connection was
// away is missing from it.
func (s *Service) open(ctx context.Context, name, stream string) (session.Record, error) {
	sessions := s.backend.Sessions
	if err := sessions.Current(ctx); err != nil {
		return session.Record{}, err
	}
	rec, err := sessions.Register(ctx, name, "")
	if err != nil {
		return session.Record{}, err
	}
	if err := sessions.CheckOpen(name, stream); err != nil {
		if now, ok := sessions.Session(name); ok && now.State == session.Open {
			err = fmt.Errorf("%w: %w", errStreamClosed, err)
		}
		return session.Record{}, err
	}
	return rec, nil
}

// eventID names a stored event. A duplicate gets the ID that the first one got,
// though the partition may have begun another generation since.
func (s *Service) eventID(rec session.Record, stream string, at eventlog.Ack) string {
	state, _ := s.backend.Log.State(at.Partition)
	place := event.Place{
		Birth: state.Birth, Generation: generationOf(at.Sequence, state.Generations),
		Session: rec.Session, Incarnation: rec.Incarnation, Stream: stream,
	}
	return event.ID{Stream: stream, Tag: place.Tag(), Sequence: at.Sequence}.String()
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
