package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"rejoin/services/ingest/problem"
	"rejoin/services/ingest/streams"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// publish checks a message, registers its session on first use and stores the
// event. It returns after JetStream's acknowledgement. It tries twice only when the
// first attempt was for a life of the session that has ended, and was surely not stored.
// Errors are those that [problem.Of] knows; only [eventlog.ErrUnknown] leaves open whether
// the event was stored.
func (s *Service) publish(ctx context.Context, m message) (ack stored, err error) {
	if err = s.takeRate(m); err == nil {
		ack, err = s.publishOnce(ctx, &m)
	}
	if errors.Is(err, problem.ErrOpenedAgain) {
		ack, err = s.publishOnce(ctx, &m)
	}
	s.count(ctx, m, ack, err)
	return ack, err
}

// publishOnce is one attempt of publish.
func (s *Service) publishOnce(ctx context.Context, m *message) (stored, error) {
	u, err := s.send(ctx, m, 0)
	if err != nil {
		return stored{}, err
	}
	return u.await()
}

// takeRate counts a message for its publisher; on NATS the publisher is unknown. The error is
// a [*problem.RateError].
func (s *Service) takeRate(m message) error {
	if m.trusted {
		return nil
	}
	if wait := s.publishers.Take(m.publisher); wait > 0 {
		return &problem.RateError{Of: "publisher", What: "messages", Wait: wait}
	}
	return nil
}

// inFlight is a message that was sent to the log. await or awaitCounted must be called.
type inFlight struct {
	service    *Service
	session    session.Record
	message    message
	ctx        context.Context //nolint:containedctx // bounds the acknowledgement
	cancel     context.CancelFunc
	begun      time.Time
	publishing *eventlog.Publishing
}

// send checks and compacts a message, opens its session and sends the event to the log, without waiting for
// the acknowledgement. patience is how long it waits while too much is in flight.
func (s *Service) send(ctx context.Context, m *message, patience time.Duration) (_ *inFlight, err error) {
	if err := m.check(s.backend.Log.Settings().MaxMessageBytes); err != nil {
		return nil, err
	}
	if s.cfg.Messages == MessagesJSONRPC {
		if err := event.CheckRPC(m.data); err != nil {
			return nil, err
		}
	}
	m.compact()
	if err := s.takeShared(ctx, m.sharer(), patience); err != nil {
		return nil, err
	}
	u := &inFlight{service: s, message: *m}
	u.ctx, u.cancel = s.limit(ctx, s.cfg.AckTimeout)
	defer func() {
		if err != nil {
			u.releaseSlot()
		}
	}()
	if u.session, err = s.open(u.ctx, *m); err != nil {
		return nil, err
	}
	if u.session.JSONRPC && s.cfg.Messages != MessagesJSONRPC {
		if err := event.CheckRPC(m.data); err != nil {
			return nil, err
		}
	}
	if m.batch != nil {
		if err := m.batch.keep(u.session.Life); err != nil {
			return nil, err
		}
	}
	// Only now: a client that may not publish to a session must not use up the session's rate.
	if wait := s.perSession.Take(m.session); wait > 0 {
		return nil, &problem.RateError{Of: "session", What: "messages", Wait: wait}
	}
	first := false
	if err := s.admitStream(u.ctx, u.session, func() (err error) { // a message that was refused above opens no stream
		u.begun = time.Now()
		first, err = s.streams.Enter(u.session, m.stream, u.begun)
		return err
	}); err != nil {
		return nil, err
	}
	publish := s.backend.Log.PublishAsync
	if m.batch != nil {
		publish = m.batch.series.PublishAsync
	}
	u.publishing, err = publish(u.ctx, eventlog.Event{
		Session: m.session, Life: u.session.Life, Stream: m.stream,
		Type: m.eventType, Data: m.data, Key: m.key, KeyIndex: m.keyIndex, Trace: m.trace,
	})
	if first {
		s.streams.Sent(u.session, m.stream, err == nil)
	}
	if err != nil {
		s.metrics.seconds.Observe(time.Since(u.begun).Seconds())
		return nil, u.refused(err)
	}
	return u, nil
}

// awaitCounted is await, which counts the message.
func (u *inFlight) awaitCounted() (stored, error) {
	ack, err := u.await()
	u.service.count(u.ctx, u.message, ack, err)
	return ack, err
}

// await returns when JetStream has acknowledged or refused the event, or when its outcome stays unknown.
func (u *inFlight) await() (stored, error) {
	defer u.releaseSlot()
	s := u.service
	at, err := u.publishing.Wait(u.ctx)
	s.metrics.seconds.Observe(time.Since(u.begun).Seconds())
	if err != nil {
		return stored{}, u.refused(err)
	}
	if !at.Duplicate {
		s.metrics.bytes.Add(float64(len(u.message.data)))
	}
	return stored{ID: s.eventID(u.session, u.message.stream, at), Duplicate: at.Duplicate}, nil
}

// refused returns the reason why JetStream refused an event because of its fence. It returns other errors unchanged.
func (u *inFlight) refused(err error) error {
	if !errors.Is(err, eventlog.ErrClosed) {
		return err
	}
	m := u.message
	u.service.streams.Ended(m.session, m.stream)
	u.service.endings.Add(m.session, u.session.Life, m.stream)
	why := u.whyEnded
	if m.batch != nil {
		why = func() error { return m.batch.once(u.whyEnded) }
	}
	return fmt.Errorf("%w: %w", problem.ErrFenced, m.mayBeRepeated(why()))
}

