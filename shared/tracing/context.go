package tracing

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// The header fields of a W3C trace context, in HTTP, in requests on NATS, and of an event
// in the log.
const (
	HeaderParent = "traceparent"
	HeaderState  = "tracestate"
)

// maxState is how long a tracestate may be, in bytes: as long as W3C Trace Context,
// section 3.3.1.5, wants it passed on.
const maxState = 512

// Context is a W3C trace context as header fields have it. It is comparable; the zero
// value is no context.
type Context struct {
	// Parent is a well-formed traceparent, or empty.
	Parent string
	// State is a tracestate; empty without a Parent.
	State string
}

// parentLen is the length of a traceparent. Of later versions only those of the same form are accepted.
const parentLen = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-00")

// w3c reads and writes the fields.
var w3c propagation.TraceContext

// Read returns the context that header fields hold. One that is not well-formed is ignored,
// as in W3C Trace Context, section 3.2; a tracestate that is too long is left out.
func Read(values func(name string) []string) Context {
	parents := values(HeaderParent)
	if len(parents) != 1 || len(parents[0]) != parentLen {
		return Context{}
	}
	c := Context{Parent: parents[0]}
	if !c.Span().IsValid() {
		return Context{}
	}
	if state := strings.Join(values(HeaderState), ","); len(state) <= maxState && visible(state) {
		c.State = state
	}
	return c
}

// Of returns the context of a span.
func Of(span trace.SpanContext) Context {
	fields := propagation.MapCarrier{}
	w3c.Inject(trace.ContextWithSpanContext(context.Background(), span), fields)
	return Context{fields[HeaderParent], fields[HeaderState]}
}

// Set puts a context into a header, unless it is the zero value.
func (c Context) Set(set func(name, value string)) {
	if c.Parent == "" {
		return
	}
	set(HeaderParent, c.Parent)
	if c.State != "" {
		set(HeaderState, c.State)
	}
}

// Sampled reports whether the maker of the context records its trace.
func (c Context) Sampled() bool { return c.Span().IsSampled() }

// Span returns the context as spans have it. It is not valid when c is the zero value.
func (c Context) Span() trace.SpanContext {
	return trace.SpanContextFromContext(c.Within(context.Background()))
}

// Within returns ctx with c as its span, unless c is the zero value.
func (c Context) Within(ctx context.Context) context.Context {
	if c.Parent == "" {
		return ctx
	}
	return w3c.Extract(ctx, propagation.MapCarrier{HeaderParent: c.Parent, HeaderState: c.State})
}

func visible(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}
