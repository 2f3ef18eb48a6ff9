package host

import (
	"context"
	"net/http"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"rejoin/shared/rpc"
	"rejoin/shared/tracing"
)

// BeginAnswer begins the span of an edge's request, which the call continues. The repeated
// questions about a call have none.
func (h *Host) BeginAnswer(c *rpc.Ask) (context.Context, trace.Span) {
	ctx := c.Trace.Within(context.Background())
	if c.Action == rpc.Check {
		return ctx, trace.SpanFromContext(ctx)
	}
	ctx, span := h.traces.Start(ctx, tracing.Answer.Name, trace.SpanKindConsumer)
	if span.IsRecording() {
		span.SetAttributes(tracing.Answer.On(rpc.Subject(c.Session), c.Session, c.Stream)...)
		c.Trace = tracing.Of(span.SpanContext())
		if c.Header == nil {
			c.Header = http.Header{}
		}
		c.Trace.Set(c.Header.Set)
	}
	return ctx, span
}

// BeginPost begins the span of a POST to the upstream. It is in header, which the upstream
// gets, unless the client's trace context is not forwarded.
func (h *Host) BeginPost(ctx context.Context, client, header http.Header) trace.Span {
	_, span := h.traces.Continue(ctx, tracing.Read(client.Values), http.MethodPost, trace.SpanKindClient)
	if span.IsRecording() {
		span.SetAttributes(semconv.HTTPRequestMethodPost, semconv.URLFull(h.Config.ShownUpstream()))
		if header.Get(tracing.HeaderParent) != "" {
			tracing.Of(span.SpanContext()).Set(header.Set)
		}
	}
	return span
}

// EndPost ends the span of a POST. resp is nil when there is no response.
func EndPost(span trace.Span, resp *http.Response) {
	if resp != nil {
		span.SetAttributes(semconv.HTTPResponseStatusCode(resp.StatusCode))
	}
	if resp == nil || resp.StatusCode >= http.StatusBadRequest {
		tracing.Fail(span)
	}
	span.End()
}