// whyEnded asks the log which has ended, the session or its stream: the copy of the registry may not have the end yet.
func (u *inFlight) whyEnded() error {
	s, m := u.service, u.message
	now, err := s.backend.Sessions.Get(u.ctx, m.session)
	switch {
	case errors.Is(err, session.ErrNotFound): // its tombstone is removed too
		return fmt.Errorf("%w: session %s", session.ErrClosed, m.session)
	case err != nil:
		return err
	case s.cfg.Access.On() && !m.trusted && !usedBy(m.grants)(now): // the name is another's now, or a member was taken out
		return session.ErrNotFound
	case now.State != session.Open:
		return fmt.Errorf("%w: session %s", session.ErrClosed, m.session)
	case now.Life != u.session.Life:
		return problem.ErrOpenedAgain
	default:
		return fmt.Errorf("%w: %w: stream %s", problem.ErrStreamClosed, session.ErrClosed, m.stream)
	}
}

// takeShared takes a slot among the publishes and closes under way, in the share of a client.
// patience is how long it waits for one; the caller gives it back to s.publishes. The error is problem.ErrBusy.
func (s *Service) takeShared(ctx context.Context, client string, patience time.Duration) error {
	if s.publishes.Take(client, 1) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience) // which has ended already when it is 0
	defer cancel()
	if s.publishes.Wait(ctx, client, 1) != nil {
		return problem.ErrBusy
	}
	return nil
}

// releaseSlot cancels the context of send and gives its slot back.
func (u *inFlight) releaseSlot() {
	u.cancel()
	u.service.publishes.Give(u.message.sharer(), 1)
}

// eventID names a stored event. A duplicate gets the ID that the first one got,
// though the partition may have begun another generation since.
func (s *Service) eventID(rec session.Record, stream string, at eventlog.Ack) string {
	state, _ := s.backend.Log.State(at.Partition)
	parts := event.TagParts{
		Origin: state.Origin, Generation: generationOf(at, state.Generations),
		Session: rec.Session, Life: rec.Life, Stream: stream,
	}
	prefix, ok := s.idPrefixes.Get(parts)
	if !ok {
		prefix = string(event.AppendIDPrefix(nil, parts.Stream, parts.Tag()))
		s.idPrefixes.Add(parts, prefix)
	}
	return prefix + strconv.FormatUint(at.Sequence, 10)
}

// maxPlaces bounds [Service.idPrefixes]: some 3 MB, 7 with the longest names.
const maxPlaces = 1 << 13

// generationOf returns the ID of the newest generation that had begun when the sequence of an acknowledgement was given.
func generationOf(at eventlog.Ack, generations []event.Generation) string {
	if i := slices.IndexFunc(generations, func(g event.Generation) bool { return g.ID == at.Generation }); i >= 0 {
		generations = generations[:i+1]
	}
	for _, g := range slices.Backward(generations[1:]) {
		if g.Start <= at.Sequence {
			return g.ID
		}
	}
	return generations[0].ID
}

// stillOpen returns an error that wraps [session.ErrClosed] when a stream is among the
// endings and the log has its end too: the log may have lost the end since.
func (s *Service) stillOpen(ctx context.Context, rec session.Record, m message) error {
	if !s.endings.Has(m.session, rec.Life, m.stream) {
		return nil
	}
	ended, err := s.ended(ctx, rec, m.stream)
	if ended {
		err = m.mayBeRepeated(fmt.Errorf("%w: %w: stream %s", problem.ErrStreamClosed, session.ErrClosed, m.stream))
	}
	return err
}

// ended reports whether the log has the end of a stream.
func (s *Service) ended(ctx context.Context, rec session.Record, stream string) (bool, error) {
	end := event.Subject{Partition: s.backend.Log.Partition(rec.Session), Session: rec.Session, Life: rec.Life, Stream: stream, Kind: event.End}
	return s.backend.Log.Has(ctx, end)
}

// endsAskedRate is how often a second the log is asked for the ends of a session's streams, after a burst.
const endsAskedRate = 1

// admitStream calls enter, which counts a stream of a session or checks whether it may count. Before
// the stream is refused with [streams.ErrTooMany] the log is asked which of those that count have
// ended at another ingest, in the caller's slot among the publishes. The error is a [*problem.RateError]
// if the log would be asked too often.
func (s *Service) admitStream(ctx context.Context, rec session.Record, enter func() error) error {
	err := enter()
	if !errors.Is(err, streams.ErrTooMany) {
		return err
	}
	if wait := s.looks.Take(rec.Session); wait > 0 {
		return &problem.RateError{Of: "session", What: "new streams", Wait: wait}
	}
	failed := s.streams.DropEnded(ctx, rec, func(ctx context.Context, stream string) (bool, error) {
		return s.ended(ctx, rec, stream)
	})
	if err = enter(); errors.Is(err, streams.ErrTooMany) && failed != nil {
		return failed
	}
	return err
}

// checkStream returns the error with which the stream of a message would be refused.
func (s *Service) checkStream(ctx context.Context, rec session.Record, m message) error {
	check := func() error { return s.streams.Check(rec, m.stream, time.Now()) }
	if err := check(); !errors.Is(err, streams.ErrTooMany) {
		return err
	}
	if err := s.takeShared(ctx, m.sharer(), s.cfg.AckTimeout); err != nil {
		return err
	}
	defer s.publishes.Give(m.sharer(), 1)
	return s.admitStream(ctx, rec, check)
}

// count counts and logs the outcome of a message.
func (s *Service) count(ctx context.Context, m message, ack stored, err error) {
	s.metrics.publishedAs(ack, err)
	s.log.published(ctx, m, ack, err)
}
