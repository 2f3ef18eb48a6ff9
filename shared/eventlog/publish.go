package eventlog

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"rejoin/shared/event"
	"rejoin/shared/natsconn"
	"rejoin/shared/tracing"
)

// Event is an event to publish.
type Event struct {
	// Session and Stream are names that were checked.
	Session, Stream string
	// Life is the session's life, which its opening names ([Log.Opening]). Without one the
	// event has no fence: it is stored even after the end of its stream or session.
	Life string
	// Sole says that only the caller writes to the stream. It then has no birth, and
	// its events are fenced on the seal of the life, not on the stream's end.
	Sole bool
	// Type is the SSE event type; empty and "message" are the same.
	Type string
	// Data is the message, stored unchanged.
	Data []byte
	// Key is an idempotency key: a second event with the same session, stream, key
	// and index within the log's duplicate window (2 min) is not stored. Empty means
	// none.
	Key string
	// KeyIndex is the index of the event among those that share the key.
	KeyIndex uint64
	// Final marks the stream's last event.
	Final bool
	// Trace is the trace context of the publisher, or none.
	Trace tracing.Context
	// Index is the publisher's own count of the stream's events, as text of its own;
	// empty means none.
	Index string
}

// Ack says where an event was stored.
type Ack struct {
	Partition int
	Sequence  uint64
	// Duplicate says that the event was stored before, at Sequence, and not again.
	Duplicate bool
	// Generation is the ID of the partition's newest one when the event was sent, or empty: by the time that the
	// acknowledgement is read, the event may be lost in a later one.
	Generation string
}

// entryOverhead is roughly the size of an event in a partition without its data: subject, headers and
// the record of the file store.
const entryOverhead = 256

// size returns the rough size of an event with this data in its partition.
func size(data []byte) int64 { return int64(len(data) + entryOverhead) }

// Publish stores an event and returns when JetStream has acknowledged it. It sends an event again only
// if JetStream has refused it because another message with the same fence was in flight: then it was
// surely not stored.
//
// Errors wrap [ErrUnavailable], [ErrFull], [ErrTooLarge] or [ErrClosed] when the event was
// not stored, and [ErrUnknown] when the outcome is unknown, as when ctx ends first.
func (l *Log) Publish(ctx context.Context, e Event) (Ack, error) {
	w, err := l.PublishAsync(ctx, e)
	if err != nil {
		return Ack{}, err
	}
	return w.Wait(ctx)
}

// message returns the NATS message of an event.
func (e Event) message(p int) *nats.Msg {
	subject := event.Subject{Partition: p, Session: e.Session, Life: e.Life, Stream: e.Stream}
	msg := &nats.Msg{Subject: subject.String(), Header: make(nats.Header, 4), Data: e.Data}
	if e.Life != "" {
		setFence(msg, e.fence(p))
	}
	if e.Type != "" && e.Type != event.DefaultType {
		msg.Header.Set(HeaderType, e.Type)
	}
	if e.Key != "" {
		msg.Header.Set(jetstream.MsgIDHeader, MessageID(e.Session, e.Life, e.Stream, e.Key, e.KeyIndex))
	}
	if e.Final {
		msg.Header.Set(HeaderFinal, "1")
	}
	e.Trace.Set(msg.Header.Set)
	if e.Index != "" {
		msg.Header.Set(HeaderIndex, e.Index)
	}
	return msg
}

// Publishing is an event in flight.
type Publishing struct {
	log      *Log
	p        int
	future   jetstream.PubAckFuture
	answered func(error) // is called with the outcome, if a series has sent it at once
	queued   *queued     // instead of future, when a series or a gather sends it, or it was stored before and is refused now
	span     trace.Span  // nil when the event is in no trace
	sentIn   string      // the ID of the newest generation when future was sent
}

// PublishAsync sends an event to the log without waiting for the acknowledgement; Wait sends again
// as [Log.Publish] does. A [Series] keeps several events in order. Data must not change until
// Wait has returned. A span of the publish is a child of ctx's, or of e.Trace when ctx has
// none; see [Log.TraceTo].
//
// Errors are those of [Log.Publish]: after an error the event is not stored, unless the error
// wraps [ErrUnknown].
func (l *Log) PublishAsync(ctx context.Context, e Event) (w *Publishing, err error) {
	p := l.Partition(e.Session)
	err = l.prepareAndSend(ctx, p, &e, func(on uint64) (err error) {
		w, err = l.begin(ctx, on, p, e)
		return err
	})
	if err != nil {
		return l.storedOr(ctx, p, e, err)
	}
	return w, nil
}

