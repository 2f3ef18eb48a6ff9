package delivery

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/tracing"
)

// maxDeliveries is how many deliveries of an event an edge makes spans of.
const maxDeliveries = 16

// deliver makes a span of the delivery of a sampled event: a child of the publish, with a
// link to the request.
func (s *Connections) deliver(it *window.Item, by Request) {
	number := it.Trail.Deliveries.Add(1)
	if number > maxDeliveries {
		return
	}
	begun := it.Trail.Came
	if by.Begun.After(begun) {
		begun = by.Begun
	}
	opts := []trace.SpanStartOption{trace.WithTimestamp(begun)}
	if request := trace.SpanContextFromContext(by.Ctx); request.IsSampled() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: request}))
	}
	_, span := s.cfg.Traces.Start(trace.ContextWithSpanContext(context.Background(), it.Trail.Publish), tracing.Deliver.Name, trace.SpanKindConsumer, opts...)
	if span.IsRecording() {
		span.SetAttributes(tracing.Deliver.OnEvent(it.Trail.Subject)...)
		span.SetAttributes(tracing.KeyDelivery.Int64(number), tracing.KeySubscribers.Int(it.Trail.Readers), tracing.KeySource.String(it.Source()))
	}
	span.End()
}
