package tracing

import (
	"context"
	"strings"

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
// value is none.
type Context struct {
	// Parent is a well-formed traceparent, or empty.
	Parent string
	// State is a tracestate; empty without a Parent.
	State string
}

// Read returns the context that header fields hold. One that is not well-formed is none,
// as W3C Trace Context, section 3.2, has it; a tracestate that is too long is left out.
func Read(values func(name string) []string) Context {
	parents := values(HeaderParent)
	if len(parents) != 1 || !valid(parents[0]) {
		return Context{}
	}
	c := Context{Parent: parents[0]}
	if state := strings.Join(values(HeaderState), ","); len(state) <= maxState && visible(state) {
		c.State = state
	}
	return c
}

// Of returns the context of a span.
func Of(span trace.SpanContext) Context {
	if !span.IsValid() {
		return Context{}
	}
	flags := "-00"
	if span.IsSampled() {
		flags = "-01"
	}
	return Context{Parent: "00-" + span.TraceID().String() + "-" + span.SpanID().String() + flags, State: span.TraceState().String()}
}

// Set puts a context into a header, unless it is none.
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
func (c Context) Sampled() bool {
	if c.Parent == "" {
		return false
	}
	return strings.IndexByte("13579bdf", c.Parent[len(c.Parent)-1]) >= 0
}

// Span returns the context as spans have it. It is not valid when c is none.
func (c Context) Span() trace.SpanContext {
	if c.Parent == "" {
		return trace.SpanContext{}
	}
	// What valid has seen can be read.
	traceID, _ := trace.TraceIDFromHex(c.Parent[3:35])
	spanID, _ := trace.SpanIDFromHex(c.Parent[36:52])
	state, _ := trace.ParseTraceState(c.State) // one that cannot be read is empty
	cfg := trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceState: state, Remote: true}
	if c.Sampled() {
		cfg.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(cfg)
}

// Within returns ctx with c as its span, unless c is none.
func (c Context) Within(ctx context.Context) context.Context {
	if c.Parent == "" {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, c.Span())
}

// valid accepts version-traceid-parentid-flags in lower-case hexadecimal. Of later
// versions it accepts only what looks the same.
func valid(t string) bool {
	if len(t) != len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-00") || t[2] != '-' || t[35] != '-' || t[52] != '-' {
		return false
	}
	version, traceID, spanID, flags := t[:2], t[3:35], t[36:52], t[53:]
	for _, part := range []string{version, traceID, spanID, flags} {
		if strings.Trim(part, "0123456789abcdef") != "" {
			return false
		}
	}
	return version != "ff" && strings.Trim(traceID, "0") != "" && strings.Trim(spanID, "0") != ""
}

func visible(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}