// begin begins to publish an event on a connection.
func (l *Log) begin(ctx context.Context, on uint64, p int, e Event) (*Publishing, error) {
	w := &Publishing{log: l, p: p, span: l.trace(ctx, &e, p)}
	if e.Life != "" && l.batches(p) {
		w.queued = &queued{ctx: ctx, event: e, done: make(chan struct{})}
		l.join(w)
		return w, nil
	}
	var err error
	state, _ := l.State(p)
	w.sentIn = state.Generation().ID
	if w.future, err = l.send(on, p, e.message(p)); err != nil {
		endSpan(w.span, Ack{}, err)
		return nil, err
	}
	return w, nil
}

// batches reports whether atomic batches pay in a partition: without replicas a batch is written twice.
func (l *Log) batches(p int) bool {
	state, _ := l.State(p)
	return state.Limits.Replicas > 1
}

// prepareAndSend checks an event's size, waits until its partition may be published to, stores the birth of its stream if
// there is none, and calls send with the connection for which both hold: again, while send returns [errAgain]. For a
// message that is no event, e is nil.
func (l *Log) prepareAndSend(ctx context.Context, p int, e *Event, send func(on uint64) error) error {
	if e != nil && len(e.Data) > l.Settings().MaxMessageBytes {
		return ErrTooLarge
	}
	for {
		on, err := l.writable(ctx, p)
		if err == nil && e != nil && e.Life != "" && !e.Sole {
			err = l.ensureBirth(ctx, on, event.Subject{Partition: p, Session: e.Session, Life: e.Life, Stream: e.Stream, Kind: event.Birth})
		}
		switch {
		case err != nil:
		case ctx.Err() != nil: // the term of a janitor ends with its connection
			err = fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		default:
			err = send(on)
		}
		if !errors.Is(err, errAgain) {
			return err
		}
	}
}

// storedOr returns the event as stored if err refuses it because its stream has ended, and it was stored
// before the end.
func (l *Log) storedOr(ctx context.Context, p int, e Event, err error) (*Publishing, error) {
	if !errors.Is(err, ErrClosed) || e.Key == "" {
		return nil, err
	}
	q := &queued{done: make(chan struct{})}
	close(q.done)
	if q.ack, err = l.storedBefore(ctx, p, e.message(p), err); err != nil {
		return nil, err
	}
	return &Publishing{log: l, p: p, queued: q}, nil
}

// ensureBirth makes sure that a stream has a birth in the partition as it is known on a connection, before an event
// is stored. Of several callers at once, one stores it for all. Errors are those of [Log.Publish]; [ErrClosed]
// means that the session has ended.
func (l *Log) ensureBirth(ctx context.Context, on uint64, at event.Subject) error {
	births := l.parts[at.Partition].births
	for {
		state, _ := l.State(at.Partition)
		now, own := birth{at, state.Generation().ID, on}, false
		if _, known := births.known.Get(now); known {
			return nil
		}
		_, err, _ := births.storing.Do(at.String(), func() (any, error) {
			own = true
			err := l.publishBirth(ctx, on, at)
			if err == nil {
				births.known.Add(now, struct{}{})
			}
			return nil, err
		})
		switch {
		case own, errors.Is(err, ErrClosed), errors.Is(err, errAgain):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%w: the birth of the stream: %w", ErrUnavailable, ctx.Err())
		}
	}
}

