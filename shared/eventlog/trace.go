package eventlog

import (
	"context"
	"strconv"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"rejoin/shared/event"
	"rejoin/shared/tracing"
)

// TraceTo has publishes make spans from now on. It is called before the first one.
func (l *Log) TraceTo(t *tracing.Traces) { l.traces = t }

// trace begins the span of a publish, which the event's trace context is that of from then
// on. It is nil, and the context stays the publisher's, when the event is not sampled: so the
// spans of others stay joined when Rejoin takes no traces.
func (l *Log) trace(ctx context.Context, e *Event, p int) trace.Span {
	if !l.traces.On() {
		return nil
	}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = e.Trace.Within(ctx)
	}
	_, span := l.traces.Start(ctx, tracing.NamePublish, trace.SpanKindProducer)
	if !span.SpanContext().IsSampled() {
		return nil
	}
	e.Trace = tracing.Of(span.SpanContext())
	span.SetAttributes(tracing.Publish(event.Subject{Partition: p, Session: e.Session, Life: e.Life, Stream: e.Stream})...)
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
