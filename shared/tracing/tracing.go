// Package tracing makes OpenTelemetry spans of the operations on events, and carries their
// W3C trace context from header to header.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Traces takes spans. A nil one is off: it takes no spans, and costs nothing. It is safe for
// concurrent use.
type Traces struct{ tracer trace.Tracer }

// New returns the Traces of a provider, which decides about sampling.
func New(p trace.TracerProvider) *Traces { return &Traces{p.Tracer("rejoin")} }

// On reports whether there may be spans.
func (t *Traces) On() bool { return t != nil }

// Start begins a span, a child of ctx's, which End has to end. Without traces there is no
// span, and ctx stays as it is.
func (t *Traces) Start(ctx context.Context, name string, kind trace.SpanKind, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t == nil {
		return ctx, unseen
	}
	return t.tracer.Start(ctx, name, append(opts, trace.WithSpanKind(kind))...)
}

// Continue is Start for a span that is a child of c's, which is from a header.
func (t *Traces) Continue(ctx context.Context, c Context, name string, kind trace.SpanKind) (context.Context, trace.Span) {
	if t == nil {
		return ctx, unseen
	}
	return t.Start(c.Within(ctx), name, kind)
}

// unseen is the span of callers without traces.
var unseen trace.Span = noop.Span{}
