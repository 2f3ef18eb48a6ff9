package edge

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
	"rejoin/shared/tracing"
)

const (
	// maxTrails is how many events' trails a window has. An event whose trail is forgotten
	// is delivered without a span.
	maxTrails = 1024
	// maxDeliveries is how many deliveries of an event an edge makes spans of.
	maxDeliveries = 16
)

// trail is the trace of an event that is sampled. It is safe for concurrent use.
type trail struct {
	publish     trace.SpanContext
	came        time.Time // when the window got the event
	subscribers int       // how many streams it was for then
	deliveries  atomic.Int64
}

// trails are those of a window's newest sampled events, by ascending sequence.
type trails []trailed

type trailed struct {
	sequence uint64
	*trail
}

// add notes the trail of an event of a stream. Of too many it forgets the oldest.
func (t *trails) add(e eventlog.Entry, stream *chain) {
	if len(*t) == maxTrails {
		*t = slices.Delete(*t, 0, maxTrails/4) // not for each
	}
	*t = append(*t, trailed{e.Sequence, &trail{publish: e.Trace.Span(), came: time.Now(), subscribers: stream.readers + stream.flow.readers}})
}

// of returns the trail of an event, nil when it is forgotten.
func (t trails) of(sequence uint64) *trail {
	i, ok := slices.BinarySearchFunc(t, sequence, func(t trailed, sequence uint64) int {
		switch {
		case t.sequence < sequence:
			return -1
		case t.sequence > sequence:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return t[i].trail
}

// deliver makes a span of the delivery of a sampled event: a child of the publish, with a
// link to the request.
func (s *Service) deliver(r *reader, it *item, by asked) {
	number := it.trail.deliveries.Add(1)
	if number > maxDeliveries {
		return
	}
	begun := it.trail.came
	if by.begun.After(begun) {
		begun = by.begun
	}
	opts := []trace.SpanStartOption{trace.WithTimestamp(begun)}
	if request := trace.SpanContextFromContext(by.ctx); request.IsSampled() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: request}))
	}
	_, span := s.traces.Start(trace.ContextWithSpanContext(context.Background(), it.trail.publish), tracing.NameDeliver, trace.SpanKindConsumer, opts...)
	if span.IsRecording() {
		span.SetAttributes(tracing.Deliver(r.subject(event.Message, it.stream))...)
		span.SetAttributes(tracing.KeyDelivery.Int64(number), tracing.KeySubscribers.Int(it.trail.subscribers), tracing.KeySource.String(it.source()))
	}
	span.End()
}

// source says where an event was read.
func (it *item) source() string {
	if it.segment == ofLog {
		return "log"
	}
	return "window"
}

// resumed reads what a client that came back has missed, in a span of its own.
func (s *Service) resumed(r *reader, by asked, read func() (step, error)) (step, error) {
	_, span := s.traces.Start(by.ctx, tracing.NameResume, trace.SpanKindInternal)
	defer span.End()
	found, err := read()
	if !span.IsRecording() {
		return found, err
	}
	span.SetAttributes(tracing.Resume(r.subject(event.Message, r.place.stream))...)
	span.SetAttributes(tracing.KeyEvents.Int(len(found.items)))
	if len(found.items) > 0 {
		span.SetAttributes(tracing.KeySource.String(found.items[0].source()))
	}
	if len(found.gaps) > 0 {
		span.SetAttributes(tracing.KeyGap.String(string(found.gaps[0].reason)))
	}
	if err != nil {
		tracing.Fail(span)
	}
	return found, err
}

// asks begins the span of what a bridge is asked, which it goes on with. When it is not
// sampled, the bridge gets the client's own trace context.
func (s *Service) asks(by context.Context, call *rpc.Call) trace.Span {
	_, span := s.traces.Start(by, tracing.NameAsk, trace.SpanKindClient)
	if span.IsRecording() {
		span.SetAttributes(tracing.Ask(rpc.Subject(call.Session), call.Session, call.Stream)...)
		call.Trace = tracing.Of(span.SpanContext())
	} else {
		call.Trace = tracing.Read(call.Header.Values)
	}
	return span
}
