package delivery

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/tracing"
)

// maxDeliveries is how many deliveries of an event an edge makes spans of.
const maxDeliveries = 16

// deliver makes a span of the delivery of a sampled event: a child of the publish, with a
// link to the request.
func (s *Streams) deliver(it *window.Item, by Request) {
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

// resumed reads what a client that came back has missed, in a span of its own.
func (s *Streams) resumed(r *cursor.Reader, by Request, read func() (cursor.Step, error)) (cursor.Step, error) {
	_, span := s.cfg.Traces.Start(by.Ctx, tracing.Resume.Name, trace.SpanKindInternal)
	defer span.End()
	found, err := read()
	if !span.IsRecording() {
		return found, err
	}
	if r.Place.Session != "" { // a connection of several sessions has no subject
		span.SetAttributes(tracing.Resume.OnEvent(r.Subject(event.Message, r.Place.Stream))...)
	}
	span.SetAttributes(tracing.KeyEvents.Int(len(found.Items)))
	if len(found.Items) > 0 {
		span.SetAttributes(tracing.KeySource.String(found.Items[0].Source()))
	}
	if len(found.Gaps) > 0 {
		span.SetAttributes(tracing.KeyGap.String(string(found.Gaps[0].Reason)))
	}
	if err != nil {
		tracing.Fail(span)
	}
	return found, err
}