// publishBirth stores the birth of a stream, unless there is one, in the life that its session has:
// of a life that ended long ago the log has neither a seal nor an opening any more.
//
// An existing birth is enough, also in a sealed life: when a life ends, each stream with a birth gets an
// end, which stays in the log for as long as that of the life. A second birth would hide the janitor's
// copy of the first one (see [Log.LossesAfter]).
func (l *Log) publishBirth(ctx context.Context, on uint64, at event.Subject) error {
	o, err := l.Opening(ctx, at.Session)
	if ask := l.openLife.Load(); errors.Is(err, ErrNotFound) && ask != nil { // a power cut may have taken the opening
		o.Life, err = (*ask)(ctx, at.Session)
	}
	switch {
	case err == nil && o.Life != at.Life:
		return fmt.Errorf("%w: the session has another life, or none", ErrClosed)
	case err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrMismatch):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if _, err = l.NewestSequence(ctx, at); err == nil {
		return nil
	}
	if !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	msg := nats.NewMsg(at.String())
	setFence(msg, event.Subject{Partition: at.Partition, Session: at.Session, Life: at.Life, Kind: event.Seal})
	_, err = l.publishOn(ctx, on, at.Partition, msg)
	if errors.Is(err, ErrUnknown) {
		return fmt.Errorf("%w: the birth of the stream: %s", ErrUnavailable, err.Error()) // the event itself was not sent
	}
	return err
}

// Wait waits for JetStream's acknowledgement of the event. Errors are those
// of [Log.Publish]. It must be called once.
func (w *Publishing) Wait(ctx context.Context) (ack Ack, err error) {
	defer func() { endSpan(w.span, ack, err) }()
	if w.answered != nil {
		defer func() { w.answered(err) }()
	}
	if w.queued != nil {
		return w.queued.wait(ctx)
	}
	stored, err := await(ctx, w.future)
	if fenceBusy(err) && pause(ctx) {
		return w.log.publish(ctx, w.p, w.future.Msg())
	}
	ack, err = w.log.outcome(ctx, w.p, w.future.Msg(), stored, err)
	ack.Generation = w.sentIn
	return ack, err
}

// await returns JetStream's answer.
func await(ctx context.Context, future jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	select {
	case ack := <-future.Ok():
		return ack, nil
	case err := <-future.Err():
		return nil, err
	case <-ctx.Done():
		future.Msg().Header, future.Msg().Data = nil, nil // nats.go holds the message until it is answered, or for forgetBegun
		return nil, ctx.Err()
	}
}

func (l *Log) ack(p int, subject string, ack *jetstream.PubAck) (Ack, error) {
	if ack.Stream != streamName(p) {
		return Ack{}, fmt.Errorf("%w: %s is stored in %s", ErrMismatch, subject, ack.Stream)
	}
	return Ack{Partition: p, Sequence: ack.Sequence, Duplicate: ack.Duplicate}, nil
}

// publish stores one message and waits for its acknowledgement, once its partition may be published to.
func (l *Log) publish(ctx context.Context, p int, msg *nats.Msg) (ack Ack, err error) {
	err = l.prepareAndSend(ctx, p, nil, func(on uint64) (err error) {
		ack, err = l.publishOn(ctx, on, p, msg)
		return err
	})
	return ack, err
}

// publishOn is publish on a connection. The error is [errAgain] when a newer connection was made.
func (l *Log) publishOn(ctx context.Context, on uint64, p int, msg *nats.Msg) (Ack, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requestTimeout)
		defer cancel()
	}
	for {
		future, err := l.send(on, p, msg)
		if err != nil {
			return Ack{}, err
		}
		stored, err := await(ctx, future)
		if !fenceBusy(err) || !pause(ctx) {
			return l.outcome(ctx, p, msg, stored, err)
		}
	}
}

// outcome returns the outcome of a message by JetStream's answer, or by the error that came instead.
func (l *Log) outcome(ctx context.Context, p int, msg *nats.Msg, stored *jetstream.PubAck, err error) (Ack, error) {
	if err == nil {
		return l.ack(p, msg.Subject, stored)
	}
	if fenced(err) && msg.Header.Get(jetstream.ExpectedLastSubjSeqSubjHeader) == "" { // it names no fence but its own subject
		return Ack{}, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	err = publishError(err)
	if errors.Is(err, ErrFull) {
		l.parts[p].roomUntil.Store(0) // the next look finds out whether there is room again
	}
	if errors.Is(err, ErrClosed) && msg.Header.Get(jetstream.MsgIDHeader) != "" {
		return l.storedBefore(ctx, p, msg, err)
	}
	return Ack{}, err
}

// errorRollup is JetStream's error for a message with a rollup that it does not know.
const errorRollup jetstream.ErrorCode = 10111

// storedBefore looks for an event with an idempotency key that is refused because its stream
// has ended: it may have been stored before the end. A single server looks at the fence
// before the key (in a cluster it is the other way round). All look at the rollup after the key,
// so the probe asks for one that no server knows: a message with it is never stored.
func (l *Log) storedBefore(ctx context.Context, p int, msg *nats.Msg, closed error) (Ack, error) {
	probe := nats.NewMsg(msg.Subject)
	probe.Header.Set(jetstream.MsgIDHeader, msg.Header.Get(jetstream.MsgIDHeader))
	probe.Header.Set(jetstream.MsgRollup, "none")
	ack, err := l.js.PublishMsg(ctx, probe, jetstream.WithRetryAttempts(0))
	if err == nil {
		return l.ack(p, msg.Subject, ack)
	}
	if natsconn.Code(err) == errorRollup {
		return Ack{}, closed
	}
	return Ack{}, fmt.Errorf("%w: it is not known whether the event was stored before its stream ended: %s", ErrUnknown, err.Error())
}

// A fence is a subject that must have no entry: JetStream checks that atomically with the
// store (headers Nats-Expected-Last-Subject-Sequence and …-Subject). It names one literal
// subject, since in a cluster the leader knows its proposed and not yet applied messages by
// exact subject only, and it expects no entry, since to look at one in an old block would
// load that block with every publish.

// fence returns the subject that must be empty for the event to be stored.
func (e Event) fence(p int) event.Subject {
	if e.Sole {
		return event.Subject{Partition: p, Session: e.Session, Life: e.Life, Kind: event.Seal}
	}
	return event.Subject{Partition: p, Session: e.Session, Life: e.Life, Stream: e.Stream, Kind: event.End}
}

func setFence(msg *nats.Msg, on event.Subject) {
	msg.Header[jetstream.ExpectedLastSubjSeqHeader] = noEntry
	msg.Header[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{on.String()}
}

// noEntry is the sequence that a subject without an entry has.
var noEntry = []string{"0"}

// longestPause is how long a message waits at most before it is sent again: about as long
// as a majority takes to store the one before it.
const longestPause = 4 * time.Millisecond

// pause waits for a moment, and reports whether ctx is not done.
func pause(ctx context.Context) bool {
	return natsconn.Pause(ctx, rand.N(longestPause)) //nolint:gosec // no secret
}

// MessageID returns the Nats-Msg-Id of an event with an idempotency key: a hash
// over the length-prefixed session, life, stream and key, and the index in the request.
// JetStream's duplicate window spans a partition, so the key alone would not do.
func MessageID(session, life, stream, key string, index uint64) string {
	var b []byte
	for _, f := range []string{session, life, stream, key} {
		b = binary.AppendUvarint(b, uint64(len(f)))
		b = append(b, f...)
	}
	sum := sha256.Sum256(binary.AppendUvarint(b, index))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// TraceTo has publishes make spans from now on. It is called before the first one.
func (l *Log) TraceTo(t *tracing.Traces) { l.traces = t }

// trace begins the span of a publish, and makes it the event's trace context. The span is nil,
// and the context stays the publisher's, when the event is not sampled: so the spans of other
// programs stay joined when Rejoin takes no traces.
func (l *Log) trace(ctx context.Context, e *Event, p int) trace.Span {
	if !l.traces.On() {
		return nil
	}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = e.Trace.Within(ctx)
	}
	_, span := l.traces.Start(ctx, tracing.Publish.Name, trace.SpanKindProducer)
	if !span.SpanContext().IsSampled() {
		return nil
	}
	e.Trace = tracing.Of(span.SpanContext())
	span.SetAttributes(tracing.Publish.OnEvent(event.Subject{Partition: p, Session: e.Session, Life: e.Life, Stream: e.Stream})...)
	span.SetAttributes(semconv.MessagingMessageBodySize(len(e.Data)))
	return span
}

// endSpan ends the span of a publish; nil is none.
func endSpan(span trace.Span, ack Ack, err error) {
	if span == nil {
		return
	}
	if err != nil {
		tracing.Fail(span)
	} else {
		span.SetAttributes(semconv.MessagingMessageID(strconv.FormatUint(ack.Sequence, 10)), tracing.KeyDuplicate.Bool(ack.Duplicate))
	}
	span.End()
}
